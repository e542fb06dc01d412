"""What frozen layers give is computed once, and the run is the same whatever happens to it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_exact_resume import comparable_rows, same, state_of
from tiny_run import VIT, Killed, assemble, config_of, digits, go, go_on, killed_at, quiet

from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.batch_augment import augment_batch
from patchwords.data.dataset import TRAIN
from patchwords.data.preprocess import Preprocess
from patchwords.data.sampler import SampleKey
from patchwords.errors import DataError, Interrupted
from patchwords.training.config import FinetuneConfig, FrozenMode
from patchwords.training.inputs.frozen import FrozenBackbone
from patchwords.training.inputs.frozen_cache import ActivationCache
from patchwords.training.training_run import TrainingRun

STILL = VIT.with_settings(dropout=0.0, drop_path=0.0)
TWICE = AugmentSettings(views=2, randaugment=(1, 9.0), color_jitter=0.2, erase=0.3)
IMAGES, HELD_OUT = 97, 23  # 24 steps of 11 see 264
VIEWS = [64, IMAGES - 64] * 2  # in blocks of 64
ALL = [*VIEWS, HELD_OUT]


def config(
    train: str = "last:1",
    frozen: FrozenMode = "cache",
    workers: int = 0,
    augment: AugmentSettings = TWICE,
) -> FinetuneConfig:
    base = config_of(workers, augment)
    recipe = replace(base.recipe, train=train, balance="none", optimizer="sgd")
    return replace(base, recipe=recipe, machine=replace(base.machine, frozen=frozen))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the images of each call of the frozen layers, of more than one image."""
    calls: list[int] = []
    activations = FrozenBackbone.activations

    def counted(self: FrozenBackbone, images: torch.Tensor) -> torch.Tensor:
        if len(images) > 1:  # one is asked for its shape
            calls.append(len(images))
        return activations(self, images)

    monkeypatch.setattr(FrozenBackbone, "activations", counted)
    return calls


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return go(assemble(tmp_path_factory.mktemp("whole"), config(), STILL))


@pytest.mark.parametrize("train", ["head", "last:1"])
def test_the_run_is_that_without(train: str, tmp_path: Path, computed: list[int]) -> None:
    """But for rounding: products of other batches may be summed in another order."""
    jobs = []
    for frozen in ("cache", "compute"):
        asked = config(train, frozen)  # type: ignore[arg-type]
        jobs.append(go(assemble(tmp_path / frozen, asked, STILL)))
    assert computed == ALL  # each view once, validation images too, and nothing of it without
    weights = [job.state.model.state_dict() for job in jobs]
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5, msg=name)
    before = assemble(tmp_path / "before", config(train), STILL).state.model.state_dict()
    moved = [name for name, value in weights[0].items() if not torch.equal(value, before[name])]
    assert "head.linear.weight" in moved
    assert ("encoder.blocks.2.mlp.fc1.weight" in moved) == (train == "last:1")
    assert not [name for name in moved if ".blocks.1." in name]
    for row, other in zip(*map(comparable_rows, jobs), strict=True):
        assert row.keys() == other.keys()
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert row["accuracy"] == pytest.approx(other["accuracy"], abs=1e-6)
    looks = [row for row in comparable_rows(jobs[0]) if row["kind"] == "evaluation"]
    assert len(looks) > 2
    assert {row["images"] for row in looks} == {HELD_OUT}


def test_workers_change_nothing(tmp_path: Path, uninterrupted: TrainingRun) -> None:
    job = go(assemble(tmp_path, config(workers=2), STILL))
    assert same(state_of(job), state_of(uninterrupted))


