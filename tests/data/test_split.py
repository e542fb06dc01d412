"""The division: disjoint, stratified to within an image, seeded, stable, copies never parted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from patchwords.data.dataset import DatasetSplits, ImageDataset, Listing, build_dataset_splits
from patchwords.data.splits import (
    allocate_class_quotas,
    fingerprint_dataset,
    group_exact_duplicates,
    join_validation,
    read_splits,
    split_dataset,
    write_splits,
)
from patchwords.errors import ConfigError, DataError


@dataclass
class Memory:
    """Reads from a list, and counts what was read."""

    contents: list[bytes]
    read: list[int]

    def __call__(self, row: int) -> bytes:
        self.read.append(row)
        if self.contents[row] == b"unreadable":
            raise OSError("no such file")
        return self.contents[row]


Image = tuple[str, str, bytes]  # key, class, content


def build(**splits: Sequence[Image]) -> DatasetSplits:
    reader = Memory([], [])
    listings = {}
    for split, images in splits.items():
        listings[split] = Listing()
        for key, name, content in images:
            listings[split].add(key, name, len(content), len(reader.contents))
            reader.contents.append(content)
    return build_dataset_splits("source", "folder", listings, reader)


def photos(**counts: int) -> list[Image]:
    """So many images of each class, of different contents but equal lengths."""
    return [
        (f"{name}/{i:04d}.jpg", name, f"{name:9}{i:04d}".encode())
        for name, number in counts.items()
        for i in range(number)
    ]


def where(data: DatasetSplits) -> dict[str, str]:
    """key -> split; fails where two splits share an image."""
    found: dict[str, str] = {}
    for split, examples in data.splits.items():
        for key in examples.keys:
            assert key not in found, f"{key} is in {found[key]} and in {split}"
            found[key] = split
    return found


def per_class(data: DatasetSplits, split: str) -> list[int]:
    return data.splits[split].count_per_class().tolist()


COUNTS = {"a": 101, "b": 37, "c": 11, "d": 5, "e": 3, "f": 2}


@pytest.mark.parametrize("test", [0.0, 0.01, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("validation", [0.0, 0.1, 0.31])
def test_undivided_data(validation: float, test: float) -> None:
    data = build(all=photos(**COUNTS))
    divided = split_dataset(data, seed=3, validation=validation, test=test)
    assert list(divided.splits) == [
        name
        for name, share in (("train", 1.0), ("validation", validation), ("test", test))
        if share
    ]
    assert set(where(divided)) == set(data.splits["all"].keys)
    n = np.array(list(COUNTS.values()))
    drawn = np.array(per_class(divided, "test")) if test else 0 * n
    assert np.all(np.abs(drawn - test * n) < 1)
    if test:
        assert drawn.min() >= 1
    left = n - drawn
    drawn = np.array(per_class(divided, "validation")) if validation else 0 * n
    assert np.all(np.abs(drawn - validation * left) < 1)
    if validation:
        assert np.all(drawn[left >= 3] >= 1)
    assert min(per_class(divided, "train")) >= 1


def test_images_keep_what_belongs_to_them() -> None:
    images = photos(a=7, b=11)
    divided = split_dataset(build(all=images), seed=0)
    contents = {key: (name, content) for key, name, content in images}
    for examples in divided.splits.values():
        for i, key in enumerate(examples.keys):
            found = (divided.classes[examples.labels[i]], examples.read(i))
            assert found == contents[key]
            assert examples.sizes[i] == len(found[1])


def test_given_splits_are_kept() -> None:
    train, test = photos(a=50, b=30), [("t1", "a", b"1"), ("t2", "b", b"22")]
    given = split_dataset(build(train=train, test=test), seed=0, validation=0.1, test=0.5)
    assert list(given.splits) == ["train", "validation", "test"]
    assert list(given.splits["test"].keys) == ["t1", "t2"]
    assert per_class(given, "validation") == [5, 3]
    assert list(split_dataset(build(train=train), seed=0).splits) == ["train", "validation"]
    whole = build(train=train, validation=test)
    kept = split_dataset(whole, seed=0)
    assert list(kept.splits) == ["train", "validation"]
    assert where(kept) == where(whole)


def test_validation_is_at_most_5000() -> None:
    labels = np.arange(80_000) % 7
    examples = ImageDataset(
        classes=tuple("abcdefg"),
        labels=labels,
        keys=[f"x:{i}" for i in range(len(labels))],
        sizes=np.arange(len(labels)),  # all different: nothing is read
        reader=Memory([], []),
        rows=np.arange(len(labels)),
    )
    data = DatasetSplits("x", "parquet", examples.classes, {"train": examples})
    counts = per_class(split_dataset(data, seed=0), "validation")
    assert sum(counts) == 5000
    assert max(counts) - min(counts) <= 1
    many = replace(examples, labels=np.arange(80_000) // 4, classes=tuple(map(str, range(20_000))))
    data = DatasetSplits("x", "parquet", many.classes, {"train": many})
    counts = per_class(split_dataset(data, seed=0), "validation")
    assert (sum(counts), max(counts)) == (5000, 1)


def test_seed_and_order() -> None:
    images = photos(**COUNTS)
    once = where(split_dataset(build(all=images), seed=0))
    assert where(split_dataset(build(all=images), seed=0)) == once
    assert where(split_dataset(build(all=images[::-1]), seed=0)) == once
    shuffled = [images[i] for i in np.random.default_rng(0).permutation(len(images))]
    assert where(split_dataset(build(all=shuffled), seed=0)) == once
    other = where(split_dataset(build(all=images), seed=1))
    assert sum(once[key] != other[key] for key in once) > 20


def test_a_new_photo_moves_few_others() -> None:
    images = photos(**COUNTS)
    before = where(split_dataset(build(all=images), seed=0))
    for i in range(25):
        added = [*images, (f"a/new-{i}.jpg", "a", f"new {i}".encode())]
        after = where(split_dataset(build(all=added), seed=0))
        # One image may cross from train to validation or back, one from validation to test; and
        # the place that rounding gives may pass to another class, for each of the two.
        assert sum(before[key] != after[key] for key in before) <= 6


def test_copies_stay_together() -> None:
    images = photos(a=60, b=40)
    copies = [(f"copy of {key}", name, content) for key, name, content in images[::3]]
    copies += [(f"third of {key}", name, content) for key, name, content in images[::9]]
    for seed in range(5):
        divided = split_dataset(build(all=[*images, *copies]), seed=seed)
        split = where(divided)
        for key in split:
            original = key.removeprefix("copy of ").removeprefix("third of ")
            assert split[key] == split[original]
        n = np.array([60 + 20 + 7, 40 + 14 + 5])
        drawn = np.array(per_class(divided, "test"))
        assert np.all(np.abs(drawn - 0.2 * n) < 1)  # single images fill the gaps
    assert split.keys() == {key for key, _, _ in [*images, *copies]}


def test_copies_in_several_classes_stay_together() -> None:
    images = photos(a=30, b=30, c=30)
    wrong = [(f"b/wrong-{key[2:]}", "b", content) for key, name, content in images if name == "a"]
    split = where(split_dataset(build(all=[*images, *wrong[:10]]), seed=0))
    for key in [key for key, _, _ in wrong[:10]]:
        assert split[key] == split[key.replace("b/wrong-", "a/")]


@pytest.mark.parametrize("times", [2, 3])
def test_a_class_of_copies_only_is_still_held_out(times: int) -> None:
    """Quota 1, but no group smaller than 2: one whole group is drawn all the same."""
    images = [(f"{k}-{key}", name, c) for key, name, c in photos(a=3, b=5) for k in range(times)]
    divided = split_dataset(build(all=images), seed=0, validation=0.0, test=0.1)
    assert per_class(divided, "test") == [times, times]
    assert min(per_class(divided, "train")) >= 1
    same = [(f"{k}/x", "a", b"same") for k in range(4)]
    alone = split_dataset(build(all=[*same, *photos(b=10)]), seed=0)
    assert per_class(alone, "train")[0] == 4  # cannot be parted, and train comes first


def test_only_equal_lengths_are_read() -> None:
    contents = [b"1", b"22", b"33", b"22", b"333", b"4444", b"unreadable", b"unreadable"]
    data = build(all=[(f"{i}", "a", content) for i, content in enumerate(contents)])
    examples = data.splits["all"]
    assert group_exact_duplicates(examples).tolist() == [0, 1, 2, 1, 4, 5, 6, 7]
    assert isinstance(examples.reader, Memory)
    assert sorted(examples.reader.read) == [1, 2, 3, 6, 7]


def test_quotas() -> None:
    counts = np.array([10, 10, 10, 0, 1])
    assert allocate_class_quotas(counts, 0.25).sum() == 8  # 7.75, rounded
    assert allocate_class_quotas(counts, 0.25).tolist() == [3, 3, 2, 0, 0]
    assert allocate_class_quotas(np.array([2, 2, 2, 1]), 0.1, at_least_one_of=2).tolist() == [
        1,
        1,
        1,
        0,
    ]
    assert allocate_class_quotas(np.array([2, 1000]), 0.99, at_least_one_of=2).tolist() == [1, 990]
    generator = np.random.default_rng(0)
    for _ in range(200):
        counts = generator.integers(0, 60, size=13)
        fraction = float(generator.uniform(0, 1))
        quota = allocate_class_quotas(counts, fraction, at_least_one_of=2)
        assert np.all(np.abs(quota - fraction * counts) < 1)
        assert np.all(quota[counts >= 2] >= 1)
        assert np.all((counts - quota)[counts >= 1] >= 1)
    assert allocate_class_quotas(np.array([1, 3]), 1.0, keep=0).tolist() == [1, 3]
    for most in range(1, 14):
        drawn = allocate_class_quotas(np.array([1, 7, 5, 0, 1]), most / 14, keep=0)
        assert drawn.sum() == most


@pytest.mark.parametrize("name", ["validation", "test"])
@pytest.mark.parametrize("share", [-0.1, 1.0, 20.0, float("nan")])
def test_shares_out_of_range(name: str, share: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} {share}"):
        split_dataset(build(all=photos(a=5, b=5)), seed=0, **{name: share})  # type: ignore[arg-type]


def test_fingerprint_tells_data_apart() -> None:
    images = photos(a=5, b=7)
    data = build(all=images)
    same = fingerprint_dataset(data)
    assert fingerprint_dataset(split_dataset(data, seed=5)) == same
    assert fingerprint_dataset(build(all=images[::-1])) == same
    others = [
        images[1:],
        [("a/new.jpg", *images[0][1:]), *images[1:]],
        [(images[0][0], "b", images[0][2]), *images[1:]],
        [(images[0][0], "a", b"longer than before"), *images[1:]],
    ]
    assert len({same, *(fingerprint_dataset(build(all=other)) for other in others)}) == 5


def test_splits_file_round_trip(tmp_path: Path) -> None:
    odd = os.fsdecode(b"a/\xff.jpg")
    extra = [('a/with, "comma".jpg', "a", b"1"), ("a/line\nbreak.jpg", "a", b"22"), (odd, "a", b"")]
    divided = split_dataset(build(all=[*photos(a=9, b=7), *extra]), seed=0)
    path = tmp_path / "splits.csv"
    path.write_text("what was there before")
    write_splits(path, divided)
    assert os.listdir(tmp_path) == ["splits.csv"]
    assert path.read_bytes().startswith(b"path,label,split,bytes\n")
    read = read_splits(path)
    assert {key: split for (key, _), split in read.items()} == where(divided)
    assert Counter(read.values()) == {name: len(x) for name, x in divided.splits.items()}
    assert read[('a/with, "comma".jpg', 1)] in divided.splits
    path.write_text("path,split\nx,train\n")
    for damaged in (path, tmp_path / "gone.csv"):
        with pytest.raises(DataError, match="cannot be read as a list of splits"):
            read_splits(damaged)
    path.write_text("")
    with pytest.raises(DataError, match="cannot be read as a list of splits"):
        read_splits(path)


def test_validation_as_large_as_its_share_where_nothing_limits_it() -> None:
    """Of different lengths: none of the images has to be read."""
    n = 60_013
    images = [(f"{i}.jpg", "ab"[i % 2], b"") for i in range(n)]
    data = build(all=images)
    examples = replace(data.splits["all"], sizes=np.arange(n))
    data = replace(data, splits={"all": examples})
    shares = {"validation": 0.1, "test": 0.0, "seed": 0}
    for limit, count in ((None, 6_001), (5_000, 5_000), (107, 107)):
        divided = split_dataset(data, **shares, most_validation=limit)  # type: ignore[arg-type]
        assert len(divided.splits["validation"]) == count
        assert len(divided.splits["train"]) == n - count
    assert len(split_dataset(data, **shares).splits["validation"]) == 5_000  # type: ignore[arg-type]


def test_validation_images_join_those_for_training() -> None:
    parts = {name: photos(a=3 + i, b=2) for i, name in enumerate(("train", "validation", "test"))}
    named = {
        split: [(f"{split}/{key}", name, content) for key, name, content in images]
        for split, images in parts.items()
    }
    data = build(**named)
    for place, examples in data.splits.items():  # as of shards far away
        shards = np.full(len(examples), len(place), np.int32)
        data.splits[place] = replace(examples, shards=shards, digests=shards.astype(np.uint64))
    joined = join_validation(data)
    assert joined.splits.keys() == {"train", "test"}
    assert set(joined.splits["train"].keys) == {
        *data.splits["train"].keys,
        *data.splits["validation"].keys,
    }
    train = joined.splits["train"]
    assert per_class(joined, "train") == [7, 4]
    assert train.shards is not None
    assert train.digests is not None
    assert train.shards.tolist() == train.digests.tolist() == [5] * 5 + [10] * 6
    assert [train.read(i) for i in range(11)] == [
        content for split in ("train", "validation") for _, _, content in named[split]
    ]
    assert joined.splits["test"] is data.splits["test"]
    alone = build(all=photos(a=3, b=2))
    assert join_validation(alone) is alone  # there is none
