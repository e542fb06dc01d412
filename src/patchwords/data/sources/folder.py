"""The folder source: a folder per class, or train/ val/ test/ of such folders.

Anything may lie deeper inside a class folder. Images that lie elsewhere, other files and empty
class folders are left out and said so in the notes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from patchwords.data.dataset import (
    ALL,
    SPLIT_ALIASES,
    TRAIN,
    DatasetSplits,
    Listing,
    abbreviate_list,
    build_dataset_splits,
    pluralize,
)
from patchwords.errors import DataError

# Image files: which suffixes count, how folders are walked, how files are read.
#
# Sizes: n images. Only names and lengths are read: 100,000 files take about a second.


IMAGE_SUFFIXES = frozenset(
    {
        "jpg",
        "jpeg",
        "jpe",
        "jfif",
        "png",
        "webp",
        "bmp",
        "tif",
        "tiff",
        "gif",
        "heic",
        "heif",
        "avif",
    }
)
IGNORED_NAMES = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})  # left by archives and desktops


@dataclass(frozen=True)
class FileReader:
    """Reads files by row; holds names only, so that every process can have a copy."""

    root: str  # absolute: a worker may stand in another folder
    paths: Sequence[str]  # [n] relative to root, or absolute

    def __call__(self, row: int) -> bytes:
        with open(os.path.join(self.root, self.paths[row]), "rb") as file:
            return file.read()


@dataclass
class FolderListing:
    """Files and folders below a root; paths are relative to it."""

    folders: list[str] = field(default_factory=list)
    images: list[tuple[str, int]] = field(default_factory=list)  # (path, bytes)
    others: list[str] = field(default_factory=list)  # files that are not images

    def extend(self, more: FolderListing) -> None:
        self.images += more.images
        self.others += more.others


def is_image_file(name: str) -> bool:
    """Return whether a name has an image suffix, in either case."""
    return name.rpartition(".")[2].lower() in IMAGE_SUFFIXES and "." in name


def list_folder(root: str, folder: str = "") -> FolderListing:
    """List one level of `root/folder`, sorted, without hidden names and litter."""
    listing = FolderListing()
    full = os.path.join(root, folder)
    try:
        with os.scandir(full) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in IGNORED_NAMES:
                    continue
                _sort_in(listing, entry, f"{folder}/{entry.name}" if folder else entry.name)
    except PermissionError as fault:
        raise DataError(f"{full}: no permission to read this folder (chmod a+rx it)") from fault
    except OSError as fault:
        raise DataError(f"{full}: cannot be read: {fault.strerror}") from fault
    listing.folders.sort()
    listing.images.sort()
    listing.others.sort()
    return listing


def walk_folder(root: str, folder: str = "") -> FolderListing:
    """List everything below `root/folder`; links are followed, each folder visited once."""
    found, waiting, visited = FolderListing(), [folder], set()
    while waiting:
        here = waiting.pop()
        level = list_folder(root, here)
        status = os.stat(os.path.join(root, here))
        if (status.st_dev, status.st_ino) in visited:
            continue  # a link back to a folder that has been seen
        visited.add((status.st_dev, status.st_ino))
        found.extend(level)
        waiting += level.folders
    found.images.sort()
    found.others.sort()
    return found


def format_suffix_counts(names: Iterable[str]) -> str:
    """Format the suffixes of files that are no images: `.txt (3), .pdf (1)`."""
    kinds = Counter(os.path.splitext(name)[1].lower() or "no suffix" for name in names)
    return ", ".join(f"{suffix} ({number})" for suffix, number in kinds.most_common(5))


def _sort_in(listing: FolderListing, entry: os.DirEntry[str], path: str) -> None:
    try:
        if entry.is_dir():
            listing.folders.append(path)
        elif is_image_file(entry.name) and entry.is_file():  # a pipe would be waited on for ever
            listing.images.append((path, entry.stat().st_size))
        else:
            listing.others.append(path)
    except OSError:  # a link that leads nowhere: a file that holds no image
        listing.others.append(path)


def open_folder(source: str, need_labels: bool = True) -> DatasetSplits:
    """Open the images below a folder; their keys are paths relative to it."""
    root = os.path.abspath(source)
    top = list_folder(root)
    if not (top.folders or top.images or top.others):
        raise DataError(f"{source}: the folder is empty; put one folder of images per class in it")
    paths: list[str] = []
    listings: dict[str, Listing] = {}
    seen: list[FolderListing] = []
    empty: list[str] = []
    strays: list[str] = []
    for split, folder in _split_folders(source, root, top, need_labels).items():
        level = list_folder(root, folder) if folder else top
        seen.append(FolderListing(others=level.others))
        listing = listings[split] = Listing()
        if folder and not level.folders and not need_labels:  # train/, val/ without classes
            for path, size in level.images:
                listing.add(path, None, size, len(paths))
                paths.append(path)
            continue
        strays += [path for path, _ in level.images]
        for class_folder in level.folders:
            inside = walk_folder(root, class_folder)
            seen.append(inside)
            if not inside.images:
                empty.append(class_folder)
            for path, size in inside.images:
                listing.add(path, os.path.basename(class_folder), size, len(paths))
                paths.append(path)
    if not paths and strays and not need_labels:  # images to look at or predict, of no class
        listing = listings[ALL] = Listing()
        for path, size in top.images:
            listing.add(path, None, size, len(paths))
            paths.append(path)
        strays = []
    others = [path for found in seen for path in found.others]
    if not paths:
        raise _no_images(source, strays, others)
    notes = _folder_notes(strays, others, empty) + _note_unused_entries(top, listings)
    notes += [f"no images for {split}" for split, listing in listings.items() if not listing.keys]
    listings = {split: listing for split, listing in listings.items() if listing.keys}
    return build_dataset_splits(source, "folder", listings, FileReader(root, paths), notes=notes)


def _split_folders(source: str, root: str, top: FolderListing, need_labels: bool) -> dict[str, str]:
    """Find the folder of each split ("" = the root, which then holds the classes).

    A folder called "train" may also be a class next to "bus" and "plane": it is a split if it holds
    folders, and if a folder for validation or test, or nothing else, is next to it.
    """
    named: dict[str, str] = {}
    for folder in top.folders:
        split = SPLIT_ALIASES.get(folder.lower())
        if split in named:
            raise DataError(
                f"{source}: both {named[split]}/ and {folder}/ are there for {split}; keep one"
            )
        if split:
            named[split] = folder
    others = len(top.folders) - len(named)
    holds_classes = any(list_folder(root, folder).folders for folder in named.values())
    without_classes = TRAIN in named and len(named) > 1 and not (holds_classes or others)
    if need_labels and without_classes:
        raise DataError(
            f"{source}: the images in {named[TRAIN]}/ lie in no class: put them in one folder per "
            f"class, as in {named[TRAIN]}/daisy/photo.jpg"
        )
    if not named or not (holds_classes or without_classes) or (others and len(named) == 1):
        return {ALL: ""}
    if TRAIN not in named:
        raise DataError(
            f"{source}: has {abbreviate_list([f'{name}/' for name in named.values()])} but no train/; "
            "add it, or name one of these folders itself"
        )
    return named


def _folder_notes(strays: list[str], others: list[str], empty: list[str]) -> list[str]:
    notes = [f"class folder {folder!r} has no images" for folder in empty]
    if strays:
        notes.append(
            f"{pluralize(len(strays), 'image')} outside the class folders left out: {abbreviate_list(strays)}"
        )
    if others:
        verb = "is not an image" if len(others) == 1 else "are not images"
        notes.append(f"{pluralize(len(others), 'file')} {verb}: {abbreviate_list(others)}")
    return notes


def _note_unused_entries(top: FolderListing, listings: dict[str, Listing]) -> list[str]:
    """Note entries next to the folders of the splits."""
    if ALL in listings:
        return []
    unused = [f"{folder}/" for folder in top.folders if folder.lower() not in SPLIT_ALIASES]
    unused += [path for path, _ in top.images] + top.others
    return [f"left out next to train/: {abbreviate_list(unused)}"] if unused else []


def _no_images(source: str, strays: list[str], others: list[str]) -> DataError:
    if strays:
        return DataError(
            f"{source}: its {pluralize(len(strays), 'image')} ({abbreviate_list(strays, 2)}) lie in no class: "
            f"put them in one folder per class, as in {source.rstrip('/')}/daisy/photo.jpg"
        )
    if others:
        return DataError(f"{source}: no images in it; found {format_suffix_counts(others)}")
    return DataError(f"{source}: no images in it, only empty folders")
