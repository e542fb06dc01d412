"""Settings recommended from measurements, by stated rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchwords.errors import ConfigError
from patchwords.training.plan import ResolvedSetting

if TYPE_CHECKING:
    from patchwords.benchmark.clock import ThroughputResult
    from patchwords.benchmark.loader import LoaderThroughput

NEAR_BEST_RATIO = 0.95  # of the best speed counts as equal: smaller batches take less memory
MIN_BF16_SPEEDUP = 1.05  # from this speed-up on bf16 is worth its rounding
LOADER_HEADROOM = 1.2  # loader speed over training speed, as loading varies
MAX_WAIT_SHARE = 0.05  # share of the time; below it workers are not worth their cores


@dataclass(frozen=True)
class MeasuredSetting:
    """A precision and batch size with its measured speed."""

    precision: str
    batch: int
    images_per_second: float


def list_measured_settings(rows: Sequence[ThroughputResult]) -> list[MeasuredSetting]:
    """List the settings that were measured."""
    return [
        MeasuredSetting(row.precision, row.batch, row.images_per_second)
        for row in rows
        if row.images_per_second is not None
    ]


def recommend_batch_setting(
    rows: Sequence[ThroughputResult], what: str, flag: str
) -> tuple[MeasuredSetting, list[ResolvedSetting]]:
    """Recommend precision and batch size for `flag`; ConfigError without a measurement.

    bf16 if its best speed is `MIN_BF16_SPEEDUP` times that of fp32, which is exact, at batch sizes
    that both have; then the smallest batch within `NEAR_BEST_RATIO` of the best in that precision.
    """
    tried = list_measured_settings(rows)
    if not tried:
        raise ConfigError(f"no {what} was measured: {rows[0].skipped}; try a smaller --batch-size")
    precision, why = recommend_precision(best_throughput_by_precision(tried))
    ours = [row for row in tried if row.precision == precision]
    top = max(ours, key=get_throughput)
    enough = next(
        row for row in ours if get_throughput(row) >= NEAR_BEST_RATIO * get_throughput(top)
    )  # batch sizes rise
    if enough.batch == top.batch:
        share = "the fastest that was tried"
    else:
        share = f"{get_throughput(enough) / get_throughput(top):.0%} of the speed of {top.batch}, in less memory"
    return enough, [
        ResolvedSetting("--precision", precision, why),
        ResolvedSetting(
            flag, enough.batch, f"{format_throughput(get_throughput(enough))} images/s, {share}"
        ),
    ]


def best_throughput_by_precision(tried: Sequence[MeasuredSetting]) -> dict[str, float]:
    """Return the best speed per precision, at batch sizes that all precisions have."""
    batches: dict[str, dict[int, float]] = {}
    for row in tried:
        batches.setdefault(row.precision, {})[row.batch] = get_throughput(row)
    shared = set.intersection(*(set(table) for table in batches.values()))
    if not shared:  # no batch size fits in all precisions
        return {name: max(table.values()) for name, table in batches.items()}
    return {name: max(table[batch] for batch in shared) for name, table in batches.items()}


def format_throughput(value: float) -> str:
    """Format images per second.

    >>> format_throughput(1234.5), format_throughput(3.14159), format_throughput(87.65)
    ('1,234', '3.14', '87.7')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def get_throughput(setting: MeasuredSetting) -> float:
    return setting.images_per_second


def recommend_precision(best: dict[str, float]) -> tuple[str, str]:
    """Recommend a precision from the best speed of each, with the reason.

    >>> recommend_precision({"bf16": 190.0, "fp32": 100.0})
    ('bf16', '1.90 x the speed of fp32')
    """
    if len(best) == 1:
        return next(iter(best)), "the only one that was measured"
    ratio = best["bf16"] / best["fp32"]
    if ratio >= MIN_BF16_SPEEDUP:
        return "bf16", f"{ratio:.2f} x the speed of fp32"
    return "fp32", f"bf16 brings {ratio:.2f} x its speed, which is not worth the rounding"


def recommend_grad_accum(batch: int, at_once: int) -> ResolvedSetting:
    """Recommend the number of micro-batches of the recipe's batch.

    >>> recommend_grad_accum(512, 32).value
    16
    """
    parts = math.ceil(batch / at_once)
    return ResolvedSetting(
        "--grad-accum", parts, f"the recipe's batch of {batch:,}, {at_once} at a time"
    )


def recommend_workers(
    rows: Sequence[LoaderThroughput], training: float, cuda: bool
) -> ResolvedSetting:
    """Recommend the fewest workers that keep training fed; `training` in images/s without input.

    None if a CPU would wait for less than `MAX_WAIT_SHARE` of the time while reading images between
    two steps: a worker would take more. Otherwise the fewest that give `LOADER_HEADROOM` times the
    speed of training, or the fastest number measured.
    """
    for row in sorted(rows, key=lambda row: row.workers):
        if row.workers == 0:
            wait = training / (training + row.images_per_second)
            if not cuda and wait < MAX_WAIT_SHARE:
                why = f"reading between the steps takes {wait:.1%} of the time"
                return ResolvedSetting("--workers", 0, why)
        elif row.images_per_second >= LOADER_HEADROOM * training:
            return ResolvedSetting(
                "--workers",
                row.workers,
                f"{format_loader_ratio(row, training)} what training takes",
            )
    most = max(rows, key=lambda row: (row.images_per_second, -row.workers))
    return ResolvedSetting(
        "--workers",
        most.workers,
        f"the fastest: {format_loader_ratio(most, training)} what it takes",
    )


def format_loader_ratio(row: LoaderThroughput, training: float) -> str:
    return f"{format_throughput(row.images_per_second)} images/s, {row.images_per_second / training:.1f} x"


def find_bottleneck(reading: float, training: float) -> ResolvedSetting:
    """Tell whether the loader or the device is slower, by images/s of each alone.

    >>> find_bottleneck(reading=300.0, training=900.0).value
    'input'
    """
    if reading < training:
        why = f"the loader gives {format_throughput(reading)} images/s, training could take {format_throughput(training)}"
        return ResolvedSetting("bound by", "input", why)
    why = f"training takes {format_throughput(training)} images/s, the loader could give {format_throughput(reading)}"
    return ResolvedSetting("bound by", "compute", why)


def recommend_checkpointing(needed: bool, smallest: int) -> ResolvedSetting:
    """Recommend whether to recompute activations."""
    if needed:
        return ResolvedSetting(
            "--checkpoint-activations", "yes", f"{smallest} images at a time do not fit without it"
        )
    return ResolvedSetting("--checkpoint-activations", "no", "what was measured fits without it")


def recommend_compile(cuda: bool) -> ResolvedSetting:
    """Recommend compilation for a GPU, by fused kernels; it is not measured here."""
    if cuda:
        return ResolvedSetting(
            "--compile", "yes", "for runs of more than some minutes, which it takes first"
        )
    return ResolvedSetting(
        "--compile", "no", "on a CPU it brings little for the time that it takes"
    )
