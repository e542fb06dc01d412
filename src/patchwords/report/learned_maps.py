"""Where a trained model looks in a few held-out images, and whether that explains its answers."""

from __future__ import annotations

import numpy as np

from patchwords.report.charts import ChartPoint, ChartSeries, line_chart
from patchwords.report.html import Content, Markup, join_markup, tag
from patchwords.report.mosaic import inline_image
from patchwords.report.run import RunData
from patchwords.report.sheet import overlay_map
from patchwords.report.words import (
    NO_BREAK_SPACE,
    format_against_random,
    format_probability,
    pluralise,
)

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
