"""Learning from fewer images: nested, fair to classes, by the seed; nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patchwords.data.dataset import DatasetSplits, Listing, build_dataset_splits
from patchwords.data.splits import (
    fingerprint_dataset,
    read_splits,
    split_dataset,
    subsample_training_images,
    write_splits,
)
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.held_out import merge_run_splits, select_held_out

COUNTS = {"a": 211, "b": 103, "c": 23, "d": 7, "e": 5, "f": 3}


def build(counts: dict[str, int], turned: bool = False, shards: int = 0) -> DatasetSplits:
    """Images of different contents; `turned`: listed from the last to the first."""
    listing = Listing()
    images = [(f"{name}/{i:04d}.jpg", name) for name, n in counts.items() for i in range(n)]
    for row, (key, name) in enumerate(reversed(images) if turned else images):
        listing.add(key, name, 100 + row, row)
    rows = np.arange(len(images))
    far = {"shards": rows % shards, "digests": rows.astype(np.uint64)} if shards else {}
    return build_dataset_splits("source", "folder", {"all": listing}, bytes, **far)


def cut(number: int, seed: int = 0, turned: bool = False, shards: int = 0) -> DatasetSplits:
    whole = split_dataset(build(COUNTS, turned, shards), seed=seed, validation=0.1, test=0.2)
    return subsample_training_images(whole, number, seed, every_class=False)


def keys(data: DatasetSplits, split: str = "train") -> set[str]:
    return set(data.parts[split].keys)


@pytest.mark.parametrize("shards", [0, 7])
def test_fewer_are_among_more_and_what_is_held_out_stays(shards: int) -> None:
    whole = split_dataset(build(COUNTS, shards=shards), seed=0, validation=0.1, test=0.2)
    everything = len(whole.splits["train"])
    before: set[str] = set()
    for number in (1, 2, 13, 101, 102, everything):
        data = cut(number, shards=shards)
        assert len(keys(data)) == number
        assert before < keys(data)
        before = keys(data)
        assert keys(data) | keys(data, "unused") == set(whole.splits["train"].keys)
        for split in ("validation", "test"):
            assert data.splits[split].keys == whole.splits[split].keys


def test_classes_have_their_shares() -> None:
    whole = split_dataset(build(COUNTS), seed=0, validation=0.1, test=0.2).splits["train"]
    counts = whole.count_per_class()
    for number in (50, 100, 200):
        found = cut(number).splits["train"].count_per_class()
        # each class is within one of its share by the clock, whose mean error they make up for
        assert np.abs(found - number * counts / counts.sum()).max() < 2
    alike = split_dataset(build(dict.fromkeys("abcde", 31)), seed=0, validation=0.0, test=0.0)
    for number in (5, 35, 100):
        found = subsample_training_images(alike, number, 3).splits["train"].count_per_class()
        assert set(found) == {number // 5}


def test_small_classes_do_not_come_all_at_once() -> None:
    """600 classes of two, and one of 1,200: any share of all is a share of either."""
    counts = {"large": 1200, **{f"{i:03d}": 2 for i in range(600)}}
    whole = split_dataset(build(counts), seed=0, validation=0.0, test=0.0)
    for number in (300, 600, 1200):
        found = subsample_training_images(whole, number, 0, every_class=False).splits["train"]
        # a Binomial's: 4 x sqrt(600 x 1/4) = 49
        assert abs(found.count_per_class()[whole.classes.index("large")] - number / 2) < 49


def test_it_goes_by_the_seed_and_the_images_and_not_by_their_order() -> None:
    assert keys(cut(50)) == keys(cut(50, turned=True))
    assert keys(cut(50)) != keys(cut(50, seed=1))


def test_of_far_shards_few_are_read() -> None:
    """Those that the draw comes to first, after what is held out."""
    few = cut(40, shards=19).splits["train"].shards
    assert few is not None
    assert len(np.unique(few)) <= 6


def test_it_is_the_same_data_and_the_run_remembers_what_it_left(tmp_path: Path) -> None:
    few, many = cut(40), cut(80)
    assert (
        fingerprint_dataset(few) == fingerprint_dataset(many) == fingerprint_dataset(build(COUNTS))
    )
    write_splits(tmp_path / "few.csv", few)
    write_splits(tmp_path / "many.csv", many)
    recorded = read_splits(tmp_path / "few.csv")
    assert sum(split == "unused" for split in recorded.values()) == len(keys(few, "unused"))
    # what a run left out is not what it is judged by
    judged = select_held_out(build(COUNTS), recorded)
    assert set(judged.examples.keys) == keys(few, "test")
    assert judged.trained_on == 40
    both = merge_run_splits([recorded, read_splits(tmp_path / "many.csv")])
    assert sum(split == "train" for split in both.values()) == 80


def test_the_note_and_the_refusals() -> None:
    assert cut(40).notes == ("learning from 40 of 254 training images (--train-images)",)
    with pytest.raises(ConfigError, match=r"--train-images 255: source has 254 to train on, after"):
        cut(255)
    whole = split_dataset(build(COUNTS), seed=0)
    with pytest.raises(DataError, match=r"--train-images 3: none of them is of class '[c-f]'; ask"):
        subsample_training_images(whole, 3, 0)
