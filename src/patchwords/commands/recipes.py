"""`patchwords recipes [PATTERN]`: the published recipes by name, and one whole."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from patchwords.train.recipe_row import Recipe

DEFAULT_COST_MODEL = "ViT-B/16"  # whose cost is told where a recipe is for any model


@dataclass(frozen=True)
class RecipesCommand:
    """List published recipes, or show one whole: its source, every setting, and what it costs.

    PATTERN is a glob over names ('vit-b16-*', '*cifar10*'); a single name shows the recipe whole.

    The recipes are those of the ViT paper, of its authors' code, of AugReg ("How to train your
    ViT?"), of "Better plain ViT baselines" and of BiT. `patchwords pretrain` and `patchwords
    finetune` take them by --recipe NAME, and with --scale do a miniature.

    Example: patchwords recipes 'augreg-medium1*'

    Example: patchwords recipes vit-b16-imagenet21k
    """

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = "*"
    """names to show, with * and ?"""
    json: bool = False
    """print JSON, every recipe whole"""


def run_recipes(config: RecipesCommand) -> int:
    from patchwords.commands.recipes_summary import print_recipe, print_recipe_list
    from patchwords.train.named_recipe import find_recipe, match_recipes

    rows = match_recipes(config.pattern) or [find_recipe(config.pattern)]
    if config.json:
        print(jsonlib.dumps([recipe_to_dict(row) for row in rows], indent=1, allow_nan=False))
    elif len(rows) == 1:
        print_recipe(recipe_to_dict(rows[0]))
    else:
        print_recipe_list(rows)
    return 0


def recipe_to_dict(row: Recipe) -> dict[str, Any]:
    """Everything about a recipe, for JSON: no clipping is null."""
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
    }


def format_recipe_command(row: Recipe) -> str:
    """What runs it."""
    if row.finetunes:
        return f"patchwords finetune DATA --weights WEIGHTS --recipe {row.name}"
    return f"patchwords pretrain DATA --recipe {row.name}"


def recipe_exaflops(row: Recipe) -> float:
    """Operations of the whole training on the recipe's own data, in the unit of Table 6.

    The prediction layer of masked patches, a thousandth of it, is left out.
    """
    from patchwords.model.config import ViTConfig
    from patchwords.model.cost import compute_training_flops, count_macs
    from patchwords.model.variants import resolve_model

    shape = resolve_model(row.model or DEFAULT_COST_MODEL).config
    (size,) = row.settings["image_size"]
    settings: dict[str, Any] = {"image_size": (size, size), "num_classes": row.data.classes or 1}
    if isinstance(shape, ViTConfig):
        for name in ("classifier", "position"):
            if name in row.settings:
                settings[name] = row.settings[name]
        if row.settings.get("head") == "tanh":
            settings["representation_size"] = shape.width
    return compute_training_flops(count_macs(shape.with_settings(**settings)), row.images_seen)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and math.isinf(value) else value
