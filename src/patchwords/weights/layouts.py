"""How Flax and TensorFlow lay a parameter out, and how PyTorch does; both ways.

Sizes: D width, K heads, Dh head width; I O channels in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

TensorLayout = Literal[
    "as is", "dense", "convolution", "1x1 dense", "to heads", "heads' bias", "from heads"
]


@dataclass(frozen=True)
class ArraySource:
    """Where a parameter of ours lies in a file: keys, whose rows stand below one another in ours.

    (q, k and v are three arrays there, and one matrix here.)
    """

    keys: tuple[str, ...]
    layout: TensorLayout


LAYOUT_TO_TORCH: dict[TensorLayout, Callable[[Tensor], Tensor]] = {
    "as is": lambda x: x,
    "dense": lambda x: x.mT,  # [I, O] -> [O, I]
    "convolution": lambda x: x.permute(3, 2, 0, 1),  # [h, w, I, O] -> [O, I, h, w]
    "1x1 dense": lambda x: x[0, 0].mT,  # [1, 1, I, O] -> [O, I]
    "to heads": lambda x: x.flatten(1).mT,  # [D, K, Dh] -> [K*Dh, D]
    "heads' bias": lambda x: x.flatten(),  # [K, Dh] -> [K*Dh]
    "from heads": lambda x: x.flatten(0, 1).mT,  # [K, Dh, D] -> [D, K*Dh]
}
TORCH_TO_LAYOUT: dict[TensorLayout, Callable[[Tensor, int], Tensor]] = {  # (ours, K) -> theirs
    "as is": lambda x, heads: x,
    "dense": lambda x, heads: x.mT,
    "convolution": lambda x, heads: x.permute(2, 3, 1, 0),
    "1x1 dense": lambda x, heads: x.mT[None, None],
    "to heads": lambda x, heads: x.mT.unflatten(1, (heads, -1)),
    "heads' bias": lambda x, heads: x.unflatten(0, (heads, -1)),
    "from heads": lambda x, heads: x.mT.unflatten(0, (heads, -1)),
}


def convert_to_torch(
    arrays: Mapping[str, Tensor], names: Mapping[str, ArraySource]
) -> dict[str, Tensor]:
    """Their arrays by key -> our parameters by name; `names` says where each lies."""
    return {
        name: torch.cat(
            [LAYOUT_TO_TORCH[source.layout](arrays[key]) for key in source.keys]
        ).contiguous()
        for name, source in names.items()
    }


def convert_from_torch(
    weights: Mapping[str, Tensor], names: Mapping[str, ArraySource], heads: int = 1
) -> dict[str, Tensor]:
    """Our parameters by name -> their arrays by key; the inverse of `convert_to_torch`.

    On the meta device it gives the shapes that a file must have.
    """
    arrays = {}
    for name, source in names.items():
        parts = weights[name].chunk(len(source.keys))
        for key, part in zip(source.keys, parts, strict=True):
            arrays[key] = TORCH_TO_LAYOUT[source.layout](part, heads).contiguous()
    return arrays
