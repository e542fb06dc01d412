"""What rounding costs a model, and what it saves: the same images asked in several precisions.

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

MIN_TIMING_ROUNDS = 2  # of timing, at least, after the first
TIMING_SECONDS = 6.0  # of timing, where the rounds take less


def build_precision_variants(
    name: str, source: Pretrained, ranges: ActivationRanges, workers: int | None
) -> list[LoadedModel]:
    """The model as `predict` would make it on the CPU: in fp32, in bf16 where fast, and in int8."""
    precisions: list[InferencePrecision] = ["fp32"]
    if has_fast_bf16(cuda=False):
        precisions.append("bf16")
    subjects = []
    for precision in precisions:
        device = choose_device("cpu", precision)
        subjects.append(LoadedModel(name, source.for_inference(device), device, workers))
    int8 = replace(source, model=quantise_model(source.model, ranges))
    return [*subjects, LoadedModel(name, int8, choose_device("cpu", "int8"), workers)]


def compare_precisions(answers: Mapping[str, LabelledPredictions]) -> list[dict[str, Any]]:
    """Of each precision a row: accuracy, its difference from the first's, how often both agree.

    Every number has its 95 % interval beside it.
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


def measure_precision_throughput(
    subjects: Sequence[LoadedModel], images: Tensor
) -> dict[str, float]:
    """uint8 [B, C, H, W] -> images a second of each, by precision: the median of calls in turn.

    In turn, so that whatever else the machine does slows all of them.
    """
    times: dict[str, list[float]] = {subject.device.precision: [] for subject in subjects}
    end = time.perf_counter() + TIMING_SECONDS
    while len(next(iter(times.values()))) <= MIN_TIMING_ROUNDS or time.perf_counter() < end:
        for subject in subjects:
            start = time.perf_counter()
            subject.source.scores(images, subject.device)
            times[subject.device.precision].append(time.perf_counter() - start)
    # The first sets up libraries and memory.
    return {name: len(images) / statistics.median(of_one[1:]) for name, of_one in times.items()}


def describe_timing_setup(images: Tensor) -> dict[str, Any]:
    """What `measure_precision_throughput` were measured on."""
    return {"device": cpu_name(), "threads": torch.get_num_threads(), "batch": len(images)}
