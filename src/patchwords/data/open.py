"""Data sources: what a DATA argument names, and the function that opens it.

| DATA | is |
|---|---|
| `photos/` | a folder per class, or train/ val/ test/ with a folder per class in each |
| `photos/` with `images/` and `masks/` | photos with a mask each, perhaps in train/ val/ test/ |
| `photos.csv` | `path,label` and, if wanted, `split` |
| `x.parquet`, a folder of them | an image column and a label column |
| `shards-{000..099}.tar` | WebDataset tars: `key.jpg` next to `key.cls` or `key.json` |
| `https://host/x-{000..099}.tar`, `s3://...` | tars or parquets elsewhere; see `stream` |
| `x.index.jsonl` | what `patchwords index` wrote |
| `hf:NAME`, `hf:NAME:CONFIG` | a data set of the Hugging Face hub |
| `digits` | scikit-learn's handwritten digits, embedded |

Classes are matched by name, never by position. No pixels are read here.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.data.dataset import (
    ALL,
    TRAIN,
    VALIDATION,
    DatasetSplits,
    ImageDataset,
    Listing,
    abbreviate_list,
    build_dataset_splits,
    pluralize,
)
from patchwords.data.doctor.names import describe_suspicious_names, find_wrapped_classes
from patchwords.data.shards.stream import DEFAULT_CACHE_GIB, is_stream_spec, open_stream
from patchwords.data.shards.tar import is_tar_spec, open_shards
from patchwords.data.sources.digits import open_digits
from patchwords.data.sources.folder import (
    FileReader,
    format_suffix_counts,
    is_image_file,
    open_folder,
    walk_folder,
)
from patchwords.data.sources.masks import is_mask_folder, open_masks
from patchwords.data.sources.tables import (
    Columns,
    list_parquet_files,
    open_csv,
    open_hub,
    open_parquet,
)
from patchwords.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from patchwords.data.decode import ImageLike


@dataclass(frozen=True)
class DataSource:
    """A data source: how its specifications are recognised and opened."""

    matches: Callable[[str], bool]
    open: Callable[[str, Columns], DatasetSplits]
    has_columns: bool = False
    is_path: bool = True


DATA_SOURCES = {  # the first that matches; a folder named "digits" is ./digits
    "digits": DataSource(lambda s: s == "digits", lambda s, c: open_digits(s), is_path=False),
    "hub": DataSource(lambda s: s.startswith("hf:"), open_hub, has_columns=True, is_path=False),
    "stream": DataSource(is_stream_spec, open_stream, has_columns=True, is_path=False),
    "shards": DataSource(is_tar_spec, lambda s, c: open_shards(s, c.need_labels), is_path=False),
    "csv": DataSource(lambda s: s.lower().endswith((".csv", ".tsv")), open_csv, has_columns=True),
    "masks": DataSource(is_mask_folder, lambda s, c: open_masks(s)),
    "parquet": DataSource(lambda s: bool(list_parquet_files(s)), open_parquet, has_columns=True),
    "folder": DataSource(os.path.isdir, lambda s, c: open_folder(s, c.need_labels)),
}


def open_data(
    spec: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    classes: Sequence[str] | None = None,
    need_labels: bool = True,
    unseen_classes: bool = False,
    cache_size: float = DEFAULT_CACHE_GIB,
) -> DatasetSplits:
    """Open DATA; raises DataError if it is faulty, StorageError if it is out of reach.

    `classes` keeps only the classes of these names. With `need_labels=False` the data is to look at
    or to predict on: labels may be missing, there may be one class only, or one image in a class.
    `unseen_classes` takes test images of classes that train has no image of.
    `cache_size`: GiB on the local disk that shards from elsewhere may take.
    """
    spec = str(spec)
    columns = Columns(image_column, label_column, need_labels)
    kind = _detect_kind(spec)
    if not DATA_SOURCES[kind].has_columns and (image_column or label_column):
        raise ConfigError(f"{spec}: has no columns; leave out --image-column and --label-column")
    far = kind == "stream"
    data = open_stream(spec, columns, cache_size) if far else DATA_SOURCES[kind].open(spec, columns)
    if classes is not None:
        data = keep_classes(data, classes)
    if need_labels:
        check_trainable(data, unseen_classes)
        data = replace(data, notes=(*data.notes, *describe_suspicious_names(data)))
    return data


def open_images(paths: Sequence[str]) -> ImageDataset:
    """List image files to predict on: files, folders and globs, in the order given.

    Nothing is read; labels are -1 and there are no classes.
    """
    listing = Listing()
    for path in map(str, paths):
        for name, size in _list_images(path):
            listing.add(name, None, size, len(listing.keys))
    if not listing.keys:
        raise DataError("no images given; name files, folders or globs such as 'new/*.jpg'")
    reader = FileReader(os.getcwd(), listing.keys)
    return build_dataset_splits(" ".join(map(str, paths)), "folder", {ALL: listing}, reader).splits[
        ALL
    ]


@dataclass(frozen=True)
class MemoryReader:
    """Reads images of a list, each in any form that `read_pixels` takes."""

    images: Sequence[ImageLike]

    def __call__(self, row: int) -> Any:
        return self.images[row]


def wrap_images(images: ImageLike | Iterable[ImageLike]) -> tuple[ImageDataset, bool]:
    """List images to predict on; -> the images, and whether it is a single one.

    A text or path that names a folder or a pattern stands for all images in it.
    """
    if isinstance(images, str | Path) and _names_several(str(images)):
        return open_images([str(images)]), False
    single = isinstance(images, str | Path | bytes | np.ndarray) or hasattr(images, "convert")
    several: list[Any] = [images] if single else list(images)  # type: ignore[arg-type]
    listing = Listing()
    for row, image in enumerate(several):
        key = str(image) if isinstance(image, str | Path) else f"image {row + 1}"
        listing.add(key, None, 0, row)
    data = build_dataset_splits("images", "memory", {ALL: listing}, MemoryReader(several))
    return data.splits[ALL], single


def _names_several(path: str) -> bool:
    return os.path.isdir(path) or (glob.has_magic(path) and not os.path.exists(path))


def keep_classes(data: DatasetSplits, names: Sequence[str]) -> DatasetSplits:
    """Keep only these classes, in the order that the data has them."""
    for name in names:
        if name not in data.classes:
            raise DataError(
                f"{data.source}: no class {name!r}{did_you_mean(name, data.classes)}"
                if data.classes
                else f"{data.source}: no class {name!r}; the images have no labels"
            )
    kept = tuple(name for name in data.classes if name in set(names))
    label = np.full(len(data.classes) + 1, -1, dtype=np.int64)  # the last is for label -1
    label[[data.classes.index(name) for name in kept]] = np.arange(len(kept))
    splits = {}
    for split, examples in data.splits.items():
        labels = label[examples.labels]
        chosen = np.flatnonzero(labels >= 0)
        part = replace(examples.select(chosen), classes=kept, labels=labels[chosen])
        if len(part):
            splits[split] = part
    return replace(data, classes=kept, splits=splits)


def check_trainable(data: DatasetSplits, unseen_classes: bool = False) -> None:
    """Raise DataError unless a classifier can be trained, and honestly tested, on the data."""
    train = data.splits.get(ALL, data.splits.get(TRAIN))
    if train is None:
        raise DataError(
            f"{data.source}: has images for {abbreviate_list([*data.splits])}, but none for train"
        )
    for split, examples in data.splits.items():
        bare = np.flatnonzero(examples.labels < 0)
        if len(bare):
            of = "" if split == ALL else f" of {split}"
            raise DataError(
                f"{data.source}: {pluralize(len(bare), 'image')}{of} without a label; "
                f"the first is {examples.keys[int(bare[0])]}"
            )
    counts = train.count_per_class()
    for split, examples in data.splits.items() if not unseen_classes else ():
        unknown = np.flatnonzero(examples.count_per_class() * (counts == 0))
        if len(unknown):
            name = data.classes[int(unknown[0])]
            first = examples.keys[int(np.flatnonzero(examples.labels == unknown[0])[0])]
            raise DataError(
                f"{data.source}: class {name!r} is in {split} ({first}) but not in train"
                f"{did_you_mean(name, [data.classes[i] for i in np.flatnonzero(counts)])}"
            )
    present = np.flatnonzero(counts)
    if len(present) < 2:
        only = f"one class only, {data.classes[int(present[0])]!r}" if len(present) else "no images"
        wrapped = find_wrapped_classes(data)
        hint = f"; did you mean {wrapped}?" if wrapped else ""
        raise DataError(f"{data.source}: {only}; a classifier needs two classes or more{hint}")
    single = np.flatnonzero(counts == 1)
    if len(single) and VALIDATION not in data.splits and not unseen_classes:
        first = train.keys[int(np.flatnonzero(train.labels == single[0])[0])]
        more = f" (and {len(single) - 1} more such classes)" if len(single) > 1 else ""
        raise DataError(
            f"{data.source}: class {data.classes[int(single[0])]!r} has one image, {first}{more}; "
            "add images, so that some can be held out, or keep other classes only with --classes"
        )


def _detect_kind(spec: str) -> str:
    for kind, source in DATA_SOURCES.items():
        if source.matches(spec):
            if source.is_path and not os.path.exists(spec):
                raise DataError(_no_such_path(spec))
            return kind
    if not os.path.exists(spec):
        raise DataError(_no_such_path(spec))
    hint = "; to train on it, name its folder" if is_image_file(spec) else ""
    raise DataError(
        f"{spec}: not a kind of data that is known{hint}; "
        "use a folder, .csv, .parquet, .tar, https://..., s3://..., hf:NAME or digits"
    )


def _no_such_path(path: str) -> str:
    """Explain a missing path: its longest existing part, and similar names there."""
    parent, name = os.path.split(os.path.normpath(path))
    while parent and not os.path.exists(parent):
        parent, name = os.path.split(parent)
    siblings = os.listdir(parent or ".") if os.access(parent or ".", os.R_OK) else []
    hint = did_you_mean(name, [*siblings, "digits"] if not parent else siblings)
    return f"{path}: no such file or folder{hint if 'did you mean' in hint else ''}"


def _list_images(path: str) -> list[tuple[str, int]]:
    """List the (path, bytes) that one argument names."""
    if os.path.isdir(path):
        listing = walk_folder(path)
        if not listing.images:
            others = (
                f"; found {format_suffix_counts(listing.others)}"
                if listing.others
                else ", it is empty"
            )
            raise DataError(f"{path}: no images in this folder{others}")
        return [(os.path.join(path, name), size) for name, size in listing.images]
    names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
    if not names:
        raise DataError(f"{path}: no file matches" if glob.has_magic(path) else _no_such_path(path))
    return [
        image
        for name in names
        for image in (
            _list_images(name) if os.path.isdir(name) else [(name, os.stat(name).st_size)]
        )
    ]
