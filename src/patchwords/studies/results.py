"""results.json: everything that a study found, from which its page and its figure are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from patchwords.evaluate.spread import spread
from patchwords.studies.bench import Bench
from patchwords.studies.grid import collect, labels_of
from patchwords.studies.record import Record
from patchwords.studies.study import Cell, Numbers, Study, Table
from patchwords.studies.verdict import judge, rule
from patchwords.version import __version__

Found = Mapping[tuple[str, int], Numbers]  # (cell, seed) -> its numbers


def assemble(study: Study, record: Record, cells: Sequence[Cell], bench: Bench) -> dict[str, Any]:
    """The results of a study whose cells are all done."""
    labels = labels_of(study, cells, bench)
    measured, judged = collect(cells, bench, "measure"), collect(cells, bench, "judge")
    table: Table = {
        label: {seed: judged[name, seed]["accuracy"] for seed in range(record.seeds)}
        for label, name in labels.items()
    }
    verdicts = [judge(claim, table) for claim in study.claims]
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
        "seeds": record.seeds,
        "notes": list(record.notes),
        # as a budget has left them; what a cell sets for itself is in none of the others
        "settings": plain({name: cells[0].settings[name] for name in bench.scale.settings}),
        "grid": {name: plain(own) for name, own in bench.scale.grid.items()},
        "labels": [
            summary(label, name, table[label], study.paper.get(label))
            for label, name in labels.items()
        ],
        "claims": [
            {
                "text": one.claim.text,
                "paper": one.claim.paper,
                "rule": rule(one.claim),
                "margin": one.claim.margin,
                "values": list(one.values),
                "seeds_lost": list(one.lost),
                "difference": one.found and asdict(one.found),
                "verdict": one.word,
            }
            for one in verdicts
        ],
        "compute": compute(measured),
        "cells": [
            {
                "name": cell.name,
                "seed": cell.seed,
                "folder": f"cells/{cell.folder}",
                **measured[cell.name, cell.seed],
                **judged.get((cell.name, cell.seed), {}),
            }
            for cell in cells
        ],
    }


def summary(
    label: str, cell: str, values: Mapping[int, float | None], paper: float | None
) -> dict[str, Any]:
    """A label's test accuracy over the seeds that did not diverge, beside the paper's number."""
    alive = [value for value in values.values() if value is not None]
    over = asdict(spread(alive)) if alive else None
    return {
        "label": label,
        "cell": cell,
        "values": list(values.values()),
        "paper": paper,
        "over_seeds": over,
    }


def compute(measured: Found) -> dict[str, float]:
    """What all cells together have taken; those that diverged are not in it."""
    whole = [numbers for numbers in measured.values() if not numbers.get("diverged")]
    total = {
        name: math.fsum(numbers.get(name) or 0.0 for numbers in whole)
        for name in ("flops", "seconds", "images")
    }
    return {**total, "trainings": len(measured), "diverged": len(measured) - len(whole)}


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: list(v) if isinstance(v, tuple) else v for n, v in settings.items()}
