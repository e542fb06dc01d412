"""The mask source: photos with a mask each, for segmentation.

    photos/                      photos/
      classes.txt                  classes.txt
      images/a.jpg                 train/images/a.jpg   train/masks/a.png
      masks/a.png                  val/images/b.jpg     val/masks/b.png

Or images/train/ and masks/train/. A mask has the name of its photo, up to the suffix. classes.txt
names the values from 0, a line each; classes.csv (name,value or name,r,g,b) names values or colours;
without either, the values that occur are the classes. What is wrong with a mask (none there, another
size, values outside the table) makes its photo unreadable to training.

Sizes: n images.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from patchwords.data.dataset import (
    ALL,
    SPLIT_ALIASES,
    TRAIN,
    DatasetSplits,
    ImageDataset,
    Listing,
    abbreviate_list,
    build_dataset_splits,
    evenly_spaced_indices,
    pluralize,
)
from patchwords.data.decode import read_image_size
from patchwords.data.sources.folder import FileReader, list_folder, walk_folder
from patchwords.data.sources.mask_table import (
    IGNORE,
    MaskFault,
    MaskTable,
    check_table,
    read_mask_pixels,
    read_mask_table,
)
from patchwords.errors import DataError

IMAGES, MASKS = "images", "masks"
MASK_ENDINGS = ("", "_mask", "-mask", "_label", "_labels", "_L")  # after the name of the photo
MAX_SURVEYED_MASKS = 5_000  # at about 3 ms each, on one core
PARALLEL_READS = 8
KIND = "masks"


@dataclass(frozen=True)
class MaskReader:
    """Reads the encoded mask of a row; raises DataError where it does not fit its photo."""

    images: FileReader
    masks: Sequence[str | None]  # [n] relative to the root; None: there is no mask
    table: MaskTable

    def __call__(self, row: int) -> bytes:
        path = self.masks[row]
        if path is None:
            missing = guess_mask_path(self.images.paths[row])
            raise MaskFault("no-mask", f"it has no mask: {missing} is missing")
        with open(os.path.join(self.images.root, path), "rb") as file:
            data = file.read()
        of_photo, of_mask = read_image_size(self.images(row)), read_image_size(data)
        if of_photo != of_mask:
            raise MaskFault(
                "mask-size",
                f"its mask is of {of_mask[0]}x{of_mask[1]} pixels, the photo of "
                f"{of_photo[0]}x{of_photo[1]}",
            )
        return data

    def read(self, row: int) -> np.ndarray:
        """Read the class indices of a row, uint8 [h, w]; raises DataError or OSError."""
        return self.table.decode(self(row))


def is_mask_folder(path: str) -> bool:
    """Return whether a folder has images/ and masks/, itself or in folders of splits."""
    if not os.path.isdir(path):
        return False
    if has_pair(path):
        return True
    splits = [name for name in os.listdir(path) if name.lower() in SPLIT_ALIASES]
    return any(has_pair(os.path.join(path, name)) for name in splits)


def has_pair(path: str) -> bool:
    return all(os.path.isdir(os.path.join(path, name)) for name in (IMAGES, MASKS))


def open_masks(source: str) -> DatasetSplits:
    """Open photos and masks below a folder; keys are the paths of the photos."""
    root = os.path.abspath(source)
    images: list[str] = []
    masks: list[str | None] = []
    listings: dict[str, Listing] = {}
    notes: list[str] = []
    for split, (image_folder, mask_folder) in find_pairs(source, root).items():
        listing = listings[split] = Listing()
        of_stem = {stem(path, mask_folder): path for path in list_masks(root, mask_folder)}
        used = set()
        for path, size in walk_folder(root, image_folder).images:
            mask = find_mask(stem(path, image_folder), of_stem)
            used.add(mask)
            listing.add(path, None, size, len(images))
            images.append(path)
            masks.append(mask)
        spare = sorted(set(of_stem.values()) - used)
        if spare:
            notes.append(
                f"{pluralize(len(spare), 'mask')} without a photo left out: "
                f"{abbreviate_list(spare)}"
            )
    if not images:
        raise DataError(f"{source}: no images in {IMAGES}/")
    reader = FileReader(root, images)
    table, of_table = choose_table(source, root, masks)
    notes = [*of_table, *notes]
    notes += [f"no images for {split}" for split, listing in listings.items() if not listing.keys]
    listings = {split: listing for split, listing in listings.items() if listing.keys}
    data = build_dataset_splits(source, KIND, listings, reader, notes=notes)
    of_masks = MaskReader(reader, masks, table)
    splits = {name: replace(part, target_reader=of_masks) for name, part in data.splits.items()}
    return replace(data, splits=splits)


def find_pairs(source: str, root: str) -> dict[str, tuple[str, str]]:
    """Find (images, masks) folders by split, relative to the root."""
    if not has_pair(root):
        pairs = {}
        for folder in list_folder(root).folders:
            split = SPLIT_ALIASES.get(folder.lower())
            if split is not None and has_pair(os.path.join(root, folder)):
                pairs[split] = (f"{folder}/{IMAGES}", f"{folder}/{MASKS}")
        if TRAIN not in pairs:
            raise DataError(
                f"{source}: has masks for {', '.join(pairs)} but no train/{IMAGES} and "
                f"train/{MASKS}; add them, or name one of these folders itself"
            )
        return pairs
    inner = {
        SPLIT_ALIASES[name.lower()]: name
        for name in (path.rpartition("/")[2] for path in list_folder(root, IMAGES).folders)
        if name.lower() in SPLIT_ALIASES and os.path.isdir(os.path.join(root, MASKS, name))
    }
    if TRAIN in inner:
        return {split: (f"{IMAGES}/{name}", f"{MASKS}/{name}") for split, name in inner.items()}
    return {ALL: (IMAGES, MASKS)}


def list_masks(root: str, folder: str) -> list[str]:
    """List mask files, those of a kind without loss last, so that they are taken."""
    paths = [path for path, _ in walk_folder(root, folder).images]
    return sorted(paths, key=lambda path: path.lower().endswith((".png", ".bmp", ".tif", ".tiff")))


def stem(path: str, folder: str) -> str:
    """Return a path below a folder, up to the suffix."""
    return os.path.splitext(path[len(folder) + 1 :])[0]


def find_mask(name: str, of_stem: Mapping[str, str]) -> str | None:
    """Find the mask of a photo by its name, as it is or with a usual ending."""
    return next((of_stem[name + end] for end in MASK_ENDINGS if name + end in of_stem), None)


def guess_mask_path(image: str) -> str:
    """Return the path that the mask of a photo should have.

    >>> guess_mask_path("train/images/a.jpg")
    'train/masks/a.png'
    """
    parts = os.path.splitext(image)[0].split("/")
    parts[parts.index(IMAGES)] = MASKS
    return "/".join(parts) + ".png"


# The classes of the masks.


def choose_table(
    source: str, root: str, masks: Sequence[str | None]
) -> tuple[MaskTable, list[str]]:
    """Choose the table of classes: from its file, else from the masks; -> table and notes."""
    table = read_mask_table(Path(root))
    values, coloured = survey_values(root, [path for path in masks if path is not None])
    if table is None:
        if len(coloured) > len(masks) / 2:
            raise DataError(
                f"{source}: the masks have RGB colours, and no table says which class they are: "
                f"add classes.csv with name,r,g,b; the first is {coloured[0]}"
            )
        table = build_table_of_values(source, values)
        return table, [f"classes by the values of the masks: {', '.join(table.classes)}"]
    names = abbreviate_list(table.classes, 12)
    notes = [f"{len(table.classes)} classes of {table.source}: {names}"]
    stray = sorted(set(values) - {*table.values, *table.ignored_values})
    after_last = max(table.values) + 1
    # As SegNet's CamVid has it. In a few masks only, it is a mistake.
    if table.colours is None and stray == [after_last] and values[after_last] > len(masks) / 2:
        table = replace(table, ignored_values=(*table.ignored_values, after_last))
        notes.append(
            f"value {after_last}, one after the last class, is taken as not labelled, as 255 is"
        )
    return table, notes


def survey_values(root: str, masks: Sequence[str]) -> tuple[dict[int, int], list[str]]:
    """Count the masks of indices by the values in them, and list those that are coloured."""

    def look(path: str) -> np.ndarray | None:
        try:
            with open(os.path.join(root, path), "rb") as file:
                pixels = read_mask_pixels(file.read())
        except (OSError, DataError):  # reported where it is read again
            return np.empty(0, np.int64)
        return None if pixels.ndim == 3 else np.unique(pixels)

    chosen = [masks[i] for i in evenly_spaced_indices(len(masks), MAX_SURVEYED_MASKS)]
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        found = list(pool.map(look, chosen))
    coloured = [path for path, seen in zip(chosen, found, strict=True) if seen is None]
    values = Counter(value for seen in found if seen is not None for value in seen.tolist())
    return dict(sorted(values.items())), coloured


def build_table_of_values(source: str, values: Iterable[int]) -> MaskTable:
    """Build a table whose classes are the values; 0 and 255 alone are ground and object."""
    if list(values) == [0, IGNORE]:
        return MaskTable(("background", "foreground"), (0, IGNORE), ignored_values=())
    kept = tuple(value for value in values if value != IGNORE)
    if any(value > IGNORE for value in kept):
        raise DataError(f"{source}: a mask has the value {max(kept)}; values go from 0 to 255")
    table = MaskTable(tuple(map(str, kept)), kept)
    return check_table(table, f"{source}: the masks")


# A look at every mask.


@dataclass(frozen=True)
class MaskSight:
    """What a look at a mask has found."""

    place: int  # of the photo in its split
    kind: str = ""  # a row of the doctor's checks; "": nothing is wrong
    reason: str = ""
    classes: tuple[int, ...] = ()  # indices of the classes in it


def survey_masks(data: DatasetSplits) -> dict[str, list[MaskSight]]:
    """Look at the masks of every split, at most 5,000 of each."""
    sights = {}
    for split, examples in data.splits.items():
        reader = get_mask_reader(examples, data.source)
        places = evenly_spaced_indices(len(examples), MAX_SURVEYED_MASKS)
        rows = examples.rows[places].tolist()
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            sights[split] = list(pool.map(look_at_mask, [reader] * len(rows), places, rows))
    return sights


def look_at_mask(reader: MaskReader, place: int, row: int) -> MaskSight:
    """Read the mask of a row, and say what is wrong with it."""
    try:
        present = np.unique(reader.read(row))
    except MaskFault as fault:
        return MaskSight(place, fault.kind, str(fault))
    except DataError as fault:  # of the photo: the survey of the photos has it, too
        return MaskSight(place, "unreadable", str(fault))
    except OSError as fault:
        return MaskSight(place, "mask-unreadable", fault.strerror or str(fault))
    return MaskSight(place, classes=tuple(present[present != IGNORE].tolist()))


def get_mask_reader(examples: ImageDataset, source: str) -> MaskReader:
    """Return the reader of the masks; raises DataError for data without masks."""
    if not isinstance(examples.target_reader, MaskReader):
        raise DataError(
            f"{source}: segmentation needs masks: put the photos into {IMAGES}/ and a mask for "
            f"each into {MASKS}/, as in {source.rstrip('/')}/{MASKS}/a.png"
        )
    return examples.target_reader
