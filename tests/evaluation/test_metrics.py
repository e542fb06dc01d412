"""The numbers of a report against published values, hand counts and scikit-learn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from patchwords.errors import DataError
from patchwords.evaluation.metrics import (
    compute_calibration,
    compute_classification_metrics,
    wilson_interval,
)

FLOWERS = ("daisy", "dandelion", "roses", "sunflowers", "tulips")


def one_hot(predicted: np.ndarray, classes: int, sure: float = 0.9) -> np.ndarray:
    """[n] -> [n, classes] with `sure` on the prediction and the rest spread evenly."""
    rest = (1 - sure) / (classes - 1)
    return np.full((len(predicted), classes), rest) + np.eye(classes)[predicted] * (sure - rest)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [  # Newcombe 1998, Statistics in Medicine 17, Table I, method 3 (score, no correction)
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(right: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(right, n) == pytest.approx(
        (low, high), abs=5e-5
    )  # printed to four decimals


def test_wilson_stays_within_0_and_1_and_mirrors() -> None:
    for n in (1, 7, 731):
        for right in {0, n // 3, n}:
            low, high = wilson_interval(right, n)
            assert 0 <= low <= right / n <= high <= 1
            assert high - low > 0
            # float64: sums of a few terms of order 1
            assert wilson_interval(n - right, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def flower_predictions() -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions with the totals of the published ViT-B/16 table on 3,670 flowers.

    The table fixes true positives and predicted totals; where the mistakes go is free.
    """
    support = np.array([633, 898, 641, 699, 799])
    true_positives = np.array([616, 876, 602, 684, 730])
    predicted_totals = np.array([638, 910, 667, 699, 756])
    missed, extra = support - true_positives, predicted_totals - true_positives
    confusion = np.diag(true_positives)
    while missed.sum():  # the class with most left over gives to the one that needs most
        i = int(missed.argmax())
        j = max((k for k in range(5) if k != i), key=lambda k: int(extra[k]))
        confusion[i, j] += 1
        missed[i] -= 1
        extra[j] -= 1
    assert not extra.any()
    assert (confusion >= 0).all()
    pairs = [(i, j) for i in range(5) for j in range(5) for _ in range(confusion[i, j])]
    labels, predicted = np.array(pairs).T
    return labels, predicted


def test_the_published_flower_table_comes_out_to_its_three_decimals() -> None:
    labels, predicted = flower_predictions()
    summary = compute_classification_metrics(labels, one_hot(predicted, 5), FLOWERS)
    table = {
        row["class"]: tuple(round(row[word], 3) for word in ("precision", "recall", "f1"))
        for row in summary["per_class"]
    }
    assert table == {
        "daisy": (0.966, 0.973, 0.969),
        "dandelion": (0.963, 0.976, 0.969),
        "roses": (0.903, 0.939, 0.920),
        "sunflowers": (0.979, 0.979, 0.979),
        "tulips": (0.966, 0.914, 0.939),
    }
    assert summary["images"] == 3670
    assert round(summary["accuracy"]["value"], 3) == 0.956
    assert summary["baseline"] == 898 / 3670
    assert np.diag(summary["confusion"]).tolist() == [616, 876, 602, 684, 730]


def test_rows_of_the_confusion_are_true_classes() -> None:
    summary = compute_classification_metrics(
        np.array([0, 0, 0, 1]), one_hot(np.array([1, 1, 0, 1]), 2), "ab"
    )
    assert summary["confusion"] == [[1, 2], [0, 1]]
    assert summary["top5"] is None


def test_absent_class_is_unknown_not_zero_and_left_out_of_macro() -> None:
    # b has no image, and one image of a is taken for b
    labels, predicted = np.array([0, 0, 2, 2]), np.array([0, 1, 2, 2])
    summary = compute_classification_metrics(labels, one_hot(predicted, 3), "abc")
    absent = summary["per_class"][1]
    assert (absent.pop("class"), absent.pop("support")) == ("b", 0)
    assert set(absent.values()) == {None}  # the intervals, too
    assert summary["macro"]["recall"] == pytest.approx((0.5 + 1) / 2)
    assert summary["macro"]["precision"] == 1.0
    assert summary["balanced_accuracy"] == summary["macro"]["recall"]
    assert summary["weighted"]["recall"] == pytest.approx(summary["accuracy"]["value"])


