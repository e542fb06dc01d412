"""What to set, by stated rules, from what was measured. No rule looks at anything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from patchwords.errors import ConfigError
from patchwords.measure.clock import Speed
from patchwords.measure.input import InputSpeed
from patchwords.train.choice import Choice

CLOSE = 0.95  # of the best speed is as good: fewer images at a time take less memory
FASTER = 1.05  # times as fast, and rounding to bf16 pays
AMPLE = 1.2  # times what training takes: so much the loader should give, for it varies
WAIT = 0.05  # of the time; less of it, and workers are not worth their cores


@dataclass(frozen=True)
class Setting:
    """Numbers of images at a time in a precision, and how fast that was."""

    precision: str
    batch: int
    images_per_second: float


def measured(rows: Sequence[Speed]) -> list[Setting]:
    """Those rows that were tried."""
    return [
        Setting(row.precision, row.batch, row.images_per_second)
        for row in rows
        if row.images_per_second is not None
    ]


def choose_setting(rows: Sequence[Speed], what: str, flag: str) -> tuple[Setting, list[Choice]]:
    """Precision and images at a time, which `flag` names; ConfigError where nothing was tried.

    bf16 where its best speed is `FASTER` than that of fp32, which is exact, at those numbers of
    images that both have; then the fewest images at a time that come within `CLOSE` of the best in
    that precision.
    """
    tried = measured(rows)
    if not tried:
        raise ConfigError(f"no {what} was measured: {rows[0].skipped}; try a smaller --batch-size")
    precision, why = choose_precision(compare(tried))
    ours = [row for row in tried if row.precision == precision]
    top = max(ours, key=speed)
    enough = next(row for row in ours if speed(row) >= CLOSE * speed(top))  # batches rise
    if enough.batch == top.batch:
        share = "the fastest that was tried"
    else:
        share = f"{speed(enough) / speed(top):.0%} of the speed of {top.batch}, in less memory"
    return enough, [
        Choice("--precision", precision, why),
        Choice(flag, enough.batch, f"{pace(speed(enough))} images/s, {share}"),
    ]


def compare(tried: Sequence[Setting]) -> dict[str, float]:
    """Precision -> its best speed, at the numbers of images at a time that all precisions have."""
    batches: dict[str, dict[int, float]] = {}
    for row in tried:
        batches.setdefault(row.precision, {})[row.batch] = speed(row)
    shared = set.intersection(*(set(table) for table in batches.values()))
    if not shared:  # one of them fits so little that they never meet
        return {name: max(table.values()) for name, table in batches.items()}
    return {name: max(table[batch] for batch in shared) for name, table in batches.items()}


def pace(value: float) -> str:
    """Images a second, for a person.

    >>> pace(1234.5), pace(3.14159), pace(87.65)
    ('1,234', '3.14', '87.7')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def speed(setting: Setting) -> float:
    return setting.images_per_second


def choose_precision(best: dict[str, float]) -> tuple[str, str]:
    """Of the best speed by precision -> (precision, why).

    >>> choose_precision({"bf16": 190.0, "fp32": 100.0})
    ('bf16', '1.90 x the speed of fp32')
    """
    if len(best) == 1:
        return next(iter(best)), "the only one that was measured"
    ratio = best["bf16"] / best["fp32"]
    if ratio >= FASTER:
        return "bf16", f"{ratio:.2f} x the speed of fp32"
    return "fp32", f"bf16 brings {ratio:.2f} x its speed, which is not worth the rounding"


def choose_parts(batch: int, at_once: int) -> Choice:
    """Into how many parts the recipe's batch is cut.

    >>> choose_parts(512, 32).value
    16
    """
    parts = math.ceil(batch / at_once)
    return Choice("--grad-accum", parts, f"the recipe's batch of {batch:,}, {at_once} at a time")


def choose_workers(rows: Sequence[InputSpeed], training: float, cuda: bool) -> Choice:
    """The fewest workers that keep training fed; `training` is its images/s without input.

    None where a CPU would wait for less than `WAIT` of the time with the images read between two
    steps: a worker would take more from it. Else as many as give `AMPLE` times what is taken, or
    the fastest there is.
    """
    for row in sorted(rows, key=lambda row: row.workers):
        if row.workers == 0:
            wait = training / (training + row.images_per_second)
            if not cuda and wait < WAIT:
                why = f"reading between the steps takes {wait:.1%} of the time"
                return Choice("--workers", 0, why)
        elif row.images_per_second >= AMPLE * training:
            return Choice("--workers", row.workers, f"{times(row, training)} what training takes")
    most = max(rows, key=lambda row: (row.images_per_second, -row.workers))
    return Choice("--workers", most.workers, f"the fastest: {times(most, training)} what it takes")


def times(row: InputSpeed, training: float) -> str:
    return f"{pace(row.images_per_second)} images/s, {row.images_per_second / training:.1f} x"


def what_binds(reading: float, training: float) -> Choice:
    """Whether the loader or the device is slower, by their images/s, each alone.

    >>> what_binds(reading=300.0, training=900.0).value
    'input'
    """
    if reading < training:
        why = f"the loader gives {pace(reading)} images/s, training could take {pace(training)}"
        return Choice("bound by", "input", why)
    why = f"training takes {pace(training)} images/s, the loader could give {pace(reading)}"
    return Choice("bound by", "compute", why)


def choose_checkpointing(needed: bool, smallest: int) -> Choice:
    """Whether activations must be computed twice."""
    if needed:
        return Choice(
            "--checkpoint-activations", "yes", f"{smallest} images at a time do not fit without it"
        )
    return Choice("--checkpoint-activations", "no", "what was measured fits without it")


def choose_compile(cuda: bool) -> Choice:
    """A GPU gains by fused kernels, a CPU little; it is not measured here."""
    if cuda:
        return Choice(
            "--compile", "yes", "for runs of more than some minutes, which it takes first"
        )
    return Choice("--compile", "no", "on a CPU it brings little for the time that it takes")
