"""Recipes that start from trained weights: Table 4, the authors' code, AugReg, BiT.

The head is a single new layer (Section 3.2), the loss softmax. Where a source has a grid of
learning rates, `rates` is the grid and `lr` one of it.
"""

from __future__ import annotations

import math
from typing import Any

from patchwords.train.recipe_row import DATA, Row

INCEPTION: dict[str, Any] = {
    "crop_area": (0.05, 1.0),
    "crop_ratio": (0.75, 4 / 3),
    "random_crop": None,
}
# Resized so that the short side is 448 pixels, a random square of 384 cut out.
WINDOW: dict[str, Any] = {"random_crop": 384 / 448}
CENTRE: dict[str, Any] = {"resize": "crop", "crop_fraction": 384 / 448}
SQUASH: dict[str, Any] = {"resize": "squash", "crop_fraction": 1.0}
PLAIN: dict[str, Any] = {
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
BATCH = 512  # of all of them

USUAL = (0.001, 0.003, 0.01, 0.03)
B_1_1 = (
    "Table 4 has no warm-up, dropout or pre-processing: warm-up of vit_jax configs/common.py, or "
    "of big_vision configs/transfer.py for 500 steps; dropout of vit_jax configs/models.py, by "
    "the model; the random crop of 384 from 448 pixels 'follows BiT' (Section 4.1), here with the "
    "aspect kept, as in transfer.py. The paper chose its rate on a held-out part of the training "
    "images: 10 % of Pets and Flowers, 2 % of CIFAR, 1 % of ImageNet"
)
T16 = "Table 4 has 0.06 in ImageNet's grid, B.1.1 adds it only for ResNets and hybrids"


def _paper(data: str, steps: int, warmup: int, rates: tuple[float, ...], note: str = B_1_1) -> Row:
    return Row(
        f"paper-finetune-{data}",
        "Table 4",
        DATA[data],
        ("steps", steps),
        BATCH,
        0.01,  # stands in every grid
        warmup,
        {**PLAIN, **WINDOW, **CENTRE},
        finetunes=True,
        rates=rates,
        note=note,
    )


def _table_2(model: str, pixels: int) -> Row:
    settings = {**PLAIN, **WINDOW, **CENTRE, "image_size": (pixels,), "ema": 0.9999}
    return Row(
        f"paper-finetune-imagenet-{pixels}",
        "Table 2, with Table 4",
        DATA["imagenet"],
        ("steps", 20_000),
        BATCH,
        0.01,
        500,
        settings,
        model=model,
        finetunes=True,
        rates=IMAGENET_RATES,
        note=f"Polyak averaging, only here (Section 4.1); {T16}; {B_1_1}",
    )


IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)
PAPER = (
    _paper("imagenet", 20_000, 500, IMAGENET_RATES, f"{T16}; {B_1_1}"),
    _paper("cifar100", 10_000, 500, USUAL),
    _paper("cifar10", 10_000, 500, USUAL),
    _paper("pets", 500, 100, USUAL),
    _paper("flowers102", 500, 100, USUAL),
    _paper("vtab", 2_500, 200, (0.01,), f"warm-up as AugReg's of 2,500 steps; {B_1_1}"),
    _table_2("ViT-L/16", 512),
    _table_2("ViT-H/14", 518),
)


def _vit_jax(name: str, data: str, steps: int, lr: float, model: str | None = None) -> Row:
    return Row(
        f"vit-jax-finetune-{name}",
        "vit_jax configs/common.py" if model is None else "vit_jax configs/vit.py",
        DATA[data],
        ("steps", steps),
        BATCH,
        lr,
        500,
        {**PLAIN, **INCEPTION, **SQUASH},
        model=model,
        finetunes=True,
        note=(
            "unlike the paper's experiments: an inception crop, and evaluation squashes the image "
            "to 384x384; dropout of configs/models.py, by the model; momentum in bfloat16 there"
        ),
    )


