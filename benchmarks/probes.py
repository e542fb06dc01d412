"""Few-shot least squares over a path of penalties, against scikit-learn: see fewshot.py."""

from __future__ import annotations

from benchmarks import fewshot
from benchmarks.asked import Asked
from benchmarks.peers import Different
from benchmarks.table import Section, compare

FULL = ("--classes=1000", "--shots=5", "--width=768", "--penalties=10")
QUICK = ("--classes=7", "--shots=3", "--width=11", "--penalties=2")
GOAL = 8.0


def measure(asked: Asked) -> Section:
    section = Section("probes")
    settings = QUICK if asked.quick else FULL
    section.remark(
        f"fewshot.py {' '.join(settings)}; scikit-learn has features made white and, for Ridge, "
        "targets outside its time; weights agree to 1e-8"
    )
    found = fewshot.race(settings, asked.rounds_or(5))
    ours = found.pop("patchwords")
    for name, runs in found.items():
        apart = fewshot.difference(runs, ours)
        if not apart < fewshot.APART:
            raise Different(f"{name}'s weights are {apart:.1e} apart from ours")
        for key, what, unit, scale, goal in (
            ("seconds", "few-shot path", "s", 1.0, GOAL),
            ("memory", "few-shot path, memory", "MiB", fewshot.MIB, None),
        ):
            own, theirs = ([max(run[key], 1e-9) / scale for run in one] for one in (ours, runs))
            section.add(compare(what, unit, own, (f"scikit-learn {name}", theirs), goal=goal))
    return section
