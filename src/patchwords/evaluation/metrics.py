"""Classification metrics: arrays in, a JSON-able summary out.

Sizes: n images, m models on the same images, K classes, R resamples. Intervals: Wilson 1927 (as in
Newcombe 1998, method 3). Calibration error: Guo et al. 2017, Eq. 3, 15 bins of equal width.
Per-class metrics are scikit-learn's. A metric `x` that is estimated from these images comes with
its 95 % interval as `x_low` and `x_high`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from patchwords.errors import DataError
from patchwords.rng import numpy_generator

# The interval of macro F1: percentile bootstrap (Efron 1979), 95 %.
#
# Images are resampled with replacement within each class, so that every class keeps its number of
# images: small classes never vanish, and every resample averages the same classes. F1 depends on the
# images only through how often a label got each prediction (each tuple of predictions of several
# models), so the draws are multinomial over these counts: the same distribution as resampling images,
# at a cost that does not depend on their number.


BOOTSTRAP_RESAMPLES = 1000


def macro_f1(labels: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """int [n], int [m, n] -> [m], the mean F1 over the classes among the labels"""
    support = np.bincount(labels, minlength=classes)  # [K]
    present = support > 0
    scores = []
    for answer in answers:
        right = np.bincount(labels[answer == labels], minlength=classes)
        given = np.bincount(answer, minlength=classes)
        scores.append((2 * right[present] / (support + given)[present]).mean())
    return np.array(scores)


def bootstrap_macro_f1(
    labels: np.ndarray,
    answers: np.ndarray,
    classes: int,
    resamples: int = BOOTSTRAP_RESAMPLES,
    seed: int = 0,
) -> np.ndarray:
    """int [n], int [m, n] -> [R, m], macro F1 in each resample

    All models get the same resampled images, so that differences are paired.
    """
    support = np.bincount(labels, minlength=classes)  # [K]
    right = np.zeros((len(answers), classes, resamples))
    given = np.zeros((len(answers), classes, resamples))
    for label in np.flatnonzero(support):
        class_answers = answers[:, labels == label]  # [m, images of the class]
        tuples, counts = np.unique(
            class_answers, axis=1, return_counts=True
        )  # [m, tuples], [tuples]
        random = numpy_generator(seed, "bootstrap", int(label))
        drawn = random.multinomial(support[label], counts / counts.sum(), size=resamples)
        for model, answer in enumerate(tuples):  # [tuples], this model's prediction in each
            places, which = np.unique(answer, return_inverse=True)
            per_answer = np.eye(len(places))[which].T @ drawn.T  # [places, R]
            given[model, places] += per_answer
            right[model, label] = per_answer[places == label].sum(0)
    present = support > 0
    scores = 2 * right[:, present] / (support[:, None] + given)[:, present]  # [m, K present, R]
    return np.asarray(scores.mean(1).T)


def percentile_interval(values: np.ndarray) -> tuple[float, float]:
    """[R] -> the 2.5 and 97.5 % quantiles"""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


Z_95 = 1.959963984540054  # the normal quantile that leaves 2.5 % on either side
CALIBRATION_BINS = 15  # Guo et al. 2017
MIN_PROBABILITY = float(np.finfo(np.float32).tiny)  # keeps log(0) out of the loss: 87.3 nats


def wilson_interval(right: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Compute the Wilson interval of a rate, given `right` of `n`; 95 % by default.

    Unlike rate +- 2 standard errors it stays inside [0, 1] and has a width at 0 and at n.
    """
    rate, z2 = right / n, z * z
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    # the bounds also hold in floating point, at 0 of n and n of n
    return max(0.0, min(centre - half, rate)), min(1.0, max(centre + half, rate))


