"""ImageNet labels: class order, ReaL's several right classes, or a user's own list.

"Are we done with ImageNet?" (Beyer et al., arXiv 2006.07159) relabelled the validation images with
all classes that are visible. A prediction is right if it is among them; images without any of the
1,000 classes are not counted (of 50,000 images 46,837 are).

Two files are understood:
  real.json of google-research/reassessed-imagenet: 50,000 lists of ImageNet's class numbers, in the
      order of ILSVRC2012_val_00000001 and so on;
  an object {file name: [class names]}: the name as in DATA, or its last part alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from patchwords.data.dataset import ImageDataset
from patchwords.errors import DataError, did_you_mean
from patchwords.evaluation.metrics import proportion_with_interval
from patchwords.evaluation.predictions import Predictions

# ImageNet's 1,000 classes in order: that of the WordNet ids (wnids), n01440764 to n15075141; index 0
# is the tench. Numbered classes alone do not reveal the order.


NUM_IMAGENET_CLASSES = 1000
WNID_PATTERN = re.compile(r"n\d{8}")
NUMBERED_LABEL_PATTERN = re.compile(r"(?:LABEL_)?\d+")
# Names of weights trained on ImageNet: AugReg, BiT, big_vision, timm.
IMAGENET_NAME_PATTERN = re.compile(
    r"imagenet-?2012|ilsvrc-?2012|bit-s-|(?<![a-z0-9])i(?:n|magenet)?-?1k(?![a-z0-9])", re.I
)
LANDMARK_CLASSES = {  # classes with the same name in every list; they would move in another order
    0: "tench",
    1: "goldfish",
    207: "golden retriever",
    340: "zebra",
    388: "panda",
    417: "balloon",
    817: "sports car",
    852: "tennis ball",
    950: "orange",
    963: "pizza",
    980: "volcano",
    985: "daisy",
}


def find_imagenet_order_problem(labels: Sequence[str], name: str) -> str | None:
    """Explain why a model's classes may not be ImageNet's in order; None if they are.

    Args:
        labels: of the model: wnids, words, or numbers, for which only `name` can speak.
        name: of the weights, as the user or their author gave it.
    """
    if len(labels) != NUM_IMAGENET_CLASSES:
        return f"it has {len(labels):,} classes, not ImageNet's 1,000"
    if all(WNID_PATTERN.fullmatch(label) for label in labels):
        return None if list(labels) == sorted(labels) else "its wnids are not in rising order"
    if all(NUMBERED_LABEL_PATTERN.fullmatch(label) for label in labels):
        if IMAGENET_NAME_PATTERN.search(name):
            return None
        return "its classes are numbers, and its name does not say imagenet2012 or in1k"
    for place, word in LANDMARK_CLASSES.items():
        if word not in labels[place].lower().replace("_", " "):
            return f"its class {place} is {labels[place]!r}, where ImageNet has {word!r}"
    return None


def rename_wnid_classes(examples: ImageDataset, labels: Sequence[str], name: str) -> ImageDataset:
    """Rename wnid folders to the model's classes; other data are unchanged."""
    classes = examples.classes
    wnids = len(classes) == NUM_IMAGENET_CLASSES and all(
        WNID_PATTERN.fullmatch(wnid) for wnid in classes
    )
    if (
        not wnids
        or set(classes) == set(labels)
        or find_imagenet_order_problem(labels, name) is not None
    ):
        return examples
    order = np.argsort(np.array(classes))  # [1000], position of the first wnid, the second, ...
    renamed = np.empty(NUM_IMAGENET_CLASSES, dtype=object)
    renamed[order] = list(labels)
    return replace(examples, classes=tuple(renamed))


NUM_IMAGENET_VALIDATION_IMAGES = 50_000  # images of ImageNet's validation split
VALIDATION_FILE_PATTERN = re.compile(r"ILSVRC2012_val_(\d{8})")

AcceptedClasses = list[frozenset[int]]  # right classes of each example; empty: not counted


