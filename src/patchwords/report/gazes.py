"""Figures of where a model looks in photos: Figs. 6 and 14 of the paper; PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from patchwords.inspect.attention import QueryPatch
from patchwords.report.sheet import GridTile, draw_image_grid, overlay_map
from patchwords.report.words import pluralise, truncate_name

MAX_HEADS_PER_ROW = 16  # in a row


@dataclass(frozen=True)
class PhotoAttention:
    """A photo as the model sees it, and maps of it."""

    name: str
    picture: np.ndarray  # [H, W, 3] of 0..1
    answer: str | None  # what the model says it is; none without classes
    maps: Mapping[str, np.ndarray]  # [h, w] each


def draw_attention_maps(
    gazes: Sequence[PhotoAttention], prefix: int, query: QueryPatch = None
) -> dict[str, bytes]:
    """maps.png and .svg: a row for each photo; each map, and the photo seen through it"""
    rows = []
    for gaze in gazes:
        answer = f"\n{truncate_name(gaze.answer, 20)}" if gaze.answer else ""
        row = [GridTile(gaze.picture, truncate_name(gaze.name, 20) + answer)]
        for name, numbers in gaze.maps.items():
            row.append(GridTile(numbers, f"{name}\nmost {numbers.max():.2g}"))
            row.append(GridTile(overlay_map(gaze.picture, numbers)))
        rows.append(row)
    caption = (
        f"Where the model looks in {pluralise(len(gazes), 'photo')}, from {describe_query(prefix, query)}: "
        "attention of the last layer (mean of heads); Attention Rollout over all layers; and, "
        "where the model knows classes, rollout weighted by gradients, which asks what speaks for "
        "the class named above the photo. Bright is much; each map has its own scale, and its "
        "largest value above. Attention says where values came from, not that the answer "
        "hangs on them: the deletion and insertion curves measure that."
    )
    return draw_image_grid(rows, caption, "maps", side=1.5)


def draw_head_maps(
    gaze: PhotoAttention,
    attention: np.ndarray,
    layers: Sequence[int],
    heads: Sequence[int],
    prefix: int,
    query: QueryPatch,
) -> dict[str, bytes]:
    """[L, K, h, w] of the chosen layers and heads -> heads.png and .svg"""
    picture = gaze.picture.copy()
    if query is not None:
        picture = frame_query_patch(picture, attention.shape[2:], query)
    rows = []
    for layer, of_layer in zip(layers, attention, strict=True):
        for start in range(0, len(heads), MAX_HEADS_PER_ROW):
            row = [GridTile(picture, truncate_name(gaze.name, 16))]
            row += [
                GridTile(numbers, f"layer {layer} head {head}\nmost {numbers.max():.2g}")
                for head, numbers in list(zip(heads, of_layer, strict=True))[
                    start : start + MAX_HEADS_PER_ROW
                ]
            ]
            rows.append(row)
    caption = (
        f"Attention of single heads in one photo, from {describe_query(prefix, query)}. Bright is much; each "
        "map has its own scale, and its largest value above. A head shows where it takes "
        "values from; what the layers after it make of them is not shown."
    )
    return draw_image_grid(rows, caption, "heads", side=1.25)


def describe_query(prefix: int, query: QueryPatch) -> str:
    """The query in words"""
    if query is not None:
        return f"the patch in row {query[0]}, column {query[1]} (from 0; framed)"
    if prefix:
        return "the class token"
    return "the patches, in the mean over all of them (there is no class token)"


def frame_query_patch(
    picture: np.ndarray, grid: Sequence[int], query: tuple[int, int]
) -> np.ndarray:
    """The patch of the query with a white and a black line around it"""
    (height, width), (rows, columns) = picture.shape[:2], grid
    top, bottom = (height * (query[0] + i) // rows for i in (0, 1))
    left, right = (width * (query[1] + i) // columns for i in (0, 1))
    line = max(1, height // 110)
    inside = picture[top:bottom, left:right].copy()
    for width_left, colour in ((2 * line, 0.0), (line, 1.0)):
        picture[
            max(0, top - width_left) : bottom + width_left,
            max(0, left - width_left) : right + width_left,
        ] = colour
    picture[top:bottom, left:right] = inside
    return picture
