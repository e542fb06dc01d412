"""Table sources: parquet, CSV, and data sets of the Hugging Face hub.

Both go through `datasets`, which copies a parquet once into an Arrow file in its cache (see
HF_DATASETS_CACHE) and maps that into memory. Parquet itself is stored in compressed groups of
rows, so that one image in random order would cost a whole group; from the map it costs some 10
microseconds, any number of processes share the pages, and little stays in RAM. The copy, as large
as the data, is named in the notes.

Sizes: n rows.
"""

from __future__ import annotations

import csv
import glob
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.data.dataset import (
    ALL,
    SPLIT_ALIASES,
    DatasetSplits,
    Listing,
    abbreviate_list,
    build_dataset_splits,
    infer_splits_from_filenames,
    pluralize,
)
from patchwords.data.sources.folder import FileReader
from patchwords.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset


# Which columns of a table hold the images and the labels: as asked, else by type, else by name.


ARROW_IMAGE_COLUMNS = (
    "image",
    "img",
    "jpg",
    "jpeg",
    "png",
    "webp",
    "photo",
    "picture",
    "image_bytes",
)
ARROW_LABEL_COLUMNS = (
    "label",
    "labels",
    "class",
    "cls",
    "class_name",
    "target",
    "category",
    "fine_label",
)


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; None = found by type and name."""

    image: str | None = None
    label: str | None = None
    need_labels: bool = True


def read_class_names(
    source: str, table: Dataset, columns: Columns
) -> tuple[list[str | None], list[str] | None]:
    """Return the class name of each row, and the classes in order if the schema has them."""
    from datasets import ClassLabel

    column = _find_label_column(source, table, columns)
    if column is None:
        return [None] * len(table), None
    values = table.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()
    feature = table.features[column]
    if isinstance(feature, ClassLabel):
        known: list[str] = list(feature.names)
        row = next((i for i, v in enumerate(values) if v is not None and v >= len(known)), None)
        if row is not None:
            raise DataError(
                f"{source}: row {row} has label {values[row]}, but the schema names "
                f"{len(known)} classes"
            )
        return [known[v] if v is not None and v >= 0 else None for v in values], known
    strange = next((v for v in values if not isinstance(v, (str, int, type(None)))), None)
    if strange is not None:
        raise DataError(
            f"{source}: column {column!r} holds {type(strange).__name__}; labels are text or "
            "whole numbers: choose with --label-column"
        )
    return [None if v in (None, "", -1) else str(v) for v in values], None


def _find_label_column(source: str, table: Dataset, columns: Columns) -> str | None:
    from datasets import ClassLabel

    names = list(table.features)
    if columns.label is not None:
        return _require_column(source, names, columns.label)
    typed = [name for name in names if isinstance(table.features[name], ClassLabel)]
    if len(typed) == 1:
        return typed[0]
    by_name = [name for known in ARROW_LABEL_COLUMNS for name in names if name.lower() == known]
    if by_name or not columns.need_labels:
        return by_name[0] if by_name else None
    raise DataError(
        f"{source}: no label column; its columns are {', '.join(names)}: choose with --label-column"
    )


def find_image_column(source: str, table: Dataset, asked: str | None) -> str:
    import pyarrow.types as kinds

    names = list(table.features)
    holds_bytes = [
        field.name
        for field in table.features.arrow_schema
        if kinds.is_binary(field.type)
        or kinds.is_large_binary(field.type)
        or (kinds.is_struct(field.type) and field.type.get_field_index("bytes") >= 0)
    ]
    if asked is not None:
        column = _require_column(source, names, asked)
        if column not in holds_bytes:
            kind = table.features.arrow_schema.field(column).type
            raise DataError(f"{source}: column {column!r} holds {kind}, not images as bytes")
        return column
    by_name = [
        name for known in ARROW_IMAGE_COLUMNS for name in holds_bytes if name.lower() == known
    ]
    if by_name or len(holds_bytes) == 1:
        return (by_name or holds_bytes)[0]
    many = (
        f"several columns hold bytes ({abbreviate_list(holds_bytes)})"
        if holds_bytes
        else "no image column"
    )
    raise DataError(
        f"{source}: {many}; its columns are {', '.join(names)}: choose with --image-column"
    )


def _require_column(source: str, names: list[str], asked: str) -> str:
    if asked not in names:
        raise DataError(f"{source}: no column {asked!r}{did_you_mean(asked, names)}")
    return asked


PROGRESS_MIN_BYTES = 2**28  # bytes; a longer copy shows its progress on a terminal


@dataclass(frozen=True)
class TableReader:
    """Reads cells of memory-mapped tables; only the map's name is sent to processes."""

    tables: tuple[Dataset, ...]  # of one column each, in Arrow format
    starts: np.ndarray  # [tables] first row of each

    def __call__(self, row: int) -> bytes:
        at = int(np.searchsorted(self.starts, row, side="right")) - 1
        cell = self.tables[at][row - int(self.starts[at])].column(0)[0].as_py()
        if isinstance(cell, dict):
            if cell["bytes"] is None and cell.get("path"):  # the hub's way of naming a local file
                with open(cell["path"], "rb") as file:
                    return file.read()
            cell = cell["bytes"]
        return cell or b""


