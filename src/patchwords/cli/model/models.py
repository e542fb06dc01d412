"""`patchwords models [PATTERN]`: the models by name, and what each costs."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from patchwords.errors import ConfigError
from patchwords.training.config import ModelSettings

if TYPE_CHECKING:
    from patchwords.models.build import ModelConfig


ModelRow = dict[str, Any]  # of the output: what --json prints of one model

BYTES_PER_VALUE = {"fp32": 4, "bf16": 2}  # of a value between two matrix products


@dataclass(frozen=True)
class ModelsCommand:
    """List models: tokens, parameters, multiply-adds (MACs) per image, memory of training.

    PATTERN is a glob over names ('R50+*'), or one model in any spelling, whose parts are then
    listed, too. More names than those listed work: any patch size (ViT-S/7), any ResNet (R14, R26,
    R50, R101, R152, R200) with any ViT (R101+ViT-H/32), any width factor (BiT-R50x4), and the
    settings below.

    Example: patchwords models 'ViT-*/16' --image-size 384 --batch-size 256 --precision bf16

    Example: patchwords models R50+ViT-B/16 --train-images 2.1e9
    """

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = "*"
    """names to list, with * and ?, or one model in any spelling"""
    classes: int = 1000
    """number of classes of the head"""
    batch_size: int = 32
    """images per batch, for the memory of activations in training"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """precision of matrix products, for the memory"""
    train_images: float | None = None
    """also show the FLOPs of training on this number of images, repeats counted, such as 2.1e9 (7
    epochs of 303e6); default: no"""
    table6: bool = False
    """compare with the training cost in the paper's Table 6"""
    json: bool = False
    """print JSON"""
    model_settings: ModelSettings = field(default_factory=ModelSettings)


def run_models(config: ModelsCommand) -> int:

    check_models(config)
    rows = list_table6_rows(config) if config.table6 else list_model_rows(config)
    if config.json:
        print(jsonlib.dumps(rows, indent=1))
    elif config.table6:
        print_table6(rows)
    else:
        print_models(rows, config)
    return 0


def check_models(config: ModelsCommand) -> None:
    """Refuse numbers that mean nothing, and flags that would change nothing."""
    for name in ("classes", "batch_size", "train_images"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"--{name.replace('_', '-')} {value:g} must be greater than 0")
    alone = ModelsCommand(pattern=config.pattern, table6=True, json=config.json)
    if config.table6 and config != alone:
        raise ConfigError(
            "--table6 is of the paper's models as they were trained: beside it only PATTERN and "
            "--json have a meaning"
        )


def list_model_rows(config: ModelsCommand) -> list[ModelRow]:
    """One row for each model; where several are asked for, one that is refused has a note."""
    from patchwords.models.zoo import list_models, resolve_model

    names = list_models(config.pattern)
    if not names:
        variant = resolve_model(config.pattern)
        return [
            make_model_row(variant.name, adjust_config(variant.config, config), config, alone=True)
        ]
    rows: list[ModelRow] = []
    for name in names:
        try:
            shape = adjust_config(resolve_model(name).config, config)
        except ConfigError as error:
            if len(names) == 1:
                raise
            rows.append({"model": name, "note": str(error)})
            continue
        rows.append(make_model_row(name, shape, config, alone=len(names) == 1))
    return rows


def adjust_config(shape: ModelConfig, config: ModelsCommand) -> ModelConfig:
    """The named model with the settings that were asked for. Raises ConfigError."""
    asked = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    if size := asked.get("image_size"):
        asked["image_size"] = size * 2 if len(size) == 1 else size
    return shape.with_settings(num_classes=config.classes, **asked)


def make_model_row(name: str, shape: ModelConfig, config: ModelsCommand, alone: bool) -> ModelRow:
    """A model's row; with its parts if it is the only one."""
    from patchwords.models.config import ViTConfig
    from patchwords.models.cost import (
        compute_training_flops,
        count_macs,
        count_parameters,
        estimate_activation_bytes,
        group_part_costs,
    )

    row: ModelRow = {
        "model": name,
        "image_size": list(shape.image_size),
        "tokens": shape.tokens if isinstance(shape, ViTConfig) else None,
        "grid": list(shape.grid),
        "parameters": count_parameters(shape),
        "macs": count_macs(shape),
        "activation_bytes": estimate_activation_bytes(
            shape, config.batch_size, None, BYTES_PER_VALUE[config.precision]
        ),
    }
    if config.train_images is not None:
        row["training_flops"] = compute_training_flops(row["macs"], config.train_images)
    if alone:
        row["parts"] = [
            {
                "part": part,
                "count": len(same),
                "parameters": sum(one.parameters for one in same),
                "macs": sum(one.macs for one in same),
            }
            for part, same in group_part_costs(shape).items()
        ]
    return row


def list_table6_rows(config: ModelsCommand) -> list[ModelRow]:
    """Print Table 6 of the paper next to our count."""
    from patchwords.models.zoo import list_models, resolve_model
    from patchwords.planning.table6 import TABLE6

    names = list_models(config.pattern) or [resolve_model(config.pattern).name]
    rows = [
        {
            "model": row.model,
            "epochs": row.epochs,
            "exaflops_printed": row.exaflops,
            "exaflops_counted": row.counted(),
            "doubt": row.doubt or None,
        }
        for row in TABLE6
        if row.model in names
    ]
    if not rows:
        known = ", ".join(dict.fromkeys(row.model for row in TABLE6))
        raise ConfigError(f"Table 6 has no {' or '.join(names)}; it has {known}")
    return rows


