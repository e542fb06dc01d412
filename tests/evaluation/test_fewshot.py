"""Few-shot linear evaluation against scikit-learn's ridge regression, and as a live metric."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from patchwords.data.dataset import TRAIN, VALIDATION, ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import draw_shots, split_dataset
from patchwords.device import choose_device
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.probes import fewshot as module
from patchwords.evaluation.probes.features import extract_example_features
from patchwords.evaluation.probes.fewshot import (
    FewShotScore,
    evaluate_fewshot,
    fit_ridge_classifiers,
    measure_fewshot,
)
from patchwords.models.build import build_model
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.zoo import create_model

LABELS = (3, 5, 11)


def blobs(count: int, features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Classes around centres of their own; features differ in scale, as a model's do."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.resize(LABELS, count))
    centres = np.random.default_rng(99).normal(size=(12, features))
    scale = np.exp(np.linspace(-2, 2, features))
    x = (centres[labels] + 2.0 * random.normal(size=(count, features))) * scale + 7.0
    return x.astype(np.float32), labels


def by_ridge(
    x: np.ndarray, labels: np.ndarray, test: np.ndarray, l2: float
) -> tuple[np.ndarray, np.ndarray]:
    """What big_vision's evaluator computes, with scikit-learn's solver: scores and answers."""
    x, test = x.astype(np.float64), test.astype(np.float64)
    mean, deviation = x.mean(0), x.std(0) + 1e-5
    x = np.column_stack([(x - mean) / deviation, np.full(len(x), 100.0)])
    test = np.column_stack([(test - mean) / deviation, np.full(len(test), 100.0)])
    classes = np.unique(labels)
    targets = np.where(labels[:, None] == classes, 1.0, -1.0)
    ridge = Ridge(alpha=l2, fit_intercept=False, solver="cholesky").fit(x, targets)
    scores = ridge.predict(test)
    return scores, classes[scores.argmax(1)]


@pytest.mark.parametrize("images", [13, 37, 38, 89], ids="{0} images".format)
@pytest.mark.parametrize("l2", [1.0, 1024.0])
def test_parity_with_scikit_learn(images: int, l2: float) -> None:
    """37 features and the constant: fewer images than that (dual), as many, and more (primal)."""
    x, labels = blobs(images, 37)
    test, _ = blobs(53, 37, seed=1)
    [linear] = fit_ridge_classifiers(x, labels, [l2])
    scores, answers = by_ridge(x, labels, test, l2)
    # float64 on both sides; the condition of the system is below 1e7
    np.testing.assert_allclose(linear.scores(test), scores, atol=1e-8)
    assert linear.predict(test).tolist() == answers.tolist()
    assert set(linear.predict(test)) <= set(LABELS)


def test_both_sides_of_the_formula_are_one() -> None:
    """Features that are always 0 add nothing, but lead from the primal form to the dual one."""
    x, labels = blobs(41, 23)
    test, _ = blobs(19, 23, seed=1)
    padded, padded_test = (np.pad(a, ((0, 0), (0, 29))) for a in (x, test))
    [primal], [dual] = (
        fit_ridge_classifiers(x, labels, [64.0]),
        fit_ridge_classifiers(padded, labels, [64.0]),
    )
    np.testing.assert_allclose(dual.scores(padded_test), primal.scores(test), atol=1e-9)


@pytest.mark.parametrize("images", [17, 71])
def test_a_path_of_penalties_is_a_fit_for_each(images: int) -> None:
    x, labels = blobs(images, 29)
    path = [1e-2, 3.0, 1024.0, 1e6]
    for l2, linear in zip(path, fit_ridge_classifiers(x, labels, path), strict=True):
        [alone] = fit_ridge_classifiers(x, labels, [l2])
        assert np.array_equal(linear.weights, alone.weights)


def test_the_table_is_what_single_fits_on_the_draws_give() -> None:
    x, labels = blobs(97, 11)
    test, truth = blobs(61, 11, seed=1)
    table = evaluate_fewshot(x, labels, test, truth, shots=(1, 7), seeds=(0, 4), l2s=(1.0, 1024.0))
    expected = []
    for shots in (1, 7):
        for seed in (0, 4):
            drawn = draw_shots(labels, shots, seed)
            for l2 in (1.0, 1024.0):
                _, answers = by_ridge(x[drawn], labels[drawn], test, l2)
                expected.append(FewShotScore(shots, seed, l2, float((answers == truth).mean())))
    assert table == expected
    assert len({score.accuracy for score in table}) > 3


def test_what_separates_easily_is_learnt_from_a_few() -> None:
    x, labels = blobs(200, 64)
    test, truth = blobs(300, 64, seed=1)
    [one], [ten] = (evaluate_fewshot(x, labels, test, truth, [s], [0]) for s in (1, 10))
    assert one.accuracy > 0.6  # by chance 1/3
    assert ten.accuracy > max(0.9, one.accuracy)


def test_judging_in_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = blobs(31, 11)
    test, _ = blobs(59, 11, seed=1)
    [linear] = fit_ridge_classifiers(x, labels)
    whole = linear.predict(test)
    monkeypatch.setattr(module, "MAX_SCORE_ELEMENTS", 7 * 3)  # 7 images at a time
    assert np.array_equal(linear.predict(test), whole)


def test_many_classes_do_not_need_a_target_for_each_image() -> None:
    """10,007 classes and twice as many images: their targets alone would take 1.6 GB."""
    labels = np.repeat(np.arange(10_007), 2)
    x = np.random.default_rng(0).normal(size=(len(labels), 13)).astype(np.float32)
    tracemalloc.start()
    evaluate_fewshot(x, labels, x[:29], labels[:29], shots=[2], seeds=[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6  # the scores of 29 images take 2.3 MB, the features 1 MB


X, Y = blobs(20, 7)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"shots": [1, 8]}, DataError, "8 shots: class 11 has 6 training images; use 6 or fewer"),
        ({"l2s": [1.0, 0.0]}, ConfigError, "l2 0: the penalty must be greater than 0"),
        ({"train_labels": np.full(20, -1)}, DataError, "needs labels: 20 of 20 images have none"),
        ({"test_labels": np.full(20, -1)}, DataError, "needs images to judge by"),
        ({"test_labels": Y[:0], "test_features": X[:0]}, DataError, "needs images to judge by"),
        ({"train_features": X * np.nan}, DataError, "not finite numbers"),
    ],
)
def test_bad_input_in_one_line(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    given = dict(train_features=X, train_labels=Y, test_features=X, test_labels=Y, shots=[1])
    with pytest.raises(error, match=message) as caught:
        evaluate_fewshot(**{**given, **change})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def digits(count: int) -> tuple[ImageDataset, ImageDataset]:
    """(3 of each class of the training images, so many to judge by)"""
    splits = split_dataset(open_data("digits"), seed=0).splits
    drawn = draw_shots(splits[TRAIN].labels, 3, seed=0)
    return splits[TRAIN].select(drawn), splits[VALIDATION].select(range(count))


SHAPE = ViTConfig(
    patch_size=4,
    width=14,
    depth=1,
    heads=2,
    mlp_width=22,
    num_classes=10,
    image_size=(8, 8),
    dropout=0.4,
    drop_path=0.4,
)


def tiny(**settings: int) -> torch.nn.Module:
    model = build_model(SHAPE.with_settings(**settings))
    init_weights(model, seed=1)
    return model


PREPROCESS = Preprocess(image_size=(8, 8), crop_fraction=1.0)
CPU = choose_device("cpu", "fp32")


def test_features_are_what_the_classifier_sees() -> None:
    """Without dropout, after the tanh layer; the model's modes and all random streams stay."""
    drawn, _ = digits(1)
    model = tiny(representation_size=5).train()
    model.head.eval()
    before = torch.get_rng_state()
    found = extract_example_features(model, drawn, PREPROCESS, CPU, workers=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert not model.head.training
    assert found.values.shape == (30, 5)
    assert found.labels.tolist() == drawn.labels.tolist()
    logits = model.head.linear(torch.from_numpy(found.values))
    [batch] = load_eval_batches(drawn, PREPROCESS, 30)
    direct = model.eval()(PREPROCESS.normalise(batch.images))
    # float32 sums in another order
    torch.testing.assert_close(logits, direct, atol=1e-5, rtol=1e-5)


def test_the_live_metric_is_the_same_evaluation() -> None:
    drawn, held_out = digits(41)
    model = tiny()
    train, test = (
        extract_example_features(model, e, PREPROCESS, CPU, 0) for e in (drawn, held_out)
    )
    [score] = evaluate_fewshot(
        train.values, train.labels, test.values, test.labels, shots=[3], seeds=[0]
    )  # all that was drawn: every draw of 3 of 3 is the same set
    result = measure_fewshot(model, drawn, held_out, PREPROCESS, CPU, 0)
    assert result == {"accuracy": score.accuracy, "images": 41}
    assert score.accuracy > 0.3  # by chance a tenth


def test_a_resnet_has_a_representation() -> None:
    drawn, _ = digits(1)
    model = create_model("BiT-R26x1", num_classes=10, image_size=32)
    found = extract_example_features(
        model, drawn.select([0, 29]), Preprocess(image_size=(32, 32)), CPU, workers=0
    )
    assert found.values.shape == (2, model.config.trunk.channels)


def test_images_that_cannot_be_read_are_left_out() -> None:
    drawn, held_out = digits(7)

    class Torn:
        def __call__(self, row: int) -> bytes:
            return b"torn" if row == int(held_out.rows[2]) else held_out.reader(row)

    some = replace(held_out, reader=Torn())
    result = measure_fewshot(tiny(), drawn, some, PREPROCESS, CPU, workers=0)
    assert result["images"] == 6
    torn = some.select([2])
    with pytest.raises(DataError, match="none of the few-shot images can be read"):
        measure_fewshot(tiny(), drawn, torn, PREPROCESS, CPU, workers=0)
