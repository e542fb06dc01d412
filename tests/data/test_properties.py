"""Properties that splits, samplers and crops have for any data, drawn by hypothesis."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from patchwords.data.dataset import DatasetSplits, Listing, build_dataset_splits
from patchwords.data.preprocess import (
    Preprocess,
    crop_and_resize,
    draw_random_crop,
    draw_random_resized_crop,
)
from patchwords.data.sampler import draw_epoch_order, draw_shard_groups, iterate_batch_keys
from patchwords.data.splits import split_dataset, subsample_training_images
from patchwords.rng import numpy_generator

Photo = tuple[str, str, int]  # key, class, content: photos of equal content are copies

SEEDS = st.integers(0, 2**31)
FRACTIONS = st.sampled_from([0.0, 0.01, 0.1, 0.2, 0.33, 0.5, 0.9])
SIDES = st.integers(1, 600)


# Splits


@st.composite
def photos(draw: st.DrawFn, copies: bool = False) -> list[Photo]:
    """Photos of up to 6 classes, a few of them copies of others."""
    counts = draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    rows = [(f"{name}/{i}.jpg", f"class {name}") for name, n in enumerate(counts) for i in range(n)]
    contents = list(range(len(rows)))
    if copies:
        pairs = st.tuples(st.sampled_from(contents), st.sampled_from(contents))
        for target, source in draw(st.lists(pairs, max_size=20)):
            contents[target] = contents[source]
    return [(key, name, content) for (key, name), content in zip(rows, contents, strict=True)]


def build(images: list[Photo]) -> DatasetSplits:
    listing = Listing()
    for row, (key, name, _) in enumerate(images):
        listing.add(key, name, 4, row)
    contents = [content.to_bytes(4, "little") for _, _, content in images]
    return build_dataset_splits("source", "folder", {"all": listing}, contents.__getitem__)


def split_by_key(data: DatasetSplits) -> dict[str, str]:
    """key -> split; fails if two splits share an image."""
    splits = {key: split for split, examples in data.splits.items() for key in examples.keys}
    assert len(splits) == sum(map(len, data.splits.values()))
    return splits


@given(photos(copies=True), SEEDS, FRACTIONS, FRACTIONS)
def test_splits_are_disjoint_and_complete_and_never_part_copies(
    images: list[Photo], seed: int, validation: float, test: float
) -> None:
    split_of = split_by_key(
        split_dataset(build(images), seed=seed, validation=validation, test=test)
    )
    assert split_of.keys() == {key for key, _, _ in images}
    splits_of_content = defaultdict(set)
    for key, _, content in images:
        splits_of_content[content].add(split_of[key])
    assert all(len(splits) == 1 for splits in splits_of_content.values())


@given(photos(), SEEDS, FRACTIONS, FRACTIONS)
def test_splits_are_stratified_to_within_one_image(
    images: list[Photo], seed: int, validation: float, test: float
) -> None:
    split_of = split_by_key(
        split_dataset(build(images), seed=seed, validation=validation, test=test)
    )
    classes = {name for _, name, _ in images}
    counts = Counter((split_of[key], name) for key, name, _ in images)
    for name in classes:
        of_split = {split: counts[split, name] for split in ("train", "validation", "test")}
        n = sum(of_split.values())
        assert abs(of_split["test"] - test * n) < 1 or (n == 1 and of_split["test"] == 0)
        rest = n - of_split["test"]
        assert abs(of_split["validation"] - validation * rest) < 1
        assert of_split["train"] >= 1


@given(photos(copies=True), SEEDS, st.randoms())
def test_splits_do_not_depend_on_the_order_of_files(
    images: list[Photo], seed: int, random: Random
) -> None:
    shuffled = random.sample(images, len(images))
    before = split_by_key(split_dataset(build(images), seed=seed))
    assert split_by_key(split_dataset(build(shuffled), seed=seed)) == before


@given(photos(), SEEDS, st.integers(0, 5))
def test_added_photos_move_few_others(images: list[Photo], seed: int, label: int) -> None:
    """As in test_split.py: one image for each border, one for each place that rounding gives."""
    added = [*images, ("new.jpg", f"class {label}", len(images))]
    before = split_by_key(split_dataset(build(images), seed=seed))
    after = split_by_key(split_dataset(build(added), seed=seed))
    assert sum(before[key] != after[key] for key in before) <= 6


@given(photos(), SEEDS, st.data())
def test_smaller_subsets_are_contained_in_larger_ones(
    images: list[Photo], seed: int, data: st.DataObject
) -> None:
    divided = split_dataset(build(images), seed=seed)
    n = len(divided.splits["train"])
    small, large = sorted(data.draw(st.tuples(st.integers(1, n), st.integers(1, n))))
    few, many = (
        subsample_training_images(divided, count, seed, every_class=False)
        for count in (small, large)
    )
    assert len(few.splits["train"]) == small
    assert set(few.splits["train"].keys) <= set(many.splits["train"].keys)
    assert few.unused is not None
    parts = Counter([*few.splits["train"].keys, *few.unused.keys])
    assert parts == Counter(divided.splits["train"].keys)


# Samplers


@st.composite
def samplers(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of iterate_batch_keys, with shards or without."""
    n = draw(st.integers(1, 60))
    shards = draw(st.none() | st.lists(st.integers(0, 12), min_size=n, max_size=n).map(np.array))
    return {
        "n": n,
        "batch_size": draw(st.integers(1, 24)),
        "seed": draw(SEEDS),
        "shards": shards,
        "group": draw(st.integers(1, 5)),
    }


