"""Whether a model's classes are ImageNet's 1,000 in their order: by number nobody could tell.

The order is that of the WordNet ids (wnids), n01440764 to n15075141: index 0 is the tench.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from patchwords.data.examples import Examples

CLASSES = 1000
WNID = re.compile(r"n\d{8}")
NUMBERED = re.compile(r"(?:LABEL_)?\d+")
# How authors write that weights were trained on ImageNet: AugReg, BiT, big_vision, timm.
NAMED = re.compile(
    r"imagenet-?2012|ilsvrc-?2012|bit-s-|(?<![a-z0-9])i(?:n|magenet)?-?1k(?![a-z0-9])", re.I
)
LANDMARKS = {  # classes that every list in words names alike; in another order they would move
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


def doubt_of_order(labels: Sequence[str], name: str) -> str | None:
    """Why a model's classes are not known to be ImageNet's in order; None where they are.

    Args:
        labels: of the model: wnids, words, or numbers, which only `name` can speak for.
        name: of the weights, as the user or their author gave it.
    """
    if len(labels) != CLASSES:
        return f"it has {len(labels):,} classes, not ImageNet's 1,000"
    if all(WNID.fullmatch(label) for label in labels):
        return None if list(labels) == sorted(labels) else "its wnids are not in rising order"
    if all(NUMBERED.fullmatch(label) for label in labels):
        if NAMED.search(name):
            return None
        return "its classes are numbers, and its name does not say imagenet2012 or in1k"
    for place, word in LANDMARKS.items():
        if word not in labels[place].lower().replace("_", " "):
            return f"its class {place} is {labels[place]!r}, where ImageNet has {word!r}"
    return None


def in_words_of(examples: Examples, labels: Sequence[str], name: str) -> Examples:
    """ImageNet in folders by wnid, its classes called as the model calls them; else unchanged."""
    classes = examples.classes
    wnids = len(classes) == CLASSES and all(WNID.fullmatch(one) for one in classes)
    if not wnids or set(classes) == set(labels) or doubt_of_order(labels, name) is not None:
        return examples
    order = np.argsort(np.array(classes))  # [1000], position of the first wnid, the second, ...
    renamed = np.empty(CLASSES, dtype=object)
    renamed[order] = list(labels)
    return replace(examples, classes=tuple(renamed))
