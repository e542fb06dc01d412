"""`patchwords app RUN`: a page on this machine to play with a trained model; the same by HTTP."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from patchwords.commands.frozen import Cache
from patchwords.device import AnswerPrecision, DeviceName

if TYPE_CHECKING:
    from patchwords.data.examples import Examples


@dataclass(frozen=True)
class App:
    """A page to play with a trained model: drop a photo, see what it says and where it looked.

    RUN is a run folder or a model folder. Paint patches away, shuffle the photo, change its size,
    and watch the answer move; see the nearest training photos. Programs ask by POST /predict, as
    /docs of the page explains. Nothing that is dropped there is kept.

    Example: patchwords app runs/photos

    Example: curl --form file=@new.jpg http://127.0.0.1:7860/predict
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """a run folder or a model folder"""
    data: str | None = None
    """where to look for the nearest photos; none given: the images that the run trained on"""
    port: int = 7860
    """where the page is; 0 is any port that is free"""
    host: str = "127.0.0.1"
    """address to listen on; the default is reached from this machine only"""
    device: DeviceName = "auto"
    """where to compute"""
    precision: AnswerPrecision = "fp32"
    """of matrix products; auto: bf16 where it is fast; int8: a CPU, after patchwords calibrate"""
    image_column: str | None = None
    """column of a CSV or parquet that has the images"""
    label_column: str | None = None
    """column of a CSV or parquet that has the labels"""
    cache: Cache = field(default_factory=Cache)


def run(config: App) -> int:
    """Serve until told to stop."""
    from patchwords.app.packages import require

    require()
    from patchwords.app.desk import Desk
    from patchwords.app.door import LOOPBACK
    from patchwords.app.limits import Limits
    from patchwords.app.neighbours import Neighbours
    from patchwords.app.serve import is_loopback, listen, serve, url
    from patchwords.app.server import create_app
    from patchwords.device import choose_device
    from patchwords.evaluate.subject import load_subject

    sock = listen(config.host, config.port)  # first: to load a model takes a while
    try:
        device = choose_device(config.device, config.precision)
        subject = load_subject(config.run, device, workers=0)
        subject.source.require_classes(config.run)
        examples, reason = find_photos(config)
        limits = Limits()
        neighbours = Neighbours(subject, examples, config.cache.open(), reason)
    except BaseException:
        sock.close()
        raise
    desk = Desk(subject, neighbours, limits)
    local = is_loopback(sock)
    if not local:
        say(f"warning: whoever reaches {config.host} can use this page; there is no password")
    app = create_app(desk, (*LOOPBACK, config.host.lower()) if local else None)
    neighbours.start()
    print(f"{config.run} answers at {url(sock)}   (Ctrl-C stops it)", flush=True)
    try:
        serve(app, sock, limits)
    finally:
        desk.close()
    print("stopped", flush=True)
    return 0


def find_photos(config: App) -> tuple[Examples | None, str]:
    """Where to look for the nearest: (photos, ""), or (None, why there are none).

    Raises DataError for --data that cannot be read; data of the run that are gone are no error.
    """
    from patchwords.commands.training_images import Wanted
    from patchwords.errors import PatchwordsError

    wanted = Wanted(config.run, "--data", config.data, config.image_column, config.label_column)
    try:
        data = wanted.open()
        if data is None:
            reason = "the model does not say which images it was trained on: name them by --data"
            return None, reason
        return wanted.training(data)[0], ""
    except PatchwordsError as error:
        if config.data is not None:
            raise
        say(f"without nearest photos: {error}")
        return None, str(error)


def say(line: str) -> None:
    print(f"patchwords: {line}", file=sys.stderr)
