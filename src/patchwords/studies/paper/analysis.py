"""How fast models answer: by the clock of `patchwords benchmark`, with weights as they begin.

What a weight is does not change how long it takes, so nothing has to be trained first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import OutOfMemoryError

from patchwords.benchmark.clock import ThroughputResult
from patchwords.benchmark.throughput import measure_inference_throughput
from patchwords.benchmark.workload import BenchmarkWorkload
from patchwords.device import Device
from patchwords.evaluation.statistics import SeedStatistics, compute_seed_statistics
from patchwords.models.zoo import resolve_model
from patchwords.planning.matmul_peak import measure_matmul_peak
from patchwords.report.format import pluralise
from patchwords.studies.budget import resolve_model_config
from patchwords.studies.study import StudyContext, Trial, TrialGrid
from patchwords.studies.training import build_training_config
from patchwords.training.model_setup import DEFAULT_MODEL, parse_image_size

if TYPE_CHECKING:
    from patchwords.report.figures.plots import Curve, DotSeries


TIMED_CLASSES = 1000  # of a model that is only timed; the head costs next to nothing


def build_timing_workload(
    cell: Trial, bench: StudyContext, device: Device, batches: tuple[int, ...]
) -> BenchmarkWorkload:
    """The model that a cell describes, to be asked so many images at a time."""
    config = build_training_config(cell, bench)
    size = config.model_settings.image_size
    if size is not None:
        square = replace(config.model_settings, image_size=parse_image_size(size))
        config = replace(config, model_settings=square)
    name = resolve_model(config.model or DEFAULT_MODEL).name
    return BenchmarkWorkload(
        name, resolve_model_config(config, TIMED_CLASSES), config, (device,), batches, ()
    )


def measure_inference_speeds(subject: BenchmarkWorkload, seconds: float) -> list[ThroughputResult]:
    """A row for each number of images at a time, rising; `seconds` for each.

    Without the largest numbers where a GPU has no room for them.
    """
    [device] = subject.devices
    while True:
        try:
            return measure_inference_throughput(
                subject, device, measure_matmul_peak(device), seconds
            )
        except OutOfMemoryError:
            fewer = subject.inference_batches[:-1]
            if not fewer:
                raise
            subject = replace(subject, inference_batches=fewer)


# Accuracies of several seeds over what was varied, as a curve in a band.


def build_seed_curve(label: str, found: Mapping[float, Sequence[float | None]]) -> Curve:
    """x -> the accuracies of its seeds, as their mean in per cent, between lowest and highest.

    What diverged is left out, and an x of which nothing is left.
    """
    from patchwords.report.figures.plots import Curve

    percent = {x: [100 * one for one in some if one is not None] for x, some in found.items()}
    alive = {x: some for x, some in sorted(percent.items()) if some}
    return Curve(
        label,
        list(alive),
        [sum(some) / len(some) for some in alive.values()],
        [min(some) for some in alive.values()],
        [max(some) for some in alive.values()],
    )


# Labels beside one of them, seed by seed: what figures and tables of differences draw.


def compute_paired_differences(
    values: Mapping[str, Sequence[float | None]], one: str, other: str
) -> list[float | None]:
    """How far one label is above the other, seed by seed; None where either diverged."""
    pairs = zip(values[one], values[other], strict=True)
    return [None if a is None or b is None else a - b for a, b in pairs]


def compute_label_gaps(
    results: Mapping[str, Any], names: Sequence[str], usual: str
) -> dict[str, SeedStatistics]:
    """Label -> how far it is above `usual`, over the seeds in which neither diverged.

    A label of which no such seed is left is not there.
    """
    values = {one["label"]: one["values"] for one in results["labels"]}
    found = {}
    for name in names:
        alive = [gap for gap in compute_paired_differences(values, name, usual) if gap is not None]
        if alive:
            found[name] = compute_seed_statistics(alive)
    return found


def build_gap_dots(found: Mapping[str, SeedStatistics]) -> DotSeries:
    """In points, with their intervals."""
    from patchwords.report.figures.plots import DotSeries

    low, high = zip(*map(get_gap_interval, found.values()), strict=True)
    return DotSeries(
        "here",
        [100 * gap.mean for gap in found.values()],
        [100 * value for value in low],
        [100 * value for value in high],
    )


def format_paired_seeds(results: Mapping[str, Any]) -> str:
    """For a caption: what a mean and its interval are over."""
    several = ", paired, with 95 % intervals (t)" if results["seeds"] > 1 else ""
    return f"{pluralise(results['seeds'], 'seed')}{several}"


def get_gap_interval(gap: SeedStatistics) -> tuple[float, float]:
    """The interval; of one seed the value itself, twice."""
    if gap.low is None or gap.high is None:
        return gap.mean, gap.mean
    return gap.low, gap.high


def format_gap(gap: SeedStatistics, times: float = 100.0) -> str:
    """
    >>> format_gap(SeedStatistics(0.012, 0.002, 0.007, 0.017, 3)), format_gap(SeedStatistics(0.012, None, None, None, 1))
    ('+1.2 (+0.7 to +1.7)', '+1.2')
    """
    mean = f"{times * gap.mean:+.1f}"
    if gap.low is None or gap.high is None:
        return mean
    return f"{mean} ({times * gap.low:+.1f} to {times * gap.high:+.1f})"


# Learning rates that validation images choose among: the best of each label, and their curves.


LabelFunction = Callable[[str], str]  # the name of a cell -> what it is one rate of


def choose_best_rates(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]], label_of: LabelFunction
) -> dict[str, str]:
    """Label -> its cell with the best mean over the seeds, in the order of the grid.

    A rate at which any seed diverged is out; of equally good ones the smallest is taken.
    """
    cells: dict[str, list[str]] = {label_of(name): [] for name in grid}
    for name in sorted(grid, key=lambda name: float(grid[name].get("lr", 0.0))):
        cells[label_of(name)].append(name)
    return {
        label: max(names, key=lambda name: mean_for_ranking(validation[name]))
        for label, names in cells.items()
    }


def mean_for_ranking(values: Sequence[float | None]) -> float:
    """Below every accuracy where one is missing, or all are."""
    alive = [value for value in values if value is not None]
    return sum(alive) / len(alive) if alive and len(alive) == len(values) else -1.0


def build_rate_curves(results: Mapping[str, Any], label_of: LabelFunction) -> dict[str, Curve]:
    """Label -> final validation accuracy over its rates; none where no rate was chosen."""
    found: dict[str, dict[float, list[float | None]]] = {}
    for row in results["cells"]:
        own = results["grid"][row["name"]]
        if "lr" in own:
            of_label = found.setdefault(label_of(row["name"]), {})
            of_label.setdefault(own["lr"], []).append(row["validation"])
    return {label: build_seed_curve(label, values) for label, values in found.items()}
