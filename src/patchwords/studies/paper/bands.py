"""Accuracies of several seeds over what was varied, as a curve in a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchwords.report.curves import Curve


def build_seed_curve(label: str, found: Mapping[float, Sequence[float | None]]) -> Curve:
    """x -> the accuracies of its seeds, as their mean in per cent, between lowest and highest.

    What diverged is left out, and an x of which nothing is left.
    """
    from patchwords.report.curves import Curve

    percent = {x: [100 * one for one in some if one is not None] for x, some in found.items()}
    alive = {x: some for x, some in sorted(percent.items()) if some}
    return Curve(
        label,
        list(alive),
        [sum(some) / len(some) for some in alive.values()],
        [min(some) for some in alive.values()],
        [max(some) for some in alive.values()],
    )
