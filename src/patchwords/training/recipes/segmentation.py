"""Recipes of segmentation: from scratch for a few hundred photos, and from trained weights.

Both are ours. Scale, crop, mirroring and colours are those of SETR, Segmenter and DINOv2, which take
them from mmsegmentation (scale 0.5 to 2).
"""

from __future__ import annotations

from typing import Any

from patchwords.data.sources.masks import is_mask_folder
from patchwords.training.config import FinetuneConfig, RecipeSettings
from patchwords.training.recipes.row import Recipe, RecipeDataset
from patchwords.training.recipes.scaling import TrainingSize

SEGMENTATION, SEGMENTATION_FINETUNE = "segmentation", "segmentation-finetune"
STREET_PHOTOS = RecipeDataset("street photos", 367, 11)
BATCH_SIZE = 8
STEPS_PER_EPOCH = 8  # at least: the batch is halved for fewer photos
SCRATCH_EPOCHS, FINETUNE_EPOCHS = 120, 40
SCENE_SETTINGS: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "cosine",
    "weight_decay": 0.05,
    "scale_range": (0.5, 2.0),
    "color_jitter": 0.3,
    "flip": True,
    "resize": "crop",
    "crop_fraction": 1.0,
    "dropout": 0.0,
    "drop_path": 0.0,
}
SEGMENTATION_RECIPES = {
    row.name: row
    for row in (
        Recipe(
            SEGMENTATION,
            "for small data",
            STREET_PHOTOS,
            ("epochs", SCRATCH_EPOCHS),
            BATCH_SIZE,
            2e-3,
            230,
            SCENE_SETTINGS,
        ),
        Recipe(
            SEGMENTATION_FINETUNE,
            "for small data",
            STREET_PHOTOS,
            ("epochs", FINETUNE_EPOCHS),
            BATCH_SIZE,
            3e-4,
            110,
            {**SCENE_SETTINGS, "layer_decay": 0.8},
        ),
    )
}


def name_segmentation_recipe(config: FinetuneConfig) -> str | None:
    """Name the recipe of a training on masks; None for another task, or with a --recipe."""
    if config.verb != "finetune" or config.recipe.recipe is not None:
        return None
    if config.task not in {"auto", SEGMENTATION} or not is_mask_folder(config.data):
        return None
    return SEGMENTATION if config.weights in {None, "none"} else SEGMENTATION_FINETUNE


def size_segmentation(row: Recipe, requested: RecipeSettings, images: int) -> TrainingSize:
    """Size a training on masks by the number of photos."""
    batch = BATCH_SIZE
    while batch > 2 and batch * STEPS_PER_EPOCH > images:
        batch //= 2
    batch = min(batch, images)
    epochs = row.length[1]
    return TrainingSize(
        requested.batch_size or batch,
        epochs * images,
        f"by the number of photos, {images:,}",
        f"{epochs:g} epochs",
    )