# The tables of `patchwords models` on a terminal, and what their columns mean.


ModelTableRow = dict[str, Any]
GB, EXA = 1e9, 1e18
MAX_NOTE_MODELS = 3  # models that a note names, at most


def print_models(rows: list[ModelTableRow], asked: ModelsCommand) -> None:
    """The models, the parts where there is one model, the legend, the notes."""
    console = Console()
    console.print(make_models_table(rows, asked.train_images is not None))
    if len(rows) == 1:
        console.print()
        console.print(make_parts_table(rows[0]))
    console.print()
    for line in [*format_legend(asked), *format_model_notes(rows)]:
        console.print(line, style="dim", markup=False, highlight=False)


def format_legend(asked: ModelsCommand) -> list[str]:
    """What the columns mean, and with which settings the models are others than their names say."""
    settings = {
        name: value for name, value in vars(asked.model_settings).items() if value is not None
    }
    settings.pop("image_size", None)  # has a column
    lines = [
        "GMACs: 1e9 multiply-adds, of one image; FLOPs are twice as many.",
        f"activations: kept by a training step on {asked.batch_size:,} images in "
        f"{asked.precision}, beside the weights.",
    ]
    if asked.train_images is not None:
        lines.append(
            f"exaFLOPs: of training on {asked.train_images:,.0f} images, 6 x MACs x images / 1e18."
        )
    if settings:
        told = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines.insert(0, f"Models as named, but with {told}.")
    return lines


def make_models_table(rows: list[ModelTableRow], training: bool) -> Table:
    """A row for each model. A ResNet has no tokens, but a feature map."""
    numbers = ["image", "tokens", "parameters", "GMACs", "activations"]
    table = _table("model", *numbers, *(["exaFLOPs"] if training else []))
    for row in rows:
        if "note" in row:
            table.add_row(row["model"], *"-" * (len(table.columns) - 1))
            continue
        tokens = _format_sides(row["grid"]) if row["tokens"] is None else f"{row['tokens']:,}"
        table.add_row(
            row["model"],
            _format_sides(row["image_size"]),
            tokens,
            f"{row['parameters']:,}",
            f"{row['macs'] / 1e9:,.3f}",
            f"{row['activation_bytes'] / GB:,.2f} GB",
            *([format_significant(row["training_flops"] / EXA)] if training else []),
        )
    return table


def make_parts_table(row: ModelTableRow) -> Table:
    """Where a model's parameters and products are."""
    table = _table("part", "parameters", "share", "GMACs", "share ")
    for part in row["parts"]:
        times = f" x{part['count']}" if part["count"] > 1 else ""
        table.add_row(
            part["part"] + times,
            f"{part['parameters']:,}",
            f"{part['parameters'] / row['parameters']:.1%}",
            f"{part['macs'] / 1e9:,.3f}",
            f"{part['macs'] / row['macs']:.1%}",
        )
    return table


def print_table6(rows: list[ModelTableRow]) -> None:
    """The paper's exaFLOPs next to ours."""
    console = Console()
    table = _table("model", "epochs", "paper", "counted", "counted / paper", "")
    doubts = []
    for row in rows:
        printed, counted = row["exaflops_printed"], row["exaflops_counted"]
        mark = "*" if row["doubt"] else ""
        table.add_row(
            row["model"],
            str(row["epochs"]),
            f"{printed:,}",
            f"{counted:,.1f}",
            f"{counted / printed:.3f}",
            mark,
        )
        doubts += [f"* {printed:,} is a slip: {row['doubt']}."] if row["doubt"] else []
    console.print(table)
    console.print()
    legend = "exaFLOPs of Table 6: 6 x MACs x epochs x 303e6 images / 1e18, at 224x224 pixels."
    for line in [legend, *doubts]:
        console.print(line, style="dim", markup=False, highlight=False)


def format_model_notes(rows: list[ModelTableRow]) -> list[str]:
    """Why models are without numbers, each reason once, with the models that have it."""
    why: dict[str, list[str]] = {}
    for row in rows:
        if "note" in row:
            why.setdefault(row["note"], []).append(row["model"])
    return [f"{', '.join(_first(models))}: {note}" for note, models in why.items()]


def format_significant(value: float) -> str:
    """Four digits, without an exponent.

    >>> format_significant(4262.04), format_significant(0.0123456), format_significant(123456.7)
    ('4,262', '0.01235', '123,457')
    """
    if value >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return f"{value:.8f}".rstrip("0") if "e" in text else text


def _first(names: list[str]) -> list[str]:
    if len(names) <= MAX_NOTE_MODELS + 1:
        return names
    return [*names[:MAX_NOTE_MODELS], f"and {len(names) - MAX_NOTE_MODELS} more"]


def _format_sides(sides: list[int]) -> str:
    return f"{sides[0]}x{sides[1]}"


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
