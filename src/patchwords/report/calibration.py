"""The section on calibration."""

from __future__ import annotations

from patchwords.report.blocks import note, section
from patchwords.report.diagrams import reliability_diagram
from patchwords.report.html import Markup, tag
from patchwords.report.run import RunData
from patchwords.report.words import format_percent

NEGLIGIBLE_GAP = 0.02  # a gap between confidence and accuracy that is not worth a word


def render_calibration(run: RunData) -> Markup:
    """Whether the model is as often right as it is sure."""
    results = run.evaluation.get("calibration")
    if not results:
        return section(
            "calibration", "Is it as right as it is sure?", note("There are no held-out results.")
        )
    bins = [b for b in results["bins"] if b["count"]]
    n = sum(b["count"] for b in bins)
    sure = sum(b["confidence"] * b["count"] for b in bins) / n
    right = sum(b["accuracy"] * b["count"] for b in bins) / n
    gap = sure - right
    if abs(gap) < NEGLIGIBLE_GAP:
        verdict = "On the whole its confidence can be taken at its word."
    elif gap > 0:
        verdict = f"It is over-confident by {100 * gap:.0f} points: trust its percentages less."
    else:
        verdict = (
            f"It is too modest by {-100 * gap:.0f} points: it is right more often than it says."
        )
    words = tag(
        "div",
        tag(
            "p",
            f"On average the model is {format_percent(sure)} sure of its answer, and {format_percent(right)} of "
            f"the answers are right. {verdict}",
            class_="lede",
        ),
        tag(
            "p",
            "The images are sorted into bins by how sure the model is. A bar tells how many of a "
            f"bin are right: on the dashed line, {format_percent(0.8, 0)} sure means right 8 times in 10; "
            "a bar below it means over-confidence. A dot stands at the mean confidence of its bin; "
            "pale bars rest on fewer than 10 images and say little.",
        ),
        tag(
            "p",
            tag("b", f"Expected calibration error {format_percent(results['ece'])}"),
            ": the mean distance, over all images, between dot and dashed line. It is somewhat "
            "too high where the images are few, and it says nothing of images unlike these.",
        ),
    )
    figure = tag("figure", reliability_diagram(results["bins"]))
    return section(
        "calibration",
        "Is it as right as it is sure?",
        tag("div", figure, words, class_="side"),
    )
