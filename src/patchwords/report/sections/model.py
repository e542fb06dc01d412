"""The section on what the model learned: filters, positions, and where it looks.

It draws what `evaluate.insight` left in the run folder, and computes nothing anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.report.figures.maps import overlay_map
from patchwords.report.figures.mosaic import (
    MOSAIC_COLUMNS,
    apply_colour_map,
    component_to_rgb,
    inline_image,
    make_mosaic,
)
from patchwords.report.figures.svg import ChartPoint, ChartSeries, head_distance_chart, line_chart
from patchwords.report.format import (
    NO_BREAK_SPACE,
    format_against_random,
    format_percent,
    format_probability,
    pluralise,
)
from patchwords.report.html import Content, Markup, join_markup, note, section, tag
from patchwords.report.run_data import RunData

# Where a trained model looks in a few held-out images, and whether that explains its answers.


MAP_LINE_LOOKS = {"rollout": "first", "gradient rollout": "second", "random": "third"}
MAP_LABELS = {"rollout": "rollout", "gradient rollout": "by gradient", "random": "random"}


def render_attention_maps(run: RunData) -> Markup | None:
    """Images as the model sees them, and the same through Attention Rollout"""
    found = run.insight.get("maps")
    if not found:
        return None
    answers = {row.path: row for row in run.predictions}
    strips = []
    for path, photo, numbers in zip(
        found["paths"], run.arrays["photos"], run.arrays["maps"], strict=True
    ):
        picture = photo.astype(np.float32) / 255  # [H, W, 3]
        images = (
            inline_image(picture, f"{path}: as the model sees it", photo=True),
            inline_image(overlay_map(picture, numbers), f"{path}: where it looks", photo=True),
        )
        words: list[Content] = [tag("span", path)]
        if row := answers.get(path):
            sure = f" {format_probability(row.probability)}"
            words = [tag("b", row.prediction, class_="bad" if row.correct is False else "good")]
            words.append(
                tag("small", f"wrong: is {row.label},{sure}" if row.correct is False else sure)
            )
        figure = tag("figure", tag("div", *images), tag("figcaption", *words), title=path)
        strips.append(tag("div", figure, class_="gaze"))
    of = "the class token" if found["class_token"] else "all patches in the mean"
    lede = (
        f"Attention Rollout over all layers, from {of}: bright is much, each map on its own scale. "
        "The image as the model sees it, and beside it the same through the map; by turns the "
        "surest right answers and the surest mistakes. A map shows where values came from, not "
        "that the answer hangs on them."
    )
    return tag(
        "div",
        tag("h3", "Where it looks"),
        tag("div", *strips, class_="gazes"),
        tag("p", lede, class_="small"),
    )


def render_faithfulness(run: RunData) -> Markup | None:
    """Deletion and insertion curves, and what they say of each kind of map"""
    found = run.insight.get("truth")
    if not found:
        return None
    images = pluralise(found["images"], "held-out image")
    charts = []
    for kind, better in (("deletion", "lower is truer"), ("insertion", "higher is truer")):
        lines = [
            make_faithfulness_series(run.arrays[f"{kind}_{name}"], name) for name in found["maps"]
        ]
        alt = f"Probability under {kind} of patches: {', '.join(each.name for each in lines)}"
        over = "% of patches taken away" if kind == "deletion" else "% of patches put in"
        chart = line_chart(lines, alt, lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", over=over)
        charts.append(tag("figure", tag("figcaption", f"{kind.capitalize()}: {better}"), chart))
    verdicts = [
        tag(
            "li",
            tag("b", f"{name.capitalize()}: "),
            format_against_random(areas["beside_random"]),
            ".",
        )
        for name, areas in found["maps"].items()
        if "beside_random" in areas
    ]
    words = (
        f"The probability of the model's answer while patches are taken away or put in, the most "
        f"important ones by each map first; over {images}, bands are one standard error. The mean "
        "colour of the image stands where a patch is missing. No model was trained on such images: "
        "read the difference from random maps, not the height."
    )
    return tag(
        "div",
        tag("h3", "Whether its maps explain its answers"),
        tag("p", "Area under insertion less deletion, beside random maps of the same images:"),
        tag("ul", join_markup(*verdicts), class_="notes"),
        tag("div", *charts, class_="charts"),
        tag("p", words, class_="small"),
    )


def make_faithfulness_series(values: np.ndarray, name: str) -> ChartSeries:
    """[n, S + 1] -> the mean, and one standard error around it"""
    n = len(values)
    mean = values.mean(axis=0, dtype=np.float64)
    wide = values.std(axis=0, ddof=1, dtype=np.float64) / n**0.5 if n > 1 else np.zeros(len(mean))
    share = np.linspace(0, 100, len(mean))
    points = [
        ChartPoint(float(x), float(y), float(max(0.0, y - w)), float(min(1.0, y + w)), n)
        for x, y, w in zip(share, mean, wide, strict=True)
    ]
    return ChartSeries(MAP_LABELS[name], points, MAP_LINE_LOOKS[name])


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
