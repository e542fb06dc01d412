"""What the names of classes and folders give away: twins, and classes one level further down."""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Sequence

from patchwords.data.dataset import ALL, DatasetSplits

MIN_WRAPPED_SHARE = 0.5  # of the images, in the folder that may hold the true classes


def find_twin_classes(classes: Sequence[str]) -> list[list[str]]:
    """Find classes whose names differ in case, blanks or Unicode form only."""
    twins: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        plain = unicodedata.normalize("NFKC", name).casefold()
        twins[" ".join(plain.split())].append(name)
    return [names for names in twins.values() if len(names) > 1]


def find_wrapped_classes(data: DatasetSplits) -> str | None:
    """Find the folder whose folders are probably the classes; None where there is no such sign.

    That is a folder with most of the images, all of them in folders of their own, next to
    folders that hold images directly, or to none.
    """
    if data.kind != "folder" or set(data.splits) != {ALL}:
        return None
    below: dict[str, set[str]] = defaultdict(set)  # class folder -> its folders; "" = images in it
    images: dict[str, int] = defaultdict(int)
    for key in data.splits[ALL].keys:
        folder, _, rest = key.partition("/")
        below[folder].add(rest.rpartition("/")[0].partition("/")[0])
        images[folder] += 1
    nested = [folder for folder, inside in below.items() if len(inside) > 1 and "" not in inside]
    if len(nested) != 1 or any(inside != {""} for f, inside in below.items() if f not in nested):
        return None
    share = images[nested[0]] / sum(images.values())
    return os.path.join(data.source, nested[0]) if share >= MIN_WRAPPED_SHARE else None


def describe_suspicious_names(data: DatasetSplits) -> list[str]:
    """Describe what `find_twin_classes` and `find_wrapped_classes` find, for the user."""
    notes = [
        f"classes {' and '.join(map(ascii, names))} differ in case, blanks or Unicode form only: "
        "are they one class?"
        for names in find_twin_classes(data.classes)
    ]
    if wrapped := find_wrapped_classes(data):
        notes.append(f"the classes seem to be one folder further down: did you mean {wrapped}?")
    return notes
