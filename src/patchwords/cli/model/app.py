"""`patchwords app RUN`: a page on this machine to play with a trained model; the same by HTTP."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from patchwords.cli.options import CacheOptions
from patchwords.device import DeviceName, InferencePrecision

if TYPE_CHECKING:
    from patchwords.data.dataset import ImageDataset


@dataclass(frozen=True)
class AppCommand:
    """Open a local web page to try a trained model on photos.

    On the page: paint patches away, shuffle the photo, change its size, and see how the prediction
    changes; see the nearest training photos. Programs send photos to POST /predict; /docs on the
    page describes it. Photos are not stored.

    Example: patchwords app runs/photos

    Example: curl --form file=@new.jpg http://127.0.0.1:7860/predict
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """run folder or model folder"""
    data: str | None = None
    """images to search for the nearest photos; default: the images that the run was trained on"""
    port: int = 7860
    """port of the page; 0: any free port"""
    host: str = "127.0.0.1"
    """address to listen on; 127.0.0.1 is reachable from this machine only"""
    device: DeviceName = "auto"
    """device to compute on; auto: a GPU if there is one"""
    precision: InferencePrecision = "fp32"
    """precision of matrix products; auto: bf16 where it is fast; int8: on a CPU, after `patchwords
    calibrate`"""
    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    label_column: str | None = None
    """column with the labels, in a CSV or parquet table; default: found by name and type"""
    cache: CacheOptions = field(default_factory=CacheOptions)


def run_app(config: AppCommand) -> int:
    """Serve the page until it is stopped."""
    from patchwords.app.server import require_app_packages

    require_app_packages()
    from patchwords.app.middleware import LOOPBACK_HOSTS, AppLimits
    from patchwords.app.neighbours import NeighbourSearch
    from patchwords.app.server import (
        create_app,
        format_socket_url,
        is_loopback_socket,
        open_listening_socket,
        serve_app,
    )
    from patchwords.app.service import PredictionService
    from patchwords.device import choose_device
    from patchwords.evaluation.predictions import load_model_on_device

    sock = open_listening_socket(
        config.host, config.port
    )  # before the model, which takes a while to load
    try:
        device = choose_device(config.device, config.precision)
        subject = load_model_on_device(config.run, device, workers=0)
        subject.source.require_classes(config.run)
        examples, reason = find_neighbour_photos(config)
        limits = AppLimits()
        neighbours = NeighbourSearch(subject, examples, config.cache.open(), reason)
    except BaseException:
        sock.close()
        raise
    service = PredictionService(subject, neighbours, limits)
    local = is_loopback_socket(sock)
    if not local:
        print_status(
            f"warning: anyone who can reach {config.host} can use this page; there is no password"
        )
    app = create_app(service, (*LOOPBACK_HOSTS, config.host.lower()) if local else None)
    neighbours.start()
    print(f"{config.run} answers at {format_socket_url(sock)}   (Ctrl-C stops it)", flush=True)
    try:
        serve_app(app, sock, limits)
    finally:
        service.close()
    print("stopped", flush=True)
    return 0


def find_neighbour_photos(config: AppCommand) -> tuple[ImageDataset | None, str]:
    """Find the photos to search for neighbours; -> (photos, "") or (None, the reason).

    Raises DataError for --data that cannot be read; missing data of the run are no error.
    """
    from patchwords.errors import PatchwordsError
    from patchwords.report.run_data import DataRequest

    request = DataRequest(
        config.run, "--data", config.data, config.image_column, config.label_column
    )
    try:
        data = request.open()
        if data is None:
            reason = "the training images of the model are not recorded: give them by --data"
            return None, reason
        return request.select_training(data)[0], ""
    except PatchwordsError as error:
        if config.data is not None:
            raise
        print_status(f"without nearest photos: {error}")
        return None, str(error)


def print_status(line: str) -> None:
    print(f"patchwords: {line}", file=sys.stderr)
