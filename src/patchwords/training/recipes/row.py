"""What a recipe is: one row of a published table, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class RecipeDataset(NamedTuple):
    """What a recipe was written for."""

    name: str
    images: int  # in the training split
    classes: int | None  # None: not one number


# Sizes: Section 4.1 ("303M" and "18k" for JFT), and the data sets' own pages for the exact ones.
# VTAB has 1,000 images of each of 19 tasks.
RECIPE_DATASETS = {
    "jft": RecipeDataset("JFT-300M", 303_000_000, 18_000),
    "imagenet21k": RecipeDataset("ImageNet-21k", 14_197_122, 21_843),
    "imagenet": RecipeDataset("ImageNet", 1_281_167, 1_000),
    "cifar10": RecipeDataset("CIFAR-10", 50_000, 10),
    "cifar100": RecipeDataset("CIFAR-100", 50_000, 100),
    "pets": RecipeDataset("Oxford-IIIT Pets", 3_680, 37),
    "flowers102": RecipeDataset("Flowers-102", 2_040, 102),
    "vtab": RecipeDataset("VTAB-1k", 1_000, None),
}


@dataclass(frozen=True)
class Recipe:
    """One published recipe.

    `settings` are all of its settings but for those that `--scale` changes, by the names of the
    flags; `named_recipe.py` takes every field and every setting to the run, or refuses.
    """

    name: str
    source: str  # table, section or file
    data: RecipeDataset
    length: tuple[Literal["epochs", "steps"], float]
    batch_size: int
    lr: float
    warmup_steps: int
    settings: Mapping[str, Any]
    model: str | None = None  # None: any
    finetunes: bool = False  # starts from trained weights
    scaling: Literal["root", "linear"] = "root"  # of the learning rate with the batch, in --scale
    rates: tuple[float, ...] = field(default=())  # the learning rates that were tried there
    note: str = ""  # where sources differ or are silent, and what is taken here

    @property
    def images_seen(self) -> float:
        """Over the whole training on its own data, repetitions counted."""
        kind, amount = self.length
        return amount * (self.data.images if kind == "epochs" else self.batch_size)

    @property
    def steps(self) -> int:
        """Updates of the weights, on its own data."""
        return math.ceil(self.images_seen / self.batch_size)
