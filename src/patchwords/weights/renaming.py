"""Tensors from the names of one layout to those of another, by one table for both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from patchwords.errors import WeightsError

# A module or a parameter as the two layouts call it, with {} for each number: the pair
# ("encoder.blocks.{}.norm1", "blocks.{}.norm1") stands for the weight and the bias of every block.
NamePairs = Sequence[tuple[str, str]]


def rename_tensors(
    weights: Mapping[str, Tensor], pairs: NamePairs
) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors under the second names of the pairs; and the names that no pair knows.

    Raises WeightsError where two tensors would have one name.
    """
    patterns = [(_compile_pattern(first), second) for first, second in pairs]
    renamed: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in weights.items():
        new = _translate_name(name, patterns)
        if new is None:
            unknown.append(name)
        elif new in renamed:
            raise WeightsError(f"{new} is there twice, once under the name {name}: keep one")
        else:
            renamed[new] = tensor
    return renamed, unknown


def reverse_pairs(pairs: NamePairs) -> NamePairs:
    """The same table for the way back."""
    return [(second, first) for first, second in pairs]


def _translate_name(name: str, patterns: Sequence[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, new in patterns:
        if match := pattern.fullmatch(name):
            *numbers, parameter = match.groups(default="")
            return new.format(*numbers) + parameter
    return None


def _compile_pattern(name: str) -> re.Pattern[str]:
    numbered = re.escape(name).replace(r"\{\}", r"(\d+)")
    return re.compile(rf"{numbered}(\.weight|\.bias)?")
