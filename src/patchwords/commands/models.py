"""`patchwords models [PATTERN]`: the models by name, and what each costs."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class Models:
    """List models: tokens, parameters and multiply-adds (MACs) for one image.

    A training step takes about three times the MACs. Any patch size goes: ViT-S/7 is a model, too.

    Example: patchwords models 'ViT-*/16' --image-size 384
    """

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = "*"
    """names to show, with * and ?; or one model's name in any spelling"""
    image_size: tuple[int, ...] | None = None
    """one number, or height and width, in pixels"""
    classes: int = 1000
    """outputs of the head"""
    json: bool = False
    """print JSON"""


def run(config: Models) -> int:
    from patchwords.errors import ConfigError
    from patchwords.model.cost import macs, parameters
    from patchwords.model.variants import list_models, resolve

    names = list_models(config.pattern) or [resolve(config.pattern).name]
    rows: list[dict[str, Any]] = []
    for name in names:
        shape = resolve(name).config.with_settings(num_classes=config.classes)
        if config.image_size is not None:
            size = config.image_size * 2 if len(config.image_size) == 1 else config.image_size
            try:
                shape = shape.with_settings(image_size=size)
            except ConfigError as error:
                if len(names) == 1:
                    raise
                rows.append({"model": name, "note": str(error)})
                continue
        rows.append(
            {
                "model": name,
                "image_size": list(shape.image_size),
                "tokens": shape.tokens,
                "parameters": parameters(shape),
                "macs": macs(shape),
            }
        )
    if config.json:
        print(jsonlib.dumps(rows, indent=1))
    else:
        show(rows)
    return 0


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    for name in ("image", "tokens", "parameters", "GMACs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if "note" in row:
            table.add_row(row["model"], "-", "-", "-", "-")
            continue
        height, width = row["image_size"]
        table.add_row(
            row["model"],
            f"{height}x{width}",
            f"{row['tokens']:,}",
            f"{row['parameters']:,}",
            f"{row['macs'] / 1e9:,.3f}",
        )
    console = Console()
    console.print(table)
    for note in {row["note"] for row in rows if "note" in row}:
        console.print(note, style="dim", markup=False)
