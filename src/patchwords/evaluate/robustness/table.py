"""The disturbances by name, in the order in which they are measured and drawn."""

from __future__ import annotations

from collections.abc import Sequence

from patchwords.errors import ConfigError, did_you_mean
from patchwords.evaluate.robustness.adversarial_patch import PATCH_PERTURBATIONS
from patchwords.evaluate.robustness.attacks import ATTACK_PERTURBATIONS
from patchwords.evaluate.robustness.corruptions import CORRUPTION_PERTURBATIONS
from patchwords.evaluate.robustness.disturbance import Perturbation
from patchwords.evaluate.robustness.occlusion import build_occlusions
from patchwords.evaluate.robustness.permutation import TILE_PERMUTATION
from patchwords.evaluate.robustness.texture import TEXTURE_PERTURBATIONS
from patchwords.evaluate.subject import LoadedModel


def list_perturbations(
    grid: int | None = None, saliency: LoadedModel | None = None
) -> dict[str, Perturbation]:
    """By name; `grid` and `saliency` are those of `build_occlusions`."""
    found = (
        *build_occlusions(grid, saliency),
        TILE_PERMUTATION,
        *TEXTURE_PERTURBATIONS,
        *CORRUPTION_PERTURBATIONS,
        *ATTACK_PERTURBATIONS,
        *PATCH_PERTURBATIONS,
    )
    return {disturbance.name: disturbance for disturbance in found}


PERTURBATIONS = list_perturbations()
ALL_PERTURBATIONS = "all"
PERTURBATION_FAMILIES = tuple(dict.fromkeys(found.family for found in PERTURBATIONS.values()))


def choose_perturbations(
    names: Sequence[str] = (), grid: int | None = None, saliency: LoadedModel | None = None
) -> list[Perturbation]:
    """Those of these names and families, in the table's order.

    None named: those that are usual; "all": every one, the costly ones too. Raises ConfigError
    for a name that nothing has.
    """
    known = [ALL_PERTURBATIONS, *PERTURBATION_FAMILIES, *PERTURBATIONS]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown disturbance {name!r}{did_you_mean(name, known)}")
    found = list_perturbations(grid, saliency).values()
    if not names:
        return [each for each in found if each.usual]
    return [each for each in found if {each.name, each.family, ALL_PERTURBATIONS} & {*names}]
