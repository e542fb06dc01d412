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
    Contrast,
    DisplayUnit,
    Scale,
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
#
# A claim whose controls do not lie above zero, by the same rule, was not tested. One that has parts
# is told where all of them say the same.


VerdictName = Literal["agrees", "disagrees", "cannot tell at this scale", "not tested here"]
CANNOT_TELL: VerdictName = "cannot tell at this scale"
UNTESTED: VerdictName = "not tested here"


@dataclass(frozen=True)
class Difference:
    """What was measured for a claim, one of its parts or a control."""

    values: tuple[float, ...]  # seed by seed
    lost: tuple[int, ...]  # seeds of which a cell diverged
    found: SeedStatistics | None  # None: no seed is left


@dataclass(frozen=True)
class Verdict:
    """A claim beside what was measured."""

    claim: Claim
    whole: Difference
    parts: tuple[Difference, ...]  # as the claim lists them
    controls: tuple[Difference, ...]  # likewise
    untested: str | None  # why this scale cannot test it, whatever was measured
    word: VerdictName


def judge_claim(claim: Claim, table: ValuesByLabel, untested: str | None = None) -> Verdict:
    """The verdict on one claim, from the values of its labels."""
    whole = differ(claim.more, claim.less, table)
    parts = tuple(differ(one.more, one.less, table) for one in claim.parts)
    controls = tuple(differ(one.more, one.less, table) for one in claim.controls)
    words = {decide_verdict(one.found, claim.margin) for one in (whole, *parts)}
    word = words.pop() if len(words) == 1 else CANNOT_TELL
    known = whole.found is not None and whole.found.low is not None  # by more than one seed
    if untested or (known and not all(map(shown, controls))):
        word = UNTESTED
    return Verdict(claim, whole, parts, controls, untested, word)


def differ(more: Sequence[str], less: Sequence[str], table: ValuesByLabel) -> Difference:
    """The mean of some labels less that of others, over the seeds in which none diverged."""
    labels = (*more, *less)
    seeds = sorted(set.intersection(*(set(table[label]) for label in labels)))
    lost = tuple(s for s in seeds if any(table[label][s] is None for label in labels))
    whole = [seed for seed in seeds if seed not in lost]
    values = tuple(_mean_of_labels(more, table, s) - _mean_of_labels(less, table, s) for s in whole)
    return Difference(values, lost, compute_seed_statistics(values) if values else None)


def shown(control: Difference) -> bool:
    """Whether a control lies above zero."""
    return decide_verdict(control.found, None) == "agrees"


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
        where = "above 0"
    else:
        value = f"{unit.times * claim.margin:g}"
        unit_of_it = unit.difference.removesuffix("s") if value == "1" else unit.difference
        where = f"within {value} {unit_of_it} of 0"
    parts = ", in each part, too" if claim.parts else ""
    names = " and ".join(one.name for one in claim.controls)
    controls = f"; control: {names}, above 0" if names else ""
    return f"{what}: the 95 % interval lies {where}{parts}{controls}"


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
        "labels": [row_of_label(study, labels, *one) for one in table.items()],
        "claims": claims(study, table, bench.scale),
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


def judged_again(study: Study, results: Mapping[str, Any]) -> dict[str, Any]:
    """Results whose labels and claims are read off their cells once more, by the study as it is."""
    whole = {(one["name"], one["seed"]): one for one in results["cells"]}
    labels = {one["label"]: one["cell"] for one in results["labels"] if one["cell"]}
    if not labels:  # nothing was chosen
        labels = {name: name for name in results["grid"]}
    table = compute_values_by_label(study, labels, whole, results["seeds"])
    return {
        **results,
        "title": study.title,
        "question": study.question,
        "source": study.source,
        "quantity": study.quantity,
        "labels": [row_of_label(study, labels, *one) for one in table.items()],
        "claims": claims(study, table, study.scales[results["scale"]]),
    }


def claims(study: Study, table: ValuesByLabel, scale: Scale) -> list[dict[str, Any]]:
    """Every claim with what was measured for it, its verdict, and what that rests on."""
    rows = []
    for claim in study.claims:
        one, unit = judge_claim(claim, table, scale.untested.get(claim.text)), unit_of(study, claim)
        rows.append(
            {
                "text": claim.text,
                "paper": claim.paper,
                "rule": format_claim_rule(claim, study.unit(claim.more[0])),
                "unit": unit,
                "margin": claim.margin,
                "values": list(one.whole.values),
                "seeds_lost": list(one.whole.lost),
                "difference": one.whole.found and asdict(one.whole.found),
                "parts": [
                    contrast(part, of_part, unit)
                    for part, of_part in zip(claim.parts, one.parts, strict=True)
                ],
                "controls": [
                    {**contrast(control, seen, unit_of(study, control)), "shown": shown(seen)}
                    for control, seen in zip(claim.controls, one.controls, strict=True)
                ],
                "untested": one.untested,
                "verdict": one.word,
            }
        )
    return rows


def contrast(named: Contrast, seen: Difference, unit: Mapping[str, Any]) -> dict[str, Any]:
    """A part or a control of a claim."""
    return {
        "name": named.name,
        "unit": unit,
        "values": list(seen.values),
        "seeds_lost": list(seen.lost),
        "difference": seen.found and asdict(seen.found),
    }


def unit_of(study: Study, one: Claim | Contrast) -> dict[str, Any]:
    return asdict(study.unit(one.more[0]))


def row_of_label(
    study: Study, labels: Mapping[str, str], label: str, values: Mapping[int, float | None]
) -> dict[str, Any]:
    """A label with its cell, if it is one, its values and its unit."""
    about = summarise_label(label, values, study.paper.get(label))
    return {"cell": labels.get(label), **about, "unit": asdict(study.unit(label))}


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
