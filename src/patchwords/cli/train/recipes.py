"""`patchwords recipes [PATTERN]`: the published recipes by name, and one whole."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from patchwords.training.recipes.row import Recipe


DEFAULT_COST_MODEL = "ViT-B/16"  # whose cost is told where a recipe is for any model


@dataclass(frozen=True)
class RecipesCommand:
    """List published training recipes, or show one: its source, every setting, and its cost.

    The recipes are those of the ViT paper, of its authors' code, of AugReg ("How to train your
    ViT?"), of "Better plain ViT baselines" and of BiT. `patchwords pretrain` and `patchwords
    finetune` follow one by --recipe NAME, and scale it down by --scale.

    Example: patchwords recipes 'augreg-medium1*'

    Example: patchwords recipes vit-b16-imagenet21k
    """

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = "*"
    """names to list, with * and ?; a single name shows the whole recipe"""
    json: bool = False
    """print JSON, with every setting"""


def run_recipes(config: RecipesCommand) -> int:
    from patchwords.training.recipes import find_recipe, match_recipes

    rows = match_recipes(config.pattern) or [find_recipe(config.pattern)]
    if config.json:
        print(jsonlib.dumps([recipe_to_dict(row) for row in rows], indent=1, allow_nan=False))
    elif len(rows) == 1:
        print_recipe(recipe_to_dict(rows[0]))
    else:
        print_recipe_list(rows)
    return 0


def recipe_to_dict(row: Recipe) -> dict[str, Any]:
    """Describe a recipe for JSON; clip is null if gradients are not clipped."""
    from patchwords.training.recipes.published import list_published_results

    kind, amount = row.length
    return {
        "recipe": row.name,
        "source": row.source,
        "model": row.model,
        "data": row.data.name,
        "images": row.data.images,
        "classes": row.data.classes,
        kind: amount,
        "batch_size": row.batch_size,
        "lr": row.lr,
        "lr_tried": list(row.rates),
        "lr_scales_with_batch": row.scaling,
        "warmup_steps": row.warmup_steps,
        "settings": {name: _plain(value) for name, value in row.settings.items()},
        "note": row.note,
        "command": format_recipe_command(row),
        "updates": row.steps,
        "images_seen": round(row.images_seen),
        "cost_of": row.model or DEFAULT_COST_MODEL,
        "training_flops": recipe_exaflops(row),
        "published": [asdict(result) for result in list_published_results(row.name)],
    }


def format_recipe_command(row: Recipe) -> str:
    """Format the command that trains by a recipe."""
    if row.finetunes:
        return f"patchwords finetune DATA --weights WEIGHTS --recipe {row.name}"
    return f"patchwords pretrain DATA --recipe {row.name}"


def recipe_exaflops(row: Recipe) -> float:
    """Operations of the whole training on the recipe's own data, in the unit of Table 6.

    The prediction layer of masked patches, a thousandth of it, is left out. Of a masked
    autoencoder the encoder sees the visible part of the image, and the decoder all of it.
    """
    from patchwords.models.config import ViTConfig
    from patchwords.models.cost import compute_training_flops, count_macs
    from patchwords.models.pretraining.mae import make_decoder_config
    from patchwords.models.zoo import resolve_model

    shape = resolve_model(row.model or DEFAULT_COST_MODEL).config
    (size,) = row.settings["image_size"]
    macs = 0
    if row.settings.get("objective") == "mae" and isinstance(shape, ViTConfig):
        width, depth = row.settings["decoder_width"], row.settings["decoder_depth"]
        decoder = make_decoder_config(shape, width, depth)
        macs = count_macs(decoder.with_settings(image_size=(size, size)))
        size = round(size * math.sqrt(1 - row.settings["mask_ratio"]))
    settings: dict[str, Any] = {"image_size": (size, size), "num_classes": row.data.classes or 1}
    if isinstance(shape, ViTConfig):
        for name in ("classifier", "position"):
            if name in row.settings:
                settings[name] = row.settings[name]
        if row.settings.get("head") == "tanh":
            settings["representation_size"] = shape.width
    macs += count_macs(shape.with_settings(**settings))
    return compute_training_flops(macs, row.images_seen)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and math.isinf(value) else value


LIST_WIDTH = 100  # columns of the list
# What the trainer adds to a name: training/engine/optimizer.py and training/plan.py.
VALUE_MEANINGS = {
    ("optimizer", "adamw"): "Adam, betas 0.9 and 0.999, decoupled weight decay",
    ("optimizer", "sgd"): "momentum 0.9, decoupled weight decay",
    ("schedule", "cosine"): "to 0",
    ("schedule", "linear"): "to 0.00001",
    ("schedule", "staircase"): "to a tenth after each of the drops",
    ("clip", None): "gradients are not clipped",
    ("resize", "crop"): "in evaluation: the short side, then the centre",
    ("resize", "squash"): "in evaluation: both sides, without regard to the aspect",
}
SETTING_UNITS = {
    "batch_size": "images an update",
    "warmup_steps": "steps, linear from 0",
    "weight_decay": "times the learning rate, on kernels alone",
    "clip": "largest norm of the gradient",
    "image_size": "pixels",
    "crop_area": "share of the image, in an inception crop",
    "crop_ratio": "width / height",
    "random_crop": "share of the sides, at a random place; instead of the inception crop",
    "randaugment": "layers, magnitude",
    "crop_fraction": "share of the short side that is kept",
    "ema": "decay of a running average of the weights",
}


def print_recipe_list(rows: list[Recipe]) -> None:
    """Print a line per recipe, grouped by source."""
    console = Console()
    console.width = max(console.width, LIST_WIDTH)  # names must not be cut short
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("recipe", "model", "data"):
        table.add_column(name, no_wrap=True)
    for name in ("length", "lr", "decay"):
        table.add_column(name, justify="right", no_wrap=True)
    for source, group in groupby(rows, key=lambda row: row.source):
        table.add_row(source, style="dim")
        for row in group:
            kind, amount = row.length
            table.add_row(
                f"  {row.name}",
                row.model or "any",
                row.data.name,
                f"{amount:,} {kind}",
                f"{row.lr:g}",
                f"{row.settings['weight_decay']:g}",
            )
    console.print(table)
    console.print()
    for line in (
        "length: on the recipe's own data. lr: peak learning rate. decay: weight decay, x lr.",
        "All settings of a recipe, its command and its cost: patchwords recipes NAME",
    ):
        console.print(line, style="dim", markup=False, highlight=False)


def print_recipe(recipe: dict[str, Any]) -> None:
    """Print a recipe: all settings, its cost, published accuracies and its command."""
    from patchwords.training.recipes.published import list_published_results

    console = Console()
    title = f"{recipe['recipe']}: {recipe['source']}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    for name, value, meaning in list_recipe_settings(recipe):
        table.add_row(name, value, meaning)
    console.print(table)
    console.print()
    for result in list_published_results(recipe["recipe"]):
        console.print(f"Published: {result}.", markup=False, highlight=False, soft_wrap=True)
    if recipe["published"]:
        console.print()
    if recipe["note"]:
        console.print(f"Note: {recipe['note']}.", markup=False, highlight=False)
        console.print()
    console.print(f"Run it: {recipe['command']}", markup=False, highlight=False, soft_wrap=True)


def list_recipe_settings(recipe: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List (name, value, meaning) of every setting."""
    kind = "epochs" if "epochs" in recipe else "steps"
    rates = " ".join(f"{rate:g}" for rate in recipe["lr_tried"])
    classes = "" if recipe["classes"] is None else f", {recipe['classes']:,} classes"
    amounts = {
        "data": (recipe["data"], f"{recipe['images']:,} images{classes}"),
        "model": (recipe["model"] or "any", ""),
        kind: (
            f"{recipe[kind]:,}",
            f"{recipe['updates']:,} updates on its data, {recipe['images_seen']:,} images seen",
        ),
        "batch_size": (f"{recipe['batch_size']:,}", SETTING_UNITS["batch_size"]),
        "lr": (f"{recipe['lr']:g}", f"one of {rates}" if len(recipe["lr_tried"]) > 1 else ""),
        "warmup_steps": (f"{recipe['warmup_steps']:,}", SETTING_UNITS["warmup_steps"]),
    }
    settings = {
        name: (
            _format_value(value),
            VALUE_MEANINGS.get((name, _hashable(value)), SETTING_UNITS.get(name, "")),
        )
        for name, value in recipe["settings"].items()
    }
    exaflops = f"{recipe['training_flops'] / 1e18:,.4g}"
    unit = f"6 x MACs x images seen / 1e18, of {recipe['cost_of']} on its data"
    cost = {"exaFLOPs": (exaflops, unit)}
    return [(name, *row) for name, row in {**amounts, **settings, **cost}.items()]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _format_value(value: Any) -> str:
    """Format a setting as on the command line.

    >>> _format_value([0.05, 1.0]), _format_value(True), _format_value(None), _format_value(6 / 7)
    ('0.05 1', 'yes', 'none', '0.8571')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(_format_value(part) for part in value)
    if value is None:
        return "none"
    if isinstance(value, float | int):
        assert math.isfinite(value)
        return f"{value:.4g}"
    return str(value)
