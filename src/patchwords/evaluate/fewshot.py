"""Few-shot linear evaluation (Sec. 4.1): least squares on what a frozen model makes of images.

A few images of each class are drawn; their features are brought to mean 0 and deviation 1, a
large constant is appended (so that the bias is hardly shrunk), and a linear map to targets in
{-1, 1}^K is fitted with an L2 penalty, in closed form and in float64. The paper does not print
its penalty: 2^10, the constant, the epsilon and the three draws are those of big_vision
(evaluators/fewshot_lsr.py, configs/common_fewshot.py).

Sizes: N drawn images, n images to judge by, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from patchwords.data.examples import Examples
from patchwords.data.preprocess import Preprocess
from patchwords.data.shots import draw_shots
from patchwords.device import Device
from patchwords.errors import ConfigError, DataError
from patchwords.evaluate.features import represent

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
L2 = 2.0**10
CONSTANT = 100.0  # the last feature, for the bias
EPSILON = 1e-5  # added to the deviation
MOST_SCORES = 2**24  # numbers at a time while judging: 128 MiB, however many the classes


@dataclass(frozen=True)
class Score:
    """The accuracy of one fit."""

    shots: int  # images of each class
    seed: int  # of the draw
    l2: float
    accuracy: float


@dataclass(frozen=True)
class Linear:
    """A fitted classifier."""

    classes: np.ndarray  # [K] labels, rising
    mean: np.ndarray  # [D]
    deviation: np.ndarray  # [D]
    weights: np.ndarray  # [D + 1, K]

    def scores(self, features: np.ndarray) -> np.ndarray:
        """[n, D] -> [n, K], nearer to 1 for the class, to -1 for the others"""
        return whiten(features, self.mean, self.deviation) @ self.weights

    def predict(self, features: np.ndarray) -> np.ndarray:
        """[n, D] -> [n] labels"""
        size = max(1, MOST_SCORES // len(self.classes))
        best = [
            self.scores(features[start : start + size]).argmax(1)
            for start in range(0, len(features), size)
        ]
        return self.classes[np.concatenate(best)]


def fewshot(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    l2s: Sequence[float] = (L2,),
) -> list[Score]:
    """Accuracy on the test images for each number of shots, draw and penalty, in this order.

    Args:
        train_features: [N, D] of all images that may be drawn; train_labels: int [N].
        test_features: [n, D]; test_labels: int [n].
        seeds: one draw each.
        l2s: penalties; all of them together cost little more than one.

    Raises DataError where a class has fewer images than shots, labels are missing or features are
    not finite, ConfigError for a penalty that is not positive.
    """
    if not len(test_labels) or np.min(test_labels) < 0:
        raise DataError("few-shot evaluation needs images to judge by, each with a label")
    draw_shots(train_labels, max(shots), 0)  # refused before the first fit, not between two
    scores = []
    for count in shots:
        for seed in seeds:
            drawn = draw_shots(train_labels, count, seed)
            fits = fit(train_features[drawn], train_labels[drawn], l2s)
            for l2, linear in zip(l2s, fits, strict=True):
                right = linear.predict(test_features) == test_labels
                scores.append(Score(count, seed, l2, float(right.mean())))
    return scores


def fit(features: np.ndarray, labels: np.ndarray, l2s: Sequence[float] = (L2,)) -> Iterator[Linear]:
    """[N, D] and int [N] -> a classifier for each penalty, from one eigendecomposition.

    With X the features and Y the targets it is (X'X + l2)^-1 X'Y, or, where there are fewer
    images than features, the same as X'(XX' + l2)^-1 Y. Y, which has N x K numbers, is never
    written out: a product with 2 onehot - 1 is twice the sum over each class less the sum of all.
    """
    if any(not l2 > 0 for l2 in l2s):
        raise ConfigError(f"l2 {min(l2s):g}: the penalty must be greater than 0; 1024 is usual")
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    features = features[order]
    if not np.isfinite(features).all():
        raise DataError("the model's features are not finite numbers: it has diverged")
    mean = features.mean(0, dtype=np.float64)
    deviation = features.std(0, dtype=np.float64) + EPSILON
    x = whiten(features, mean, deviation)  # [N, D + 1]

    def onto_targets(rows: np.ndarray) -> np.ndarray:
        """[N, ...] -> [..., K], rows' Y"""
        return 2.0 * np.add.reduceat(rows, starts).T - rows.sum(0)[:, None]

    if len(x) >= x.shape[1]:
        eigenvalues, q = np.linalg.eigh(x.T @ x)
        left, right = q, q.T @ onto_targets(x)
    else:
        eigenvalues, q = np.linalg.eigh(x @ x.T)
        left, right = x.T @ q, onto_targets(q)
    for l2 in l2s:
        yield Linear(classes, mean, deviation, (left / (eigenvalues + l2)) @ right)


def whiten(features: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """[n, D] -> float64 [n, D + 1], the constant last"""
    x = np.full((len(features), features.shape[1] + 1), CONSTANT)
    np.subtract(features, mean, out=x[:, :-1])
    x[:, :-1] /= deviation
    return x


def measure_fewshot(
    model: nn.Module,
    drawn: Examples,
    held_out: Examples,
    preprocess: Preprocess,
    device: Device,
    workers: int,
) -> dict[str, Any]:
    """Accuracy on the held-out images after learning from the drawn ones: a metric of training.

    Images that cannot be read are left out of both.
    """
    train, test = (
        represent(model, examples, preprocess, device, workers) for examples in (drawn, held_out)
    )
    if not len(train.labels) or not len(test.labels):
        raise DataError("none of the few-shot images can be read; patchwords doctor says why")
    [linear] = fit(train.values, train.labels)
    right = linear.predict(test.values) == test.labels
    return {"accuracy": float(right.mean()), "images": len(right)}
