"""What a precision costs is counted on the same images, and timed in turn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from patchwords.data.preprocess import Preprocess
from patchwords.evaluation import quantisation as rounding
from patchwords.evaluation.metrics import wilson_interval
from patchwords.evaluation.predictions import LabelledPredictions
from patchwords.evaluation.quantisation import (
    build_precision_variants,
    compare_precisions,
    describe_timing_setup,
    measure_precision_throughput,
)
from patchwords.models.inference.calibration import collect_activation_ranges
from patchwords.models.inference.int8 import find_int8_obstacle
from patchwords.models.zoo import create_model
from patchwords.weights.pretrained import Pretrained


def answers(predicted: list[int], labels: list[int]) -> LabelledPredictions:
    return LabelledPredictions(
        *("model", ("a", "b", "c"), [str(i) for i in range(len(labels))]),
        *(np.array(labels), np.array(predicted), np.ones(len(labels))),
    )


def test_cost_is_counted_by_hand() -> None:
    labels = [0, 1, 2, 0, 1, 2, 0]
    exact = answers([0, 1, 2, 0, 0, 0, 1], labels)  # 4 of 7
    found = answers([0, 1, 0, 1, 1, 1, 1], labels)  # 3 of 7; the same answer to 3
    first, second = compare_precisions({"fp32": exact, "int8": found})
    assert (first["precision"], first["images"], first["agreement"]) == ("fp32", 7, 1.0)
    assert (first["accuracy"], first["difference"]) == (4 / 7, 0.0)
    assert (second["accuracy"], second["agreement"]) == (3 / 7, 3 / 7)
    assert second["difference"] == pytest.approx(-1 / 7)
    assert second["difference_low"] < -1 / 7 < second["difference_high"]
    assert (second["accuracy_low"], second["accuracy_high"]) == wilson_interval(3, 7)
    assert (second["agreement_low"], second["agreement_high"]) == wilson_interval(3, 7)


@pytest.mark.skipif(
    find_int8_obstacle() is not None, reason=f"no int8 here: {find_int8_obstacle()}"
)
@pytest.mark.parametrize("rounds", [True, False])
def test_the_model_in_each_precision(rounds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "has_fast_bf16", lambda cuda: rounds)
    monkeypatch.setattr(rounding, "TIMING_SECONDS", 0.0)
    model = create_model("ViT-mu/4", num_classes=3, image_size=16).eval()
    with torch.no_grad():
        model.head.linear.weight.normal_(0, 0.1)  # type: ignore[union-attr,operator]
    source = Pretrained(model, Preprocess((16, 16)), ("a", "b", "c"))
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    ranges = collect_activation_ranges(model, [source.preprocess.normalise(images)])
    subjects = build_precision_variants("model", source, ranges, workers=0)
    assert [one.device.precision for one in subjects] == ["fp32", *["bf16"] * rounds, "int8"]
    scores = [one.source.scores(images, one.device) for one in subjects]
    assert all(abs(found - scores[0]).max() < 0.05 for found in scores)
    assert (scores[-1] != scores[0]).any()
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))  # a second at every look
    found = measure_precision_throughput(subjects, images)
    assert found == {one.device.precision: 5.0 for one in subjects}
    assert describe_timing_setup(images)["batch"] == 5
