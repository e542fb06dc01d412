"""Recipes that start from trained weights: Table 4, the authors' code, AugReg, BiT.

The head is a single new layer (Section 3.2), the loss softmax. Where a source has a grid of
learning rates, `rates` is the grid and `lr` one of its values.
"""

from __future__ import annotations

import math
from typing import Any

from patchwords.training.recipes.row import RECIPE_DATASETS, Recipe

INCEPTION_CROP: dict[str, Any] = {
    "crop_area": (0.05, 1.0),
    "crop_ratio": (0.75, 4 / 3),
    "random_crop": None,
}
# The short side is resized to 448 pixels, then a random square of 384 is cut out.
RANDOM_CROP_384: dict[str, Any] = {"random_crop": 384 / 448}
CENTRE_CROP_384: dict[str, Any] = {"resize": "crop", "crop_fraction": 384 / 448}
SQUASH_RESIZE: dict[str, Any] = {"resize": "squash", "crop_fraction": 1.0}
PLAIN_SGD_SETTINGS: dict[str, Any] = {
    "optimizer": "sgd",
    "schedule": "cosine",
    "weight_decay": 0.0,
    "clip": 1.0,
    "ema": None,
    "label_smoothing": 0.0,
    "image_size": (384,),
    "flip": True,
    "randaugment": None,
    "mixup": 0.0,
    "cutmix": 0.0,
}
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "drop_path": 0.0}
FINETUNE_BATCH_SIZE = 512  # of all recipes in this file

TABLE_4_RATES = (0.001, 0.003, 0.01, 0.03)
TABLE_4_NOTE = (
    "Table 4 has no warm-up, dropout or pre-processing: warm-up of vit_jax configs/common.py, or "
    "of big_vision configs/transfer.py for 500 steps; dropout of vit_jax configs/models.py, by "
    "the model; the random crop of 384 from 448 pixels 'follows BiT' (Section 4.1), here with the "
    "aspect kept, as in transfer.py. The paper chose its rate on a held-out part of the training "
    "images: 10 % of Pets and Flowers, 2 % of CIFAR, 1 % of ImageNet"
)
IMAGENET_RATES_NOTE = (
    "Table 4 has 0.06 in ImageNet's grid, B.1.1 adds it only for ResNets and hybrids"
)


def _paper_recipe(
    data: str, steps: int, warmup: int, rates: tuple[float, ...], note: str = TABLE_4_NOTE
) -> Recipe:
    return Recipe(
        f"paper-finetune-{data}",
        "Table 4",
        RECIPE_DATASETS[data],
        ("steps", steps),
        FINETUNE_BATCH_SIZE,
        0.01,  # in every grid of Table 4
        warmup,
        {**PLAIN_SGD_SETTINGS, **RANDOM_CROP_384, **CENTRE_CROP_384},
        finetunes=True,
        rates=rates,
        note=note,
    )


def _table_2_recipe(model: str, pixels: int) -> Recipe:
    settings = {
        **PLAIN_SGD_SETTINGS,
        **RANDOM_CROP_384,
        **CENTRE_CROP_384,
        "image_size": (pixels,),
        "ema": 0.9999,
    }
    return Recipe(
        f"paper-finetune-imagenet-{pixels}",
        "Table 2, with Table 4",
        RECIPE_DATASETS["imagenet"],
        ("steps", 20_000),
        FINETUNE_BATCH_SIZE,
        0.01,
        500,
        settings,
        model=model,
        finetunes=True,
        rates=IMAGENET_RATES,
        note=f"Polyak averaging, only here (Section 4.1); {IMAGENET_RATES_NOTE}; {TABLE_4_NOTE}",
    )


IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)
PAPER_RECIPES = (
    _paper_recipe(
        "imagenet", 20_000, 500, IMAGENET_RATES, f"{IMAGENET_RATES_NOTE}; {TABLE_4_NOTE}"
    ),
    _paper_recipe("cifar100", 10_000, 500, TABLE_4_RATES),
    _paper_recipe("cifar10", 10_000, 500, TABLE_4_RATES),
    _paper_recipe("pets", 500, 100, TABLE_4_RATES),
    _paper_recipe("flowers102", 500, 100, TABLE_4_RATES),
    _paper_recipe(
        "vtab", 2_500, 200, (0.01,), f"warm-up as AugReg's of 2,500 steps; {TABLE_4_NOTE}"
    ),
    _table_2_recipe("ViT-L/16", 512),
    _table_2_recipe("ViT-H/14", 518),
)


def _vit_jax_recipe(
    name: str, data: str, steps: int, lr: float, model: str | None = None
) -> Recipe:
    return Recipe(
        f"vit-jax-finetune-{name}",
        "vit_jax configs/common.py" if model is None else "vit_jax configs/vit.py",
        RECIPE_DATASETS[data],
        ("steps", steps),
        FINETUNE_BATCH_SIZE,
        lr,
        500,
        {**PLAIN_SGD_SETTINGS, **INCEPTION_CROP, **SQUASH_RESIZE},
        model=model,
        finetunes=True,
        note=(
            "unlike the paper's experiments: an inception crop, and evaluation squashes the image "
            "to 384x384; dropout of configs/models.py, by the model; momentum in bfloat16 there"
        ),
    )


