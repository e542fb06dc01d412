"""Headline section: accuracy with its interval, the baseline, and key facts."""

from __future__ import annotations

from typing import Any

from patchwords.files import format_duration
from patchwords.report.figures.svg import interval_diagram
from patchwords.report.format import (
    RANGE_DASH,
    format_compact,
    format_count,
    format_percent,
    pluralise,
)
from patchwords.report.html import Markup, note, tag
from patchwords.report.run_data import RunData
from patchwords.report.sections.training import median_utilisation
from patchwords.training.recipes.published import list_published_results


def render_headline(run: RunData) -> Markup:
    """Render accuracy with its interval, the images it was measured on, and the baseline."""
    results = run.evaluation
    if not results:
        return tag(
            "section",
            tag("p", "No held-out results yet", class_="eyebrow"),
            tag("p", "There is no evaluation.json in this run, so no accuracy can be stated."),
            render_key_facts(run),
            class_="hero",
            id="results",
        )
    accuracy, n = results["accuracy"], results["images"]
    right = sum(row[i] for i, row in enumerate(results["confusion"]))
    majority = max(results["per_class"], key=lambda row: row["support"])["class"]
    split = results.get("split", "held-out")
    number, unit = format_percent(accuracy["value"]).split()
    score = tag(
        "div",
        tag("p", f"Accuracy on the {split} images", class_="eyebrow"),
        tag("p", number, tag("span", f" {unit}"), class_="score"),
        tag(
            "p",
            f"95 % interval {format_percent(accuracy['low'])} to {format_percent(accuracy['high'])}",
        ),
    )
    story = tag(
        "div",
        interval_diagram(accuracy["value"], accuracy["low"], accuracy["high"], results["baseline"]),
        tag(
            "p",
            tag(
                "b",
                f"{format_count(right)} of {pluralise(n, 'image')} right, {format_count(n - right)} wrong. ",
            ),
            f"Always answering “{majority}”, the most frequent class, would be right for "
            f"{format_percent(results['baseline'])}.",
        ),
        render_split_note(split, bool(results.get("selected")), results.get("trained_on", False)),
        render_baseline_warning(accuracy["low"], results["baseline"]),
        render_published_results(run),
    )
    return tag(
        "section",
        tag("div", score, story, class_="top"),
        render_key_facts(run),
        class_="hero",
        id="results",
    )


def render_split_note(split: str, selected: bool, trained_on: bool | None) -> Markup:
    """Render whether the headline's images influenced the model."""
    if trained_on:
        return note(
            "The model was trained on some of these images, so this accuracy says little about "
            "other images.",
            look="note warn",
        )
    if trained_on is None:
        return note(
            "The model's training images are not recorded: if these images were among them, this "
            "accuracy is too high.",
            look="note warn",
        )
    if selected:
        return note(
            f"The {split} images also chose the stopping step, so this accuracy is slightly too "
            "high: measure it again on images that were not used to choose anything.",
            look="note warn",
        )
    return note(f"The {split} images were not used for training or for choosing when to stop.")


def render_baseline_warning(low: float, baseline: float) -> Markup | None:
    if low > baseline:
        return None
    return note(
        "The interval includes the baseline: on these images the model is not measurably better "
        "than always answering the most frequent class.",
        look="note warn",
    )


def render_published_results(run: RunData) -> Markup | None:
    """Render what is published of the run's recipe with its model."""
    recipe, model = run.config.get("recipe"), run.evaluation.get("model")
    if not isinstance(recipe, str) or not isinstance(model, str):
        return None
    results = list_published_results(recipe, model)
    if not results:
        return None
    return note(
        f"Published with the recipe {recipe}: {'; '.join(map(str, results))}. Compare only with "
        "the same data, weights and image size."
    )


def format_share_with_interval(numbers: dict[str, Any], name: str) -> str | None:
    """Format a share with its 95 % interval, which evaluations of older versions lack."""
    if numbers.get(name) is None:
        return None
    value, low, high = (numbers.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if low is None or high is None:
        return format_percent(value)
    return f"{format_percent(value)} ({100 * low:.1f}{RANGE_DASH}{100 * high:.1f})"


def render_key_facts(run: RunData) -> Markup:
    """Render the key facts: model, cost, size, time and device."""
    results, environment = run.results, run.environment
    device, size = environment.get("device") or {}, results.get("image_size")
    train = run.rows("train")
    seconds = next((row["seconds"] for row in reversed(train) if "seconds" in row), 0)
    memory = max((row.get("memory") or 0 for row in train), default=0)
    used = median_utilisation(train)
    pairs: list[tuple[str, str | None]] = [
        ("Model", results.get("model") or run.config.get("model")),
        (
            "Parameters",
            format_compact(results["parameters"]) if results.get("parameters") else None,
        ),
        (
            "Cost per image",
            f"{format_compact(results['macs'])}MACs" if results.get("macs") else None,
        ),
        ("Image size", f"{size[0]} x {size[1]} px" if size else None),
        ("Images evaluated", format_count(results["images"]) if results else None),
        (
            "Balanced accuracy",
            format_percent(run.evaluation["balanced_accuracy"]) if run.evaluation else None,
        ),
        ("Top-5 accuracy", format_share_with_interval(results, "top5")),
        (
            "Accuracy with several labels",
            format_share_with_interval(results.get("real", {}), "accuracy"),
        ),
        ("Loss", f"{results['loss']:.3f}" if results else None),
        ("Training time", format_duration(seconds) if seconds else None),
        ("Share of peak speed", format_percent(used, 0) if used else None),
        ("Peak memory", f"{format_compact(memory)}B" if memory else None),
        ("Computed on", device.get("name")),
    ]
    return tag(
        "dl",
        *(tag("div", tag("dt", key), tag("dd", value)) for key, value in pairs if value),
        class_="facts",
    )
