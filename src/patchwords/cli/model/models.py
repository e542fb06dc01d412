"""`patchwords models [PATTERN]`: the models by name, and what each costs."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from patchwords.cli.format import make_table
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
    """Refuse numbers below 1, and flags that would change nothing."""
    for name in ("classes", "batch_size", "train_images"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"--{name.replace('_', '-')} {value:g} must be greater than 0")
    plain = ModelsCommand(pattern=config.pattern, table6=True, json=config.json)
    if config.table6 and config != plain:
        raise ConfigError(
            "--table6 shows the paper's models as they were trained: only PATTERN and --json go "
            "with it"
        )


def list_model_rows(config: ModelsCommand) -> list[ModelRow]:
    """List a row per model; of several models, one that is refused has a note."""
    from patchwords.models.zoo import list_models, resolve_model

    names = list_models(config.pattern)
    if not names:
        variant = resolve_model(config.pattern)
        return [
            make_model_row(
                variant.name, adjust_config(variant.config, config), config, with_parts=True
            )
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
        rows.append(make_model_row(name, shape, config, with_parts=len(names) == 1))
    return rows


def adjust_config(shape: ModelConfig, config: ModelsCommand) -> ModelConfig:
    """Apply the settings of the command line to a named model; raises ConfigError."""
    settings = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    if size := settings.get("image_size"):
        settings["image_size"] = size * 2 if len(size) == 1 else size
    return shape.with_settings(num_classes=config.classes, **settings)


def make_model_row(
    name: str, shape: ModelConfig, config: ModelsCommand, with_parts: bool
) -> ModelRow:
    """Make the row of a model, with its parts if it is the only one."""
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
    if with_parts:
        row["parts"] = [
            {
                "part": part,
                "count": len(costs),
                "parameters": sum(cost.parameters for cost in costs),
                "macs": sum(cost.macs for cost in costs),
            }
            for part, costs in group_part_costs(shape).items()
        ]
    return row


def list_table6_rows(config: ModelsCommand) -> list[ModelRow]:
    """List the rows of the paper's Table 6 with our count."""
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


GB, EXA = 1e9, 1e18
MAX_NOTE_MODELS = 3  # models that a note names, at most


def print_models(rows: list[ModelRow], config: ModelsCommand) -> None:
    """Print the models (the parts of a single one), the legend and the notes."""
    console = Console()
    console.print(make_models_table(rows, config.train_images is not None))
    if len(rows) == 1:
        console.print()
        console.print(make_parts_table(rows[0]))
    console.print()
    for line in [*format_legend(config), *format_model_notes(rows)]:
        console.print(line, style="dim", markup=False, highlight=False)


def format_legend(config: ModelsCommand) -> list[str]:
    """Explain the columns, and name the settings that differ from the models' names."""
    settings = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    settings.pop("image_size", None)  # has a column
    lines = [
        "GMACs: 1e9 multiply-adds, of one image; FLOPs are twice as many.",
        f"activations: kept by a training step on {config.batch_size:,} images in "
        f"{config.precision}, in addition to the weights.",
    ]
    if config.train_images is not None:
        lines.append(
            f"exaFLOPs: of training on {config.train_images:,.0f} images, 6 x MACs x images / 1e18."
        )
    if settings:
        changes = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines.insert(0, f"Models as named, with {changes}.")
    return lines


def make_models_table(rows: list[ModelRow], training: bool) -> Table:
    """Make a row per model; a ResNet has a feature map instead of tokens."""
    numbers = ["image", "tokens", "parameters", "GMACs", "activations"]
    table = make_table("model", *numbers, *(["exaFLOPs"] if training else []))
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


def make_parts_table(row: ModelRow) -> Table:
    """Make a table of the parameters and multiply-adds of each part."""
    table = make_table("part", "parameters", "share", "GMACs", "share ")
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


def print_table6(rows: list[ModelRow]) -> None:
    """Print the paper's exaFLOPs next to ours."""
    console = Console()
    table = make_table("model", "epochs", "paper", "counted", "counted / paper", "")
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


def format_model_notes(rows: list[ModelRow]) -> list[str]:
    """List the reasons why models have no numbers, each with its models."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if "note" in row:
            reasons.setdefault(row["note"], []).append(row["model"])
    return [f"{', '.join(_first(models))}: {note}" for note, models in reasons.items()]


def format_significant(value: float) -> str:
    """Format a number with four digits, without an exponent.

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
