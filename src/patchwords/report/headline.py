"""The top of the page: accuracy with its interval, on what, and compared with what."""

from __future__ import annotations

from typing import Any

from patchwords.duration import duration
from patchwords.report.blocks import note
from patchwords.report.diagrams import interval
from patchwords.report.html import Markup, tag
from patchwords.report.learning import utilisation
from patchwords.report.run import Run
from patchwords.report.words import TO, big, count, percent, plural


def headline(run: Run) -> Markup:
    """Accuracy with its interval, what it was measured on, and what to compare it with."""
    results = run.evaluation
    if not results:
        return tag(
            "section",
            tag("p", "No held-out results yet", class_="eyebrow"),
            tag("p", "There is no evaluation.json in this run, so no accuracy can be stated."),
            facts(run),
            class_="hero",
            id="results",
        )
    accuracy, n = results["accuracy"], results["images"]
    right = sum(row[i] for i, row in enumerate(results["confusion"]))
    commonest = max(results["per_class"], key=lambda row: row["support"])["class"]
    split = results.get("split", "held-out")
    number, unit = percent(accuracy["value"]).split()
    score = tag(
        "div",
        tag("p", f"Accuracy on the {split} images", class_="eyebrow"),
        tag("p", number, tag("span", f" {unit}"), class_="score"),
        tag("p", f"95 % interval {percent(accuracy['low'])} to {percent(accuracy['high'])}"),
    )
    story = tag(
        "div",
        interval(accuracy["value"], accuracy["low"], accuracy["high"], results["baseline"]),
        tag(
            "p",
            tag("b", f"{count(right)} of {plural(n, 'image')} right, {count(n - right)} wrong. "),
            f"Always answering “{commonest}”, the commonest class, would be right for "
            f"{percent(results['baseline'])}.",
        ),
        which_split(split, bool(results.get("selected")), results.get("trained_on", False)),
        warning(accuracy["low"], results["baseline"]),
    )
    return tag(
        "section", tag("div", score, story, class_="top"), facts(run), class_="hero", id="results"
    )


def which_split(split: str, selected: bool, trained_on: bool | None) -> Markup:
    """Whether the images of the headline had a say in the model that they judge."""
    if trained_on:
        return note(
            "The model was trained on some of these images, so this accuracy says little of how it "
            "does on others.",
            look="note warn",
        )
    if trained_on is None:
        return note(
            "What the model was trained on is not recorded: if any of these images were among it, "
            "this accuracy is too high.",
            look="note warn",
        )
    if selected:
        return note(
            f"The {split} images also chose the stopping step, so this accuracy is somewhat "
            "too high: measure it again on images that chose nothing.",
            look="note warn",
        )
    return note(
        f"The {split} images took no part in the training, nor in choosing when to stop it."
    )


def warning(low: float, baseline: float) -> Markup | None:
    if low > baseline:
        return None
    return note(
        "The interval reaches down to the baseline: on these images, the model cannot be told "
        "apart from one that always gives the commonest class.",
        look="note warn",
    )


def with_interval(numbers: dict[str, Any], name: str) -> str | None:
    """A share and its 95 % interval, which an evaluation of an older version lacks."""
    if numbers.get(name) is None:
        return None
    value, low, high = (numbers.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if low is None or high is None:
        return percent(value)
    return f"{percent(value)} ({100 * low:.1f}{TO}{100 * high:.1f})"


def facts(run: Run) -> Markup:
    """The few numbers that everybody looks for first."""
    results, environment = run.evaluation or run.masked, run.environment
    device, size = environment.get("device") or {}, results.get("image_size")
    train = run.rows("train")
    seconds = next((row["seconds"] for row in reversed(train) if "seconds" in row), 0)
    memory = max((row.get("memory") or 0 for row in train), default=0)
    used = utilisation(train)
    pairs: list[tuple[str, str | None]] = [
        ("Model", results.get("model") or run.config.get("model")),
        ("Parameters", big(results["parameters"]) if results.get("parameters") else None),
        ("Cost per image", f"{big(results['macs'])}MACs" if results.get("macs") else None),
        ("Image size", f"{size[0]} x {size[1]} px" if size else None),
        ("Images judged", count(results["images"]) if results else None),
        (
            "Balanced accuracy",
            percent(run.evaluation["balanced_accuracy"]) if run.evaluation else None,
        ),
        ("Top-5 accuracy", with_interval(results, "top5")),
        ("Accuracy by several labels", with_interval(results.get("real", {}), "accuracy")),
        ("Loss", f"{results['loss']:.3f}" if results else None),
        ("Training time", duration(seconds) if seconds else None),
        ("Share of peak speed", percent(used, 0) if used else None),
        ("Peak memory", f"{big(memory)}B" if memory else None),
        ("Computed on", device.get("name")),
    ]
    return tag(
        "dl",
        *(tag("div", tag("dt", key), tag("dd", value)) for key, value in pairs if value),
        class_="facts",
    )
