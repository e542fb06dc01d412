"""Random generators as functions of the seed and the place they are used at.

Nothing in patchwords draws from a global stream: every random choice is made by a generator that
is seeded from where it stands (the seed and, say, the epoch and the sample). So a run can start
at any step without replaying the ones before it, and the number of worker processes, an
evaluation in between, or a new head change nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *place: int | str) -> int:
    """Derive a 63-bit seed from a seed and a place, and from nothing else.

    >>> derive_seed(0, "init", "head.weight") == derive_seed(0, "init", "head.weight")
    True
    >>> derive_seed(0, "epoch", 1) == derive_seed(0, "epoch", 2)
    False
    """
    text = repr((int(seed), *place)).encode()  # repr keeps 1 and "1" apart
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def numpy_generator(seed: int, *place: int | str) -> np.random.Generator:
    """Return the NumPy generator of a place; Philox, because seeding it is cheap."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, *place)))


def torch_generator(seed: int, *place: int | str) -> torch.Generator:
    """Return the torch CPU generator of a place."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, *place))
