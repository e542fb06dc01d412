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

from patchwords.device import AnswerPrecision, choose_device, cpu_name, has_fast_bf16
from patchwords.evaluate.answers import Answers
from patchwords.evaluate.compare import with_ends
from patchwords.evaluate.metrics import wilson
from patchwords.evaluate.paired import Pairs, difference
from patchwords.evaluate.subject import Subject
from patchwords.model.int8 import quantised
from patchwords.model.ranges import Ranges
from patchwords.weights.pretrained import Pretrained

ROUNDS = 2  # of timing, at least, after the first
SECONDS = 6.0  # of timing, where the rounds take less


def in_precisions(
    name: str, source: Pretrained, ranges: Ranges, workers: int | None
) -> list[Subject]:
    """The model as `predict` would make it on the CPU: in fp32, in bf16 where fast, and in int8."""
    precisions: list[AnswerPrecision] = ["fp32"]
    if has_fast_bf16(cuda=False):
        precisions.append("bf16")
    subjects = []
    for precision in precisions:
        device = choose_device("cpu", precision)
        subjects.append(Subject(name, source.for_inference(device), device, workers))
    int8 = replace(source, model=quantised(source.model, ranges))
    return [*subjects, Subject(name, int8, choose_device("cpu", "int8"), workers)]


def cost(answers: Mapping[str, Answers]) -> list[dict[str, Any]]:
    """Of each precision a row: accuracy, its difference from the first's, how often both agree.

    Every number has its 95 % interval beside it.
    """
    exact = next(iter(answers.values()))
    rows = []
    for precision, found in answers.items():
        pairs = Pairs.of(exact.right, found.right)
        same = int((found.predicted == exact.predicted).sum())
        rows.append(
            {
                "precision": precision,
                "images": pairs.n,
                **with_ends("accuracy", pairs.b / pairs.n, *wilson(pairs.b, pairs.n)),
                **with_ends("difference", *difference(pairs)),
                **with_ends("agreement", same / pairs.n, *wilson(same, pairs.n)),
            }
        )
    return rows


def paces(subjects: Sequence[Subject], images: Tensor) -> dict[str, float]:
    """uint8 [B, C, H, W] -> images a second of each, by precision: the median of calls in turn.

    In turn, so that whatever else the machine does slows all of them.
    """
    times: dict[str, list[float]] = {subject.device.precision: [] for subject in subjects}
    end = time.perf_counter() + SECONDS
    while len(next(iter(times.values()))) <= ROUNDS or time.perf_counter() < end:
        for subject in subjects:
            start = time.perf_counter()
            subject.source.scores(images, subject.device)
            times[subject.device.precision].append(time.perf_counter() - start)
    # The first sets up libraries and memory.
    return {name: len(images) / statistics.median(of_one[1:]) for name, of_one in times.items()}


def timed_on(images: Tensor) -> dict[str, Any]:
    """What `paces` were measured on."""
    return {"device": cpu_name(), "threads": torch.get_num_threads(), "batch": len(images)}
