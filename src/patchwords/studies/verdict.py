"""Does a claim of the paper hold here? By a rule that is fixed before the run.

Seeds are paired: cells of one seed see the same images in the same order, so the difference is
taken seed by seed, and its 95 % interval is Student's t over the seeds. One seed says nothing of
the next: with a single one nothing can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from patchwords.evaluate.spread import SeedStatistics, compute_seed_statistics
from patchwords.studies.study import Claim, DisplayUnit, ValuesByLabel

VerdictName = Literal["agrees", "disagrees", "cannot tell at this scale"]
CANNOT_TELL: VerdictName = "cannot tell at this scale"


@dataclass(frozen=True)
class Verdict:
    """A claim beside what was measured."""

    claim: Claim
    values: tuple[float, ...]  # the difference, seed by seed
    lost: tuple[int, ...]  # seeds of which a cell diverged
    found: SeedStatistics | None  # None: no seed is left
    word: VerdictName


def judge_claim(claim: Claim, table: ValuesByLabel) -> Verdict:
    """The verdict on one claim, from the values of its labels."""
    labels = (*claim.more, *claim.less)
    seeds = sorted(set.intersection(*(set(table[label]) for label in labels)))
    lost = tuple(s for s in seeds if any(table[label][s] is None for label in labels))
    whole = [seed for seed in seeds if seed not in lost]
    values = tuple(
        _mean_of_labels(claim.more, table, s) - _mean_of_labels(claim.less, table, s) for s in whole
    )
    found = compute_seed_statistics(values) if values else None
    return Verdict(claim, values, lost, found, decide_verdict(found, claim.margin))


def decide_verdict(found: SeedStatistics | None, margin: float | None) -> VerdictName:
    """The rule: where the interval lies against zero, or against the margin around it."""
    if found is None or found.low is None or found.high is None:
        return CANNOT_TELL
    if margin is None:
        if found.low > 0:
            return "agrees"
        return "disagrees" if found.high < 0 else CANNOT_TELL
    if -margin <= found.low and found.high <= margin:
        return "agrees"
    return "disagrees" if found.low > margin or found.high < -margin else CANNOT_TELL


def format_claim_rule(claim: Claim, unit: DisplayUnit) -> str:
    """What decides, for a person."""
    more, less = (
        " and ".join(labels)
        for labels in (_abbreviate_labels(claim.more), _abbreviate_labels(claim.less))
    )
    what = f"{more} less {less}" if less else more
    if claim.margin is None:
        return f"{what}: the 95 % interval lies above 0"
    value = f"{unit.times * claim.margin:g}"
    margin = f"{value} {unit.difference.removesuffix('s') if value == '1' else unit.difference}"
    return f"{what}: the 95 % interval lies within {margin} of 0"


def _abbreviate_labels(labels: Sequence[str]) -> Sequence[str]:
    return labels if len(labels) <= 3 else (f"mean of {len(labels)} cells",)


def _mean_of_labels(labels: Sequence[str], table: ValuesByLabel, seed: int) -> float:
    if not labels:
        return 0.0
    values = [table[label][seed] for label in labels]
    return sum(value for value in values if value is not None) / len(values)
