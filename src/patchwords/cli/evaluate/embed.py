"""`patchwords embed SOURCE DATA --output FILE`: features of images for other programs."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from patchwords.cli.format import make_console, print_lines
from patchwords.cli.options import DataOptions, DeviceOptions
from patchwords.errors import Interrupted

if TYPE_CHECKING:
    from patchwords.evaluation.probes.embed import EmbeddingFile


@dataclass(frozen=True)
class EmbedCommand:
    """Write the features of images to a file: for search, clustering or a classifier elsewhere.

    NAME.npy is an array with a row for each image that can be read, and NAME.csv has path, split
    and label of each row. NAME.parquet has path, split, label and features as columns, for pandas,
    polars or datasets. The split is that of SOURCE's own run, if it was on these images: rows of
    `train` are images that the model was trained on.

    Memory does not grow with the number of images. A command that was stopped goes on where it was
    when it is given again. Under torchrun each process computes a part.

    Example: patchwords embed runs/photos photos/ --output features.parquet
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """run folder, model folder, file of weights, hub id or published name"""
    data: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="DATA")]
    """images: a folder, CSV, parquet, tar shards, hf:NAME or digits; or files and patterns"""
    output: Path
    """file to write: NAME.npy, with NAME.csv next to it, or NAME.parquet"""
    tokens: Literal["classifier", "class", "mean", "patches"] = "classifier"
    """features of an image: what the classifier sees; the class token; the mean of the patch
    tokens; or every patch token, row by row. All after the last norm"""
    overwrite: bool = False
    """overwrite existing files"""
    json: bool = False
    """print what was written as JSON"""
    where: DeviceOptions = field(default_factory=DeviceOptions)
    read: DataOptions = field(default_factory=DataOptions)


def run_embed(config: EmbedCommand) -> int:
    """Compute and write the features, print what is in the file."""
    from patchwords.api.probes import embed
    from patchwords.distributed import is_main_process

    try:
        file = embed(
            config.source,
            config.data,
            config.output,
            tokens=config.tokens,
            overwrite=config.overwrite,
            **vars(config.where),
            **vars(config.read),
        )
    except KeyboardInterrupt as error:
        raise Interrupted("stopped; the same command goes on where it was") from error
    if is_main_process():
        if config.json:
            print(jsonlib.dumps(file.to_dict()))
        else:
            print_lines(make_console(), *describe_embedding(file))
    return 0


def describe_embedding(file: EmbeddingFile) -> list[str]:
    """Describe what was written, in lines."""
    shape = " x ".join(f"{size:,}" for size in (file.images, *file.shape))
    kind = {"classifier": "features", "class": "class tokens", "mean": "means of patch tokens"}
    lines = [f"{file.path}: {shape} {kind.get(file.tokens, 'patch tokens')} of {file.model}"]
    if file.ids is not None:
        lines.append(f"{file.ids}: path, split and label of each row")
    if file.skipped:
        path, reason = file.skipped[0]
        lines.append(f"{len(file.skipped):,} images cannot be read, the first: {path} ({reason})")
    return lines
