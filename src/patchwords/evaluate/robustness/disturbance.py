"""What is done to images before a model is asked: one kind of change, at several levels.

Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from patchwords.data.examples import ImageDataset
from patchwords.evaluate.subject import LoadedModel


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