def list_parquet_files(source: str) -> list[str]:
    """List the parquet files of a path: itself, or those in the folder or in its data/."""
    if not os.path.isdir(source):
        return [source] if source.lower().endswith((".parquet", ".pq")) else []
    root = glob.escape(source)
    return sorted(glob.glob(f"{root}/*.parquet")) or sorted(glob.glob(f"{root}/data/*.parquet"))


def open_parquet(source: str, columns: Columns) -> DatasetSplits:
    """Open a parquet file, or a folder of train-*.parquet, test-*.parquet; keys are `file:row`."""
    import pyarrow
    import pyarrow.parquet

    keys: dict[str, list[str]] = {}
    files: dict[str, list[str]] = {}
    paths = list_parquet_files(source)
    for path, split in zip(paths, infer_splits_from_filenames(source, paths), strict=True):
        try:
            rows = pyarrow.parquet.read_metadata(path).num_rows
        except (pyarrow.ArrowException, OSError) as fault:
            raise DataError(f"{path}: not a parquet file, or a damaged one: {fault}") from fault
        files.setdefault(split, []).append(os.path.abspath(path))
        keys.setdefault(split, []).extend(f"{os.path.basename(path)}:{row}" for row in range(rows))
    size = sum(os.path.getsize(path) for path in paths)
    tables = {
        split: _load_hf_dataset(
            source, "parquet", None, size < PROGRESS_MIN_BYTES, data_files=paths, split="train"
        )
        for split, paths in files.items()
    }
    return _build_table_splits(source, "parquet", tables, keys, columns)


def open_hub(source: str, columns: Columns) -> DatasetSplits:
    """Open `hf:NAME` or `hf:NAME:CONFIG`; keys are `split:row`."""
    name, _, config = source.removeprefix("hf:").partition(":")
    if not name:
        raise DataError(f"{source}: no name after hf:; write, say, hf:uoft-cs/cifar10")
    dataset = _load_hf_dataset(source, name, config or None, quiet=False)
    tables: dict[str, Dataset] = {}
    unknown = []
    for split, table in dataset.items():
        ours = SPLIT_ALIASES.get(split)
        if ours is None or ours in tables:
            unknown.append(split)
        else:
            tables[ours] = table
    if not tables:
        raise DataError(f"{source}: has no split called train, only {abbreviate_list(unknown)}")
    notes = (
        [f"left out: {pluralize(len(unknown), 'split')} {abbreviate_list(unknown)}"]
        if unknown
        else []
    )
    keys = {split: [f"{split}:{row}" for row in range(len(t))] for split, t in tables.items()}
    return _build_table_splits(source, "hub", tables, keys, columns, notes=notes)


