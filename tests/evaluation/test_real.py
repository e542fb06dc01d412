"""Several right classes per image: ImageNet-ReaL's file, a user's own, and all that may not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchwords.data.dataset import ImageDataset
from patchwords.errors import DataError
from patchwords.evaluation.imagenet import (
    LANDMARK_CLASSES,
    evaluate_accepted_classes,
    find_imagenet_order_problem,
    read_accepted_classes,
    rename_wnid_classes,
)
from patchwords.evaluation.metrics import wilson_interval
from patchwords.evaluation.predictions import Predictions

WNIDS = tuple(f"n{1440764 + 7 * i:08}" for i in range(1000))
WORDS = tuple(LANDMARK_CLASSES.get(i, f"thing {i}").capitalize() for i in range(1000))
NUMBERS = tuple(map(str, range(1000)))


def images(keys: list[str], classes: tuple[str, ...] = ("a", "b", "c")) -> ImageDataset:
    n = len(keys)
    rows = np.arange(n)
    return ImageDataset(classes, rows % len(classes), keys, np.ones(n), lambda row: b"", rows)


def validation(*numbers: int) -> ImageDataset:
    return images([f"{WNIDS[3]}/ILSVRC2012_val_{n:08}.JPEG" for n in numbers], WNIDS)


def answered(answers: list[int], classes: int) -> Predictions:
    """One answer per example."""
    probabilities = np.eye(classes, dtype=np.float32)[answers]
    return Predictions(np.arange(len(answers)), np.zeros(len(answers)), probabilities, [])


def real_file(folder: Path, entries: dict[int, Any]) -> Path:
    """real.json with these entries, by number from 1; the others are empty."""
    content: list[Any] = [[] for _ in range(50_000)]
    for number, classes in entries.items():
        content[number - 1] = classes
    return written(folder, content)


def written(folder: Path, content: object) -> Path:
    path = folder / "real.json"
    path.write_text(json.dumps(content))
    return path


def test_an_answer_among_the_lists_is_right_and_empty_lists_do_not_count(tmp_path: Path) -> None:
    path = real_file(tmp_path, {1: [970, 795], 50_000: [0], 7: [4, 5]})
    examples = validation(50_000, 2, 1, 7)  # in no order: the file's name says which is which
    right = read_accepted_classes(path, examples, WNIDS, "runs/x")
    assert right == [{0}, frozenset(), {970, 795}, {4, 5}]
    found = evaluate_accepted_classes(path, right, answered([0, 3, 795, 6], 1000))
    low, high = wilson_interval(2, 3)
    assert found == {
        "file": str(path),
        "images": 3,
        "left_out": 1,
        "accuracy": 2 / 3,
        "accuracy_low": low,
        "accuracy_high": high,
    }


def test_images_that_could_not_be_read_shift_nothing(tmp_path: Path) -> None:
    path = real_file(tmp_path, {1: [1], 2: [2], 3: [3]})
    right = read_accepted_classes(path, validation(1, 2, 3), WNIDS, "x")
    read = Predictions(
        np.array([2, 0]), np.zeros(2), np.eye(1000, dtype=np.float32)[[3, 1]], [(1, "torn")]
    )
    found = evaluate_accepted_classes(path, right, read)
    assert (found["images"], found["accuracy"]) == (2, 1.0)


def test_the_users_own_lists_by_path_or_by_name(tmp_path: Path) -> None:
    content = {"deep/x.jpg": ["a", "c"], "y.jpg": ["b"], "z.jpg": [], "other.jpg": ["what"]}
    path = written(tmp_path, content)
    examples = images(["deep/x.jpg", "far/y.jpg", "z.jpg", "unnamed.jpg"])
    right = read_accepted_classes(path, examples, ("c", "b", "a"), "runs/x")
    assert right == [{2, 0}, {1}, frozenset(), frozenset()]
    found = evaluate_accepted_classes(path, right, answered([0, 2, 0, 0], 3))
    assert (found["images"], found["left_out"], found["accuracy"]) == (2, 2, 0.5)


@pytest.mark.parametrize(
    ("content", "keys", "says"),
    [
        ({"y.jpg": ["b"]}, ["y.jpg", "q/y.jpg"], "'y.jpg' is the name of y.jpg and of q/y.jpg"),
        ({"y.jpg": ["bee"]}, ["y.jpg"], "class 'bee' of 'y.jpg' is not one of the model's"),
        ({"y.jpg": "b"}, ["y.jpg"], "'y.jpg' has b, not a list of class names"),
        ({"y.jpg": [1]}, ["y.jpg"], r"'y.jpg' has \[1\], not a list of class names"),
        ({"y.jpg": ["b"]}, ["x.jpg"], "names none of the images; the first of them is 'x.jpg'"),
        ({"x.jpg": []}, ["x.jpg"], "it gives none of the 1 images a class"),
        ({}, ["x.jpg"], "its own first name 'missing'"),
        ("words", ["x.jpg"], r"a str, where a list of 50,000 lists is due, or an object"),
    ],
)
def test_lists_that_do_not_fit(content: object, keys: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^--real .*{says}"):
        read_accepted_classes(written(tmp_path, content), images(keys), ("a", "b", "c"), "runs/x")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([[1]] * 49_999, "49,999 entries, where ReaL has one for each of ImageNet's 50,000"),
        ([[1000]] * 50_000, r"entry 3 is \[1000\], not a list of numbers from 0 to 999"),
        ([[True]] * 50_000, r"entry 3 is \[True\], not a list"),
        ([7] * 50_000, "entry 3 is 7, not a list"),
        ([[]] * 50_000, "it gives none of the 1 images a class"),
    ],
)
def test_a_real_file_of_another_length_or_content(
    content: object, says: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=says):
        read_accepted_classes(written(tmp_path, content), validation(3), WNIDS, "runs/x")


@pytest.mark.parametrize(
    "name", ["cat.jpg", "ILSVRC2012_val_00000000.JPEG", "ILSVRC2012_val_00050001.JPEG"]
)
def test_images_without_a_number_of_imagenets(name: str, tmp_path: Path) -> None:
    path = real_file(tmp_path, {1: [1]})
    with pytest.raises(DataError, match=f"which entry is '{name}'"):
        read_accepted_classes(path, images([name]), WNIDS, "runs/x")


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as JSON: No such file"):
        read_accepted_classes(tmp_path / "none.json", images(["x"]), WNIDS, "x")
    (tmp_path / "real.json").write_bytes(b"[[1], \xff")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_accepted_classes(tmp_path / "real.json", images(["x"]), WNIDS, "x")


def test_a_model_of_other_classes_is_refused(tmp_path: Path) -> None:
    path = real_file(tmp_path, {1: [1]})
    with pytest.raises(DataError, match="runs/x cannot be matched with them: it has 3 classes"):
        read_accepted_classes(path, validation(1), ("a", "b", "c"), "runs/x")


def test_none_of_the_counted_images_was_read(tmp_path: Path) -> None:
    nothing = Predictions(np.empty(0), np.empty(0), np.empty((0, 0)), [(0, "torn")])
    with pytest.raises(DataError, match="none of the images that it gives a class can be read"):
        evaluate_accepted_classes(tmp_path / "x", [frozenset({1})], nothing)


@pytest.mark.parametrize(
    ("labels", "name", "doubt"),
    [
        (WNIDS, "runs/x", None),
        (WNIDS[::-1], "runs/x", "its wnids are not in rising order"),
        (WORDS, "google/vit-base-patch16-224", None),
        (sorted(WORDS), "x", "its class 0 is .*where ImageNet has 'tench'"),
        (NUMBERS, "imagenet21k+imagenet2012/ViT-B_16", None),
        (NUMBERS, "BiT-M-R50x1-ILSVRC2012", None),
        (NUMBERS, "vit_base_patch16_224.augreg_in21k_ft_in1k", None),
        (NUMBERS, "i1k-s16-90ep", None),
        (tuple(f"LABEL_{i}" for i in range(1000)), "x/vit-imagenet-1k", None),
        (NUMBERS, "vit_base_patch16_224.augreg_in21k", "its classes are numbers, and its name"),
        (NUMBERS[:999], "i1k-s16-90ep", "it has 999 classes"),
    ],
)
def test_when_the_order_is_known_to_be_imagenets(
    labels: tuple[str, ...], name: str, doubt: str | None
) -> None:
    found = find_imagenet_order_problem(labels, name)
    assert (found is None) == (doubt is None)
    assert doubt is None or re.match(doubt, found or "")


def test_folders_by_wnid_are_called_as_the_model_calls_the_classes() -> None:
    shuffled = (WNIDS[1], WNIDS[0], *WNIDS[2:])
    examples = images(["goldfish.jpg", "tench.jpg", "2.jpg"], shuffled)
    called = rename_wnid_classes(examples, WORDS, "x")
    assert [called.classes[label] for label in called.labels] == ["Goldfish", "Tench", "Thing 2"]


def test_others_are_left_as_they_are() -> None:
    few, wnids = images(["x"], ("n01440764", "b")), images(["x"], WNIDS)
    assert rename_wnid_classes(few, WORDS, "x") is few
    assert rename_wnid_classes(wnids, WNIDS[::-1], "x") is wnids  # by name already
    assert rename_wnid_classes(wnids, NUMBERS, "runs/x") is wnids  # nobody knows which is which
