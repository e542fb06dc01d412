"""What is done to images before a model is asked: one kind of change, at several levels.

Sizes: B batch, C channels, H W image.
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
    """Images as a subject's preprocessing leaves them, on the subject's device."""

    images: Tensor  # uint8 [B, C, H, W], 0..255, not to be written to
    labels: Tensor  # int64 [B], positions in the subject's labels
    indices: list[int]  # [B], positions in all the examples: where noise is drawn from
    subject: LoadedModel
    found: dict[str, Tensor] = field(default_factory=dict)

    def once(self, name: str, find: Callable[[], Tensor]) -> Tensor:
        """What `find` gives, computed at the first call by this name and kept for the others.

        For what all levels and seeds of a batch share, such as a map of saliency.
        """
        if name not in self.found:
            self.found[name] = find()
        return self.found[name]


# (batch, level, seed) -> uint8 or float32 [B, C, H, W] of 0..255. Gradients are off, and batches
# may be cut anywhere: what is random is drawn by noise.py from the seed and `batch.indices`.
PerturbationFn = Callable[[PerturbationBatch, float, int], Tensor]

NamedProgress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much

# (subject, training images, seed, progress) -> the change, where it is first to be learned
PreparePerturbation = Callable[[LoadedModel, ImageDataset, int, NamedProgress], PerturbationFn]


@dataclass(frozen=True)
class Perturbation:
    """One kind of change; either `change` or `prepare` is given."""

    name: str  # as on the command line: "occlusion-random"
    family: str  # several are asked for at once by it: "occlusion"
    title: str  # of its diagram
    x_label: str  # what a level is, with its unit
    levels: tuple[float, ...]  # without `clean`
    published: str  # what has been measured elsewhere, and where: one sentence for the caption
    change: PerturbationFn | None = None
    prepare: PreparePerturbation | None = (
        None  # once for each subject, and for each seed where `seeds`
    )
    seeds: bool = False  # whether a seed changes anything
    clean: float = 0.0  # the level of no change
    log_x: bool = False  # whether levels are drawn on a logarithmic axis
    transfers: bool = False  # what was prepared on one subject is tried on the others, too
    usual: bool = True  # whether it is measured where none is named: the costly ones are not
    # in place of `levels`, where they depend on the subject (its image size, its grid)
    levels_for: Callable[[LoadedModel], tuple[float, ...]] | None = None

    def levels_of(self, subject: LoadedModel) -> tuple[float, ...]:
        """The levels that this subject's images allow, rising, without `clean`."""
        return self.levels if self.levels_for is None else self.levels_for(subject)


# Randomness that belongs to an image: a function of the seed, a name and the image's place.
#
# So an image is disturbed alike whatever batch, process or order it comes in. Numbers are drawn on
# the CPU, so that a GPU disturbs as a CPU does. Sizes: B batch.


@dataclass(frozen=True)
class PerImageRandom:
    """Where the images of a batch draw from."""

    seed: int
    name: str  # of what is drawn: two names are independent of one another
    indices: Sequence[int]  # [B], places in all the examples
    device: torch.device | str = "cpu"  # where the numbers are wanted

    def generators(self) -> Iterator[torch.Generator]:
        """One for each image, each at its beginning."""
        for index in self.indices:
            yield torch_generator(self.seed, self.name, index)

    def each(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        """[B, ...], what `draw` makes of each image's generator"""
        return torch.stack([draw(generator) for generator in self.generators()]).to(self.device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """float32 [B, *shape], from low to high"""
        return low + (high - low) * self.each(lambda own: torch.rand(shape, generator=own))


# Which images robustness is measured on: those that none of the models was trained on.


@dataclass(frozen=True)
class RobustnessImages:
    """The images to judge by, and those that a disturbance may be learned on."""

    split: str
    judged: ImageDataset
    training: ImageDataset | None
    notes: tuple[str, ...]  # for a person


def choose_robustness_images(
    data: DatasetSplits,
    recorded: Sequence[RecordedSplits],
    most: int | None = None,
    *,
    training: bool = False,
) -> RobustnessImages:
    """Held-out images of the data, as all the models' runs divided them.

    Args:
        recorded: of each model the splits.csv of its run, empty where there is none.
        most: keep a subset of so many, as many of each class as is its share; always the same.
        training: also give the images that all of it may learn from: the training images of the
            data or, where there are none, half of the held-out ones, which are then not judged by.
    """
    if most is not None and most < 1:
        raise ConfigError(f"--images {most}: it is a number of images, 1 or more")
    known = merge_run_splits(recorded)
    selection = select_held_out(data, known)
    judged, learned_on, notes = selection.examples, None, []
    if training:
        try:
            learned_on = select_held_out(data, known, TRAIN).examples
        except DataError:  # the data are held-out images only
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
    """int64 [count], positions, rising: of each class its share, the same at every call.

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


# Cells of an image: a grid of near-equal rectangles, and squares of some pixels.
#
# Sizes: B batch, H W image, g x g cells.


def grid_cells(size: tuple[int, int], grid: int, device: torch.device | str = "cpu") -> Tensor:
    """int64 [H, W], the cell of every pixel of a g x g grid, row after row.

    Sides that g does not divide give cells that differ by one pixel at most.
    """
    rows, columns = (assign_parts(length, grid, device) for length in size)  # [H], [W]
    return rows[:, None] * grid + columns


def mean_per_cell(values: Tensor, grid: int) -> Tensor:
    """[B, H, W] -> [B, g * g], the mean over the pixels of each cell of `grid_cells`"""
    across = []
    for length in values.shape[1:]:
        parts = torch.arange(grid, device=values.device)[:, None] == assign_parts(
            length, grid, values.device
        )
        across.append(parts.to(values.dtype) / parts.sum(1, keepdim=True))  # [g, H] and [g, W]
    rows, columns = across
    return (rows @ values @ columns.T).flatten(1)


def assign_parts(length: int, parts: int, device: torch.device | str) -> Tensor:
    """int64 [length], of which part each place is"""
    return torch.arange(length, device=device) * parts // length


def square_cells(size: tuple[int, int], side: int) -> Tensor:
    """int64 [H, W], the cell of every pixel, of squares of `side` pixels; the last are cut off."""
    rows, columns = (torch.arange(length) // side for length in size)
    return rows[:, None] * (-(-size[1] // side)) + columns
