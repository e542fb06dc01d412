"""Randomness that belongs to an image: a function of the seed, a name and the image's place.

So an image is disturbed alike whatever batch, process or order it comes in. Numbers are drawn on
the CPU, so that a GPU disturbs as a CPU does. Sizes: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from patchwords.noise import torch_generator


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
