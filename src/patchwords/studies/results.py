"""results.json: everything that a study found, from which its page and its figure are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from patchwords.device import choose_device
from patchwords.evaluate.spread import compute_seed_statistics
from patchwords.studies.bench import StudyContext
from patchwords.studies.grid import choose_labelled_trials, collect_trial_metrics
from patchwords.studies.record import StudyManifest
from patchwords.studies.study import Study, Trial, TrialMetrics, ValuesByLabel
from patchwords.studies.verdict import format_claim_rule, judge_claim
from patchwords.version import __version__

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