VIT_JAX = (
    _vit_jax("imagenet", "imagenet", 20_000, 0.03),
    _vit_jax("cifar100", "cifar100", 10_000, 0.03),
    _vit_jax("cifar10", "cifar10", 10_000, 0.03),
    _vit_jax("cifar10-b16", "cifar10", 10_000, 0.01, "ViT-B/16"),
)


def _big_vision(data: str, steps: int, warmup: int, lr: float, crop: dict[str, Any]) -> Row:
    return Row(
        f"big-vision-finetune-{data}",
        "big_vision configs/transfer.py",
        DATA[data],
        ("steps", steps),
        BATCH,
        lr,
        warmup,
        {**PLAIN, **crop, **CENTRE, **NO_DROPOUT},
        finetunes=True,
        note="rate and crop: the best for AugReg's ViT-B/32, as the file has them; 0.01 by default",
    )


BIG_VISION = (
    _big_vision("imagenet", 20_000, 500, 0.03, INCEPTION),
    _big_vision("cifar100", 10_000, 500, 0.01, WINDOW),
    _big_vision("cifar10", 10_000, 500, 0.003, WINDOW),
    _big_vision("pets", 500, 100, 0.003, INCEPTION),
    _big_vision("flowers102", 500, 100, 0.003, INCEPTION),
)


def _augreg(name: str, length: tuple[str, int, int], lr: float, rates: tuple[float, ...]) -> Row:
    data, steps, warmup = length
    return Row(
        f"augreg-finetune-{name}",
        "Fine-tuning of arXiv 2106.10270",
        DATA[data],
        ("steps", steps),
        BATCH,
        lr,
        warmup,
        {**PLAIN, **INCEPTION, **CENTRE, **NO_DROPOUT},
        finetunes=True,
        rates=rates,
        note=(
            "no augmentation or regularisation in fine-tuning; pixels: vit_jax configs/augreg.py, "
            "whose own default is 500 steps at 0.03; momentum in bfloat16 there"
        ),
    )


SMALL_RATES = (0.001, 0.003, 0.01)
AUGREG = (
    _augreg("imagenet", ("imagenet", 20_000, 500), 0.03, (0.01, 0.03)),
    _augreg("pets", ("pets", 500, 100), 0.003, SMALL_RATES),
    _augreg("pets-2500", ("pets", 2_500, 200), 0.003, SMALL_RATES),
    _augreg("cifar100", ("cifar100", 10_000, 500), 0.003, SMALL_RATES),
    _augreg("cifar100-2500", ("cifar100", 2_500, 200), 0.003, SMALL_RATES),
)


def _bit(data: str, supports: tuple[int, ...], mixup: float, sizes: tuple[int, int]) -> Row:
    """`supports`: the steps at which warm-up ends, the rate falls to a tenth, and all ends."""
    warmup, *falls, steps = supports
    larger, size = sizes
    settings = {
        **PLAIN,
        **SQUASH,
        "schedule": "staircase",
        "drops": tuple(step / steps for step in falls),
        "clip": math.inf,
        "image_size": (size,),
        "random_crop": size / larger,
        "mixup": mixup,
    }
    return Row(
        f"bit-finetune-{data}",
        "BiT-HyperRule (bit_hyperrule.py)",
        DATA[data],
        ("steps", steps),
        BATCH,
        0.003,
        warmup,
        settings,
        finetunes=True,
        note=(
            "images are squashed, in evaluation to the size of the crop; mixup is given the larger "
            "share of each image, theirs not always"
        ),
    )


SMALL = (100, 200, 300, 400, 500)  # fewer than 20,000 images
MEDIUM = (500, 3_000, 6_000, 9_000, 10_000)  # fewer than 500,000
LARGE = (500, 6_000, 12_000, 18_000, 20_000)
BIT = (
    _bit("imagenet", LARGE, 0.1, (512, 480)),
    _bit("cifar100", MEDIUM, 0.1, (160, 128)),
    _bit("cifar10", MEDIUM, 0.1, (160, 128)),
    _bit("pets", SMALL, 0.0, (512, 480)),
    _bit("flowers102", SMALL, 0.0, (512, 480)),
)

FINETUNE = (*PAPER, *VIT_JAX, *BIG_VISION, *AUGREG, *BIT)
