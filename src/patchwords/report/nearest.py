"""Figure of photos and the training images that are nearest to them; PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from patchwords.report.sheet import GridTile, draw_image_grid
from patchwords.report.words import format_count, pluralise, truncate_name

MISSING_IMAGE_GREY = 0.85  # the grey in place of a picture that is gone
IDENTICAL_COSINE = 0.9995  # a cosine that is written as 1.000


@dataclass(frozen=True)
class NearestImage:
    """A training image, as the model sees it."""

    path: str
    picture: np.ndarray | None  # [H, W, 3] of 0..1; None: it can no longer be read
    label: str | None
    similarity: float


@dataclass(frozen=True)
class PhotoNeighbours:
    """A photo, and its nearest, the nearest first."""

    path: str
    picture: np.ndarray  # [H, W, 3] of 0..1
    neighbours: Sequence[NearestImage]


@dataclass(frozen=True)
class SearchSummary:
    """What was looked through, for the caption."""

    data: str
    origin: str  # which of its images, in words
    images: int
    skipped: int  # that cannot be read
    of: int  # images there are; of many some were drawn
    asked: int  # neighbours asked for
    by_chance: float | None  # the median cosine of two of these images


def draw_nearest_images(
    companies: Sequence[PhotoNeighbours], searched: SearchSummary
) -> dict[str, bytes]:
    """nearest.png and .svg: a row for each photo, on the left, with its nearest beside it"""
    rows = []
    for company in companies:
        gone = np.full_like(company.picture, MISSING_IMAGE_GREY)
        row = [GridTile(company.picture, f"the photo\n{truncate_start(Path(company.path).name)}")]
        row += [
            GridTile(gone if near.picture is None else near.picture, format_neighbour_title(near))
            for near in company.neighbours
        ]
        rows.append(row)
    return draw_image_grid(rows, format_nearest_caption(companies, searched), "nearest", side=1.15)


def truncate_start(name: str, length: int = 18) -> str:
    """Of a long name the end, where a row of a file stands."""
    return name if len(name) <= length else "…" + name[1 - length :]


def format_neighbour_title(near: NearestImage) -> str:
    """Above a picture: what it is and how near, or that it is gone."""
    label = "no label" if near.label is None else truncate_name(near.label, 18)
    return f"{label if near.picture is not None else 'it is gone'}\n{near.similarity:.3f}"


def format_nearest_caption(companies: Sequence[PhotoNeighbours], searched: SearchSummary) -> str:
    """What is shown, among how many images, and what it does not show"""
    found = len(companies[0].neighbours)
    fewer = f" ({searched.asked} were asked for)" if found < searched.asked else ""
    tried = searched.images + searched.skipped
    some = f", drawn of {format_count(searched.of)}" if tried < searched.of else ""
    if searched.skipped:
        some += f" ({format_count(searched.skipped)} more cannot be read)"
    said = (
        f"{pluralise(len(companies), 'photo')}, on the left, and beside each the "
        f"{pluralise(found, 'image')}{fewer} of {searched.data} ({searched.origin}) whose features "
        f"are nearest to its own, among {pluralise(searched.images, 'image')}{some}: label and "
        "cosine above each, all as the model sees them."
    )
    if searched.by_chance is not None:
        said += f" Two of those images drawn by chance are at {searched.by_chance:.3f} (median)."
    if any(near.similarity >= IDENTICAL_COSINE for one in companies for near in one.neighbours):
        said += " At 1.000 it is the photo itself, or one that the model cannot tell from it."
    return said + (
        " Near is alike in what a classifier on this model reads; the figure shows neither why, "
        "nor that the photo is of their class, nor that an answer comes from these images."
    )