def _load_hf_dataset(
    source: str, name: str, config: str | None, quiet: bool, **options: Any
) -> Any:
    """Call `datasets.load_dataset`; raises DataError in one line."""
    import datasets

    try:
        with _progress_bars(datasets, not quiet and sys.stderr.isatty()):
            return datasets.load_dataset(name, config, **options)
    except ConnectionError as fault:  # also `datasets.exceptions.OfflineModeIsEnabled`
        raise DataError(
            f"{source}: the Hugging Face hub is out of reach, and the data is not in the cache; go "
            "online, or copy its parquet files here and name their folder"
        ) from fault
    except datasets.exceptions.DatasetNotFoundError as fault:
        raise DataError(
            f"{source}: no such data set on the Hugging Face hub, or it is private (then log in "
            "with: hf auth login)"
        ) from fault
    except Exception as fault:  # whatever a foreign file or a data set's own layout brings about
        cause = fault.__cause__ or fault
        raise DataError(f"{source}: cannot be loaded: {' '.join(str(cause).split())}") from fault


@contextmanager
def _progress_bars(datasets: Any, shown: bool) -> Iterator[None]:
    if shown or not datasets.is_progress_bar_enabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _build_table_splits(
    source: str,
    kind: str,
    tables: Mapping[str, Dataset],
    keys: Mapping[str, Sequence[str]],
    columns: Columns,
    *,
    notes: Sequence[str] = (),
) -> DatasetSplits:
    """Turn tables into splits: labels to names, images to rows of one reader."""
    found = {split: read_class_names(source, table, columns) for split, table in tables.items()}
    unlabelled = [split for split, (names, _) in found.items() if set(names) == {None}]
    notes = list(notes)
    if columns.need_labels and len(unlabelled) < len(found):  # such as ImageNet's test
        notes += [f"split {split} has no labels and is left out" for split in unlabelled]
        found = {split: names for split, names in found.items() if split not in unlabelled}
    lone = len(found) == 1  # a single split called "train" says nothing about a division
    listings: dict[str, Listing] = {}
    parts: list[Dataset] = []
    starts: list[int] = []
    row = 0
    for split, (names, _) in found.items():
        column = find_image_column(source, tables[split], columns.image)
        part = tables[split].select_columns([column]).with_format("arrow")
        parts.append(part)
        starts.append(row)
        rows = list(range(row, row + len(part)))
        row += len(part)
        listings[ALL if lone else split] = Listing(
            list(keys[split]), names, _image_lengths(part), rows
        )
    if not row:
        raise DataError(f"{source}: has no rows")
    fixed = [name for _, known in found.values() for name in known or ()]
    classes = list(dict.fromkeys(fixed)) if all(known for _, known in found.values()) else None
    reader = TableReader(tuple(parts), np.array(starts, dtype=np.int64))
    notes += _note_arrow_copies(tables)
    return build_dataset_splits(source, kind, listings, reader, notes=notes, classes=classes)


def _image_lengths(part: Dataset) -> list[int]:
    """Return the length of every image; only the offsets of the map are read."""
    from pyarrow import compute
    from pyarrow import types as kinds

    cells = part[:].column(0)
    if kinds.is_struct(cells.type):
        cells = compute.struct_field(cells, "bytes")
    return compute.fill_null(compute.binary_length(cells), 0).to_pylist()


def _note_arrow_copies(tables: Mapping[str, Dataset]) -> list[str]:
    """Note where `datasets` keeps its copy, and how large that is."""
    files = {str(file["filename"]) for table in tables.values() for file in table.cache_files}
    if not files:
        return []
    size = sum(os.path.getsize(file) for file in files) / 2**20
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    return [f"a copy for random access ({size:,.0f} MiB) is kept in {folder}"]


# A CSV that names images: `path,label` and, if wanted, `split`.
#
# Relative paths start at the CSV's own folder. Rows are numbered as a spreadsheet numbers them: the
# header is row 1.


CSV_IMAGE_COLUMNS = ("path", "image_path", "file", "filename", "file_name", "filepath", "image")
CSV_LABEL_COLUMNS = ("label", "class", "class_name", "target", "category")


