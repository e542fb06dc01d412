"""Insight section: filters, positions, attention distance, attention maps and faithfulness.

It renders what `evaluation.model_insight` wrote into the run folder.
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
from patchwords.report.figures.plots import mean_with_error
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

MAP_LINE_LOOKS = {"rollout": "first", "gradient rollout": "second", "random": "third"}
MAP_LABELS = {"rollout": "rollout", "gradient rollout": "by gradient", "random": "random"}
INSIGHT_TITLE = "What the model learned"
INSIGHT_HEADINGS = {
    "filters": "Filters",
    "positions": "Position embeddings",
    "attention": "Attention",
    "distance": "Attention distance",
    "maps": "Attention maps",
    "truth": "Faithfulness of the maps",
}
VERSIONS = {"_before": "At the start", "": "After training"}  # suffix of a key -> title


def render_attention_maps(run: RunData) -> Markup | None:
    """Render images as the model sees them, alone and through Attention Rollout."""
    maps = run.insight.get("maps")
    if not maps:
        return None
    predictions = {row.path: row for row in run.predictions}
    strips = []
    for path, photo, values in zip(
        maps["paths"], run.arrays["photos"], run.arrays["maps"], strict=True
    ):
        picture = photo.astype(np.float32) / 255  # [H, W, 3]
        images = (
            inline_image(picture, f"{path}: as the model sees it", photo=True),
            inline_image(overlay_map(picture, values), f"{path}: attention map", photo=True),
        )
        caption: list[Content] = [tag("span", path)]
        if row := predictions.get(path):
            wrong = row.correct is False
            detail = f" {format_probability(row.probability)}"
            if wrong:
                detail = f"wrong: is {row.label},{detail}"
            name = tag("b", row.prediction, class_="bad" if wrong else "good")
            caption = [name, tag("small", detail)]
        figure = tag("figure", tag("div", *images), tag("figcaption", *caption), title=path)
        strips.append(tag("div", figure, class_="gaze"))
    query = "the class token" if maps["class_token"] else "all patches, on average"
    lede = (
        f"Attention Rollout over all layers, from {query}: bright is high, each map on its own "
        "scale. Left the image as the model sees it, right the same image through the map; the most "
        "confident right predictions alternate with the most confident mistakes. A map shows where "
        "values came from, not that the answer depends on them."
    )
    return tag(
        "div",
        tag("h3", INSIGHT_HEADINGS["maps"]),
        tag("div", *strips, class_="gazes"),
        tag("p", lede, class_="small"),
    )


def render_faithfulness(run: RunData) -> Markup | None:
    """Render deletion and insertion curves, and each map's difference from random maps."""
    truth = run.insight.get("truth")
    if not truth:
        return None
    images = pluralise(truth["images"], "held-out image")
    charts = []
    for kind, better in (("deletion", "lower is better"), ("insertion", "higher is better")):
        lines = [
            make_faithfulness_series(run.arrays[f"{kind}_{name}"], name) for name in truth["maps"]
        ]
        alt = f"Probability under {kind} of patches: {', '.join(line.name for line in lines)}"
        x_label = f"% of patches {'removed' if kind == 'deletion' else 'added'}"
        chart = line_chart(lines, alt, lambda y: f"{100 * y:.3g}{NO_BREAK_SPACE}%", x_label=x_label)
        charts.append(tag("figure", tag("figcaption", f"{kind.capitalize()}: {better}"), chart))
    verdicts = [
        tag(
            "li",
            tag("b", f"{name.capitalize()}: "),
            format_against_random(areas["beside_random"]),
            ".",
        )
        for name, areas in truth["maps"].items()
        if "beside_random" in areas
    ]
    explanation = (
        "The probability of the model's answer while patches are removed or added, the most "
        f"important by each map first; over {images}, bands are one standard error. Missing patches "
        "are replaced by the mean colour of the image. No model was trained on such images: read "
        "the difference from random maps, not the height."
    )
    return tag(
        "div",
        tag("h3", INSIGHT_HEADINGS["truth"]),
        tag(
            "p",
            "Area under insertion minus deletion, compared with random maps of the same images:",
        ),
        tag("ul", join_markup(*verdicts), class_="notes"),
        tag("div", *charts, class_="charts"),
        tag("p", explanation, class_="small"),
    )


def make_faithfulness_series(values: np.ndarray, name: str) -> ChartSeries:
    """Make a line of the mean of curves [n, S + 1], with one standard error around it."""
    mean, error = mean_with_error(values)
    share = np.linspace(0, 100, len(mean))
    points = [
        ChartPoint(float(x), float(y), float(max(0.0, y - e)), float(min(1.0, y + e)), len(values))
        for x, y, e in zip(share, mean, error, strict=True)
    ]
    return ChartSeries(MAP_LABELS[name], points, MAP_LINE_LOOKS[name])


def render_insight(run: RunData) -> Markup | None:
    """Render the section; None for a run without insight."""
    insight = run.insight
    if not insight:
        return None
    if "error" in insight:
        return section(
            "learned", INSIGHT_TITLE, note(f"The analysis of the model failed: {insight['error']}.")
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
            note(tag("b", f"{INSIGHT_HEADINGS[name]}: "), f"not shown, because {reason}.")
            for name, reason in insight["left_out"].items()
        ]
        lede = tag("p", describe_initial_weights(insight["beginning"]), class_="lede")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split())
        parts, rest = [], [note(f"insight.json or insight.npz is damaged ({reason}).")]
        lede = Markup("")
    return section("learned", INSIGHT_TITLE, lede, *parts, *rest)


