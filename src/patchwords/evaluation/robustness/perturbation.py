"""Perturbations: one kind of change to images, at several levels.

Sizes: B batch, C channels, H W image, g x g cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from patchwords.data.dataset import TRAIN, DatasetSplits, ImageDataset
from patchwords.data.splits import allocate_class_quotas
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.held_out import RecordedSplits, merge_run_splits, select_held_out
from patchwords.evaluation.predictions import LoadedModel
from patchwords.rng import numpy_generator, torch_generator


@dataclass(frozen=True)
class PerturbationBatch:
    """Preprocessed images on the model's device, with labels and positions."""

    images: Tensor  # uint8 [B, C, H, W], 0..255, read-only
    labels: Tensor  # int64 [B], positions in the model's labels
    indices: list[int]  # [B], positions in all examples: the key of random draws
    loaded: LoadedModel
    found: dict[str, Tensor] = field(default_factory=dict)

    def once(self, name: str, find: Callable[[], Tensor]) -> Tensor:
        """Compute `find()` at the first call with this name; later calls return the cached result.

        For what all levels and seeds of a batch share, such as a saliency map.
        """
        if name not in self.found:
            self.found[name] = find()
        return self.found[name]


# (batch, level, seed) -> uint8 or float32 [B, C, H, W] of 0..255. Gradients are off, and batches may
# be cut anywhere: random draws depend on the seed and `batch.indices` alone (rng.py).
PerturbationFn = Callable[[PerturbationBatch, float, int], Tensor]

NamedProgress = Callable[[str, int, int], None]  # (activity, done, total)

# (model, training images, seed, progress) -> a learned change
PreparePerturbation = Callable[[LoadedModel, ImageDataset, int, NamedProgress], PerturbationFn]


@dataclass(frozen=True)
class Perturbation:
    """One kind of change; defines either `change` or `prepare`."""

    name: str  # as on the command line: "occlusion-random"
    family: str  # selects several at once: "occlusion"
    title: str  # of the figure
    x_label: str  # meaning of a level, with its unit
    levels: tuple[float, ...]  # without `clean`
    published: str  # published numbers: one sentence for the caption
    change: PerturbationFn | None = None
    prepare: PreparePerturbation | None = None  # once per model, and per seed if `seeds`
    seeds: bool = False  # whether the change is random
    clean: float = 0.0  # level without change
    log_x: bool = False  # logarithmic axis of levels
    transfers: bool = False  # what was learned on one model is applied to the others as well
    usual: bool = True  # measured by default; expensive ones are not
    # replaces `levels` where they depend on the model (image size, grid)
    levels_for: Callable[[LoadedModel], tuple[float, ...]] | None = None

    def levels_of(self, loaded: LoadedModel) -> tuple[float, ...]:
        """Return the levels for this model's images, rising, without `clean`."""
        return self.levels if self.levels_for is None else self.levels_for(loaded)


# Random draws per image: a function of the seed, a name and the image's position. So an image is
# perturbed the same in any batch, process or order. Numbers are drawn on the CPU, so that a GPU
# gives the same perturbation.


@dataclass(frozen=True)
class PerImageRandom:
    """Random generators of the images of a batch."""

    seed: int
    name: str  # different names give independent draws
    indices: Sequence[int]  # [B], places in all the examples
    device: torch.device | str = "cpu"  # device of the results

    def generators(self) -> Iterator[torch.Generator]:
        """Return one generator per image, at its start."""
        for index in self.indices:
            yield torch_generator(self.seed, self.name, index)

    def each(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        """[B, ...], `draw` applied to each image's generator"""
        return torch.stack([draw(generator) for generator in self.generators()]).to(self.device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """float32 [B, *shape], uniform from low to high"""
        return low + (high - low) * self.each(lambda own: torch.rand(shape, generator=own))


# The images to evaluate on: those that no model was trained on.


@dataclass(frozen=True)
class RobustnessImages:
    """Images to evaluate on, and images that a perturbation may be learned on."""

    split: str
    judged: ImageDataset
    training: ImageDataset | None
    notes: tuple[str, ...]  # human-readable


def choose_robustness_images(
    data: DatasetSplits,
    recorded: Sequence[RecordedSplits],
    most: int | None = None,
    *,
    training: bool = False,
) -> RobustnessImages:
    """Choose held-out images that no model's run was trained on.

    Args:
        recorded: splits.csv of each model's run; empty without a run.
        most: keep a stratified subset of this size; always the same one.
        training: also return images to learn perturbations on: the training images of the data or,
            without any, half of the held-out ones, which are then not evaluated on.
    """
    if most is not None and most < 1:
        raise ConfigError(f"--images {most}: it is a number of images, 1 or more")
    known = merge_run_splits(recorded)
    selection = select_held_out(data, known)
    judged, learned_on, notes = selection.examples, None, []
    if training:
        try:
            learned_on = select_held_out(data, known, TRAIN).examples
        except DataError:  # the data have held-out images only
            half = draw_stratified_subset(judged, len(judged) // 2)
            learned_on = judged.select(half)
            judged = judged.select(np.setdiff1d(np.arange(len(judged)), half))
            notes.append(
                f"there are no training images: of the held-out ones {len(learned_on):,} are "
                f"learned on, and {len(judged):,} judged by"
            )
    if most is not None and most < len(judged):
        part = judged.select(draw_stratified_subset(judged, most))
        notes.append(f"{len(part):,} of {len(judged):,} images, each class by its share")
        judged = part
    return RobustnessImages(selection.split, judged, learned_on, tuple(notes))


def draw_stratified_subset(examples: ImageDataset, count: int) -> np.ndarray:
    """Draw a stratified subset -> int64 [count], sorted positions; the same at every call.

    Images without a label count as a class.
    """
    classes = examples.labels + 1
    drawn = allocate_class_quotas(np.bincount(classes), count / max(len(examples), 1), keep=0)
    places = [np.empty(0, dtype=np.int64)]
    for label in np.flatnonzero(drawn).tolist():
        order = numpy_generator(0, "robustness", label).permutation(
            np.flatnonzero(classes == label)
        )
        places.append(order[: drawn[label]])
    return np.sort(np.concatenate(places))


# Cells of an image: a grid of near-equal rectangles, and squares of a fixed size.


def grid_cells(size: tuple[int, int], grid: int, device: torch.device | str = "cpu") -> Tensor:
    """Number the cells of a g x g grid -> int64 [H, W], the cell of every pixel, row by row.

    If g does not divide a side, cells differ by one pixel at most.
    """
    rows, columns = (assign_parts(length, grid, device) for length in size)  # [H], [W]
    return rows[:, None] * grid + columns


def mean_per_cell(values: Tensor, grid: int) -> Tensor:
    """[B, H, W] -> [B, g * g], the mean over each cell of `grid_cells`"""
    across = []
    for length in values.shape[1:]:
        parts = torch.arange(grid, device=values.device)[:, None] == assign_parts(
            length, grid, values.device
        )
        across.append(parts.to(values.dtype) / parts.sum(1, keepdim=True))  # [g, H] and [g, W]
    rows, columns = across
    return (rows @ values @ columns.T).flatten(1)


def assign_parts(length: int, parts: int, device: torch.device | str) -> Tensor:
    """int64 [length], the part of each position"""
    return torch.arange(length, device=device) * parts // length


def square_cells(size: tuple[int, int], side: int) -> Tensor:
    """Number squares of `side` pixels -> int64 [H, W]; squares at the end are smaller."""
    rows, columns = (torch.arange(length) // side for length in size)
    return rows[:, None] * (-(-size[1] // side)) + columns
