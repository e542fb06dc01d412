"""Image files in folders: what counts as an image, how a folder is walked, how a file is read.

Sizes: n images. Only names and lengths are read: 100,000 files take about a second.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from patchwords.errors import DataError

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
    """Reads files by row. It holds names only, so that every process can have a copy."""

    root: str  # absolute: a worker may stand in another folder
    paths: Sequence[str]  # [n] relative to root, or absolute

    def __call__(self, row: int) -> bytes:
        with open(os.path.join(self.root, self.paths[row]), "rb") as file:
            return file.read()


@dataclass
class FolderListing:
    """What lies in a folder; paths are relative to where the walk began."""

    folders: list[str] = field(default_factory=list)
    images: list[tuple[str, int]] = field(default_factory=list)  # (path, bytes)
    others: list[str] = field(default_factory=list)  # files that are not images

    def extend(self, more: FolderListing) -> None:
        self.images += more.images
        self.others += more.others


def is_image_file(name: str) -> bool:
    """By its suffix, in either case."""
    return name.rpartition(".")[2].lower() in IMAGE_SUFFIXES and "." in name


def list_folder(root: str, folder: str = "") -> FolderListing:
    """One level of `root/folder`, sorted; hidden names and litter are passed over."""
    found = FolderListing()
    full = os.path.join(root, folder)
    try:
        with os.scandir(full) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in IGNORED_NAMES:
                    continue
                _sort_in(found, entry, f"{folder}/{entry.name}" if folder else entry.name)
    except PermissionError as fault:
        raise DataError(f"{full}: no permission to read this folder (chmod a+rx it)") from fault
    except OSError as fault:
        raise DataError(f"{full}: cannot be read: {fault.strerror}") from fault
    found.folders.sort()
    found.images.sort()
    found.others.sort()
    return found


def walk_folder(root: str, folder: str = "") -> FolderListing:
    """Everything below `root/folder`. Links to folders are followed, each folder visited once."""
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
    """`.txt (3), .pdf (1)`: what was found where images were sought."""
    kinds = Counter(os.path.splitext(name)[1].lower() or "no suffix" for name in names)
    return ", ".join(f"{suffix} ({number})" for suffix, number in kinds.most_common(5))


def _sort_in(found: FolderListing, entry: os.DirEntry[str], path: str) -> None:
    try:
        if entry.is_dir():
            found.folders.append(path)
        elif is_image_file(entry.name) and entry.is_file():  # a pipe would be waited on for ever
            found.images.append((path, entry.stat().st_size))
        else:
            found.others.append(path)
    except OSError:  # a link that leads nowhere: a file that holds no image
        found.others.append(path)
