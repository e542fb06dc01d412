"""Which columns of a table hold the images and the labels: as asked, else by type, else by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchwords.data.listing import abbreviate_list
from patchwords.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

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
    """The columns asked for; None = find them by type and name."""

    image: str | None = None
    label: str | None = None
    need_labels: bool = True


def read_class_names(
    source: str, table: Dataset, columns: Columns
) -> tuple[list[str | None], list[str] | None]:
    """The class name of each row, and the classes in order where the schema gives them."""
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
