"""From the training split to the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_run import assemble, config_of, digits

from patchwords.data.dataset import TRAIN
from patchwords.data.loader import ImageBatch
from patchwords.errors import DataError
from patchwords.training.inputs.batches import (
    build_batch_preparer,
    iterate_training_batches,
    record_bad_images,
)
from patchwords.training.training_run import TrainingRun


@pytest.fixture
def job(tmp_path: object) -> TrainingRun:
    return assemble(tmp_path / "run", config_of())  # type: ignore[operator]


def batches_of(job: TrainingRun) -> list[ImageBatch]:
    return list(iterate_training_batches(job))


def test_batches_begin_at_the_step_of_the_state(job: TrainingRun) -> None:
    whole = batches_of(job)
    assert [len(batch) for batch in whole] == [11] * 24
    job.state.step = 19
    for late, early in zip(batches_of(job), whole[19:], strict=True):
        assert torch.equal(late.images, early.images)
        assert late.places == early.places


def test_a_prepared_batch_is_a_function_of_its_place(job: TrainingRun) -> None:
    prepare = build_batch_preparer(job)
    batch = batches_of(job)[3]
    prepared, again = prepare(batch, 3), prepare(batch, 3)
    images = prepared.images
    assert torch.equal(images, again.images)
    assert torch.equal(prepared.targets, again.targets)
    assert (images.dtype, images.shape) == (torch.uint8, (11, 3, 8, 8))
    assert prepared.targets.shape == (11, 10)  # soft: MixUp is on
    assert not torch.equal(prepare(batch, 4).images, images)


def test_classes_are_drawn_equally_often(job: TrainingRun) -> None:
    train = digits().splits[TRAIN]
    weights = job.objective.sample_weights(train)  # --balance sample
    assert weights.dtype == np.float64  # a sum over a million float32 weights would drift
    totals = np.bincount(train.labels, weights)
    np.testing.assert_allclose(totals, totals[0], rtol=1e-6)  # float32 weights


def test_class_weights_go_to_the_loss_or_nowhere(job: TrainingRun) -> None:
    assert job.objective.class_weights is None
    job.objective.config = replace(job.config, recipe=replace(job.config.recipe, balance="loss"))
    job.objective.build(job.start, job.data)
    weights = job.objective.class_weights
    assert weights is not None
    counts = torch.from_numpy(job.data.splits[TRAIN].count_per_class())
    torch.testing.assert_close(weights * counts, torch.full((10,), 9.7))  # 97 images, 10 classes


def test_bad_images_are_named_and_counted_once() -> None:
    train = digits().splits[TRAIN]
    empty = torch.empty(0)

    def broken(*bad: int) -> ImageBatch:
        return replace(ImageBatch.of(empty, empty), bad=[(index, "truncated") for index in bad])

    def stream() -> Iterator[ImageBatch]:
        yield broken(4)
        yield broken()
        yield broken(4)  # in the next epoch again
        yield broken(4, 90)

    skipped: dict[str, str] = {}
    batches = record_bad_images(stream(), train, skipped, max_bad=0.02)  # 1.94 of 97
    for _ in range(3):
        next(batches)
    assert skipped == {train.keys[4]: "truncated"}
    with pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value).startswith("2 of 97 training images cannot be read, more than --max-")
    assert f"the first: {train.keys[4]} (truncated)" in str(caught.value)
    list(record_bad_images(stream(), train, {}, max_bad=0.03))
