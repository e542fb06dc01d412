"""Learning rates as pure functions of the step (Appendix B; vit_jax/utils.py)."""

from __future__ import annotations

import math

STAIRCASE_DROPS = (
    0.3,
    0.6,
    0.9,
)  # where the staircase falls: bit_hyperrule.py, from 20,000 images on
LINEAR_END = 1e-5  # where the linear schedule ends: create_learning_rate_schedule, vit_jax/utils.py


def learning_rate(
    step: int,
    *,
    peak: float,
    steps: int,
    warmup_steps: int,
    schedule: str = "cosine",
    drops: tuple[float, ...] = STAIRCASE_DROPS,
) -> float:
    """The rate of update number `step`, counted from 0.

    Warm-up rises linearly from 0 and reaches `peak` at step `warmup_steps`; then "cosine" falls to
    0 at `steps`, "linear" to 1e-5 (or `peak`, if that is less), "constant" stays, and "staircase"
    falls to a tenth after each of `drops`, which are shares of the steps (bit_hyperrule.py).

    >>> learning_rate(0, peak=0.1, steps=100, warmup_steps=10)
    0.0
    >>> learning_rate(10, peak=0.1, steps=100, warmup_steps=10)
    0.1
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule == "linear":
        end = min(LINEAR_END, peak)
        return end + (peak - end) * (1.0 - progress)
    if schedule == "staircase":
        return peak * 0.1 ** sum(step > round(drop * steps) for drop in drops)
    assert schedule == "constant", schedule
    return peak
