"""The tables of `patchwords models` on a terminal, and what their columns mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from patchwords.commands.models import ModelsCommand

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
    """The paper's exaFLOPs beside ours."""
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
