"""The linear probe against scikit-learn's logistic regression, and how its penalty is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tiny_frozen import blobs, frozen_of

from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.probes import linear as linear_probe
from patchwords.evaluation.probes.linear import (
    ProbeSettings,
    SoftmaxClassifier,
    SoftmaxRegressionLoss,
    draw_dev_split,
    evaluate_linear_probe,
    fit_regularisation_path,
    score_penalties,
)

TRAIN, TEST = blobs(211, 13, 5, seed=0), blobs(103, 13, 5, seed=1)


def by_scikit_learn(x: np.ndarray, y: np.ndarray, test: np.ndarray, l2: float) -> np.ndarray:
    """Probabilities; scikit-learn sums the loss of images, and weighs it instead of the penalty."""
    x, test = x.astype(np.float64), test.astype(np.float64)
    mean, deviation = x.mean(0), x.std(0) + 1e-5
    peer = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-10, max_iter=10_000)
    return np.asarray(peer.fit((x - mean) / deviation, y).predict_proba((test - mean) / deviation))


def test_parity_with_scikit_learn() -> None:
    l2s = (1e-3, 1.0, 0.03)
    path = list(fit_regularisation_path(*TRAIN, l2s, gradient=1e-9))
    assert [fitted.l2 for fitted in path] == [1.0, 0.03, 1e-3]
    for fitted in path:
        expected = by_scikit_learn(*TRAIN, TEST[0], fitted.l2)
        # the gradient vanishes to 1e-9, and the least curvature is l2: weights to 1e-6
        np.testing.assert_allclose(fitted.probabilities(TEST[0]), expected, atol=1e-6)
        assert fitted.converged


def test_the_default_accuracy_is_that_of_scikit_learn() -> None:
    """At any penalty: where L-BFGS ends by default no probability is wrong by 1e-5."""
    for fitted in fit_regularisation_path(*TRAIN):
        expected = by_scikit_learn(*TRAIN, TEST[0], fitted.l2)
        assert fitted.converged
        np.testing.assert_allclose(fitted.probabilities(TEST[0]), expected, atol=1e-5)


def test_a_warm_start_leads_where_a_cold_one_does() -> None:
    *_, warm = fit_regularisation_path(*TRAIN, (1.0, 0.1, 0.01), gradient=1e-9)
    [cold] = fit_regularisation_path(*TRAIN, (0.01,), gradient=1e-9)
    # as above
    np.testing.assert_allclose(warm.weights[:-1], cold.weights[:-1], atol=1e-6)


@pytest.mark.parametrize("most", [2**22, 5 * 7], ids=["at once", "7 images at a time"])
def test_the_gradient_is_that_of_autograd(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(linear_probe, "MAX_LOGIT_ELEMENTS", most)
    x, y = torch.from_numpy(TRAIN[0]).double(), torch.from_numpy(TRAIN[1])
    w = torch.randn(14, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w.requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ w[:-1] + w[-1], y)
    loss = loss + 0.3 / 2 * w[:-1].pow(2).sum()
    loss.backward()
    found, gradient = SoftmaxRegressionLoss(x, y, 5).loss(w.detach().numpy().reshape(-1), 0.3)
    assert found == pytest.approx(loss.item(), rel=1e-12)  # float64
    assert w.grad is not None
    np.testing.assert_allclose(gradient, w.grad.numpy().reshape(-1), atol=1e-12)


def test_labels_need_not_be_all_classes() -> None:
    labels = np.array([2, 3, 5, 7, 11])[TRAIN[1]]
    [fitted] = fit_regularisation_path(TRAIN[0], labels, (0.1,))
    assert set(fitted.predict(TEST[0])) == {2, 3, 5, 7, 11}
    probabilities = fitted.probabilities(TEST[0])
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-12)


def test_judging_in_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    [fitted] = fit_regularisation_path(*TRAIN, (0.1,))
    whole = fitted.probabilities(TEST[0])
    monkeypatch.setattr(linear_probe, "MAX_LOGIT_ELEMENTS", 14 * 9)
    # a product of fewer rows may be summed in another order
    np.testing.assert_allclose(fitted.probabilities(TEST[0]), whole, atol=1e-14)


def test_the_penalty_is_chosen_on_dev_and_fitted_on_all() -> None:
    frozen = frozen_of(TRAIN, TEST, 5)
    settings = ProbeSettings(l2s=(1e-4, 30.0, 0.1), dev=0.2, seeds=(3, 4))
    result = evaluate_linear_probe(frozen, settings)
    rows = score_penalties(*TRAIN, settings)
    assert result["path"] == rows
    assert [row["l2"] for row in rows] == [1e-4, 0.1, 30.0]
    for row in rows:
        right = []
        for seed in (3, 4):
            held = draw_dev_split(TRAIN[1], 0.2, seed)
            rest = np.setdiff1d(np.arange(211), held)
            scores = by_scikit_learn(TRAIN[0][rest], TRAIN[1][rest], TRAIN[0][held], row["l2"])
            right.append((scores.argmax(1) == TRAIN[1][held]).mean())
        assert row["dev"] == pytest.approx(np.mean(right))
    assert result["l2"] == 0.1
    assert (result["chosen"], result["at_end"], result["converged"]) == (True, False, True)
    expected = by_scikit_learn(*TRAIN, TEST[0], 0.1).argmax(1)
    assert result["results"]["accuracy"]["value"] == (expected == TEST[1]).mean()
    assert result["results"]["accuracy"]["low"] < result["results"]["accuracy"]["value"]
    assert [row["class"] for row in result["results"]["per_class"]][1] == "class 1"
    assert (result["train"], result["test"]) == (211, 103)
    # other test labels: other accuracy, the same choice
    wrong = evaluate_linear_probe(frozen_of(TRAIN, (TEST[0], (TEST[1] + 1) % 5), 5), settings)
    assert wrong["path"] == rows
    assert wrong["l2"] == 0.1


def test_one_penalty_is_taken_as_it_is() -> None:
    result = evaluate_linear_probe(frozen_of(TRAIN, TEST, 5), ProbeSettings(l2s=(0.1,)))
    assert (result["l2"], result["chosen"], result["at_end"]) == (0.1, False, False)
    assert result["path"] == [{"l2": 0.1, "dev": None, "images": 0}]


def test_the_end_of_the_path_is_told() -> None:
    assert evaluate_linear_probe(frozen_of(TRAIN, TEST, 5), ProbeSettings(l2s=(30.0, 100.0)))[
        "at_end"
    ]


def test_of_equals_the_largest_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"l2": l2, "dev": dev, "images": 9} for l2, dev in ((0.1, 0.5), (1.0, 0.5), (9.0, 0.2))]
    monkeypatch.setattr(linear_probe, "score_penalties", lambda *_: rows)
    assert (
        evaluate_linear_probe(frozen_of(TRAIN, TEST, 5), ProbeSettings(l2s=(0.1, 1.0, 9.0)))["l2"]
        == 1.0
    )


def test_a_class_that_only_the_names_know_is_never_answered() -> None:
    place = np.array([0, 2, 3, 4, 5])  # the second of six has no image
    parts = [(x, place[labels]) for x, labels in (TRAIN, TEST)]
    one = ProbeSettings(l2s=(0.1,))
    result = evaluate_linear_probe(frozen_of(parts[0], parts[1], 6), one)["results"]
    assert result["per_class"][1]["support"] == 0
    assert [row[1] for row in result["confusion"]] == [0] * 6
    assert (
        result["accuracy"]
        == evaluate_linear_probe(frozen_of(TRAIN, TEST, 5), one)["results"]["accuracy"]
    )


def test_what_is_held_back_is_a_share_of_each_class() -> None:
    labels = np.repeat([0, 1, 2, 4], [50, 21, 2, 1])
    held = draw_dev_split(labels, 0.1, seed=0)
    assert np.bincount(labels[held], minlength=5).tolist() == [5, 2, 1, 0, 0]
    assert held.tolist() == sorted({*held.tolist()})
    assert np.array_equal(held, draw_dev_split(labels, 0.1, seed=0))
    assert not np.array_equal(held, draw_dev_split(labels, 0.1, seed=1))


@pytest.mark.parametrize(
    ("settings", "error", "line"),
    [
        ({"l2s": (0.1, 0.0)}, ConfigError, "l2 0.1 0: give penalties greater than 0"),
        ({"l2s": ()}, ConfigError, "l2 none: give penalties"),
        ({"l2s": (1.0, 1.0)}, ConfigError, "none of them twice"),
        ({"seeds": ()}, ConfigError, "seeds none: give one or more"),
        ({"dev": 1.0}, ConfigError, "dev 1: it is a share of the training images"),
    ],
)
def test_bad_settings_are_one_line(
    settings: dict[str, object], error: type[Exception], line: str
) -> None:
    with pytest.raises(error, match=line):
        ProbeSettings(**settings)  # type: ignore[arg-type]


def test_features_that_cannot_be_learned_from_are_refused() -> None:
    with pytest.raises(DataError, match="two classes or more"):
        next(fit_regularisation_path(TRAIN[0], np.zeros(211, dtype=np.int64)))
    with pytest.raises(DataError, match="not finite"):
        next(fit_regularisation_path(TRAIN[0] * np.inf, TRAIN[1]))
    single = TRAIN[0][:5], np.arange(5)
    with pytest.raises(DataError, match=r"no class has two training images, .* give one --l2"):
        evaluate_linear_probe(frozen_of(single, TEST, 5))


def test_it_says_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_probe, "MAX_LBFGS_STEPS", 2)
    [fitted] = fit_regularisation_path(*TRAIN, (1e-5,))
    assert isinstance(fitted, SoftmaxClassifier)
    assert not fitted.converged
