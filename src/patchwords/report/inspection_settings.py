"""Settings of an inspection, and their checks; light to import, for the help of the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from patchwords.errors import ConfigError

MAX_NEAREST_IMAGES = 20  # neighbours that a row of the figure has room for


@dataclass(frozen=True)
class ExplorerOptions:
    """An interactive page of attention maps."""

    section: ClassVar[str] = "Explorer page"

    explore: Path | None = None
    """HTML file to write: a page that shows what each patch of a photo attends to, in every layer
    and head; default: none"""
    beside: tuple[str, ...] = ()
    """other models to show on that page, next to SRC; default: none"""
    explore_heads: Literal["auto", "all", "mean"] = "auto"
    """heads on that page; auto: all, or for a large model their mean"""


@dataclass(frozen=True)
class NearestOptions:
    """Search for the nearest training images."""

    section: ClassVar[str] = "Nearest images"

    nearest: tuple[str, ...] | None = None
    """find the nearest training images in this DATA, by the features that `patchwords knn` uses;
    without a value: in the data that SRC was trained on; default: off"""
    nearest_k: int = 6
    """nearest images per photo, up to 20"""
    nearest_images: int = 20_000
    """number of training images to search; of more, a random subset"""
    nearest_image_column: str | None = None
    """column with the images, if --nearest is a CSV or parquet table; default: found by name and
    type"""
    nearest_label_column: str | None = None
    """column with the labels, if --nearest is a CSV or parquet table; default: found by name and
    type"""


@dataclass(frozen=True)
class InspectionSettings:
    """What to inspect, on how many images, and where to write it."""

    output: Path | None = None
    """new folder for figures (PNG and SVG), results.json and arrays.npz; default: print only"""
    overwrite: bool = False
    """overwrite the files in --output"""
    image_size: tuple[int, ...] | None = None
    """image size in pixels: one number, or height and width; default: the model's own"""
    photos: int = 8
    """number of photos that get maps of their own"""
    distance_images: int = 128
    """number of images averaged for attention distance and token similarity"""
    truth_images: int = 32
    """number of images averaged for deletion and insertion, the slowest part; 0: skip it"""
    baseline: Literal["mean", "blur"] = "mean"
    """what replaces a deleted patch: the image's mean colour, or the blurred image"""
    layers: tuple[int, ...] = ()
    """layers whose heads are shown, counted from 0; default: the first, the middle and the last"""
    heads: tuple[int, ...] = ()
    """heads to show, counted from 0; default: all"""
    query: tuple[int, int] | None = None
    """row and column, counted from 0, of the patch that the heads attend from; default: the class
    token, or the mean over all patches if the model has none"""
    class_name: str | None = None
    """class that the gradient-weighted rollout explains; default: the predicted class"""
    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    page: ExplorerOptions = field(default_factory=ExplorerOptions)
    near: NearestOptions = field(default_factory=NearestOptions)

    def list_attention_flags(self) -> list[str]:
        """List the settings given that need a model with attention, as flags."""
        given = {
            "--query": self.query is not None,
            "--class-name": self.class_name is not None,
            "--layers": bool(self.layers),
            "--heads": bool(self.heads),
        }
        return [flag for flag, is_given in given.items() if is_given]

    def check(self, has_images: bool) -> None:
        """Raise ConfigError for counts that are too small, and for settings that lack images."""
        least = {"--photos": 1, "--distance-images": 1, "--truth-images": 0}
        counts = (self.photos, self.distance_images, self.truth_images)
        for flag, value in zip(least, counts, strict=True):
            if value < least[flag]:
                raise ConfigError(f"{flag} {value} must be at least {least[flag]}")
        if self.image_size is not None and len(self.image_size) not in {1, 2}:
            raise ConfigError(f"--image-size {self.image_size}: one number, or height and width")
        if not has_images:
            for flag in self.list_attention_flags():
                raise ConfigError(f"{flag} needs images: give them after SRC")


def check_explorer_options(options: ExplorerOptions, has_images: bool, source: str) -> None:
    """Raise ConfigError for contradictory settings of the page, before a model is loaded."""
    if options.explore is None:
        if options.beside:
            raise ConfigError("--beside needs --explore: add --explore PAGE.html")
        return
    if not has_images:
        raise ConfigError("--explore needs images: give them after SRC")
    if options.explore.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--explore {options.explore} is an HTML page: let its name end in .html")
    models = [source, *options.beside]
    for model in options.beside:
        if models.count(model) > 1:
            raise ConfigError(f"--beside {model} is on the page already; give each model once")


def check_nearest_options(
    options: NearestOptions, has_cache: bool, has_images: bool, has_output: bool
) -> None:
    """Raise ConfigError for contradictory settings of the search, before data are opened."""
    if options.nearest is None:
        if options != NearestOptions() or has_cache:
            raise ConfigError("--nearest-... and --cache need --nearest")
        return
    if not has_images:
        raise ConfigError("--nearest needs images: give them after SRC")
    if not has_output:
        raise ConfigError("--nearest writes a figure and numbers: add --output FOLDER")
    if len(options.nearest) > 1:
        raise ConfigError(
            f"--nearest {' '.join(options.nearest)}: give one source of data there, and photos after SRC"
        )
    if not 1 <= options.nearest_k <= MAX_NEAREST_IMAGES:
        raise ConfigError(f"--nearest-k {options.nearest_k} must be from 1 to {MAX_NEAREST_IMAGES}")
    if options.nearest_images < 1:
        raise ConfigError(f"--nearest-images {options.nearest_images} must be at least 1")
