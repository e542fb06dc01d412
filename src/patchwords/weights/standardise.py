"""Weights of standardised convolutions, made to suit another project's epsilon.

Of w / sqrt(var(w) + e) nothing changes if w is k times and e is k^2 times as large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from patchwords.model.trunk_config import TrunkConfig


def rescale_to_epsilon_1e8(
    weights: Mapping[str, Tensor], trunk: TrunkConfig
) -> tuple[dict[str, Tensor], TrunkConfig, list[str]]:
    """The same function with 1e-8 in place of BiT's 1e-10; other forms come back as they are.

    -> weights, the trunk that they are for, and what a person should know.
    """
    if trunk.standardise != "var+1e-10" or trunk.spatial != "convolution":
        return dict(weights), trunk, []
    scaled = {
        name: value * 10 if name.startswith("trunk.") and value.ndim == 4 else value
        for name, value in weights.items()
    }
    note = (
        "convolution weights are written 10 times as large: they are standardised there with an "
        "epsilon of 1e-8, not 1e-10, and so give the same"
    )
    return scaled, replace(trunk, standardise="var+1e-8"), [note]
