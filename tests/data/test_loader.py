"""The loader: the same batches to the bit, whoever makes them and wherever the run starts."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from patchwords.data.augment import AugmentSettings, TrainTransform
from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import ImageBatch, default_num_workers, load_batches, load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.data.sampler import SampleKey, draw_epoch_order, iterate_batch_keys
from patchwords.errors import ConfigError, DataError

N = 23
BAD = {5: b"not an image", 11: b"", 17: None}  # None: the file is gone


@dataclass(frozen=True)
class Memory:
    files: tuple[bytes | None, ...]

    def __call__(self, row: int) -> bytes:
        data = self.files[row]
        if data is None:
            raise FileNotFoundError(f"no such file: {row}.png")
        return data


@dataclass(frozen=True)
class Deadly:
    """Ends its process, as the kernel does when memory runs out."""

    files: tuple[bytes, ...]
    parent: int

    def __call__(self, row: int) -> bytes:
        if row == 13 and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.files[row]


@dataclass(frozen=True)
class Faulty:
    """A fault of ours, not of an image."""

    def __call__(self, row: int) -> bytes:
        raise ZeroDivisionError("a fault in the reader")


def png(number: int) -> bytes:
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (19 + number % 5, 17 + number % 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


GOOD = tuple(png(i) for i in range(N))


def examples(reader) -> ImageDataset:  # type: ignore[no-untyped-def]
    return ImageDataset(
        classes=("a", "b", "c"),
        labels=np.arange(N, dtype=np.int64) % 3,
        keys=[f"{i}.png" for i in range(N)],
        sizes=np.full(N, 100, np.int64),
        reader=reader,
        rows=np.arange(N, dtype=np.int64),
    )


SOUND = examples(Memory(GOOD))
DAMAGED = examples(Memory(tuple(BAD.get(i, data) for i, data in enumerate(GOOD))))
VIEW = TrainTransform(Preprocess((8, 12)), AugmentSettings(), seed=3)


def assert_same(these: list[ImageBatch], those: list[ImageBatch]) -> None:
    assert len(these) == len(those) > 0
    for this, that in zip(these, those, strict=True):
        for name in ("images", "targets", "indices", "epochs", "repeats"):
            assert torch.equal(getattr(this, name), getattr(that, name)), name
        assert this.bad == that.bad


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int) -> None:
    def batches(count: int) -> list[ImageBatch]:
        return list(load_batches(DAMAGED, VIEW, iterate_batch_keys(N, 5, 3, 0, 14), count))

    assert_same(batches(workers), batches(0))


def test_a_batch_is_what_its_plan_says() -> None:
    plan = list(iterate_batch_keys(N, 5, 3, 0, 6))
    for batch, places in zip(load_batches(SOUND, VIEW, plan), plan, strict=True):
        assert batch.images.shape == (5, 3, 8, 12)
        assert batch.images.dtype == torch.uint8
        assert batch.places == places
        assert batch.targets.tolist() == [place.sample % 3 for place in places]
        for image, place in zip(batch.images, places, strict=True):
            want = VIEW(GOOD[place.sample], *place)
            assert torch.equal(image.permute(1, 2, 0), torch.from_numpy(want.copy()))


def test_starting_in_the_middle_gives_the_tail() -> None:
    whole = list(load_batches(SOUND, VIEW, iterate_batch_keys(N, 5, 3, 0, 14)))
    tail = list(load_batches(SOUND, VIEW, iterate_batch_keys(N, 5, 3, 9, 14), 1))
    assert_same(tail, whole[9:])


def test_every_sample_once_an_epoch_and_each_epoch_in_another_order() -> None:
    stream = [
        place for places in iterate_batch_keys(N, 7, 0, 0, 23) for place in places
    ]  # 7 epochs
    assert len(stream) == 7 * N
    orders = set()
    for epoch in range(7):
        order = [place.sample for place in stream if place.epoch == epoch]
        assert sorted(order) == list(range(N))
        orders.add(tuple(order))
    assert len(orders) == 7
    assert [p.epoch for p in stream] == sorted(p.epoch for p in stream)
    assert not any(place.repeat for place in stream)


def test_a_batch_may_be_larger_than_an_epoch() -> None:
    (places,) = iterate_batch_keys(5, 12, 0, 0, 1)
    assert Counter(place.epoch for place in places) == {0: 5, 1: 5, 2: 2}


def test_ranks_share_out_the_global_batch() -> None:
    whole = list(iterate_batch_keys(N, 6, 1, 4, 9))
    parts = [list(iterate_batch_keys(N, 6, 1, 4, 9, rank=rank, world=3)) for rank in range(3)]
    for step, places in enumerate(whole):
        assert parts[0][step] + parts[1][step] + parts[2][step] == places
    with pytest.raises(ConfigError, match="multiple of the 4"):
        iterate_batch_keys(N, 6, 1, 0, 1, world=4)


def test_weights_balance_and_repeats_are_told_apart() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    weights = 1 / np.bincount(labels)[labels]
    order = draw_epoch_order(0, 0, 100, weights)
    assert np.array_equal(order, draw_epoch_order(0, 0, 100, weights))
    assert not np.array_equal(order, draw_epoch_order(0, 1, 100, weights))
    counts = np.bincount(order, minlength=100)
    # 50 of the rare class: 5 each; the point where the draws begin moves a share by 1 at most
    assert set(counts[90:].tolist()) <= {4, 5, 6}
    assert abs(counts[90:].sum() - 50) <= 10
    assert set(counts[:90].tolist()) <= {0, 1}
    for epoch in range(3):
        stream = [p for places in iterate_batch_keys(100, 10, 0, 0, 30, weights) for p in places]
        places = [place for place in stream if place.epoch == epoch]
        assert len(set(places)) == len(places) == 100  # so no two are augmented alike
        repeats = [place.repeat for place in places if place.sample == 95]
        assert repeats == list(range(len(repeats)))
    means = np.mean(
        [np.bincount(draw_epoch_order(0, e, 100, weights) // 90) for e in range(40)], axis=0
    )
    assert means == pytest.approx([50, 50], abs=0.5)
    zero = weights.copy()
    zero[7] = 0
    assert 7 not in draw_epoch_order(0, 0, 100, zero)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_and_named(workers: int) -> None:
    batches = list(load_eval_batches(DAMAGED, Preprocess((8, 8)), 4, workers))
    assert [len(b.images) + len(b.bad) for b in batches] == [4, 4, 4, 4, 4, 3]
    seen = torch.cat([batch.indices for batch in batches]).tolist()
    assert seen == [i for i in range(N) if i not in BAD]
    bad = {index: reason for batch in batches for index, reason in batch.bad}
    assert set(bad) == set(BAD)
    assert "no such file: 17.png" in bad[17]
    assert all(reason and "\n" not in reason for reason in bad.values())


def test_a_batch_of_bad_images_is_empty_and_named() -> None:
    (batch,) = load_eval_batches(DAMAGED.select([5, 11]), Preprocess((8, 8)), 4)
    assert batch.images.shape == (0, 3, 8, 8)
    assert [index for index, _ in batch.bad] == [0, 1]


def test_evaluation_is_the_preprocessing() -> None:
    preprocess = Preprocess((8, 8), "squash", channels=1)
    for workers in (0, 1):
        (batch,) = load_eval_batches(SOUND, preprocess, N, workers)
        assert batch.images.shape == (N, 1, 8, 8)
        for image, data in zip(batch.images, GOOD, strict=True):
            want = preprocess.resize_and_crop(np.array(Image.open(io.BytesIO(data))))
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), want)
    assert list(load_eval_batches(SOUND.select([]), preprocess, 4)) == []


def test_batches_kept_are_not_written_over() -> None:
    """The slots of the workers are used again and again; what was given out must not change."""
    plan = list(iterate_batch_keys(N, 3, 0, 0, 40))
    kept = list(load_batches(SOUND, VIEW, plan, 2))
    assert_same(kept, list(load_batches(SOUND, VIEW, plan, 0)))


def test_loading_leaves_the_global_generators_alone() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()
    list(load_eval_batches(SOUND, Preprocess((8, 8)), 4, 1))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state[1]).all()


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def test_stopping_early_ends_the_workers() -> None:
    before = children()
    batches = load_batches(SOUND, VIEW, iterate_batch_keys(N, 4, 0, 0, 10**9), 2)
    assert isinstance(batches, Iterator)
    next(batches)
    assert len(children() - before) == 2
    batches.close()  # type: ignore[attr-defined]
    assert children() <= before


def test_workers_outlive_the_signals_meant_for_the_main_process() -> None:
    """As `scancel` sends them, to every process of the job; the parent's own still ends them."""
    before = children()
    batches = load_batches(SOUND, VIEW, iterate_batch_keys(N, 4, 0, 0, 50), 1)
    taken = [next(batches)]
    (worker,) = children() - before
    for name in ("INT", "TERM"):
        subprocess.run(["sh", "-c", f"kill -{name} {worker}"], check=True)
    taken += list(batches)
    assert len(taken) == 50
    assert children() <= before