def compute_classification_metrics(
    labels: np.ndarray, probabilities: np.ndarray, classes: Sequence[str]
) -> dict[str, Any]:
    """labels int [n], probabilities [n, classes] -> all metrics of a report.

    A class without an image has support 0 and null precision, recall and F1: they are unknown, so
    the macro average leaves the class out. A class with images that is never predicted has
    precision 0. `confusion` has a row per true class and a column per predicted one.
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    validate_predictions(labels, probabilities, len(classes))
    n = len(labels)
    predicted = probabilities.argmax(axis=1)  # [n]
    right = predicted == labels  # [n]
    support = np.bincount(labels, minlength=len(classes))  # [classes]
    return {
        "images": n,
        "accuracy": proportion_with_interval(int(right.sum()), n),
        **top5_accuracy(labels, probabilities),
        "loss": mean_cross_entropy(labels, probabilities),
        **per_class_scores(labels, predicted, classes),
        "calibration": compute_calibration(probabilities.max(axis=1), right),
        "baseline": float(support.max() / n),
    }


def proportion_with_interval(right: int, n: int) -> dict[str, float]:
    """Compute `right` of `n` as a share with its interval."""
    low, high = wilson_interval(right, n)
    return {"value": right / n, "low": low, "high": high}


def top5_accuracy(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float | None]:
    """int [n], [n, classes] -> top-5 accuracy with interval; nulls up to 5 classes"""
    if probabilities.shape[1] <= 5:
        return {"top5": None, "top5_low": None, "top5_high": None}
    best = np.argpartition(-probabilities, 4, axis=1)[:, :5]  # [n, 5]
    right = int((best == labels[:, None]).any(axis=1).sum())
    low, high = wilson_interval(right, len(labels))
    return {"top5": right / len(labels), "top5_low": low, "top5_high": high}


def mean_cross_entropy(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """int [n], [n, classes] -> the mean cross-entropy in nats, summed in float64"""
    true_class = probabilities[np.arange(len(labels)), labels].astype(np.float64)  # [n]
    return float(-np.log(np.maximum(true_class, MIN_PROBABILITY)).mean())


def validate_predictions(labels: np.ndarray, probabilities: np.ndarray, classes: int) -> None:
    """Raise DataError for no images, wrong shapes, unknown labels or non-finite values."""
    if probabilities.shape != (len(labels), classes):
        raise DataError(
            f"{len(labels)} labels and {classes} classes need probabilities of shape "
            f"({len(labels)}, {classes}), found {probabilities.shape}"
        )
    if not len(labels):
        raise DataError("no image to evaluate: the split is empty, or none of it could be read")
    astray = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(astray):
        raise DataError(
            f"image {astray[0]} has label {labels[astray[0]]}, and there are {classes} classes; "
            "evaluation needs a label for every image"
        )
    broken = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if len(broken):
        raise DataError(
            f"the model answers image {broken[0]} (and {len(broken) - 1} more) with numbers that "
            "are not finite: its weights are damaged, or its training diverged"
        )


def per_class_scores(
    labels: np.ndarray, predicted: np.ndarray, classes: Sequence[str]
) -> dict[str, Any]:
    """Compute precision, recall, F1 and support per class, averages, and the confusion matrix.

    Intervals of precision and recall are Wilson's, that of macro F1 is bootstrapped: it has no
    width without a mistake.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    every = np.arange(len(classes))
    scores = precision_recall_fscore_support(labels, predicted, labels=every, zero_division=0)
    confusion = confusion_matrix(labels, predicted, labels=every)
    given = confusion.sum(0)
    rows = [
        build_class_row(name, values, int(confusion[i, i]), int(given[i]))
        for i, (name, *values) in enumerate(zip(classes, *scores, strict=True))
    ]
    averages: dict[str, dict[str, float]] = {}
    for kind in ("macro", "weighted"):
        present = np.flatnonzero(scores[3])
        numbers = precision_recall_fscore_support(
            labels, predicted, labels=present, average=kind, zero_division=0
        )
        averages[kind] = dict(zip(("precision", "recall", "f1"), map(float, numbers), strict=False))
    low, high = percentile_interval(bootstrap_macro_f1(labels, predicted[None], len(classes))[:, 0])
    averages["macro"] |= {"f1_low": low, "f1_high": high}
    return {
        "per_class": rows,
        **averages,
        "confusion": confusion.tolist(),
        "balanced_accuracy": averages["macro"]["recall"],  # the same number by definition
    }


def build_class_row(name: str, scores: Sequence[Any], right: int, given: int) -> dict[str, Any]:
    """Build the row of a class with `given` predictions.

    Unknown values are null: all without an image of the class, the interval of precision without a
    prediction.
    """
    *values, support = scores
    row: dict[str, Any] = {"class": name}
    seen = {"precision": given if support else 0, "recall": int(support)}
    for word, value in zip(("precision", "recall", "f1"), values, strict=True):
        row[word] = float(value) if support else None
        if word in seen:
            low, high = wilson_interval(right, seen[word]) if seen[word] else (None, None)
            row |= {f"{word}_low": low, f"{word}_high": high}
    return {**row, "support": int(support)}


def compute_calibration(confidence: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """confidence [n] in [0, 1], right bool [n] -> expected calibration error and its bins.

    Bin m holds confidences in (m / 15, (m + 1) / 15], and 0 belongs to the first one; the error is
    the mean over images of |accuracy - confidence| of their bins. An empty bin has null means.
    """
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1)
    place = np.clip(np.digitize(confidence, edges, right=True) - 1, 0, CALIBRATION_BINS - 1)
    bins, error = [], 0.0
    for i in range(CALIBRATION_BINS):
        inside = place == i
        count = int(inside.sum())
        sure = float(confidence[inside].mean()) if count else None
        true = float(right[inside].mean()) if count else None
        if sure is not None and true is not None:
            error += abs(true - sure) * count / len(confidence)
        bins.append(
            {
                "low": float(edges[i]),
                "high": float(edges[i + 1]),
                "count": count,
                "confidence": sure,
                "accuracy": true,
            }
        )
    return {"ece": error, "bins": bins}
