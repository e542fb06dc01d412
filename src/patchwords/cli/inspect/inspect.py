"""`patchwords inspect SRC [IMAGES...]`: what a model has learned, and where it looks."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from patchwords.cli.options import CacheOptions, DeviceOptions
from patchwords.errors import ConfigError
from patchwords.report.inspection_settings import InspectionSettings
from patchwords.training.config import flatten_config


@dataclass(frozen=True)
class InspectCommand(InspectionSettings):
    """Show what a model has learned, and where it looks in photos.

    Without images: the filters of the patch embedding and the similarity of position embeddings.
    With images, for a model with attention: how far each head looks, single heads, Attention
    Rollout, what supports the answer, how similar tokens become over depth, and, by deletion and
    insertion, whether these maps explain the model's answers at all. With --nearest DATA, for any
    model: the training images most similar to each photo. docs/insight.md explains each of them.

    With --explore: a page that opens in a browser without a server.

    Exit code: 0 done, 2 if an image could not be read.

    Example: patchwords inspect runs/photos new/*.jpg --output insight --explore look.html
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")] = field(kw_only=True)
    """run folder, model folder, file of weights or published name"""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")] = ()
    """files, folders and patterns, or one other source of images (CSV, parquet, digits, ...)"""
    json: bool = False
    """print results.json"""
    cache: CacheOptions = field(default_factory=CacheOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)


def run_inspect(config: InspectCommand) -> int:
    """Inspect the model, write and print the results."""
    if config.output is None and config.page.explore is None:
        raise ConfigError(
            "nothing to do: --output FOLDER writes figures and numbers, --explore PAGE.html a page"
        )
    from patchwords.api.inspection import InspectOptions, inspect_with_options
    from patchwords.cli.format import make_console, print_lines
    from patchwords.training.setting_layers import apply_settings

    settings = flatten_config(config)
    for name in ("source", "images", "json"):
        del settings[name]
    options = apply_settings(InspectOptions(), settings)
    numbers = config.output is not None  # else the page alone
    inspection = inspect_with_options(config.source, config.images, options, numbers=numbers)
    for path, reason in inspection.unreadable.items():
        print(f"patchwords: {path}: {reason}", file=sys.stderr)
    if config.json:
        print(jsonlib.dumps(inspection.to_dict()))
    else:
        lines = [*inspection.describe(), f"figures and numbers: {config.output}"] if numbers else []
        if inspection.page is not None:
            lines.append(
                f"page to open in a browser: {inspection.page} ({inspection.page_content})"
            )
        print_lines(make_console(), *lines)
    return 2 if inspection.unreadable else 0
