"""Accuracy and speed of a model in several precisions on the same images.

Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from patchwords.device import InferencePrecision, choose_device, cpu_name, has_fast_bf16
from patchwords.evaluation.compare import build_interval_entry
from patchwords.evaluation.metrics import wilson_interval
from patchwords.evaluation.predictions import LabelledPredictions, LoadedModel
from patchwords.evaluation.statistics import PairedCounts, accuracy_difference
from patchwords.models.inference.calibration import ActivationRanges
from patchwords.models.inference.int8 import quantise_model
from patchwords.weights.pretrained import Pretrained

MIN_TIMING_ROUNDS = 2  # minimum of timed rounds, after the first
TIMING_SECONDS = 6.0  # minimum of timing


def build_precision_variants(
    name: str, source: Pretrained, ranges: ActivationRanges, workers: int | None
) -> list[LoadedModel]:
    """Prepare the model for the CPU in fp32, in bf16 where fast, and in int8."""
    precisions: list[InferencePrecision] = ["fp32"]
    if has_fast_bf16(cuda=False):
        precisions.append("bf16")
    models = []
    for precision in precisions:
        device = choose_device("cpu", precision)
        models.append(LoadedModel(name, source.for_inference(device), device, workers))
    int8 = replace(source, model=quantise_model(source.model, ranges))
    return [*models, LoadedModel(name, int8, choose_device("cpu", "int8"), workers)]


def compare_precisions(answers: Mapping[str, LabelledPredictions]) -> list[dict[str, Any]]:
    """Compare precisions: accuracy, difference from the first, agreement; a row each.

    Every metric has its 95 % interval next to it.
    """
    exact = next(iter(answers.values()))
    rows = []
    for precision, found in answers.items():
        pairs = PairedCounts.of(exact.right, found.right)
        same = int((found.predicted == exact.predicted).sum())
        rows.append(
            {
                "precision": precision,
                "images": pairs.n,
                **build_interval_entry(
                    "accuracy", pairs.b / pairs.n, *wilson_interval(pairs.b, pairs.n)
                ),
                **build_interval_entry("difference", *accuracy_difference(pairs)),
                **build_interval_entry(
                    "agreement", same / pairs.n, *wilson_interval(same, pairs.n)
                ),
            }
        )
    return rows


def measure_precision_throughput(models: Sequence[LoadedModel], images: Tensor) -> dict[str, float]:
    """uint8 [B, C, H, W] -> images per second by precision: the median of alternating calls.

    Alternating, so that other load on the machine slows all of them.
    """
    times: dict[str, list[float]] = {loaded.device.precision: [] for loaded in models}
    end = time.perf_counter() + TIMING_SECONDS
    while len(next(iter(times.values()))) <= MIN_TIMING_ROUNDS or time.perf_counter() < end:
        for loaded in models:
            start = time.perf_counter()
            loaded.source.scores(images, loaded.device)
            times[loaded.device.precision].append(time.perf_counter() - start)
    # The first round sets up libraries and memory.
    return {name: len(images) / statistics.median(of_one[1:]) for name, of_one in times.items()}


def describe_timing_setup(images: Tensor) -> dict[str, Any]:
    """Describe the machine that `measure_precision_throughput` ran on."""
    return {"device": cpu_name(), "threads": torch.get_num_threads(), "batch": len(images)}
