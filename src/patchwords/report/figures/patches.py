"""Figures of patch tokens: their principal components as colours, and similarity to one patch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from patchwords.interpret.patch_features import PatchComponents
from patchwords.report.figures.maps import (
    GridTile,
    draw_image_grid,
    frame_query_patch,
)
from patchwords.report.figures.mosaic import apply_colour_map
from patchwords.report.figures.plots import FigureFiles
from patchwords.report.format import pluralise, truncate_name

BACKGROUND_GREY = 0.25
PHOTOS_PER_ROW = 8


def draw_patch_components(
    names: Sequence[str], pictures: Sequence[np.ndarray], components: PatchComponents
) -> FigureFiles:
    """Draw photos, and their patches coloured by components: patches.png and patches.svg."""
    colours = np.where(np.isnan(components.colours), BACKGROUND_GREY, components.colours)
    photos = [
        GridTile(picture, truncate_name(name, 16))
        for name, picture in zip(names, pictures, strict=True)
    ]
    coloured = [
        GridTile(picture, f"foreground {share:.0%}")
        for picture, share in zip(colours, components.foreground.mean((1, 2)), strict=True)
    ]
    caption = (
        f"Patch tokens of {pluralise(len(names), 'photo')} after the last layer, without class and "
        "register tokens. The first principal component over all patches "
        f"({components.first_share:.0%} of their variance) separates them: grey is the side that "
        "touches the border of the photos more. The other side has the colours of its own first "
        f"three components ({format_shares(components.colour_shares)} of its variance). Equal "
        "colours are similar tokens, within a photo and across photos. No label and no mask was "
        "involved: the grey need not be what a person calls background, tokens also hold their "
        "position, and the figure does not show what an answer depends on."
    )
    return draw_image_grid(interleave_rows(photos, coloured), caption, "patches", side=1.2)


def draw_patch_similarity(
    names: Sequence[str],
    pictures: Sequence[np.ndarray],
    similarity: np.ndarray,
    marked: Sequence[tuple[int, int]],
    by_chance: float | None,
) -> FigureFiles:
    """Draw the similarity [n, h, w] of a patch of the first photo: similar.png and similar.svg.

    `marked` is the patch that is framed in each photo: the query, then the most similar ones.
    """
    low = float(similarity.min())
    photos, maps = [], []
    for index, (name, picture, patch) in enumerate(zip(names, pictures, marked, strict=True)):
        framed = frame_query_patch(picture.copy(), similarity.shape[1:], patch)
        title = "the patch" if index == 0 else f"nearest {similarity[index][patch]:.2f}"
        photos.append(GridTile(framed, f"{truncate_name(name, 16)}\n{title}"))
        maps.append(GridTile(apply_colour_map(similarity[index], low), ""))
    chance = (
        ""
        if by_chance is None
        else f" Two random patches of different photos have {by_chance:.2f} (median)."
    )
    caption = (
        "Cosine similarity of one patch token of the first photo (framed) to every patch of "
        f"{pluralise(len(names), 'photo')}, after the last layer; bright is similar, on one scale "
        f"from {low:.2f} to 1. In the other photos the most similar patch is framed.{chance} Similar "
        "tokens have a similar meaning for the model, which may be colour or place as well as the "
        "thing itself; the figure does not show that they get the same answer."
    )
    return draw_image_grid(interleave_rows(photos, maps), caption, "similar", side=1.2)


def interleave_rows(
    above: Sequence[GridTile], below: Sequence[GridTile]
) -> list[Sequence[GridTile]]:
    """Lay two lists of tiles in rows, one below the other, a few columns at a time."""
    tiles, others = iter(above), iter(below)
    rows: list[Sequence[GridTile]] = []
    while row := list(islice(tiles, PHOTOS_PER_ROW)):
        rows += [row, list(islice(others, PHOTOS_PER_ROW))]
    return rows


def format_shares(shares: Sequence[float]) -> str:
    """Format shares of the variance: 31 %, 12 % and 8 %."""
    *most, last = [f"{share:.0%}" for share in shares]
    return f"{', '.join(most)} and {last}" if most else last
