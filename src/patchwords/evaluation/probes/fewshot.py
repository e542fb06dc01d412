"""Few-shot linear evaluation (Sec. 4.1): least squares on the features of a frozen model.

A few images of each class are drawn; their features are standardised, a large constant is appended
(so that the bias is hardly shrunk), and a linear map to targets in {-1, 1}^K is fitted with an L2
penalty, in closed form and in float64. The paper does not print its penalty: 2^10, the constant,
the epsilon and the three draws are those of big_vision (evaluators/fewshot_lsr.py,
configs/common_fewshot.py).

Sizes: N drawn images, n test images, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from patchwords.data.dataset import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import draw_shots
from patchwords.device import Device
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.probes.cache import (
    FeatureExtractor,
    ProbeFeatures,
    extract_probe_features,
    require_finite_features,
)
from patchwords.evaluation.probes.defaults import DEFAULT_L2, DEFAULT_SHOTS
from patchwords.evaluation.probes.features import (
    ProbeSplit,
    extract_example_features,
    limit_train_images,
)
from patchwords.evaluation.statistics import compute_seed_statistics

FEWSHOT_SEEDS = (0, 1, 2)
BIAS_FEATURE = 100.0  # appended feature for the bias
STD_EPSILON = 1e-5  # added to the standard deviation
MAX_SCORE_ELEMENTS = 2**24  # numbers per block while scoring: 128 MiB


@dataclass(frozen=True)
class FewShotScore:
    """Accuracy of one fit."""

    shots: int  # images per class
    seed: int  # of the draw
    l2: float
    accuracy: float


@dataclass(frozen=True)
class RidgeClassifier:
    """A fitted ridge classifier."""

    classes: np.ndarray  # [K] labels, rising
    mean: np.ndarray  # [D]
    deviation: np.ndarray  # [D]
    weights: np.ndarray  # [D + 1, K]

    def scores(self, features: np.ndarray) -> np.ndarray:
        """[n, D] -> [n, K], close to 1 for the class and to -1 for the others"""
        return standardise_features(features, self.mean, self.deviation) @ self.weights

    def predict(self, features: np.ndarray) -> np.ndarray:
        """[n, D] -> [n] labels"""
        size = max(1, MAX_SCORE_ELEMENTS // max(self.weights.shape))
        best = [
            self.scores(features[start : start + size]).argmax(1)
            for start in range(0, len(features), size)
        ]
        return self.classes[np.concatenate(best)]


def evaluate_fewshot(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    shots: Sequence[int] = DEFAULT_SHOTS,
    seeds: Sequence[int] = FEWSHOT_SEEDS,
    l2s: Sequence[float] = (DEFAULT_L2,),
) -> list[FewShotScore]:
    """Measure test accuracy for each number of shots, draw and penalty, in this order.

    Args:
        train_features: [N, D] of all images that may be drawn; train_labels: int [N].
        test_features: [n, D]; test_labels: int [n].
        seeds: one draw each.
        l2s: penalties; a path costs little more than one.

    Raises DataError if a class has fewer images than shots, labels are missing or features are not
    finite, ConfigError for a penalty that is not positive.
    """
    draws = draw_all_shots(train_labels, shots, seeds)
    return score_shot_draws(train_features, train_labels, draws, test_features, test_labels, l2s)


ShotDraws = Mapping[tuple[int, int], np.ndarray]  # (shots, seed) -> positions of the drawn images


def draw_all_shots(
    labels: np.ndarray,
    shots: Sequence[int],
    seeds: Sequence[int],
    classes: Sequence[str] | None = None,
) -> ShotDraws:
    """Draw all shots before the first fit; raise DataError if a class has too few images."""
    for name, values in (("shots", shots), ("seeds", seeds)):
        if not values or len({*values}) < len(values):
            given = " ".join(map(str, values)) or "none"
            raise ConfigError(f"{name} {given}: give one or more, and none of them twice")
    draw_shots(labels, max(shots), 0, classes)
    return {(n, seed): draw_shots(labels, n, seed, classes) for n in shots for seed in seeds}


def score_shot_draws(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    draws: ShotDraws,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    l2s: Sequence[float] = (DEFAULT_L2,),
) -> list[FewShotScore]:
    """Score given draws; see `evaluate_fewshot`."""
    if not len(test_labels) or np.min(test_labels) < 0:
        raise DataError("few-shot evaluation needs images to judge by, each with a label")
    require_finite_features(test_features)
    scores = []
    for (count, seed), drawn in draws.items():
        fits = fit_ridge_classifiers(train_features[drawn], train_labels[drawn], l2s)
        for l2, linear in zip(l2s, fits, strict=True):
            right = linear.predict(test_features) == test_labels
            scores.append(FewShotScore(count, seed, l2, float(right.mean())))
    return scores


def fit_ridge_classifiers(
    features: np.ndarray, labels: np.ndarray, l2s: Sequence[float] = (DEFAULT_L2,)
) -> Iterator[RidgeClassifier]:
    """Fit [N, D], int [N] -> a classifier per penalty, from one eigendecomposition.

    With X the features and Y the targets it is (X'X + l2)^-1 X'Y or, with fewer images than
    features, the equal X'(XX' + l2)^-1 Y. Y, which has N x K numbers, is never written out: a
    product with 2 onehot - 1 is twice the sum over each class minus the sum of all.
    """
    require_positive_penalties(l2s)
    require_finite_features(features)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    # the features and the constant, made white where they stand: N x D is large enough once
    x = np.full((len(features), features.shape[1] + 1), BIAS_FEATURE)  # [N, D + 1]
    x[:, :-1] = features[order]
    white = x[:, :-1]
    mean = white.mean(0)
    white -= mean
    deviation = np.sqrt(np.einsum("nd,nd->d", white, white) / len(x)) + STD_EPSILON
    white /= deviation

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
        yield RidgeClassifier(classes, mean, deviation, (left / (eigenvalues + l2)) @ right)


def require_positive_penalties(l2s: Sequence[float]) -> None:
    """Raise ConfigError for a penalty that is not positive."""
    if any(not 0 < l2 < np.inf for l2 in l2s):
        raise ConfigError(f"l2 {min(l2s):g}: the penalty must be greater than 0; 1024 is usual")


def standardise_features(
    features: np.ndarray, mean: np.ndarray, deviation: np.ndarray
) -> np.ndarray:
    """[n, D] -> float64 [n, D + 1], the constant last"""
    x = np.full((len(features), features.shape[1] + 1), BIAS_FEATURE)
    np.subtract(features, mean, out=x[:, :-1])
    x[:, :-1] /= deviation
    return x


def measure_fewshot(
    model: nn.Module,
    drawn: ImageDataset,
    held_out: ImageDataset,
    preprocess: Preprocess,
    device: Device,
    workers: int,
) -> dict[str, Any]:
    """Measure few-shot accuracy on held-out images: a metric during training.

    Unreadable images are left out of both parts.
    """
    train, test = (
        extract_example_features(model, examples, preprocess, device, workers)
        for examples in (drawn, held_out)
    )
    if not len(train.labels) or not len(test.labels):
        raise DataError("none of the few-shot images can be read; patchwords doctor says why")
    [linear] = fit_ridge_classifiers(train.values, train.labels)
    right = linear.predict(test.values) == test.labels
    return {"accuracy": float(right.mean()), "images": len(right)}


# Few-shot accuracy of a model on a data set, per number of shots and penalty, over draws.
#
# Only drawn images need features, unless all are cached. A drawn image that cannot be read is left
# out of the fit without a replacement: so the draws depend on the data alone. Nothing is chosen by
# the test images: every requested penalty is reported.


@dataclass(frozen=True)
class DrawnShots:
    """Training images drawn for each number of shots and seed."""

    draws: ShotDraws  # positions in the training images
    images: int  # training images to draw from

    @property
    def wanted(self) -> np.ndarray:
        """Positions of the images in any draw, sorted."""
        return np.unique(np.concatenate([*self.draws.values()]))

    def among(self, positions: np.ndarray) -> ShotDraws:
        """Map the draws to positions in a list; images that are not in it are left out."""
        place = np.full(self.images, -1, dtype=np.int64)
        place[positions] = np.arange(len(positions))
        positions_by_draw = {key: place[drawn] for key, drawn in self.draws.items()}
        return {key: places[places >= 0] for key, places in positions_by_draw.items()}


def draw_probe_shots(
    split: ProbeSplit, shots: Sequence[int] = DEFAULT_SHOTS, seeds: Sequence[int] = FEWSHOT_SEEDS
) -> DrawnShots:
    """Draw images for each number of shots and seed; raise DataError for too few."""
    train = split.train
    return DrawnShots(draw_all_shots(train.labels, shots, seeds, train.classes), len(train))


def extract_drawn_features(
    extract: FeatureExtractor,
    split: ProbeSplit,
    shots: DrawnShots,
    max_bad: float = 0.01,
    cached: bool = False,
) -> tuple[ProbeFeatures, ShotDraws]:
    """Extract features of the drawn images, and locate the draws in them.

    Args:
        cached: take the features of all training images, which the cache has.
    """
    positions = np.arange(shots.images) if cached else shots.wanted
    limited = split if cached else limit_train_images(split, positions)
    frozen = extract_probe_features(extract, limited, max_bad)
    return frozen, shots.among(positions[frozen.train.indices])


def build_fewshot_table(
    frozen: ProbeFeatures, draws: ShotDraws, l2s: Sequence[float] = (DEFAULT_L2,)
) -> dict[str, Any]:
    """Build a row per number of shots and penalty, over the seeds, as plain values.

    `std` is that of a single draw (n - 1 in the denominator); None with one seed.
    """
    train, test = frozen.train, frozen.test
    scores = score_shot_draws(train.values, train.labels, draws, test.values, test.labels, l2s)
    groups: dict[tuple[int, float], list[FewShotScore]] = {}
    for score in scores:
        groups.setdefault((score.shots, score.l2), []).append(score)
    rows = []
    for (count, l2), group in groups.items():
        summary = compute_seed_statistics([score.accuracy for score in group])
        rows.append({"shots": count, "l2": l2, **asdict(summary)})
    return {
        **frozen.describe(),
        "table": rows,
        "scores": [asdict(score) for score in scores],
    }
