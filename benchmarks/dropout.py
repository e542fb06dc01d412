"""What drawing dropout masks costs on a CPU: torch's dropout against ours, in one run.

    python benchmarks/dropout.py [--repeats 15]

Interleaved repeats, medians; ratios hold from machine to machine better than times do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import patchwords as pw
from patchwords.device import choose_device
from patchwords.models.layers import Dropout


def with_torch_dropout(model: nn.Module) -> nn.Module:
    """The same model with torch's own dropout in its places."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.p))
    return model


def step_of(model: nn.Module) -> Callable[[], None]:
    """A training step: ViT-Ti/16 at 96 pixels, a batch of 64, AdamW."""
    images, labels = torch.rand(64, 3, 96, 96) * 2 - 1, torch.randint(0, 5, (64,))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    device = choose_device("cpu")

    def step() -> None:
        with device.autocast():
            loss = nn.functional.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def median_seconds(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 2):
        for name, run in candidates.items():
            started = time.perf_counter()
            run()
            if repeat >= 2:  # the first two warm up
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    hidden = torch.randn(64, 37, 768).bfloat16()  # [B, T, M] of ViT-Ti/16 at 96 pixels
    layer = Dropout(0.1)
    build = {"num_classes": 5, "image_size": 96, "dropout": 0.1}
    ours = pw.create_model("ViT-Ti/16", **build)
    theirs = with_torch_dropout(pw.create_model("ViT-Ti/16", **build))
    for what, candidates in {
        "dropout alone": {
            "torch": lambda: nn.functional.dropout(hidden, 0.1),
            "ours": lambda: layer(hidden),
        },
        "training step": {"torch": step_of(theirs), "ours": step_of(ours)},
    }.items():
        seconds = median_seconds(candidates, repeats)
        ratio = seconds["torch"] / seconds["ours"]
        print(
            f"{what}: torch {1e3 * seconds['torch']:.2f} ms, ours {1e3 * seconds['ours']:.2f} ms: "
            f"{ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