def describe_initial_weights(beginning: dict[str, Any]) -> str:
    """Describe which initial weights the trained model is compared with."""
    if beginning["there"]:
        return f"The trained model compared with its initial weights: {beginning['words']}."
    return f"The trained model only, as its initial weights are gone: {beginning['words']}."


def render_filters(run: RunData) -> Markup | None:
    """Render the principal components of the first layer's filters."""
    filters = run.insight.get("filters")
    if not filters:
        return None
    figures = []
    for suffix, version in VERSIONS.items():
        components = run.arrays.get(f"filters{suffix}")
        if components is not None:
            explained = format_percent(sum(filters[f"explained{suffix}"]), 0)
            caption = f"{version}: {explained} of the variance"
            mosaic = make_filter_mosaic(components)
            figures.append(
                render_mosaic_figure(mosaic, f"{version}: principal components", caption)
            )
    moved = filters.get("moved")
    change = ""
    if moved is not None:
        change = f"The filters changed by {format_percent(moved)} of their length. "
    count = len(filters["explained"])
    grey = ""
    if run.arrays["filters"].shape[3] != 3:
        grey = " The mean over the channels, in grey."
    explanation = (
        f"The first {pluralise(count, 'principal component')} of the {filters['filters']:,} filters "
        f"of the {filters['of']}. {change}Mid-grey is 0, each on its own scale; the sign is "
        "arbitrary. They show what the first layer can distinguish, not how the model uses it; "
        f"after little training they are close to their initial noise.{grey}"
    )
    return render_insight_part("filters", figures, explanation)


def make_filter_mosaic(components: np.ndarray) -> np.ndarray:
    """Tile components [n, P, P, C] into [H, W, 3] of 0..1 with NaN in the gaps."""
    tiles = np.stack([component_to_rgb(component.astype(np.float32)) for component in components])
    columns = min(MOSAIC_COLUMNS, len(tiles))
    padding = np.full((-len(tiles) % columns, *tiles.shape[1:]), np.nan)
    return make_mosaic(np.concatenate([tiles, padding]).reshape(-1, columns, *tiles.shape[1:]))


def render_positions(run: RunData) -> Markup | None:
    """Render the similarity of position embeddings."""
    positions = run.insight.get("positions")
    if not positions:
        return None
    tiles_by_suffix = {
        suffix: run.arrays[f"positions{suffix}"]
        for suffix in VERSIONS
        if f"positions{suffix}" in run.arrays
    }
    low = min(0.0, *(float(np.nanmin(tiles)) for tiles in tiles_by_suffix.values()))
    figures = []
    for suffix, tiles in tiles_by_suffix.items():
        for table, layer, share in zip(
            tiles, positions["layers"], positions[f"explained{suffix}"], strict=True
        ):
            title = VERSIONS[suffix] + (f", layer {layer}" if len(tiles) > 1 else "")
            caption = (
                f"{title}: rows explain {format_percent(share['rows'], 0)} of the variance, columns "
                f"{format_percent(share['columns'], 0)}, their sum "
                f"{format_percent(share['rows_and_columns'], 0)}, distance "
                f"{format_percent(share['distance'], 0)}"
            )
            mosaic = apply_colour_map(make_mosaic(table.astype(np.float32)), low)
            figures.append(render_mosaic_figure(mosaic, f"{title}: position similarity", caption))
    h, w = positions["grid"]
    omitted = "" if tiles_by_suffix[""].shape[1:3] == (h, w) else " Not every patch has a tile."
    content = (
        "cosine similarity of the embedding of the offset to every other patch with that of the "
        "offset 0"
        if positions["offsets"]
        else "cosine similarity of the position embedding of one patch with that of every other"
    )
    fixed = "" if positions["learned"] else " They are fixed by a formula, not learned."
    explanation = (
        f"Each tile: {content}, on the grid of {h} by {w} patches; dark is {low:.2f}, bright is 1."
        f"{omitted}{fixed} No image is involved: the figure shows what positions tell the model, "
        "not how it uses them."
    )
    return render_insight_part("positions", figures, explanation)


def render_attention_distance(run: RunData) -> Markup | None:
    """Render the mean attention distance, a dot for every head."""
    distance = run.insight.get("distance")
    if not distance:
        return None
    height, width = run.insight["image_size"]
    explanation = (
        "A dot is one head: how far from a patch it looks, averaged over the patches of "
        f"{pluralise(distance['images'], 'held-out image')} of {height}x{width} pixels. The dashed "
        "line is uniform attention. The class token is left out. A large distance shows that a head "
        "looks far, not at what, or that it matters."
    )
    figure = tag("figure", head_distance_chart(distance), class_="reach")
    return render_insight_part("distance", [figure], explanation)


def render_mosaic_figure(pixels: np.ndarray, alt: str, caption: Content) -> Markup:
    """Render a mosaic [H, W, 3] of 0..1; NaN is transparent."""
    return tag("figure", inline_image(pixels, alt), tag("figcaption", caption), class_="mosaic")


def render_insight_part(name: str, figures: list[Markup], explanation: str) -> Markup:
    """Render figures under their heading, with an explanation below."""
    return tag(
        "div",
        tag("h3", INSIGHT_HEADINGS[name]),
        tag("div", *figures, class_="learned"),
        tag("p", explanation, class_="small"),
    )
