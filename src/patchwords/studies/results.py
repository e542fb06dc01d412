"""results.json: everything that a study found, from which its page and its figure are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from patchwords.device import choose_device
from patchwords.evaluation.statistics import SeedStatistics, compute_seed_statistics
from patchwords.studies.grid import StudyManifest, choose_labelled_trials, collect_trial_metrics
from patchwords.studies.study import (
    Claim,
    DisplayUnit,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
    ValuesByLabel,
)
from patchwords.version import __version__

# Does a claim of the paper hold here? By a rule that is fixed before the run.
#
# Seeds are paired: cells of one seed see the same images in the same order, so the difference is
# taken seed by seed, and its 95 % interval is Student's t over the seeds. One seed says nothing of
# the next: with a single one nothing can be told.


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


MetricsByTrial = Mapping[tuple[str, int], TrialMetrics]  # (cell, seed) -> its numbers


def assemble_results(
    study: Study,
    record: StudyManifest,
    encoders: Sequence[Trial],
    cells: Sequence[Trial],
    bench: StudyContext,
) -> dict[str, Any]:
    """The results of a study whose cells are all done."""
    labels = choose_labelled_trials(study, cells, bench)
    measured, judged = (
        collect_trial_metrics(cells, bench, "measure"),
        collect_trial_metrics(cells, bench, "judge"),
    )
    pretrained = collect_trial_metrics(encoders, bench, "measure")
    whole = {key: {**numbers, **judged.get(key, {})} for key, numbers in measured.items()}
    table = compute_values_by_label(study, labels, whole, record.seeds)
    verdicts = [judge_claim(claim, table) for claim in study.claims]
    return {
        "study": study.name,
        "version": study.version,
        "digest": record.digest,
        "patchwords": __version__,
        "scale": record.scale,
        "title": study.title,
        "question": study.question,
        "source": study.source,
        "quantity": study.quantity,
        "data": bench.data,
        "transfer": bench.transfer,
        "device": choose_device(bench.device).describe()["name"],
        "seeds": record.seeds,
        "notes": list(record.notes),
        # as a budget has left them; what a cell sets for itself is in none of the others
        "settings": convert_tuples(
            {name: cells[0].settings[name] for name in bench.scale.settings}
        ),
        "grid": {name: convert_tuples(own) for name, own in bench.scale.grid.items()},
        "encoders": {name: convert_tuples(own) for name, own in bench.scale.encoders.items()},
        "labels": [
            {
                "cell": labels.get(label),
                **summarise_label(label, values, study.paper.get(label)),
                "unit": asdict(study.unit(label)),
            }
            for label, values in table.items()
        ],
        "claims": [
            {
                "text": one.claim.text,
                "paper": one.claim.paper,
                "rule": format_claim_rule(one.claim, study.unit(one.claim.more[0])),
                "unit": asdict(study.unit(one.claim.more[0])),
                "margin": one.claim.margin,
                "values": list(one.values),
                "seeds_lost": list(one.lost),
                "difference": one.found and asdict(one.found),
                "verdict": one.word,
            }
            for one in verdicts
        ],
        "compute": sum_training_compute([*pretrained.values(), *measured.values()]),
        "pretrainings": [build_trial_row(cell, pretrained, bench) for cell in encoders],
        "cells": [build_trial_row(cell, whole, bench) for cell in cells],
    }


def compute_values_by_label(
    study: Study, labels: Mapping[str, str], whole: MetricsByTrial, seeds: int
) -> ValuesByLabel:
    """Label -> seed -> what the study reads off the cells of that seed."""
    table: dict[str, dict[int, float | None]] = {}
    for seed in range(seeds):
        found = {name: numbers for (name, one), numbers in whole.items() if one == seed}
        for label, value in study.read(labels, found).items():
            table.setdefault(label, {})[seed] = value
    return table


def build_trial_row(cell: Trial, found: MetricsByTrial, bench: StudyContext) -> dict[str, Any]:
    """A cell with its numbers, and where its files are."""
    place = bench.place(cell).relative_to(bench.folder)
    about = {"name": cell.name, "seed": cell.seed, "folder": str(place)}
    return {**about, **found[cell.name, cell.seed]}


def summarise_label(
    label: str, values: Mapping[int, float | None], paper: float | None
) -> dict[str, Any]:
    """A label's values over the seeds that did not diverge, beside the paper's number."""
    alive = [value for value in values.values() if value is not None]
    over = asdict(compute_seed_statistics(alive)) if alive else None
    return {
        "label": label,
        "values": list(values.values()),
        "paper": paper,
        "over_seeds": over,
    }


def sum_training_compute(measured: Sequence[TrialMetrics]) -> dict[str, float]:
    """What all trainings together have taken; those that diverged are not in it."""
    trained = [one for one in measured if "flops" in one or one.get("diverged")]
    whole = [numbers for numbers in trained if not numbers.get("diverged")]
    total = {
        name: math.fsum(numbers.get(name) or 0.0 for numbers in whole)
        for name in ("flops", "seconds", "images")
    }
    return {**total, "trainings": len(trained), "diverged": len(trained) - len(whole)}


def convert_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: list(v) if isinstance(v, tuple) else v for n, v in settings.items()}