@given(samplers(), st.integers(1, 4))
def test_every_image_comes_once_an_epoch(sampler: dict[str, Any], epochs: int) -> None:
    steps = -(-epochs * sampler["n"] // sampler["batch_size"])
    keys = [
        key
        for batch in iterate_batch_keys(**sampler, first_step=0, last_step=steps)
        for key in batch
    ]
    for epoch in range(epochs):
        samples = sorted(key.sample for key in keys if key.epoch == epoch)
        assert samples == list(range(sampler["n"]))


@given(samplers(), st.integers(0, 30), st.integers(0, 10))
def test_a_sampler_resumes_at_any_step(sampler: dict[str, Any], first: int, more: int) -> None:
    last = first + more
    whole = list(iterate_batch_keys(**sampler, first_step=0, last_step=last))
    assert list(iterate_batch_keys(**sampler, first_step=first, last_step=last)) == whole[first:]


@given(samplers(), st.integers(1, 4), st.integers(0, 9))
def test_ranks_share_out_the_same_batches(sampler: dict[str, Any], world: int, first: int) -> None:
    sampler["batch_size"] *= world
    steps = {"first_step": first, "last_step": first + 3}
    whole = list(iterate_batch_keys(**sampler, **steps))
    shares = [
        list(iterate_batch_keys(**sampler, **steps, rank=rank, world=world))
        for rank in range(world)
    ]
    joined = [[key for part in parts for key in part] for parts in zip(*shares, strict=True)]
    assert joined == whole


@given(samplers(), st.integers(0, 3))
def test_an_epoch_reads_one_group_of_shards_after_the_other(
    sampler: dict[str, Any], epoch: int
) -> None:
    n, seed, shards, group = (sampler[name] for name in ("n", "seed", "shards", "group"))
    assume(shards is not None)
    order = draw_epoch_order(seed, epoch, n, shards=shards, group=group)
    groups = draw_shard_groups(seed, epoch, shards, group)
    number = {shard: index for index, members in enumerate(groups) for shard in members.tolist()}
    assert sorted(order.tolist()) == list(range(n))
    assert sorted(number) == sorted(set(shards.tolist()))
    assert max(map(len, groups)) <= group
    numbers = [number[shard] for shard in shards[order].tolist()]
    assert numbers == sorted(numbers)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), SEEDS)
def test_weights_give_every_image_its_share(weights: list[int], seed: int) -> None:
    assume(sum(weights))
    n = len(weights)
    order = draw_epoch_order(seed, 0, n, weights=np.array(weights, dtype=float))
    counts = np.bincount(order, minlength=n)
    due = n * np.array(weights) / sum(weights)
    assert counts.sum() == n
    assert np.all(np.abs(counts - due) < 1 + 1e-9)


# Resizing and crops


def assert_inside(box: tuple[float, ...], width: int, height: int) -> None:
    left, top, right, bottom = box
    hair = 1e-9 * max(width, height)
    assert -hair <= left < right <= width + hair
    assert -hair <= top < bottom <= height + hair


@given(SIDES, SIDES, SEEDS, st.floats(0.01, 1), st.floats(0.01, 1))
def test_random_resized_crops_lie_inside(
    width: int, height: int, seed: int, one: float, other: float
) -> None:
    area = (min(one, other), max(one, other))
    box = draw_random_resized_crop(width, height, numpy_generator(seed), area)
    assert_inside(box, width, height)
    w, h = box[2] - box[0], box[3] - box[1]
    assert 3 / 4 - 1e-6 <= w / h <= 4 / 3 + 1e-6


@given(SIDES, SIDES, SEEDS, SIDES, SIDES, st.floats(0.3, 1))
def test_random_crops_lie_inside(
    width: int, height: int, seed: int, rows: int, columns: int, share: float
) -> None:
    preprocess = Preprocess((rows, columns), crop_fraction=share)
    covering = preprocess.resized(width, height)
    assert covering[0] >= rows
    assert covering[1] >= columns
    box = draw_random_crop(width, height, covering, (rows, columns), numpy_generator(seed))
    assert_inside(box, width, height)


@given(SIDES, SIDES, st.integers(1, 48), st.integers(1, 48), st.floats(0.2, 1), SEEDS)
@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_every_image_becomes_the_size_of_the_model(
    resize: str, width: int, height: int, rows: int, columns: int, share: float, seed: int
) -> None:
    pixels = numpy_generator(seed).integers(40, 200, (height, width, 3)).astype(np.uint8)
    preprocess = Preprocess((rows, columns), resize=resize, crop_fraction=share)  # type: ignore[arg-type]
    for channels in (3, 1):
        image = replace(
            preprocess, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels
        )
        result = image.resize_and_crop(pixels)
        assert result.shape == (rows, columns, channels)
        assert result.dtype == np.uint8
        assert pixels.min() <= result.min() <= result.max() <= pixels.max()  # bilinear: averages


@given(SIDES, SIDES, st.integers(1, 48), st.integers(1, 48), SEEDS)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_crop_of_one_colour_keeps_it(
    interpolation: str, width: int, height: int, rows: int, columns: int, seed: int
) -> None:
    generator = numpy_generator(seed)
    colour = generator.integers(0, 256, 3)
    pixels = np.broadcast_to(colour.astype(np.uint8), (height, width, 3)).copy()
    box = draw_random_resized_crop(width, height, generator)
    result = crop_and_resize(pixels, box, (rows, columns), interpolation)  # type: ignore[arg-type]
    assert result.shape == (rows, columns, 3)
    assert np.all(result == colour)
