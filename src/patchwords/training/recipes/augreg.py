"""The grid of AugReg ("How to train your ViT?", arXiv 2106.10270): 28 recipes for each training.

Names are augreg-LEVEL, for 300 epochs of ImageNet-21k with a weight decay of 0.1, and then -30ep or
-imagenet for another training, -reg for dropout and stochastic depth, -wd0.03 for less decay.
"""

from __future__ import annotations

from patchwords.training.recipes.pretrain import ADAMW_SETTINGS, HEAD_BIAS_NOTE, IMAGE_SETTINGS_224
from patchwords.training.recipes.row import RECIPE_DATASETS, Recipe

# Level -> RandAugment's layers and magnitude, MixUp's p (arXiv 2106.10270; big_vision
# configs/vit_i21k.py). light1 augments, too: some operations have no magnitude.
AUGREG_LEVELS: dict[str, tuple[tuple[int, float] | None, float]] = {
    "none": (None, 0.0),
    "light1": ((2, 0), 0.0),
    "light2": ((2, 10), 0.2),
    "medium1": ((2, 15), 0.2),
    "medium2": ((2, 15), 0.5),
    "strong1": ((2, 20), 0.5),
    "strong2": ((2, 20), 0.8),
}
AUGREG_TRAININGS = (
    ("", "imagenet21k", 300),
    ("-30ep", "imagenet21k", 30),
    ("-imagenet", "imagenet", 300),
)
AUGREG_NOTE = (
    "loss: big_vision configs/vit_i21k.py and vit_i1k.py; the article's wd 0.1 is their 0.0001, "
    "not multiplied by the rate of 0.001; the article drops the hidden layer of the head, "
    f"vit_i1k.py keeps it; {HEAD_BIAS_NOTE}"
)


def _augreg_recipe(
    level: str, training: tuple[str, str, int], regularised: bool, decay: float
) -> Recipe:
    randaugment, mixup = AUGREG_LEVELS[level]
    suffix, dataset, epochs = training
    rate = 0.1 if regularised else 0.0  # dropout, and stochastic depth of the last block
    settings = {
        **IMAGE_SETTINGS_224,
        **ADAMW_SETTINGS,
        "schedule": "cosine",
        "weight_decay": decay,
        "clip": 1.0,
        "loss": "sigmoid",
        "head": "linear",
        "dropout": rate,
        "drop_path": rate,
        "randaugment": randaugment,
        "mixup": mixup,
    }
    ends = f"{'-reg' if regularised else ''}{'-wd0.03' if decay == 0.03 else ''}"
    return Recipe(
        f"augreg-{level}{suffix}{ends}",
        "AugReg, arXiv 2106.10270",
        RECIPE_DATASETS[dataset],
        ("epochs", epochs),
        4096,
        1e-3,
        10_000,
        settings,
        note=AUGREG_NOTE,
    )


AUGREG_RECIPES = tuple(
    _augreg_recipe(level, training, regularised, decay)
    for training in AUGREG_TRAININGS
    for level in AUGREG_LEVELS
    for regularised in (False, True)
    for decay in (0.1, 0.03)
)
