"""The classes of masks: which value or colour of a pixel stands for which class.

A mask is an image without loss (PNG, BMP, TIFF, GIF) of the size of its photo. Its pixels are class
values (grey or palette index), or colours of a table. Value 255 means "not labelled", and so does a
class called void, unlabelled or ignore: such pixels are neither trained on nor scored.

Sizes: K classes, h w image.
"""

from __future__ import annotations

import colorsys
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from patchwords.data.dataset import abbreviate_list
from patchwords.errors import DataError

IGNORE = 255  # class index of a pixel without a label
MAX_CLASSES = 254
OUTSIDE = -1  # of a value that the table lacks
TABLE_FILES = ("classes.txt", "classes.csv", "class_dict.csv")
IGNORED_NAMES = frozenset({"void", "unlabelled", "unlabeled", "ignore", "ignored"})
NAME_COLUMNS = ("name", "class", "class_name", "label")
COLOUR_COLUMNS = ("r", "g", "b")
LOSSLESS_FORMATS = ("PNG", "BMP", "TIFF", "GIF")

Colour = tuple[int, int, int]


class MaskFault(DataError):
    """A mask that cannot be used; `kind` is a row of the doctor's checks."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class MaskTable:
    """Classes by pixel value or by colour; a class index is a position in `classes`."""

    classes: tuple[str, ...]
    values: tuple[int, ...]  # [K] of each class in a mask of indices
    colours: tuple[Colour, ...] | None = None  # [K] of each class in a mask of colours
    ignored_values: tuple[int, ...] = (IGNORE,)
    ignored_colours: tuple[Colour, ...] = ()
    source: str = "the masks"  # where the classes are listed, for messages

    def decode(self, data: bytes) -> np.ndarray:
        """Decode a mask to class indices, uint8 [h, w]; IGNORE where there is no label.

        Raises DataError with the reason for a mask that this table does not explain.
        """
        pixels = read_mask_pixels(data, colours=self.colours is not None)
        if self.colours is not None:
            return self._look_up_colours(pixels)
        if pixels.ndim == 3:
            raise MaskFault(
                "mask-colours",
                "its mask has RGB colours, and no table says which class they are: add "
                "classes.csv (name,r,g,b)",
            )
        codes = self._value_codes[np.minimum(pixels, len(self._value_codes) - 1)]  # [h, w]
        self._refuse_outside(codes, pixels)
        return codes.astype(np.uint8)

    @cached_property
    def _value_codes(self) -> np.ndarray:
        """Class index by value, int16 [257]; the last one is of all values above 255."""
        codes = np.full(257, OUTSIDE, np.int16)
        codes[list(self.ignored_values)] = IGNORE
        codes[list(self.values)] = np.arange(len(self.classes))
        return codes

    @cached_property
    def _colour_codes(self) -> tuple[np.ndarray, np.ndarray]:
        """Colours as sorted numbers, and the class index of each."""
        assert self.colours is not None
        colours = np.array([*self.colours, *self.ignored_colours], np.int64).reshape(-1, 3)
        index = np.array(
            [*range(len(self.colours)), *[IGNORE] * len(self.ignored_colours)], np.int16
        )
        packed = pack_colours(colours)
        order = np.argsort(packed, kind="stable")
        return packed[order], index[order]

    def _look_up_colours(self, pixels: np.ndarray) -> np.ndarray:
        known, index = self._colour_codes
        packed = pack_colours(pixels)  # [h, w]
        place = np.minimum(np.searchsorted(known, packed), len(known) - 1)
        codes = np.where(known[place] == packed, index[place], OUTSIDE)
        self._refuse_outside(codes, pixels)
        return codes.astype(np.uint8)

    def _refuse_outside(self, codes: np.ndarray, pixels: np.ndarray) -> None:
        outside = codes == OUTSIDE
        if not outside.any():
            return
        stray = [
            str(tuple(value)) if isinstance(value, list) else str(value)
            for value in np.unique(pixels[outside], axis=0).tolist()
        ]
        what = "colour" if pixels.ndim == 3 else "value"
        raise MaskFault(
            "mask-values",
            f"its mask has the {what}{'s' if len(stray) > 1 else ''} {abbreviate_list(stray, 4)}, "
            f"outside of {self.source} ({outside.mean():.1%} of the pixels)",
        )

    @property
    def palette(self) -> tuple[Colour, ...]:
        """Colours to show the classes in, [K]: those of the table, or distinct hues."""
        return self.colours or make_palette(len(self.classes))

    def map_to(self, classes: Sequence[str]) -> np.ndarray:
        """Return the position of each class in other classes, by name, uint8 [256].

        A class that the others lack becomes IGNORE.
        """
        place = {name: position for position, name in enumerate(classes)}
        table = np.full(256, IGNORE, np.uint8)
        table[: len(self.classes)] = [place.get(name, IGNORE) for name in self.classes]
        return table


def read_mask_pixels(data: bytes, colours: bool = False) -> np.ndarray:
    """Read the pixels of a mask as stored: values [h, w], or colours [h, w, 3].

    Palette masks give their indices, or with `colours` the colours behind them. Raises DataError.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.format not in LOSSLESS_FORMATS:
                raise MaskFault(
                    "mask-lossy",
                    f"its mask is a {image.format}, which blurs the classes: save masks as PNG",
                )
            if colours:
                return np.asarray(image.convert("RGB"))
            if image.mode == "1":
                return np.asarray(image.convert("L")).astype(np.int64)  # 0 and 255
            if image.mode in {"L", "P", "I"} or image.mode.startswith("I;16"):
                return np.asarray(image).astype(np.int64)
            return np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as fault:  # a decoder fed with damaged bytes may raise anything
        reason = " ".join(str(fault).split()) or type(fault).__name__
        raise MaskFault("mask-unreadable", f"its mask cannot be read: {reason}") from fault


