"""A CSV that names images: `path,label` and, if wanted, `split`.

Relative paths start at the CSV's own folder. Rows are numbered as a spreadsheet numbers them: the
header is row 1.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence

from patchwords.data.columns import Columns
from patchwords.data.examples import ALL, DatasetSplits
from patchwords.data.files import FileReader
from patchwords.data.listing import SPLIT_ALIASES, Listing, build_dataset_splits, pluralize
from patchwords.errors import DataError, did_you_mean

CSV_IMAGE_COLUMNS = ("path", "image_path", "file", "filename", "file_name", "filepath", "image")
CSV_LABEL_COLUMNS = ("label", "class", "class_name", "target", "category")


def open_csv(source: str, columns: Columns) -> DatasetSplits:
    """The images that a CSV names; their keys are the paths as written."""
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
    """The header, and (row number, cells) of every row that is not blank."""
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
