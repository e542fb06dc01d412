"""The doctor's look at masks: photos without one, faulty masks, classes that are nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from patchwords.data.dataset import ALL, TRAIN, DatasetSplits
from patchwords.data.doctor.checks import Finding, FindingLocation
from patchwords.data.sources.masks import get_mask_reader, survey_masks


def check_masks(data: DatasetSplits) -> Iterator[Finding]:
    """Find faults of masks; what is wrong with the photos is found elsewhere."""
    home = ALL if ALL in data.splits else TRAIN
    seen: dict[str, set[int]] = {}
    for split, sights in survey_masks(data).items():
        keys = data.splits[split].keys
        seen[split] = {label for sight in sights for label in sight.classes}
        for sight in sights:
            place = FindingLocation(split, "", keys[sight.place])
            if sight.kind and sight.kind != "unreadable":
                yield Finding(sight.kind, sight.reason, (place,))
            elif not sight.kind and not sight.classes:
                yield Finding("mask-empty", "", (place,))
    table = get_mask_reader(data.splits[home], data.source).table
    for label, name in enumerate(table.classes):
        if label not in seen[home]:
            yield Finding("absent-class", f"no pixel in {home}", (FindingLocation(home, name),))
        for split, present in seen.items():
            if split != home and label in seen[home] and label not in present:
                where = FindingLocation(split, name)
                yield Finding("missing-class", f"no pixel in {split}", (where,))
