"""The diagnosis of a data set: unreadable, duplicate, leaked and unbalanced images.

Every image is decoded once (`survey_splits`); what is wrong with an image, with several that are alike,
or with a class becomes a finding. All kinds of them are the table `findings.CHECKS`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from patchwords.data.dataset import ALL, SPLIT_ALIASES, TEST, TRAIN, VALIDATION, DatasetSplits
from patchwords.data.doctor.checks import CHECKS, DoctorReport, Finding, FindingLocation
from patchwords.data.doctor.fingerprints import group_equal_values, group_near_duplicates
from patchwords.data.doctor.masks import check_masks
from patchwords.data.doctor.names import find_twin_classes, find_wrapped_classes
from patchwords.data.doctor.survey import SurveyedImage, SurveyProgress, survey_splits
from patchwords.data.open import check_trainable
from patchwords.data.sources.folder import list_folder, walk_folder
from patchwords.data.sources.masks import KIND as MASK_KIND
from patchwords.data.splits import split_dataset
from patchwords.errors import ConfigError, DataError

MIN_CLASS_IMAGES = 10  # images of a class to train on
MAX_CLASS_IMBALANCE = 10  # largest class / smallest class
MAX_ASPECT_RATIO = 4  # longer side / shorter side
EXAMINED_SPLITS = (ALL, TRAIN, VALIDATION, TEST)
SIZE_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


class LocatedImage(NamedTuple):
    """An image and its survey."""

    place: FindingLocation
    sight: SurveyedImage


def diagnose_dataset(
    data: DatasetSplits,
    *,
    workers: int | None = None,
    near: int = 4,
    smallest: int = 32,
    progress: SurveyProgress | None = None,
) -> DoctorReport:
    """Survey every image of `data` and list its faults.

    `near`: two images are look-alikes when their 64-bit hashes differ in at most `near` bits.
    `smallest`: pixels of the shortest side, below which an image is small if the rest is larger.
    `workers`: processes; 0 for none but this one, None for as many as there are processors.
    """
    _check_arguments(near, smallest, workers)
    start = time.perf_counter()
    data = replace(
        data, splits={name: data.splits[name] for name in EXAMINED_SPLITS if name in data.splits}
    )
    sights = survey_splits(data.splits, workers=workers, progress=progress)
    subjects = _locate_images(data, sights)
    readable = [sight for _, sight in subjects if not sight.unreadable]
    width = np.array([sight.width for sight in readable], dtype=np.int64)
    height = np.array([sight.height for sight in readable], dtype=np.int64)
    findings = [
        *_check_images(subjects, _min_side(np.minimum(width, height), smallest)),
        *_check_copies(subjects, near),
        *(check_masks(data) if data.kind == MASK_KIND else _check_labels(data, subjects)),
        *_check_names(data),
    ]
    if all(CHECKS[finding.kind].severity != "error" for finding in findings):
        findings += _check_trainable(data)
    rank = {kind: place for place, kind in enumerate(CHECKS)}
    return DoctorReport(
        findings=tuple(sorted(findings, key=lambda finding: rank[finding.kind])),
        images=len(subjects),
        counts={
            split: tuple(examples.count_per_class().tolist())
            for split, examples in data.splits.items()
        },
        sizes={"width": _quantiles(width), "height": _quantiles(height)},
        formats=dict(Counter(sight.format for sight in readable).most_common()),
        seconds=time.perf_counter() - start,
    )


def _check_arguments(near: int, smallest: int, workers: int | None) -> None:
    if not 0 <= near <= 16:
        raise ConfigError(f"near is {near}; it counts differing bits of 64: choose 0 to 16")
    if smallest < 0:
        raise ConfigError(f"smallest is {smallest} pixels; choose 0 or more")
    if workers is not None and workers < 0:
        raise ConfigError(f"workers is {workers}; choose 0 or more")


def _locate_images(
    data: DatasetSplits, sights: dict[str, list[SurveyedImage]]
) -> list[LocatedImage]:
    """List every image of every split with its survey, in order."""
    names = [*data.classes, ""]  # the label -1 has no name
    return [
        LocatedImage(FindingLocation(split, names[label], key), sight)
        for split, examples in data.splits.items()
        for label, key, sight in zip(
            examples.labels.tolist(), examples.keys, sights[split], strict=True
        )
    ]


def _min_side(shortest: np.ndarray, smallest: int) -> float:
    """Return the shortest side below which an image is suspiciously small.

    `smallest`, or a tenth of the usual image where that is more; but never more than half of the
    usual image: among 8x8 digits none is suspicious.
    """
    if len(shortest) == 0:
        return 0.0
    usual = float(np.median(shortest))
    return min(max(smallest, usual / 10), usual / 2)


def _quantiles(pixels: np.ndarray) -> tuple[int, ...]:
    if len(pixels) == 0:
        return ()
    return tuple(np.quantile(pixels, SIZE_QUANTILES, method="nearest").tolist())


def _check_images(subjects: list[LocatedImage], limit: float) -> Iterator[Finding]:
    """Find faults and oddities of single images."""
    for place, sight in subjects:
        if sight.unreadable:
            yield Finding("unreadable", sight.unreadable, (place,))
            continue
        size = f"{sight.width}x{sight.height} pixels"
        if min(sight.width, sight.height) < limit:
            yield Finding("small", size, (place,))
        if max(sight.width, sight.height) > MAX_ASPECT_RATIO * min(sight.width, sight.height):
            yield Finding("panorama", size, (place,))
        if sight.blank:
            yield Finding("blank", size, (place,))
        for oddity in sight.oddities:
            yield Finding(oddity, "", (place,))


def _check_copies(subjects: list[LocatedImage], near: int) -> Iterator[Finding]:
    """Find copies of images, and groups of similar images."""
    readable = [subject for subject in subjects if not subject.sight.unreadable]
    for group in group_equal_values([subject.sight.digest for subject in readable]):
        yield from _classify_copies([readable[i] for i in group.tolist()], "")
    hashed = [subject for subject in readable if subject.sight.hash is not None]
    hashes = np.array([subject.sight.hash for subject in hashed], dtype=np.uint64)
    for group in group_near_duplicates(hashes, near):
        alike = [hashed[i] for i in group.tolist()]
        if len({subject.sight.digest for subject in alike}) > 1:
            yield from _classify_copies(alike, "near-")


def _classify_copies(group: list[LocatedImage], prefix: str) -> Iterator[Finding]:
    """Classify a group of copies: across classes, across splits, both, or superfluous."""
    places = tuple(subject.place for subject in group)
    labels = sorted({place.label for place in places if place.label})
    splits = list(dict.fromkeys(place.split for place in places))
    if len(labels) > 1:
        yield Finding(f"{prefix}contradiction", " and ".join(labels), places)
    if len(splits) > 1:
        yield Finding(f"{prefix}leakage", " and ".join(splits), places)
    if len(labels) <= 1 and len(splits) == 1:
        yield Finding(f"{prefix}duplicate", f"{len(places)} images", places)


def _check_labels(data: DatasetSplits, subjects: list[LocatedImage]) -> Iterator[Finding]:
    """Find missing labels, and classes that are empty, tiny or out of balance.

    Only readable images count.
    """
    if not data.classes:
        split = next(iter(data.splits))
        yield Finding(
            "no-labels",
            "finetune needs a folder per class, or a column of labels",
            (FindingLocation(split, ""),),
        )
        return
    counts = {split: dict.fromkeys(data.classes, 0) for split in data.splits}
    for place, sight in subjects:
        if not place.label:
            yield Finding("unlabelled", "", (place,))
        elif not sight.unreadable:
            counts[place.split][place.label] += 1
    home = next((split for split in (ALL, TRAIN) if split in counts), next(iter(counts)))
    if len(data.classes) == 1:
        yield Finding("one-class", "", (FindingLocation(home, data.classes[0]),))
    yield from _check_classes(counts, home)
    yield from _check_empty_folders(data)


def _check_classes(counts: dict[str, dict[str, int]], home: str) -> Iterator[Finding]:
    """Find faults of the class sizes; `home` is the split that is trained on."""
    for name, number in counts[home].items():
        if number == 0:
            yield Finding("empty-class", "no readable image", (FindingLocation(home, name),))
            continue
        if number == 1 and VALIDATION not in counts:
            yield Finding("one-image", "", (FindingLocation(home, name),))
        elif number < MIN_CLASS_IMAGES:
            yield Finding("tiny-class", f"{number} images", (FindingLocation(home, name),))
        for split in counts:
            if not counts[split][name]:
                yield Finding(
                    "missing-class", f"no image in {split}", (FindingLocation(split, name),)
                )
    filled = {name: number for name, number in counts[home].items() if number}
    if filled:
        most, least = max(filled, key=filled.__getitem__), min(filled, key=filled.__getitem__)
        if filled[most] >= MAX_CLASS_IMBALANCE * filled[least]:
            detail = f"{filled[most]:,} images to {filled[least]:,}"
            yield Finding(
                "imbalance", detail, (FindingLocation(home, most), FindingLocation(home, least))
            )


def _check_names(data: DatasetSplits) -> Iterator[Finding]:
    """Find classes that are one by their names, classes further down, and images outside of them."""
    home = next(iter(data.splits))
    for names in find_twin_classes(data.classes):
        places = tuple(FindingLocation(home, name) for name in names)
        yield Finding("twin-class", " and ".join(map(ascii, names)), places)
    if wrapped := find_wrapped_classes(data):
        name = os.path.basename(wrapped)
        yield Finding("wrapped", f"did you mean {wrapped}?", (FindingLocation(home, name),))
    if data.kind == "folder" and data.classes and ALL in data.splits:
        strays = list_folder(data.source).images
        if strays:
            places = tuple(FindingLocation(ALL, "", path) for path, _ in strays)
            yield Finding("stray", "", places)


def _check_trainable(data: DatasetSplits) -> Iterator[Finding]:
    """Find what `finetune` would refuse, by its own words."""
    try:
        if data.kind != MASK_KIND:
            check_trainable(data)
        divided = split_dataset(data, seed=0)
        if any(len(part) for name, part in divided.splits.items() if name != TRAIN):
            return
        reason = "no image can be held out: all are copies of others"
    except DataError as error:
        reason = str(error).removeprefix(f"{data.source}: ")
    yield Finding("untrainable", reason, (FindingLocation(next(iter(data.splits)), ""),))


def _check_empty_folders(data: DatasetSplits) -> Iterator[Finding]:
    """Find empty folders next to those of the classes."""
    if data.kind != "folder":
        return
    homes = {ALL: ""}
    if ALL not in data.splits:
        named = [
            (SPLIT_ALIASES.get(folder.lower()), folder)
            for folder in list_folder(data.source).folders
        ]
        homes = {split: folder for split, folder in named if split is not None}
    for split, home in homes.items():
        for folder in list_folder(data.source, home).folders:
            name = folder.rpartition("/")[2]
            if name not in data.classes and not walk_folder(data.source, folder).images:
                yield Finding(
                    "empty-class", f"{folder}/ has no image", (FindingLocation(split, name),)
                )