def read_accepted_classes(
    path: Path, examples: ImageDataset, labels: Sequence[str], name: str
) -> AcceptedClasses:
    """Read the right classes of each example, as positions in the model's `labels`.

    `name` is that of the model. Raises DataError for a file of another kind, for images without an
    entry, and for a model with other classes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"--real {path}: cannot be read as JSON: {reason}") from error
    if isinstance(content, list):
        doubt = find_imagenet_order_problem(labels, name)
        if doubt is not None:
            raise DataError(
                f"--real {path}: its classes are ImageNet's by number, and {name} cannot be "
                f"matched with them: {doubt}"
            )
        right = match_classes_by_number(path, content, examples.keys)
    elif isinstance(content, dict):
        right = match_classes_by_file_name(path, content, examples.keys, labels)
    else:
        raise DataError(
            f"--real {path}: a {type(content).__name__}, where a list of {NUM_IMAGENET_VALIDATION_IMAGES:,} lists is due, "
            'or an object {"image.jpg": ["class", ...]}'
        )
    if not any(right):
        raise DataError(f"--real {path}: it gives none of the {len(right):,} images a class")
    return right


def match_classes_by_number(path: Path, content: list[Any], keys: Sequence[str]) -> AcceptedClasses:
    """Match ReaL's lists by the number in each file name."""
    if len(content) != NUM_IMAGENET_VALIDATION_IMAGES:
        raise DataError(
            f"--real {path}: {len(content):,} entries, where ReaL has one for each of ImageNet's "
            f"{NUM_IMAGENET_VALIDATION_IMAGES:,} validation images"
        )
    return [parse_real_entry(path, content, parse_image_number(path, key)) for key in keys]


def parse_image_number(path: Path, key: str) -> int:
    """Parse the number of an image, from 1."""
    match = VALIDATION_FILE_PATTERN.search(key.rpartition("/")[2])
    number = int(match[1]) if match else 0
    if not 1 <= number <= NUM_IMAGENET_VALIDATION_IMAGES:
        raise DataError(
            f"--real {path}: which entry is {key!r}? Images must be called "
            f"ILSVRC2012_val_00000001 to ILSVRC2012_val_{NUM_IMAGENET_VALIDATION_IMAGES:08}"
        )
    return number


def parse_real_entry(path: Path, content: list[Any], number: int) -> frozenset[int]:
    entry = content[number - 1]
    if not isinstance(entry, list) or any(
        type(i) is not int or i not in range(NUM_IMAGENET_CLASSES) for i in entry
    ):
        raise DataError(
            f"--real {path}: entry {number:,} is {str(entry)[:60]}, not a list of numbers from 0 "
            f"to {NUM_IMAGENET_CLASSES - 1}"
        )
    return frozenset(entry)


def match_classes_by_file_name(
    path: Path, content: Mapping[str, Any], keys: Sequence[str], labels: Sequence[str]
) -> AcceptedClasses:
    """Match the user's lists by file name; images without a list are not counted."""
    place = {name: i for i, name in enumerate(labels)}
    user: dict[str, str] = {}  # name in the file -> its image
    right = []
    for key in keys:
        called = key if key in content else key.rpartition("/")[2]
        if called not in content:
            right.append(frozenset[int]())
            continue
        if called in user:
            raise DataError(
                f"--real {path}: {called!r} is the name of {user[called]} and of {key}; write the "
                "whole path, as DATA has it"
            )
        user[called] = key
        names = content[called]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(
                f"--real {path}: {called!r} has {str(names)[:60]}, not a list of class names"
            )
        for name in names:
            if name not in place:
                raise DataError(
                    f"--real {path}: class {name!r} of {called!r} is not one of the model's"
                    f"{did_you_mean(name, labels)}"
                )
        right.append(frozenset(place[name] for name in names))
    if not user:
        raise DataError(
            f"--real {path}: it names none of the images; the first of them is {keys[0]!r}, "
            f"its own first name {next(iter(content), 'missing')!r}"
        )
    return right


def evaluate_accepted_classes(
    path: Path, right: AcceptedClasses, predictions: Predictions
) -> dict[str, Any]:
    """Measure how often the prediction is among the right classes.

    Images without right classes are left out. Raises DataError if none of the others could be read.
    """
    answers = predictions.probabilities.argmax(1) if len(predictions.indices) else np.empty(0)
    hits = [
        answer in right[index]
        for index, answer in zip(predictions.indices.tolist(), answers.tolist(), strict=True)
        if right[index]
    ]
    if not hits:
        raise DataError(f"--real {path}: none of the images that it gives a class can be read")
    accuracy = proportion_with_interval(sum(hits), len(hits))
    return {
        "file": str(path),
        "images": len(hits),
        "left_out": len(predictions.indices) - len(hits),  # no class is right
        "accuracy": accuracy["value"],
        "accuracy_low": accuracy["low"],
        "accuracy_high": accuracy["high"],
    }
