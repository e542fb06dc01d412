"""Out-of-fold scores of labels: against scikit-learn, and on planted errors."""

from __future__ import annotations

import numpy as np
import pytest

from patchwords.errors import DataError
from patchwords.evaluation.probes.label_errors import FOLDS, assign_folds, score_labels

COUNT, WIDTH, CLASSES = 300, 6, 4


def plant(share: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of four clusters, labels of which a share is wrong, and bool [n] which."""
    random = np.random.default_rng(0)
    true = random.integers(CLASSES, size=COUNT)
    features = random.normal(0, 1, (COUNT, WIDTH)) + 5 * np.eye(CLASSES, WIDTH)[true]
    wrong = np.zeros(COUNT, dtype=bool)
    wrong[random.choice(COUNT, round(share * COUNT), replace=False)] = True
    labels = np.where(wrong, (true + random.integers(1, CLASSES, size=COUNT)) % CLASSES, true)
    return features, labels, wrong


def test_wrong_labels_come_first() -> None:
    features, labels, wrong = plant()
    found = score_labels(features, labels, CLASSES)
    first = np.argsort(found.score)[: wrong.sum()]
    assert wrong[first].mean() > 0.8
    assert found.suspicious[wrong].mean() > 0.6
    assert found.suspicious[~wrong].mean() < 0.02
    assert np.allclose(found.probabilities.sum(1), 1)
    assert (found.suggested != labels).all()
    assert found.accuracy == pytest.approx((found.probabilities.argmax(1) == labels).mean())


def test_they_are_those_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    features, labels, _ = plant()
    found = score_labels(features, labels, CLASSES, l2s=(0.01,))
    folds = assign_folds(labels, 0)
    for fold in range(FOLDS):
        rest, held = folds != fold, folds == fold
        scaler = StandardScaler().fit(features[rest])
        probe = LogisticRegression(C=1 / (0.01 * rest.sum()), tol=1e-8, max_iter=1000)
        probe.fit(scaler.transform(features[rest]), labels[rest])
        expected = probe.predict_proba(scaler.transform(features[held]))
        assert np.abs(found.probabilities[held] - expected).max() < 2e-3


def test_folds_share_every_class_and_depend_on_the_seed() -> None:
    labels = np.repeat([0, 1, 2], [50, 23, 2])
    folds = assign_folds(labels, 0)
    for label in range(3):
        counts = np.bincount(folds[labels == label], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    assert np.array_equal(folds, assign_folds(labels, 0))
    assert not np.array_equal(folds, assign_folds(labels, 1))


def test_a_diverged_model_is_named() -> None:
    features, labels, _ = plant()
    features[3, 0] = np.nan
    with pytest.raises(DataError, match="not finite numbers"):
        score_labels(features, labels, CLASSES)