def test_intervals_of_classes_are_wilsons_and_top5_has_one() -> None:
    labels, predicted = flower_predictions()
    summary = compute_classification_metrics(labels, one_hot(predicted, 5), FLOWERS)
    roses = summary["per_class"][2]
    assert (roses["recall_low"], roses["recall_high"]) == wilson_interval(602, 641)
    assert (roses["precision_low"], roses["precision_high"]) == wilson_interval(602, 667)
    macro = summary["macro"]
    assert 0.94 < macro["f1_low"] < macro["f1"] < macro["f1_high"] < 0.965
    assert "f1_low" not in summary["weighted"]
    random = np.random.default_rng(5)
    labels, probabilities = random.integers(0, 7, 83), random.dirichlet(np.ones(7), 83)
    summary = compute_classification_metrics(labels, probabilities, list("abcdefg"))
    found = round(summary["top5"] * 83)
    assert (summary["top5_low"], summary["top5_high"]) == wilson_interval(found, 83)


def test_a_class_that_is_never_answered_has_no_interval_of_precision() -> None:
    row = compute_classification_metrics(np.array([0, 1]), one_hot(np.array([0, 0]), 2), "ab")[
        "per_class"
    ][1]
    assert (row["precision_low"], row["precision_high"]) == (None, None)
    assert (row["recall_low"], row["recall_high"]) == wilson_interval(0, 1)


def test_never_predicted_class_has_precision_zero_without_a_warning() -> None:
    summary = compute_classification_metrics(np.array([0, 1]), one_hot(np.array([0, 0]), 2), "ab")
    assert summary["per_class"][1]["precision"] == 0.0
    assert summary["macro"]["precision"] == 0.25


def test_agrees_with_scikit_learn_on_random_answers() -> None:
    from sklearn.metrics import balanced_accuracy_score, log_loss, top_k_accuracy_score

    random = np.random.default_rng(3)
    labels = random.integers(0, 7, size=211)
    probabilities = random.dirichlet(np.ones(7), size=211)
    summary = compute_classification_metrics(labels, probabilities, list("abcdefg"))
    predicted = probabilities.argmax(1)
    assert summary["loss"] == pytest.approx(log_loss(labels, probabilities))
    assert summary["top5"] == top_k_accuracy_score(labels, probabilities, k=5)
    assert summary["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))


def test_calibration_by_hand() -> None:
    # 15 bins: 0.7 and 0.72 share (10/15, 11/15]; 0.4 is on an edge and belongs to the bin below
    confidence = np.array([0.70, 0.72, 0.40, 1.0])
    right = np.array([True, False, False, True])
    result = compute_calibration(confidence, right)
    by_hand = (2 * abs(0.5 - 0.71) + 1 * abs(0 - 0.4) + 1 * 0) / 4
    assert result["ece"] == pytest.approx(by_hand)
    counts = [b["count"] for b in result["bins"]]
    assert (counts[10], counts[5], counts[14], sum(counts)) == (2, 1, 1, 4)
    assert result["bins"][0]["accuracy"] is None


def test_perfect_calibration_has_no_error() -> None:
    confidence = np.full(10, 0.8)
    assert compute_calibration(confidence, np.arange(10) < 8)["ece"] == pytest.approx(0, abs=1e-12)


def test_certain_and_wrong_has_a_large_but_finite_loss_and_is_json() -> None:
    summary = compute_classification_metrics(
        np.array([0, 1]), np.array([[0.0, 1.0], [0.0, 1.0]]), "ab"
    )
    assert 40 < summary["loss"] < 50  # half of -log of the smallest float32, 87.3
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.parametrize(
    ("labels", "probabilities", "says"),
    [
        ([], np.empty((0, 2)), "no image to evaluate"),
        ([0], np.empty((1, 3)), r"shape \(1, 2\), found \(1, 3\)"),
        ([0, -1], np.full((2, 2), 0.5), "image 1 has label -1"),
        ([0, 2], np.full((2, 2), 0.5), "image 1 has label 2, and there are 2 classes"),
        ([0, 1], np.array([[0.5, 0.5], [np.nan, 0.5]]), "image 1 .*not finite"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    labels: list[int], probabilities: np.ndarray, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        compute_classification_metrics(np.array(labels, dtype=np.int64), probabilities, "ab")