def test_an_error_elsewhere_does_not_keep_the_program_from_ending() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_loader as t\n"
        "batches = t.load_batches(t.SOUND, t.VIEW, t.iterate_batch_keys(t.N, 4, 0, 0, 10**9), 2)\n"
        "next(batches); keep = [batches]; keep.append(keep); raise SystemExit(7)"
    )
    command = [sys.executable, "-c", code, os.path.dirname(__file__)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 7


def test_a_worker_that_dies_is_reported() -> None:
    batches = load_eval_batches(
        examples(Deadly(GOOD, os.getpid())), Preprocess((8, 8)), 4, workers=1
    )
    with pytest.raises(DataError, match=r"worker died.*fewer workers"):
        list(batches)


@pytest.mark.parametrize(("workers", "kind"), [(0, ZeroDivisionError), (1, ZeroDivisionError)])
def test_a_fault_of_ours_keeps_its_traceback(workers: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="a fault in the reader"):
        list(load_eval_batches(examples(Faulty()), Preprocess((8, 8)), 4, workers))


def test_default_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, processes, want in ((1, 1, 0), (2, 1, 1), (16, 1, 8), (16, 4, 3), (4, 8, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, c=cores: set(range(c)))
        assert default_num_workers(processes) == want


def test_places_are_plain_tuples() -> None:
    assert SampleKey(1, 2) == (1, 2, 0)
