"""The disturbances by name, in the order in which they are measured and drawn."""

from __future__ import annotations

from collections.abc import Sequence

from patchwords.errors import ConfigError, did_you_mean
from patchwords.evaluate.robustness.adversarial_patch import PATCHES
from patchwords.evaluate.robustness.attacks import ATTACKS
from patchwords.evaluate.robustness.corruptions import CORRUPTING
from patchwords.evaluate.robustness.disturbance import Disturbance
from patchwords.evaluate.robustness.occlusion import occlusions
from patchwords.evaluate.robustness.permutation import PERMUTATION
from patchwords.evaluate.robustness.texture import TEXTURES
from patchwords.evaluate.subject import Subject


def list_disturbances(
    grid: int | None = None, saliency: Subject | None = None
) -> dict[str, Disturbance]:
    """By name; `grid` and `saliency` are those of `occlusions`."""
    found = (
        *occlusions(grid, saliency),
        PERMUTATION,
        *TEXTURES,
        *CORRUPTING,
        *ATTACKS,
        *PATCHES,
    )
    return {disturbance.name: disturbance for disturbance in found}


DISTURBANCES = list_disturbances()
ALL = "all"
FAMILIES = tuple(dict.fromkeys(found.family for found in DISTURBANCES.values()))


def choose_disturbances(
    names: Sequence[str] = (), grid: int | None = None, saliency: Subject | None = None
) -> list[Disturbance]:
    """Those of these names and families, in the table's order.

    None named: those that are usual; "all": every one, the costly ones too. Raises ConfigError
    for a name that nothing has.
    """
    known = [ALL, *FAMILIES, *DISTURBANCES]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown disturbance {name!r}{did_you_mean(name, known)}")
    found = list_disturbances(grid, saliency).values()
    if not names:
        return [each for each in found if each.usual]
    return [each for each in found if {each.name, each.family, ALL} & {*names}]
