"""Tables with an image column: parquet files, and the data sets of the Hugging Face hub.

Both go through `datasets`, which copies a parquet once into an Arrow file in its cache (see
HF_DATASETS_CACHE) and maps that into memory. Parquet itself is stored in compressed groups of
rows, so that one image in random order would cost a whole group; from the map it costs some 10
microseconds, any number of processes share the pages, and little stays in RAM. The copy, as large
as the data, is named in the notes.

Sizes: n rows.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.data.columns import Columns, find_image_column, read_class_names
from patchwords.data.examples import ALL, DatasetSplits
from patchwords.data.listing import (
    SPLIT_ALIASES,
    Listing,
    abbreviate_list,
    build_dataset_splits,
    infer_splits_from_filenames,
    pluralize,
)
from patchwords.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

PROGRESS_MIN_BYTES = 2**28  # bytes; a longer copy shows its progress on a terminal


@dataclass(frozen=True)
class TableReader:
    """Reads a cell of memory-mapped tables. What is sent to a process is the name of the map."""

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
    """The parquet files that a path means: itself, or those in the folder or in its data/."""
    if not os.path.isdir(source):
        return [source] if source.lower().endswith((".parquet", ".pq")) else []
    root = glob.escape(source)
    return sorted(glob.glob(f"{root}/*.parquet")) or sorted(glob.glob(f"{root}/data/*.parquet"))


def open_parquet(source: str, columns: Columns) -> DatasetSplits:
    """One parquet file, or a folder of train-*.parquet, test-*.parquet ...; keys are `file:row`."""
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
    """`hf:NAME` or `hf:NAME:CONFIG`; keys are `split:row`."""
    name, _, config = source.removeprefix("hf:").partition(":")
    if not name:
        raise DataError(f"{source}: no name after hf:; write, say, hf:uoft-cs/cifar10")
    found = _load_hf_dataset(source, name, config or None, quiet=False)
    tables: dict[str, Dataset] = {}
    unknown = []
    for split, table in found.items():
        ours = SPLIT_ALIASES.get(split)
        if ours is None or ours in tables:
            unknown.append(split)
        else:
            tables[ours] = table
    if not tables:
        raise DataError(f"{source}: has no split called train, only {abbreviate_list(unknown)}")
    notes = (
        [f"left aside: {pluralize(len(unknown), 'split')} {abbreviate_list(unknown)}"]
        if unknown
        else []
    )
    keys = {split: [f"{split}:{row}" for row in range(len(t))] for split, t in tables.items()}
    return _build_table_splits(source, "hub", tables, keys, columns, notes=notes)


def _load_hf_dataset(
    source: str, name: str, config: str | None, quiet: bool, **options: Any
) -> Any:
    """`datasets.load_dataset`, with its faults in one line."""
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
    """Labels to names, images to rows of one reader."""
    found = {split: read_class_names(source, table, columns) for split, table in tables.items()}
    unlabelled = [split for split, (names, _) in found.items() if set(names) == {None}]
    notes = list(notes)
    if columns.need_labels and len(unlabelled) < len(found):  # such as ImageNet's test
        notes += [f"split {split} has no labels and is left aside" for split in unlabelled]
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
    """Length of every image; of the map, only the offsets are read."""
    from pyarrow import compute
    from pyarrow import types as kinds

    cells = part[:].column(0)
    if kinds.is_struct(cells.type):
        cells = compute.struct_field(cells, "bytes")
    return compute.fill_null(compute.binary_length(cells), 0).to_pylist()


def _note_arrow_copies(tables: Mapping[str, Dataset]) -> list[str]:
    """Where `datasets` keeps its copy, and how large that is."""
    files = {str(file["filename"]) for table in tables.values() for file in table.cache_files}
    if not files:
        return []
    size = sum(os.path.getsize(file) for file in files) / 2**20
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    return [f"a copy for random access ({size:,.0f} MiB) is kept in {folder}"]