def test_stopped_while_they_are_computed_goes_on_from_there(
    tmp_path: Path, uninterrupted: TrainingRun, computed: list[int]
) -> None:
    first = assemble(tmp_path, config(), STILL)
    codes = iter([None, None, 130])
    assert first.front is not None
    with pytest.raises(Interrupted, match="while the frozen layers were computed") as caught:
        ActivationCache(first, first.front).fill(lambda: next(codes), quiet())
    assert caught.value.exit_code == 130
    assert first.state.seconds > 0
    assert computed == [64, 33, 64]
    job = go_on(tmp_path, config(), STILL)
    assert computed == ALL
    assert same(state_of(job), state_of(uninterrupted))
    assert comparable_rows(job) == comparable_rows(uninterrupted)


@pytest.mark.parametrize("left", ["all", "a view", "half a view", "no validation", "nothing"])
def test_killed_and_gone_on_with_is_bit_equal_whatever_is_left(
    left: str,
    tmp_path: Path,
    uninterrupted: TrainingRun,
    computed: list[int],
) -> None:
    first = assemble(tmp_path, config(), STILL)
    with pytest.raises(Killed):
        go(first, killed_at(2))  # at 16; saved at 15
    (folder,) = (tmp_path / "frozen").iterdir()
    if left == "nothing":
        shutil.rmtree(tmp_path / "frozen")
    elif left == "a view":
        shutil.rmtree(folder / "view-1")
    elif left == "no validation":
        shutil.rmtree(folder / "validation")
    elif left == "half a view":
        half(folder / "view-1")
    computed.clear()
    job = go_on(tmp_path, config(), STILL)
    wanted = {"all": [], "a view": [64, 33], "half a view": [33], "nothing": ALL}
    wanted["no validation"] = [HELD_OUT]
    assert computed == wanted[left]
    assert same(state_of(job), state_of(uninterrupted))
    assert comparable_rows(job) == comparable_rows(uninterrupted)


def half(view: Path) -> None:
    """As a kill leaves a view: the second of its two blocks is not done, and not right."""
    rows = np.load(view / "features.npy", mmap_mode="r+")
    rows[64:] = np.nan
    rows.flush()
    (view / "about.json").unlink()
    (view / "done").write_bytes(b"\1\0")
    (view / "bad.jsonl").touch()


def test_those_of_other_weights_are_not_taken(
    tmp_path: Path, uninterrupted: TrainingRun, computed: list[int]
) -> None:
    other = assemble(tmp_path, config(), STILL)
    with torch.no_grad():
        other.state.model.encoder.blocks[0].mlp.fc1.weight.mul_(2)  # type: ignore[union-attr]
    assert other.front is not None
    ActivationCache(other, other.front).fill(lambda: None, quiet())
    (stale,) = (tmp_path / "frozen").iterdir()
    job = go(assemble(tmp_path, config(), STILL, resume=True))
    (fresh,) = (tmp_path / "frozen").iterdir()
    assert fresh != stale
    assert computed == ALL * 2
    assert same(state_of(job), state_of(uninterrupted))


@pytest.mark.parametrize("change", ["seed", "augment", "precision", "first"])
def test_a_name_is_of_all_that_they_depend_on(change: str, tmp_path: Path) -> None:
    job = assemble(tmp_path, config(), STILL)
    assert job.front is not None
    front, other = job.front, job
    if change == "seed":
        other = replace(job, config=replace(job.config, seed=4))
    elif change == "augment":
        other = replace(job, config=replace(job.config, augment=replace(TWICE, flip=False)))
    elif change == "precision":
        other = replace(job, device=replace(job.device, bf16=True))
    else:
        front = replace(front, first=1)
    assert ActivationCache(other, front).folder != ActivationCache(job, job.front).folder
    job.state.model.head.linear.weight.data.add_(1)  # type: ignore[union-attr]  # it learns
    assert ActivationCache(job, job.front).folder == ActivationCache(job, job.front).folder


