"""Figure of photos and the training images that are nearest to them; PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from patchwords.report.sheet import Tile, draw_sheet
from patchwords.report.words import clip, count, plural

LIGHT = 0.85  # the grey in place of a picture that is gone
ITSELF = 0.9995  # a cosine that is written as 1.000


@dataclass(frozen=True)
class Neighbour:
    """A training image, as the model sees it."""

    path: str
    picture: np.ndarray | None  # [H, W, 3] of 0..1; None: it can no longer be read
    label: str | None
    similarity: float


@dataclass(frozen=True)
class Company:
    """A photo, and its nearest, the nearest first."""

    path: str
    picture: np.ndarray  # [H, W, 3] of 0..1
    neighbours: Sequence[Neighbour]


@dataclass(frozen=True)
class Searched:
    """What was looked through, for the caption."""

    data: str
    origin: str  # which of its images, in words
    images: int
    skipped: int  # that cannot be read
    of: int  # images there are; of many some were drawn
    asked: int  # neighbours asked for
    by_chance: float | None  # the median cosine of two of these images


def draw_nearest(companies: Sequence[Company], searched: Searched) -> dict[str, bytes]:
    """nearest.png and .svg: a row for each photo, on the left, with its nearest beside it"""
    rows = []
    for company in companies:
        gone = np.full_like(company.picture, LIGHT)
        row = [Tile(company.picture, f"the photo\n{ending(Path(company.path).name)}")]
        row += [
            Tile(gone if near.picture is None else near.picture, title(near))
            for near in company.neighbours
        ]
        rows.append(row)
    return draw_sheet(rows, caption(companies, searched), "nearest", side=1.15)


def ending(name: str, length: int = 18) -> str:
    """Of a long name the end, where a row of a file stands."""
    return name if len(name) <= length else "…" + name[1 - length :]


def title(near: Neighbour) -> str:
    """Above a picture: what it is and how near, or that it is gone."""
    label = "no label" if near.label is None else clip(near.label, 18)
    return f"{label if near.picture is not None else 'it is gone'}\n{near.similarity:.3f}"


def caption(companies: Sequence[Company], searched: Searched) -> str:
    """What is shown, among how many images, and what it does not show"""
    found = len(companies[0].neighbours)
    fewer = f" ({searched.asked} were asked for)" if found < searched.asked else ""
    tried = searched.images + searched.skipped
    some = f", drawn of {count(searched.of)}" if tried < searched.of else ""
    if searched.skipped:
        some += f" ({count(searched.skipped)} more cannot be read)"
    said = (
        f"{plural(len(companies), 'photo')}, on the left, and beside each the "
        f"{plural(found, 'image')}{fewer} of {searched.data} ({searched.origin}) whose features "
        f"are nearest to its own, among {plural(searched.images, 'image')}{some}: label and "
        "cosine above each, all as the model sees them."
    )
    if searched.by_chance is not None:
        said += f" Two of those images drawn by chance are at {searched.by_chance:.3f} (median)."
    if any(near.similarity >= ITSELF for one in companies for near in one.neighbours):
        said += " At 1.000 it is the photo itself, or one that the model cannot tell from it."
    return said + (
        " Near is alike in what a classifier on this model reads; the figure shows neither why, "
        "nor that the photo is of their class, nor that an answer comes from these images."
    )
