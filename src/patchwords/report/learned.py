"""The section on what the model learned: filters, positions, and where it looks.

It draws what `evaluate.insight` left in the run folder, and computes nothing anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.report.blocks import note, section
from patchwords.report.html import Content, Markup, tag
from patchwords.report.learned_maps import maps, truth
from patchwords.report.mosaic import ACROSS, inlined, mosaic, shown, with_colours
from patchwords.report.reach import reach_chart
from patchwords.report.run import Run
from patchwords.report.words import percent, plural

TITLE = "What it learned"
NAMES = {
    "filters": "Filters",
    "positions": "Position embeddings",
    "attention": "Attention",
    "distance": "How far heads look",
    "maps": "Where it looks",
    "truth": "Whether its maps explain its answers",
}


def learned(run: Run) -> Markup | None:
    """The section; None where nobody has looked."""
    found = run.insight
    if not found:
        return None
    if "error" in found:
        return section("learned", TITLE, note(f"The look at the model failed: {found['error']}."))
    try:
        parts = [part(run) for part in (filters, positions, distance, maps, truth)]
        rest = [
            note(tag("b", f"{NAMES[name]}: "), f"not shown, because {why}.")
            for name, why in found["left_out"].items()
        ]
        lede = tag("p", story(found["beginning"]), class_="lede")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split())
        parts, rest = [], [note(f"What the folder says of it cannot be drawn ({reason}).")]
        lede = Markup("")
    return section("learned", TITLE, lede, *parts, *rest)


def story(beginning: dict[str, Any]) -> str:
    if beginning["there"]:
        return f"The trained model beside its beginning: {beginning['words']}."
    return f"The trained model only, with nothing to compare: it began from {beginning['words']}."


def filters(run: Run) -> Markup | None:
    """Principal components of the first layer's filters, at the beginning and now"""
    found = run.insight.get("filters")
    if not found:
        return None
    figures = []
    for suffix, when in (("_before", "At the beginning"), ("", "Now")):
        components = run.arrays.get(f"filters{suffix}")
        if components is not None:
            held = percent(sum(found[f"explained{suffix}"]), 0)
            caption = f"{when}: these hold {held} of the variance"
            figures.append(picture(tiled(components), f"{when}: principal components", caption))
    moved = found.get("moved")
    change = (
        f"The filters changed by {percent(moved)} of their length. " if moved is not None else ""
    )
    count = len(found["explained"])
    colours = run.arrays["filters"].shape[3]
    grey = "" if colours == 3 else " The mean over the channels, in grey."
    words = (
        f"The first {plural(count, 'principal component')} of the {found['filters']:,} filters of "
        f"the {found['of']}. {change}Mid-grey is 0, each on its own scale; the sign is arbitrary. "
        "They show what the first layer can tell apart, not what the model makes of it; after "
        f"little training they are close to the noise that they began as.{grey}"
    )
    return part_of("filters", figures, words)


def tiled(components: np.ndarray) -> np.ndarray:
    """[n, P, P, C] -> [H, W, 3] of 0..1, NaN between and where a row is not full"""
    tiles = np.stack([shown(component.astype(np.float32)) for component in components])
    across = min(ACROSS, len(tiles))
    lacking = -len(tiles) % across
    rest = np.full((lacking, *tiles.shape[1:]), np.nan)
    return mosaic(np.concatenate([tiles, rest]).reshape(-1, across, *tiles.shape[1:]))


def positions(run: Run) -> Markup | None:
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
                f"{where}: rows explain {percent(share['rows'], 0)} of the variance, columns "
                f"{percent(share['columns'], 0)}, both in sum "
                f"{percent(share['rows_and_columns'], 0)}, nearness {percent(share['distance'], 0)}"
            )
            drawn = with_colours(mosaic(table.astype(np.float32)), low)
            figures.append(picture(drawn, f"{where}: similarity of positions", caption))
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
    return part_of("positions", figures, words)


def distance(run: Run) -> Markup | None:
    """A dot for every head"""
    found = run.insight.get("distance")
    if not found:
        return None
    height, width = run.insight["image_size"]
    words = (
        f"A dot is a head: how far from a patch it looks, averaged over the patches of "
        f"{plural(found['images'], 'held-out image')} of {height}x{width} pixels. The dashed line "
        "is a head that looks everywhere alike. The class token is left out. A large distance says "
        "that a head looks far, not at what, nor that it matters."
    )
    return part_of("distance", [tag("figure", reach_chart(found), class_="reach")], words)


def picture(pixels: np.ndarray, alt: str, caption: Content) -> Markup:
    """[H, W, 3] of 0..1, NaN where the paper is to be seen"""
    return tag("figure", inlined(pixels, alt), tag("figcaption", caption), class_="mosaic")


def part_of(name: str, figures: list[Markup], words: str) -> Markup:
    return tag(
        "div",
        tag("h3", NAMES[name]),
        tag("div", *figures, class_="learned"),
        tag("p", words, class_="small"),
    )
