"""Whether a model's classes are ImageNet's 1,000 in their order: by number nobody could tell.

The order is that of the WordNet ids (wnids), n01440764 to n15075141: index 0 is the tench.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from patchwords.data.examples import ImageDataset

NUM_IMAGENET_CLASSES = 1000
WNID_PATTERN = re.compile(r"n\d{8}")
NUMBERED_LABEL_PATTERN = re.compile(r"(?:LABEL_)?\d+")
# How authors write that weights were trained on ImageNet: AugReg, BiT, big_vision, timm.
IMAGENET_NAME_PATTERN = re.compile(
    r"imagenet-?2012|ilsvrc-?2012|bit-s-|(?<![a-z0-9])i(?:n|magenet)?-?1k(?![a-z0-9])", re.I
)
LANDMARK_CLASSES = {  # classes that every list in words names alike; in another order they would move
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
    """Why a model's classes are not known to be ImageNet's in order; None where they are.

    Args:
        labels: of the model: wnids, words, or numbers, which only `name` can speak for.
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
    """ImageNet in folders by wnid, its classes called as the model calls them; else unchanged."""
    classes = examples.classes
    wnids = len(classes) == NUM_IMAGENET_CLASSES and all(
        WNID_PATTERN.fullmatch(one) for one in classes
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