def pack_colours(pixels: np.ndarray) -> np.ndarray:
    """Pack RGB [..., 3] into one number each, int64 [...]."""
    wide = pixels.astype(np.int64)
    return (wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2]


def make_palette(count: int) -> tuple[Colour, ...]:
    """Make distinct colours: hues by the golden ratio, in three lightnesses.

    >>> len(set(make_palette(100)))
    100
    """
    colours = []
    for index in range(count):
        hue = (0.58 + index * 0.6180339887498949) % 1.0
        light = (0.52, 0.7, 0.36)[index % 3]
        red, green, blue = colorsys.hls_to_rgb(hue, light, 0.65)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return tuple(colours)


# Tables in files.


def read_mask_table(folder: Path) -> MaskTable | None:
    """Read the table next to the masks; None without one. Raises DataError for a damaged one."""
    for name in TABLE_FILES:
        path = folder / name
        if path.is_file():
            try:
                text = path.read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as fault:
                raise DataError(f"{path}: cannot be read: {fault}") from fault
            parse = parse_name_list if name.endswith(".txt") else parse_class_csv
            return check_table(parse(text, str(path)), str(path))
    return None


def parse_name_list(text: str, path: str) -> MaskTable:
    """Parse classes.txt: a name a line, whose values count from 0."""
    names = [line.strip() for line in text.splitlines()]
    rows = [(value, name) for value, name in enumerate(names) if name]
    return drop_ignored(
        MaskTable(tuple(n for _, n in rows), tuple(v for v, _ in rows), source=Path(path).name)
    )


def parse_class_csv(text: str, path: str) -> MaskTable:
    """Parse classes.csv: a column of names, and `value`, or the colour in r, g and b."""
    rows = list(csv.DictReader(io.StringIO(text), skipinitialspace=True))
    rows = [{str(key).strip().lower(): value for key, value in row.items()} for row in rows]
    columns = list(rows[0]) if rows else []
    name = next((column for column in NAME_COLUMNS if column in columns), None)
    coloured = all(column in columns for column in COLOUR_COLUMNS)
    if name is None or not (coloured or "value" in columns):
        raise DataError(
            f"{path}: its columns are {', '.join(columns) or 'missing'}; give name,value or "
            "name,r,g,b"
        )
    try:
        values = [int(row["value"]) if "value" in columns else i for i, row in enumerate(rows)]
        colours = [tuple(int(row[c]) for c in COLOUR_COLUMNS) for row in rows] if coloured else None
    except (TypeError, ValueError) as fault:
        raise DataError(f"{path}: a value is not a whole number: {fault}") from fault
    return drop_ignored(
        MaskTable(
            tuple(str(row[name]).strip() for row in rows),
            tuple(values),
            tuple(colours) if colours is not None else None,  # type: ignore[arg-type]
            source=Path(path).name,
        )
    )


def drop_ignored(table: MaskTable) -> MaskTable:
    """Take the classes that mean "not labelled" out of a table."""
    kept = [i for i, name in enumerate(table.classes) if name.lower() not in IGNORED_NAMES]
    lost = [i for i in range(len(table.classes)) if i not in kept]
    colours = table.colours
    return replace(
        table,
        classes=tuple(table.classes[i] for i in kept),
        values=tuple(table.values[i] for i in kept),
        colours=None if colours is None else tuple(colours[i] for i in kept),
        ignored_values=(*table.ignored_values, *(table.values[i] for i in lost)),
        ignored_colours=() if colours is None else tuple(colours[i] for i in lost),
    )


def check_table(table: MaskTable, path: str) -> MaskTable:
    """Raise DataError for a table that cannot name the pixels."""
    for what, entries in (
        ("class", table.classes),
        ("value", table.values),
        ("colour", table.colours or ()),
    ):
        twice = [entry for entry in entries if list(entries).count(entry) > 1]
        if twice:
            raise DataError(f"{path}: the {what} {twice[0]!r} is there twice; keep one")
    wrong = [v for v in table.values if not 0 <= v <= 255] if table.colours is None else []
    if wrong:
        raise DataError(f"{path}: the value {wrong[0]} does not fit a mask of 0 to 255")
    if not 2 <= len(table.classes) <= MAX_CLASSES:
        raise DataError(
            f"{path}: it names {len(table.classes)} classes; segmentation needs 2 to {MAX_CLASSES}"
        )
    return table
