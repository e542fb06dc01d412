"""Shared analysis of studies: inference speed, seed curves, paired gaps, learning rates.

Inference speed is measured with initial weights: the values of weights do not change it.
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


TIMED_CLASSES = 1000  # of timed models; the head's cost is negligible


def build_timing_workload(
    trial: Trial, context: StudyContext, device: Device, batches: tuple[int, ...]
) -> BenchmarkWorkload:
    """Build the workload of a trial's model, for a batch size."""
    config = build_training_config(trial, context)
    size = config.model_settings.image_size
    if size is not None:
        square = replace(config.model_settings, image_size=parse_image_size(size))
        config = replace(config, model_settings=square)
    name = resolve_model(config.model or DEFAULT_MODEL).name
    return BenchmarkWorkload(
        name, resolve_model_config(config, TIMED_CLASSES), config, (device,), batches, ()
    )


def measure_inference_speeds(workload: BenchmarkWorkload, seconds: float) -> list[ThroughputResult]:
    """Measure a row per batch size, in rising order; `seconds` for each.

    Batch sizes that do not fit on a GPU are left out.
    """
    [device] = workload.devices
    while True:
        try:
            return measure_inference_throughput(
                workload, device, measure_matmul_peak(device), seconds
            )
        except OutOfMemoryError:
            fewer = workload.inference_batches[:-1]
            if not fewer:
                raise
            workload = replace(workload, inference_batches=fewer)


# Seed curves: mean accuracy over a varied setting, in a band.


def build_seed_curve(label: str, found: Mapping[float, Sequence[float | None]]) -> Curve:
    """Build a curve of mean accuracy in per cent, in a band from lowest to highest seed.

    Diverged seeds are left out, and so is an x without seeds.
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


# Paired gaps: labels against a reference label, seed by seed.


def compute_paired_differences(
    values: Mapping[str, Sequence[float | None]], one: str, other: str
) -> list[float | None]:
    """Subtract two labels seed by seed; None where one diverged."""
    pairs = zip(values[one], values[other], strict=True)
    return [None if a is None or b is None else a - b for a, b in pairs]


def compute_label_gaps(
    results: Mapping[str, Any], names: Sequence[str], usual: str
) -> dict[str, SeedStatistics]:
    """Compute the gap of every label to `usual`, over the seeds in which neither diverged.

    Labels without such a seed are left out.
    """
    values = {one["label"]: one["values"] for one in results["labels"]}
    found = {}
    for name in names:
        alive = [gap for gap in compute_paired_differences(values, name, usual) if gap is not None]
        if alive:
            found[name] = compute_seed_statistics(alive)
    return found


def build_gap_dots(found: Mapping[str, SeedStatistics]) -> DotSeries:
    """Build dots in points with their intervals."""
    from patchwords.report.figures.plots import DotSeries

    low, high = zip(*map(get_gap_interval, found.values()), strict=True)
    return DotSeries(
        "here",
        [100 * gap.mean for gap in found.values()],
        [100 * value for value in low],
        [100 * value for value in high],
    )


def format_paired_seeds(results: Mapping[str, Any]) -> str:
    """Describe for a caption what a mean and its interval are over."""
    several = ", paired, with 95 % intervals (t)" if results["seeds"] > 1 else ""
    return f"{pluralise(results['seeds'], 'seed')}{several}"


def get_gap_interval(gap: SeedStatistics) -> tuple[float, float]:
    """Return the interval; for one seed the value itself, twice."""
    if gap.low is None or gap.high is None:
        return gap.mean, gap.mean
    return gap.low, gap.high


def format_gap(gap: SeedStatistics, times: float = 100.0) -> str:
    """Format a gap in points with its interval.

    >>> format_gap(SeedStatistics(0.012, 0.002, 0.007, 0.017, 3)), format_gap(SeedStatistics(0.012, None, None, None, 1))
    ('+1.2 (+0.7 to +1.7)', '+1.2')
    """
    mean = f"{times * gap.mean:+.1f}"
    if gap.low is None or gap.high is None:
        return mean
    return f"{mean} ({times * gap.low:+.1f} to {times * gap.high:+.1f})"


# Learning rates chosen by validation accuracy.


LabelFunction = Callable[[str], str]  # name of a trial -> its label without the rate


def choose_best_rates(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]], label_of: LabelFunction
) -> dict[str, str]:
    """Choose the trial with the best mean over seeds for each label, in grid order.

    A rate at which a seed diverged is excluded; ties go to the smallest rate.
    """
    trials: dict[str, list[str]] = {label_of(name): [] for name in grid}
    for name in sorted(grid, key=lambda name: float(grid[name].get("lr", 0.0))):
        trials[label_of(name)].append(name)
    return {
        label: max(names, key=lambda name: mean_for_ranking(validation[name]))
        for label, names in trials.items()
    }


def mean_for_ranking(values: Sequence[float | None]) -> float:
    """Return the mean for ranking; below every accuracy if a value is missing."""
    alive = [value for value in values if value is not None]
    return sum(alive) / len(alive) if alive and len(alive) == len(values) else -1.0


def build_rate_curves(results: Mapping[str, Any], label_of: LabelFunction) -> dict[str, Curve]:
    """Build curves of final validation accuracy over learning rates, per label."""
    found: dict[str, dict[float, list[float | None]]] = {}
    for row in results["cells"]:
        own = results["grid"][row["name"]]
        if "lr" in own:
            of_label = found.setdefault(label_of(row["name"]), {})
            of_label.setdefault(own["lr"], []).append(row["validation"])
    return {label: build_seed_curve(label, values) for label, values in found.items()}
