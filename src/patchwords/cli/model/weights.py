"""`patchwords weights [PATTERN]`: published weights that load by name."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from patchwords.weights.published import PublishedWeights


@dataclass(frozen=True)
class WeightsCommand:
    """List published weights: name for --weights, size, licence, published accuracy.

    PATTERN is a glob over names and architectures. More names than those listed load: any AugReg
    file, any repository of a known kind on the Hugging Face hub (docs/weights.md). A column is
    empty where the authors say nothing.

    Example: patchwords weights 'ViT-S/16'

    Example: patchwords weights '*dino*' --json
    """

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = "*"
    """names or architectures to list, with * and ?"""
    json: bool = False
    """print JSON"""


def run_weights(config: WeightsCommand) -> int:
    from patchwords.errors import ConfigError, did_you_mean
    from patchwords.weights.published import PUBLISHED_WEIGHTS, list_weights

    rows = list_weights(config.pattern)
    if not rows:
        names = [name for row in PUBLISHED_WEIGHTS for name in (row.name, row.architecture)]
        raise ConfigError(
            f"no published weights match {config.pattern!r}"
            f"{did_you_mean(config.pattern, names) or '; put * around a part of a name'}"
        )
    if config.json:
        print(jsonlib.dumps([row.to_dict() for row in rows], indent=1))
    else:
        print_weights(rows)
    return 0


MAX_TABLE_WIDTH = 1000  # characters


def print_weights(rows: list[PublishedWeights]) -> None:
    """Print a row per weights, and what the columns mean."""
    from rich.console import Console
    from rich.measure import Measurement

    from patchwords.cli.format import format_bytes, make_table, print_lines
    from patchwords.report.format import format_compact

    table = make_table("weights", "image", "parameters", "download", "here", "accuracy")
    for title in ("of what", "licence"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            str(row.image_size),
            format_compact(row.parameters),
            "" if row.download_bytes is None else format_bytes(row.download_bytes),
            "yes" if row.cached else "",
            "" if row.accuracy is None else f"{row.accuracy:.1f} %",
            row.protocol,
            row.licence or "",
        )
    # As wide as the table needs: a name that was cut could not be copied.
    wide = Console(width=MAX_TABLE_WIDTH)
    console = Console(width=Measurement.get(wide, wide.options, table).maximum)
    console.print(table)
    print_lines(
        console,
        "",
        "parameters: without the classifier. here: in the cache of this machine, or installed.",
        "Accuracies are the authors' or timm's, not measured here; no licence: see the authors' page.",
    )
