"""The section on what the model learned: filters, positions, and where it looks.

It draws what `evaluate.insight` left in the run folder, and computes nothing anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.report.blocks import note, section
from patchwords.report.html import Content, Markup, tag
from patchwords.report.learned_maps import render_attention_maps, render_faithfulness
from patchwords.report.mosaic import (
    MOSAIC_COLUMNS,
    apply_colour_map,
    component_to_rgb,
    inline_image,
    make_mosaic,
)
from patchwords.report.reach import head_distance_chart
from patchwords.report.run import RunData
from patchwords.report.words import format_percent, pluralise

INSIGHT_TITLE = "What it learned"
INSIGHT_HEADINGS = {
    "filters": "Filters",
    "positions": "Position embeddings",
    "attention": "Attention",
    "distance": "How far heads look",
    "maps": "Where it looks",
    "truth": "Whether its maps explain its answers",
}


def render_insight(run: RunData) -> Markup | None:
    """The section; None where nobody has looked."""
    found = run.insight
    if not found:
        return None
    if "error" in found:
        return section(
            "learned", INSIGHT_TITLE, note(f"The look at the model failed: {found['error']}.")
        )
    try:
        parts = [
            part(run)
            for part in (
                render_filters,
                render_positions,
                render_attention_distance,
                render_attention_maps,
                render_faithfulness,
            )
        ]
        rest = [
            note(tag("b", f"{INSIGHT_HEADINGS[name]}: "), f"not shown, because {why}.")
            for name, why in found["left_out"].items()
        ]
        lede = tag("p", describe_initial_weights(found["beginning"]), class_="lede")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split())
        parts, rest = [], [note(f"What the folder says of it cannot be drawn ({reason}).")]
        lede = Markup("")
    return section("learned", INSIGHT_TITLE, lede, *parts, *rest)


def describe_initial_weights(beginning: dict[str, Any]) -> str:
    if beginning["there"]:
        return f"The trained model beside its beginning: {beginning['words']}."
    return f"The trained model only, with nothing to compare: it began from {beginning['words']}."


def render_filters(run: RunData) -> Markup | None:
    """Principal components of the first layer's filters, at the beginning and now"""
    found = run.insight.get("filters")
    if not found:
        return None
    figures = []
    for suffix, when in (("_before", "At the beginning"), ("", "Now")):
        components = run.arrays.get(f"filters{suffix}")
        if components is not None:
            held = format_percent(sum(found[f"explained{suffix}"]), 0)
            caption = f"{when}: these hold {held} of the variance"
            figures.append(
                render_mosaic_figure(
                    make_filter_mosaic(components), f"{when}: principal components", caption
                )
            )
    moved = found.get("moved")
    change = (
        f"The filters changed by {format_percent(moved)} of their length. "
        if moved is not None
        else ""
    )
    count = len(found["explained"])
    colours = run.arrays["filters"].shape[3]
    grey = "" if colours == 3 else " The mean over the channels, in grey."
    words = (
        f"The first {pluralise(count, 'principal component')} of the {found['filters']:,} filters of "
        f"the {found['of']}. {change}Mid-grey is 0, each on its own scale; the sign is arbitrary. "
        "They show what the first layer can tell apart, not what the model makes of it; after "
        f"little training they are close to the noise that they began as.{grey}"
    )
    return render_insight_part("filters", figures, words)


def make_filter_mosaic(components: np.ndarray) -> np.ndarray:
    """[n, P, P, C] -> [H, W, 3] of 0..1, NaN between and where a row is not full"""
    tiles = np.stack([component_to_rgb(component.astype(np.float32)) for component in components])
    across = min(MOSAIC_COLUMNS, len(tiles))
    lacking = -len(tiles) % across
    rest = np.full((lacking, *tiles.shape[1:]), np.nan)
    return make_mosaic(np.concatenate([tiles, rest]).reshape(-1, across, *tiles.shape[1:]))


def render_positions(run: RunData) -> Markup | None:
    """Similarities of the position embeddings, at the beginning and now"""
    found = run.insight.get("positions")
    if not found:
        return None
    tables = [run.arrays[f"positions{suffix}"] for suffix in ("_before", "")
              if f"positions{suffix}" in run.arrays]  # fmt: skip
    low = min(0.0, *(float(np.nanmin(table)) for table in tables))
    figures = []
    for suffix, when in (("_before", "At the beginning"), ("", "Now")):
        tiles = run.arrays.get(f"positions{suffix}")
        if tiles is None:
            continue
        for table, layer, share in zip(
            tiles, found["layers"], found[f"explained{suffix}"], strict=True
        ):
            where = f"{when}, layer {layer}" if len(tiles) > 1 else when
            caption = (
                f"{where}: rows explain {format_percent(share['rows'], 0)} of the variance, columns "
                f"{format_percent(share['columns'], 0)}, both in sum "
                f"{format_percent(share['rows_and_columns'], 0)}, nearness {format_percent(share['distance'], 0)}"
            )
            drawn = apply_colour_map(make_mosaic(table.astype(np.float32)), low)
            figures.append(
                render_mosaic_figure(drawn, f"{where}: similarity of positions", caption)
            )
    h, w = found["grid"]
    every = "" if tables[-1].shape[1:3] == (h, w) else " Not every patch has a tile."
    what = (
        "how alike the embedding of the offset to every other patch is to that of the offset 0"
        if found["offsets"]
        else "the cosine similarity of the position embedding of one patch to that of every other"
    )
    fixed = "" if found["learned"] else " These are fixed by a formula, and are not learned."
    words = (
        f"Each tile: {what}, on the grid of {h} by {w} patches; dark is {low:.2f}, bright is 1."
        f"{every}{fixed} No image takes part: it shows what positions tell the model, not what it "
        "does with them."
    )
    return render_insight_part("positions", figures, words)


def render_attention_distance(run: RunData) -> Markup | None:
    """A dot for every head"""
    found = run.insight.get("distance")
    if not found:
        return None
    height, width = run.insight["image_size"]
    words = (
        f"A dot is a head: how far from a patch it looks, averaged over the patches of "
        f"{pluralise(found['images'], 'held-out image')} of {height}x{width} pixels. The dashed line "
        "is a head that looks everywhere alike. The class token is left out. A large distance says "
        "that a head looks far, not at what, nor that it matters."
    )
    return render_insight_part(
        "distance", [tag("figure", head_distance_chart(found), class_="reach")], words
    )


def render_mosaic_figure(pixels: np.ndarray, alt: str, caption: Content) -> Markup:
    """[H, W, 3] of 0..1, NaN where the paper is to be seen"""
    return tag("figure", inline_image(pixels, alt), tag("figcaption", caption), class_="mosaic")


def render_insight_part(name: str, figures: list[Markup], words: str) -> Markup:
    return tag(
        "div",
        tag("h3", INSIGHT_HEADINGS[name]),
        tag("div", *figures, class_="learned"),
        tag("p", words, class_="small"),
    )
