"""What a report suggests: from the run's own numbers, and nothing without a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchwords.report.run_data import PredictionRow, RunData
from patchwords.report.sections.next_steps import render_next_steps


def results(recalls: tuple[float, ...] = (0.95, 0.95), n: int = 500) -> dict[str, Any]:
    names = [f"class {i}" for i in range(len(recalls))]
    right = [round(n * recall) for recall in recalls]
    confusion = [[n - right[i]] * len(names) for i in range(len(names))]
    for i, count in enumerate(right):
        confusion[i][i] = count
    value = sum(right) / (n * len(names))
    return {
        "images": n * len(names),
        "accuracy": {"value": value, "low": value - 0.02, "high": value + 0.02},
        "per_class": [
            {"class": name, "recall": recall, "support": n}
            for name, recall in zip(names, recalls, strict=True)
        ],
        "confusion": confusion,
    }


def rows(kind: str, losses: list[float], accuracies: list[float]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "step": i, "epoch": float(i), "split": kind, "loss": loss, "accuracy": right}
        for i, (loss, right) in enumerate(zip(losses, accuracies, strict=True))
    ]


CALM = [
    *rows("train", [0.3] * 8, [0.9] * 8),
    *rows("evaluation", [0.3] * 8, [0.9] * 8),
]
SETTINGS = {"weights": "x", "train": "all"}


def page(**parts: Any) -> str:
    whole = {"config": SETTINGS, "metrics": CALM, "evaluation": results(), **parts}
    return str(render_next_steps(RunData(Path("run"), **whole)))


def test_a_good_run_has_nothing_to_do() -> None:
    assert "No number of this run asks for something" in page()


def test_weak_classes_are_named_with_what_they_are_taken_for() -> None:
    data = {"splits": {"train": {"per_class": [90, 12, 90]}}}
    text = page(evaluation=results((0.95, 0.5, 0.95)), data=data)
    assert "More photos of “class 1”." in text
    assert "after 12 training images; most of its mistakes are answered “class 0”" in text


def test_sure_mistakes_may_be_wrong_labels() -> None:
    row = PredictionRow("a/1.png", "a", "b", 0.98, False, 0.01)
    unsure = PredictionRow("a/2.png", "a", "b", 0.6, False, 0.3)
    text = page(predictions=[row, unsure])
    assert "Check 1 label." in text
    assert "a/1.png (“a”, answered “b”)" in text


def test_longer_weights_and_capacity_follow_from_the_curves() -> None:
    rising = rows("evaluation", [0.3] * 8, [0.1 * i for i in range(1, 9)])
    assert "Train longer." in page(metrics=rising)
    assert "try --epochs 14." in page(metrics=rising)
    assert "Start from weights." in page(config={"weights": None})
    overfit = [*rows("train", [0.1] * 8, [0.9] * 8), *rows("evaluation", [0.5] * 8, [0.9] * 8)]
    assert "More photos, or stronger augmentation." in page(metrics=overfit)
    mixed = {**SETTINGS, "mixup": 0.2}
    assert "stronger augmentation" not in page(metrics=overfit, config=mixed)
    assert "A larger model, or larger images." in page(evaluation=results((0.7, 0.7)))


def test_a_wide_interval_asks_for_held_out_images() -> None:
    few = results(n=10)
    few["accuracy"] |= {"low": 0.7, "high": 0.99}
    assert "With 20 held-out images the interval is 29 points wide" in page(evaluation=few)


def test_an_evaluation_of_another_run_suggests_nothing() -> None:
    assert render_next_steps(RunData(Path("x"), evaluation={**results(), "of": "run"})) is None
