"""k-NN against scikit-learn's, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from tiny_frozen import blobs, frozen_of

from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.metrics import wilson_interval
from patchwords.evaluation.probes import knn as neighbours
from patchwords.evaluation.probes.knn import NeighbourIndex, evaluate_knn
from patchwords.rng import numpy_generator

TRAIN, TEST = blobs(211, 13, 7, seed=0), blobs(103, 13, 7, seed=1)


def by_scikit_learn(k: int, temperature: float, train=TRAIN, test=TEST[0]):  # type: ignore[no-untyped-def]
    peer = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / temperature)
    )
    return peer.fit(train[0].astype(np.float64), train[1]).predict(test.astype(np.float64))


@pytest.mark.parametrize("block", [2**15, 17], ids="{} voters at a time".format)
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_answers_are_those_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, block: int, temperature: float
) -> None:
    monkeypatch.setattr(neighbours, "NEIGHBOUR_BLOCK_SIZE", block)
    monkeypatch.setattr(neighbours, "MAX_SIMILARITY_ELEMENTS", 17 * 11)  # 11 images at a time
    monkeypatch.setattr(neighbours, "MAX_VOTE_ELEMENTS", 7 * 19)
    ks = (23, 1, 5, 100)
    answers = NeighbourIndex(*TRAIN).vote(TEST[0], ks, temperature, None)
    for k in ks:
        assert np.array_equal(answers[k], by_scikit_learn(k, temperature)), k
    assert not np.array_equal(answers[1], answers[100])


def test_the_nearest_are_the_nearest() -> None:
    a, b = (x[0].astype(np.float64) for x in (TRAIN, TEST))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    cosines, places = NeighbourIndex(*TRAIN).nearest(TEST[0], 9)
    expected = -np.sort(-(b @ a.T), axis=1)[:, :9]
    # float32 of numbers up to 1
    np.testing.assert_allclose(cosines, expected, atol=1e-6)
    np.testing.assert_allclose((b[:, None] * a[places]).sum(-1), expected, atol=1e-6)


@pytest.mark.parametrize("block", [2**15, 17])
def test_an_image_does_not_vote_for_itself(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(neighbours, "NEIGHBOUR_BLOCK_SIZE", block)
    judges = np.arange(3, 200, 2)
    answers = NeighbourIndex(*TRAIN).vote(TRAIN[0][judges], (1, 5), 0.07, judges)
    for k in (1, 5):
        one_by_one = []
        for place in judges:
            rest = np.arange(len(TRAIN[1])) != place
            others = TRAIN[0][rest], TRAIN[1][rest]
            one_by_one += [by_scikit_learn(k, 0.07, others, TRAIN[0][[place]])[0]]
        assert answers[k].tolist() == one_by_one


def test_a_low_temperature_overflows_nothing() -> None:
    answers = NeighbourIndex(*TRAIN).vote(TEST[0], (1, 50), 1e-6, None)
    assert np.array_equal(answers[1], answers[50])  # only the nearest counts


def test_the_vote_by_hand() -> None:
    """One voter at cosine 1, three at 0.6: they win once exp(0.4 / T) is below 3."""
    voters = np.array([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8], [0.6, -0.8]], np.float32)
    labels = np.array([4, 2, 2, 2])
    asked = np.array([[5.0, 0.0]], np.float32)
    edge = 0.4 / np.log(3)
    for temperature, answer in ((edge * 0.99, 4), (edge * 1.01, 2)):
        assert NeighbourIndex(voters, labels).vote(asked, (4,), temperature, None)[4].tolist() == [
            answer
        ]
    # of equal votes the smaller label
    assert NeighbourIndex(voters[[1, 1]], labels[[0, 1]]).vote(asked, (2,), 1.0, None)[
        2
    ].tolist() == [2]


def test_k_is_chosen_by_train_alone() -> None:
    frozen = frozen_of(TRAIN, TEST, 7)
    result = evaluate_knn(frozen, ks=(100, 1, 9))
    assert [row["k"] for row in result["path"]] == [100, 1, 9]
    own = NeighbourIndex(*TRAIN).vote(TRAIN[0], (1, 9, 100), 0.07, np.arange(211))
    for row in result["path"]:
        right = int((by_scikit_learn(row["k"], 0.07) == TEST[1]).sum())
        assert (row["value"], row["images"]) == (right / 103, 103)
        assert (row["low"], row["high"]) == wilson_interval(right, 103)
        assert row["train"] == (own[row["k"]] == TRAIN[1]).mean()
    assert result["k"] == max(result["path"], key=lambda row: row["train"])["k"]
    assert result["chosen"]
    assert result["judges"] == 211
    best = next(row for row in result["path"] if row["k"] == result["k"])
    assert result["results"]["accuracy"]["value"] == best["value"]
    assert np.trace(result["results"]["confusion"]) == round(best["value"] * 103)
    # other test labels: other accuracy, the same choice
    wrong = frozen_of(TRAIN, (TEST[0], (TEST[1] + 1) % 7), 7)
    assert evaluate_knn(wrong, ks=(100, 1, 9))["k"] == result["k"]


def test_many_images_choose_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_SELECTION_IMAGES", 31)
    frozen = frozen_of(TRAIN, TEST, 7)
    results = [evaluate_knn(frozen, ks=(1, 9), seed=seed) for seed in (0, 0, 1)]
    assert results[0] == results[1]
    assert results[0]["judges"] == 31
    judges = np.sort(numpy_generator(0, "knn").permutation(211)[:31])
    own = NeighbourIndex(*TRAIN).vote(TRAIN[0][judges], (1, 9), 0.07, judges)
    for row in results[0]["path"]:
        assert row["train"] == (own[row["k"]] == TRAIN[1][judges]).mean()
    assert results[0]["path"][0]["train"] != results[2]["path"][0]["train"]
    alone = evaluate_knn(frozen, ks=(9,))
    assert (alone["chosen"], alone["judges"], alone["path"][0]["train"]) == (False, 0, None)


def test_the_usual_ks_are_those_that_there_are_images_for() -> None:
    assert [neighbours.choose_default_ks(images) for images in (101, 100, 11, 10)] == [
        (10, 20, 100),
        (10, 20),
        (10,),
        (10,),
    ]
    assert neighbours.choose_default_ks(3) == (3,)
    assert [row["k"] for row in evaluate_knn(frozen_of(TRAIN, TEST, 7))["path"]] == [10, 20, 100]
    with pytest.raises(ConfigError, match="k : give numbers of neighbours"):
        neighbours.validate_knn_settings((), 0.07, 5)


@pytest.mark.parametrize(
    ("ks", "temperature", "line"),
    [
        ((212,), 0.07, "k 212: only 211 training images can vote"),
        ((1, 211), 0.07, "k 211: only 210 training images can vote"),
        ((0, 5), 0.07, "k 0 5: give numbers of neighbours, each 1 or more"),
        ((5, 5), 0.07, "none twice"),
        ((5,), 0.0, "temperature 0 must be greater than 0"),
    ],
)
def test_bad_settings_are_one_line(ks: tuple[int, ...], temperature: float, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        evaluate_knn(frozen_of(TRAIN, TEST, 7), ks, temperature)
    assert "\n" not in str(caught.value)


def test_a_diverged_model_is_refused() -> None:
    broken = TEST[0].copy()
    broken[3, 3] = np.nan
    with pytest.raises(DataError, match="not finite"):
        evaluate_knn(frozen_of(TRAIN, (broken, TEST[1]), 7))


def test_a_device_and_half_precision_change_nothing_much() -> None:
    halved = TRAIN[0].astype(np.float16), TRAIN[1]
    answers = NeighbourIndex(*halved, torch.device("cpu")).vote(TEST[0], (9,), 0.07, None)[9]
    # features rounded to 11 bits: an answer in a hundred may tip
    assert (answers == by_scikit_learn(9, 0.07)).mean() > 0.97
