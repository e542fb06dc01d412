"""A recipe: one row of a published table, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


class RecipeDataset(NamedTuple):
    """The data set that a recipe was written for."""

    name: str
    images: int  # in the training split
    classes: int | None  # None: several tasks


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
    """One published training recipe.

    `settings` are all settings that `--scale` leaves alone, by the names of the flags. Every field
    and every setting reaches the run, or the run is refused (recipes/__init__.py).
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
    # Of the learning rate with the batch, in --scale.
    scaling: Literal["root", "linear", "none"] = "root"
    rates: tuple[float, ...] = ()  # the learning rates that the source tried
    note: str = ""  # where sources differ or are silent, and what this row takes

    @property
    def images_seen(self) -> float:
        """Number of images seen in the whole training on its own data, repetitions counted."""
        unit, length = self.length
        return length * (self.data.images if unit == "epochs" else self.batch_size)

    @property
    def steps(self) -> int:
        """Number of weight updates on its own data."""
        return math.ceil(self.images_seen / self.batch_size)

    @property
    def citation(self) -> str:
        """Source and data set: "Table 4, CIFAR-10"."""
        return f"{self.source}, {self.data.name}"
