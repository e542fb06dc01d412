"""`patchwords convert SRC DST --to FORMAT`: weights from one project's format into another's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from patchwords.weights.formats import WeightsFormat

if TYPE_CHECKING:
    from torch import nn

    from patchwords.weights.pretrained import Pretrained


@dataclass(frozen=True)
class ConvertCommand:
    """Convert weights between patchwords, Hugging Face, timm and Google's formats.

    Labels and preprocessing are converted, too, if the format has a place for them. What the other
    program would compute differently is refused with the reason; nothing is silently approximated.

    Example: patchwords convert runs/photos photos-hf --to huggingface

    Example: patchwords convert howto-i21k-B/16 b16 --to patchwords
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]
    """run, model folder, file, hub id (owner/name) or published name (docs/weights.md)"""
    target: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DST")]
    """folder to write; for google a file NAME.npz"""
    to: WeightsFormat
    """format to write; huggingface: for transformers; google: for vision_transformer and
    big_transfer"""
    model: str | None = None
    """architecture, if a file of weights does not name it, such as vit_small_patch16_224; default:
    from SRC"""
    labels: Path | None = None
    """text file with a class name per line; default: the labels of SRC"""
    image_size: tuple[int, ...] | None = None
    """image size in pixels: one number, or height and width; positions are resized to it; default:
    that of SRC"""
    patch_size: int | None = None
    """patch size in pixels; the patch embedding is resized to it by the pseudo-inverse, positions to
    the new grid; default: that of SRC"""
    half: bool = False
    """store float16: half the size, three to four digits; not for google"""
    overwrite: bool = False
    """overwrite DST"""


def run_convert(config: ConvertCommand) -> int:
    from dataclasses import replace

    from patchwords.errors import ConfigError, escape_control_characters
    from patchwords.weights.formats import check_weights_target, format_open_hint
    from patchwords.weights.store import FORMAT_WRITERS, from_pretrained

    if config.half and config.to == "google":
        raise ConfigError("--half: Google's code takes only float32; leave --half out")
    check_weights_target(config.target, config.to, config.overwrite)
    size = config.image_size
    source = from_pretrained(
        config.source,
        architecture=config.model,
        image_size=size * 2 if size is not None and len(size) == 1 else size,
        **({} if config.patch_size is None else {"patch_size": config.patch_size}),
    )
    if (
        config.to != "patchwords"
    ):  # only config.json of patchwords can say that there are no classes
        source.require_classes(config.source)
    if config.labels is not None:
        source = replace(source, labels=read_labels_file(config.labels, source))
    if config.half:
        round_to_float16(source.model, config.source)
    notes = FORMAT_WRITERS[config.to](source, config.target)
    for line in (*source.changes, *notes):
        print(escape_control_characters(f"note: {line}"))
    print(f"{config.target}: {source.architecture or 'a model'} of {len(source.labels):,} classes")
    print(format_open_hint(config.target, config.to))
    return 0


def round_to_float16(model: nn.Module, name: str) -> None:
    """Round the weights to float16 in place; raises WeightsError for one that is too large."""
    import torch

    from patchwords.errors import WeightsError

    largest = torch.finfo(torch.float16).max
    for key, value in model.state_dict().items():
        if not value.abs().max() <= largest:
            raise WeightsError(f"--half: {key} of {name} exceeds {largest:,.0f}: leave --half out")
    model.half()


def read_labels_file(path: Path, source: Pretrained) -> tuple[str, ...]:
    """Read a class name per line, as many as the model has; raises ConfigError."""
    from patchwords.errors import ConfigError

    try:
        names = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--labels {path} cannot be read: {error}") from error
    names = [name.strip() for name in names]
    while names and not names[-1]:
        names.pop()
    for number, name in enumerate(names, 1):
        if not name or name in names[: number - 1]:
            raise ConfigError(f"--labels {path}, line {number}: {name!r} is empty or a duplicate")
    if len(names) != len(source.labels):
        raise ConfigError(
            f"--labels {path} has {len(names)} names for a model of {len(source.labels)} classes"
        )
    return tuple(names)