VIT_JAX_RECIPES = (
    _vit_jax_recipe("imagenet", "imagenet", 20_000, 0.03),
    _vit_jax_recipe("cifar100", "cifar100", 10_000, 0.03),
    _vit_jax_recipe("cifar10", "cifar10", 10_000, 0.03),
    _vit_jax_recipe("cifar10-b16", "cifar10", 10_000, 0.01, "ViT-B/16"),
)


def _big_vision_recipe(
    data: str, steps: int, warmup: int, lr: float, crop: dict[str, Any]
) -> Recipe:
    return Recipe(
        f"big-vision-finetune-{data}",
        "big_vision configs/transfer.py",
        RECIPE_DATASETS[data],
        ("steps", steps),
        FINETUNE_BATCH_SIZE,
        lr,
        warmup,
        {**PLAIN_SGD_SETTINGS, **crop, **CENTRE_CROP_384, **NO_DROPOUT},
        finetunes=True,
        note="rate and crop: the best for AugReg's ViT-B/32, as the file has them; 0.01 by default",
    )


BIG_VISION_RECIPES = (
    _big_vision_recipe("imagenet", 20_000, 500, 0.03, INCEPTION_CROP),
    _big_vision_recipe("cifar100", 10_000, 500, 0.01, RANDOM_CROP_384),
    _big_vision_recipe("cifar10", 10_000, 500, 0.003, RANDOM_CROP_384),
    _big_vision_recipe("pets", 500, 100, 0.003, INCEPTION_CROP),
    _big_vision_recipe("flowers102", 500, 100, 0.003, INCEPTION_CROP),
)


def _augreg_recipe(
    name: str, length: tuple[str, int, int], lr: float, rates: tuple[float, ...]
) -> Recipe:
    data, steps, warmup = length
    return Recipe(
        f"augreg-finetune-{name}",
        "Fine-tuning of arXiv 2106.10270",
        RECIPE_DATASETS[data],
        ("steps", steps),
        FINETUNE_BATCH_SIZE,
        lr,
        warmup,
        {**PLAIN_SGD_SETTINGS, **INCEPTION_CROP, **CENTRE_CROP_384, **NO_DROPOUT},
        finetunes=True,
        rates=rates,
        note=(
            "no augmentation or regularisation in fine-tuning; pixels: vit_jax configs/augreg.py, "
            "whose own default is 500 steps at 0.03; momentum in bfloat16 there"
        ),
    )


AUGREG_SMALL_RATES = (0.001, 0.003, 0.01)
AUGREG_FINETUNE_RECIPES = (
    _augreg_recipe("imagenet", ("imagenet", 20_000, 500), 0.03, (0.01, 0.03)),
    _augreg_recipe("pets", ("pets", 500, 100), 0.003, AUGREG_SMALL_RATES),
    _augreg_recipe("pets-2500", ("pets", 2_500, 200), 0.003, AUGREG_SMALL_RATES),
    _augreg_recipe("cifar100", ("cifar100", 10_000, 500), 0.003, AUGREG_SMALL_RATES),
    _augreg_recipe("cifar100-2500", ("cifar100", 2_500, 200), 0.003, AUGREG_SMALL_RATES),
)


def _bit_recipe(
    data: str, supports: tuple[int, ...], mixup: float, sizes: tuple[int, int]
) -> Recipe:
    """Build a row of BiT's HyperRule.

    Args:
        supports: steps at which warm-up ends, the rate falls to a tenth, and training ends.
        sizes: pixels that images are resized to, and cropped to.
    """
    warmup, *drops, steps = supports
    resized, size = sizes
    settings = {
        **PLAIN_SGD_SETTINGS,
        **SQUASH_RESIZE,
        "schedule": "staircase",
        "drops": tuple(step / steps for step in drops),
        "clip": math.inf,
        "image_size": (size,),
        "random_crop": size / resized,
        "mixup": mixup,
    }
    return Recipe(
        f"bit-finetune-{data}",
        "BiT-HyperRule (bit_hyperrule.py)",
        RECIPE_DATASETS[data],
        ("steps", steps),
        FINETUNE_BATCH_SIZE,
        0.003,
        warmup,
        settings,
        finetunes=True,
        note=(
            "images are squashed, in evaluation to the size of the crop; mixup is given the larger "
            "share of each image, theirs not always"
        ),
    )


BIT_SMALL_SUPPORTS = (100, 200, 300, 400, 500)  # fewer than 20,000 images
BIT_MEDIUM_SUPPORTS = (500, 3_000, 6_000, 9_000, 10_000)  # fewer than 500,000
BIT_LARGE_SUPPORTS = (500, 6_000, 12_000, 18_000, 20_000)
BIT_FINETUNE_RECIPES = (
    _bit_recipe("imagenet", BIT_LARGE_SUPPORTS, 0.1, (512, 480)),
    _bit_recipe("cifar100", BIT_MEDIUM_SUPPORTS, 0.1, (160, 128)),
    _bit_recipe("cifar10", BIT_MEDIUM_SUPPORTS, 0.1, (160, 128)),
    _bit_recipe("pets", BIT_SMALL_SUPPORTS, 0.0, (512, 480)),
    _bit_recipe("flowers102", BIT_SMALL_SUPPORTS, 0.0, (512, 480)),
)

FINETUNE_RECIPES = (
    *PAPER_RECIPES,
    *VIT_JAX_RECIPES,
    *BIG_VISION_RECIPES,
    *AUGREG_FINETUNE_RECIPES,
    *BIT_FINETUNE_RECIPES,
)
