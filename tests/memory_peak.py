"""How much memory a training step takes, as torch's profiler sees it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


def measured_peak(model: nn.Module, images: Tensor, mixed: bool) -> int:
    """Bytes that forward and backward take beyond the weights and their gradients."""

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = model(images)
        logits.float().square().sum().backward()

    model.train()
    step()  # makes the gradients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            step()
    assert seen.profiler is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