@pytest.fixture
def torn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two of the digits cannot be read, by where their reader finds them."""
    train = digits().splits[TRAIN]
    bad = [5, 70]
    rows, read = {int(train.rows[i]) for i in bad}, train.reader

    def reader(row: int) -> bytes:
        return b"not an image" if row in rows else read(row)

    data = replace(digits(), splits={**digits().splits, TRAIN: replace(train, reader=reader)})
    monkeypatch.setattr("tiny_run.digits", lambda: data)
    return bad


def test_bad_images_are_left_out_and_named(tmp_path: Path, torn: list[int]) -> None:
    jobs = []
    for frozen in ("cache", "compute"):
        asked = config("last:1", frozen)  # type: ignore[arg-type]
        asked = replace(asked, data_settings=replace(asked.data_settings, max_bad=0.05))
        jobs.append(go(assemble(tmp_path / frozen, asked, STILL)))
    keys = jobs[0].data.splits[TRAIN].keys
    assert jobs[0].state.skipped.keys() == {keys[i] for i in torn}
    assert jobs[0].state.skipped == jobs[1].state.skipped
    for name, value in jobs[0].state.model.state_dict().items():
        other = jobs[1].state.model.state_dict()[name]
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5, msg=name)


def test_too_many_bad_images_end_the_run_at_once(
    tmp_path: Path, torn: list[int], computed: list[int]
) -> None:
    job = assemble(tmp_path, config(), STILL)  # --max-bad 1 %: 0.97 images
    with pytest.raises(DataError, match="training images cannot be read, more than --max-bad"):
        go(job)
    assert len(computed) < 2


def test_bf16_is_kept_bit_by_bit(tmp_path: Path) -> None:
    shape = STILL.with_settings(position="none", classifier="gap")
    job = assemble(tmp_path, config("last:3"), shape)
    job = replace(job, device=replace(job.device, bf16=True))
    assert job.front is not None
    cache = ActivationCache(job, job.front)
    assert cache.like.dtype == torch.bfloat16
    cache.fill(lambda: None, quiet())
    places = [SampleKey(0, 90), SampleKey(1, 3), SampleKey(2, 90)]
    (batch,) = cache.batches([places])
    assert (batch.images.dtype, batch.images.shape) == (torch.bfloat16, (3, 4, 14))
    assert torch.equal(batch.images[0], batch.images[2])
    assert batch.places == places
    assert batch.targets.tolist() == [int(job.data.splits[TRAIN].labels[i]) for i in (90, 3, 90)]
    view = TrainTransform(job.start.preprocess, TWICE, job.config.seed)
    pixels = view(job.data.splits[TRAIN].read(3), 3, 3)
    images = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    images, _ = augment_batch(images, torch.zeros(1).long(), [SampleKey(1, 3)], TWICE, 3, 10, 0)
    with job.device.autocast(), torch.no_grad():
        wanted = job.front.activations(job.start.preprocess.normalise(images))
    torch.testing.assert_close(batch.images[1:2], wanted, rtol=2**-7, atol=2**-8)  # rounding


def test_views_come_by_turns() -> None:
    data = digits().splits[TRAIN].read(3)
    look = TrainTransform(Preprocess(image_size=(8, 8)), TWICE, seed=5)
    seen = [look(data, epoch, 3) for epoch in range(5)]
    assert all(np.array_equal(seen[e], seen[e % 2]) for e in range(5))
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(look(data, 0, 3, repeat=1), seen[1])  # with --balance sample
    once = TrainTransform(look.preprocess, replace(TWICE, views=None), seed=5)
    assert np.array_equal(once(data, 1, 3), seen[1])
    assert not np.array_equal(once(data, 2, 3), seen[0])
    images = torch.arange(192, dtype=torch.uint8).reshape(1, 3, 8, 8)
    batches = [on_device(images, epoch) for epoch in range(4)]
    assert torch.equal(batches[0], batches[2])
    assert torch.equal(batches[1], batches[3])
    assert not torch.equal(batches[0], batches[1])


def on_device(images: torch.Tensor, epoch: int) -> torch.Tensor:
    given: Any = (images.clone(), torch.zeros(1).long(), [SampleKey(epoch, 3)])
    return augment_batch(*given, TWICE, seed=5, num_classes=10, step=epoch)[0]