def open_csv(source: str, columns: Columns) -> DatasetSplits:
    """Open the images that a CSV names; their keys are the paths as written."""
    header, rows = _read_csv(source)
    image_at = _find_csv_column(source, header, columns.image, CSV_IMAGE_COLUMNS)
    if image_at is None:
        raise _missing_column_error(source, header, CSV_IMAGE_COLUMNS, "--image-column")
    label_at = _find_csv_column(source, header, columns.label, CSV_LABEL_COLUMNS)
    if label_at is None and columns.need_labels:
        raise _missing_column_error(source, header, CSV_LABEL_COLUMNS, "--label-column")
    split_at = _column_position(header, "split")
    root = os.path.dirname(os.path.abspath(source))
    listings: dict[str, Listing] = {}
    paths: list[str] = []
    missing: list[tuple[int, str]] = []
    for number, row in rows:
        path = _read_csv_cell(source, number, row, image_at, "path")
        label = None
        if label_at is not None and (columns.need_labels or row[label_at].strip()):
            label = _read_csv_cell(source, number, row, label_at, "label")
        split = ALL if split_at is None else _parse_split(source, number, row[split_at])
        try:
            size = os.stat(os.path.join(root, path)).st_size
        except OSError:
            missing.append((number, path))
            continue
        listings.setdefault(split, Listing()).add(path, label, size, len(paths))
        paths.append(path)
    if missing:
        number, path = missing[0]
        raise DataError(
            f"{source}: row {number} names {path!r}, which cannot be found "
            f"({pluralize(len(missing), 'such row')} in all); "
            f"relative paths start at {os.path.dirname(source) or '.'}/"
        )
    if not paths:
        raise DataError(f"{source}: no rows below the header")
    return build_dataset_splits(source, "csv", listings, FileReader(root, paths))


def _read_csv(source: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Read the header, and (row number, cells) of every row that is not blank."""
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            comma = max(",;\t", key=first.count)
            table = list(csv.reader(file, delimiter=comma))
    except OSError as fault:
        raise DataError(f"{source}: cannot be read: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise DataError(f"{source}: is not UTF-8 text; save it as 'CSV UTF-8'") from fault
    except csv.Error as fault:
        raise DataError(f"{source}: is not a CSV: {fault}") from fault
    if not table:
        raise DataError(f"{source}: is empty; it needs a header such as path,label")
    header = [name.strip() for name in table[0]]
    for number, row in enumerate(table[1:], start=2):
        if row and len(row) != len(header):
            raise DataError(
                f"{source}: row {number} has {pluralize(len(row), 'cell')}, the header has "
                f"{len(header)}; put quotes around a cell that holds {comma!r}"
            )
    return header, ((number, row) for number, row in enumerate(table[1:], start=2) if any(row))


def _find_csv_column(
    source: str, header: list[str], asked: str | None, known: Sequence[str]
) -> int | None:
    for name in (asked,) if asked is not None else known:
        position = _column_position(header, name)
        if position is not None:
            return position
    if asked is not None:
        raise DataError(f"{source}: no column {asked!r}{did_you_mean(asked, header)}")
    return None


def _missing_column_error(
    source: str, header: list[str], known: Sequence[str], flag: str
) -> DataError:
    return DataError(
        f"{source}: no column called {' or '.join(known[:4])}; "
        f"its columns are {', '.join(header)}: choose with {flag}"
    )


def _column_position(header: list[str], name: str) -> int | None:
    lowered = [column.lower() for column in header]
    return lowered.index(name.lower()) if name.lower() in lowered else None


def _read_csv_cell(source: str, number: int, row: list[str], column: int, what: str) -> str:
    value = row[column].strip()
    if not value:
        raise DataError(f"{source}: row {number} has no {what}; fill it in or take the row out")
    return value


def _parse_split(source: str, number: int, value: str) -> str:
    split = SPLIT_ALIASES.get(value.strip().lower())
    if split is None:
        raise DataError(
            f"{source}: row {number} has split {value!r}; use train, validation or test"
        )
    return split
