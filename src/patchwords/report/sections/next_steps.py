"""Next steps section: what the run's own numbers suggest to do, and how to do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from patchwords.report.format import format_count, format_percent, pluralise
from patchwords.report.html import Markup, section, tag
from patchwords.report.run_data import RunData

MIN_RECALL_GAP = 0.1  # below the accuracy: then a class is named
MIN_CLASS_SUPPORT = 5  # held-out images of a class, to judge it by
MAX_NAMED_CLASSES = 3
SURE = 0.9  # probability from which a mistake may be a wrong label
MIN_RISE = 0.01  # of the validation accuracy in the last quarter: then more epochs may help
OVERFIT_RATIO = 2.0  # validation loss / training loss
MAX_INTERVAL = 0.1  # width of the accuracy's interval that is called wide

Step = tuple[str, str]  # what to do, and why


def render_next_steps(run: RunData) -> Markup | None:
    """Render what to do next, most promising first; None for an evaluation of another run."""
    if not run.evaluation or run.evaluation.get("of"):
        return None
    steps = [
        *suggest_weak_classes(run),
        *suggest_label_checks(run),
        *suggest_longer_training(run),
        *suggest_weights(run),
        *suggest_capacity(run),
        *suggest_held_out_images(run),
    ]
    if not steps:
        why = "No number of this run asks for something: try it on photos from elsewhere."
        return section("next", "What to do next", tag("p", why, class_="lede"))
    items = (tag("li", tag("b", f"{what} "), why) for what, why in steps)
    return section("next", "What to do next", tag("ul", *items))


def suggest_weak_classes(run: RunData) -> Iterator[Step]:
    """Suggest photos of the classes that are recognised far less often than the others."""
    results = run.evaluation
    names = [row["class"] for row in results["per_class"]]
    train = run.data.get("splits", {}).get("train", {}).get("per_class") or [0] * len(names)
    weak = [
        (row["recall"], label)
        for label, row in enumerate(results["per_class"])
        if row["support"] >= MIN_CLASS_SUPPORT
        and row["recall"] < results["accuracy"]["value"] - MIN_RECALL_GAP
    ]
    for recall, label in sorted(weak)[:MAX_NAMED_CLASSES]:
        why = f"{format_percent(recall)} of its images are recognised"
        if label < len(train) and train[label]:
            why += f", after {pluralise(train[label], 'training image')}"
        wrong = [0 if other == label else n for other, n in enumerate(results["confusion"][label])]
        if max(wrong):
            why += f"; most of its mistakes are answered “{names[wrong.index(max(wrong))]}”"
        yield f"More photos of “{names[label]}”.", f"{why}."


def suggest_label_checks(run: RunData) -> Iterator[Step]:
    """Suggest to check the labels of mistakes that the model is sure of."""
    sure = [row for row in run.predictions if row.correct is False and row.probability >= SURE]
    if sure:
        first = max(sure, key=lambda row: row.probability)
        yield (
            f"Check {pluralise(len(sure), 'label')}.",
            f"The model is at least {format_percent(SURE, 0)} sure of these mistakes, first of all "
            f"{first.path} (“{first.label}”, answered “{first.prediction}”); patchwords doctor "
            "lists look-alikes in different classes.",
        )


def suggest_longer_training(run: RunData) -> Iterator[Step]:
    """Suggest more epochs where the validation accuracy was still rising."""
    rows = [row for row in run.rows("evaluation") if "accuracy" in row]
    if len(rows) < 4 or run.config.get("early_stop"):
        return
    recent = rows[-max(1, len(rows) // 4) :]
    before = max(row["accuracy"] for row in rows[: -len(recent)])
    rise = max(row["accuracy"] for row in recent) - before
    if rise >= MIN_RISE:
        epochs = format_count(2 * max(1, round(rows[-1]["epoch"])))
        yield (
            "Train longer.",
            f"The validation accuracy still rose by {100 * rise:.1f} points in the last quarter: "
            f"try --epochs {epochs}.",
        )


def suggest_weights(run: RunData) -> Iterator[Step]:
    """Suggest published weights to a run from scratch."""
    if run.config and run.config.get("weights") is None:
        yield (
            "Start from weights.",
            "This run began from random ones. --weights patchwords:cifar10-small comes with the "
            "package; with a network, --weights takes published models by name (docs/weights.md).",
        )


def suggest_capacity(run: RunData) -> Iterator[Step]:
    """Suggest more data or a larger model, by the losses of training and validation."""
    mixed = any(run.config.get(name) for name in ("mixup", "cutmix", "label_smoothing"))
    train, held_out = run.rows("train"), run.rows("evaluation")
    if mixed or not train or not held_out or run.config.get("train", "all") != "all":
        return  # then the two losses are of different things
    learned, judged = mean_recent_loss(train), held_out[-1]["loss"]
    if judged > OVERFIT_RATIO * learned:
        yield (
            "More photos, or stronger augmentation.",
            f"The loss is {learned:.3g} on the training images and {judged:.3g} on validation: "
            "the model has learned these images by heart (--randaugment, --mixup, --cutmix).",
        )
    elif run.evaluation["accuracy"]["value"] < 0.9:
        yield (
            "A larger model, or larger images.",
            f"The loss on the training images, {learned:.3g}, is not far below that on validation, "
            f"{judged:.3g}: there is room to learn more (--model, --image-size, --epochs).",
        )


def mean_recent_loss(rows: list[dict[str, Any]]) -> float:
    """Average the loss over the last tenth of the rows."""
    recent = rows[-max(1, len(rows) // 10) :]
    return float(sum(row["loss"] for row in recent) / len(recent))


def suggest_held_out_images(run: RunData) -> Iterator[Step]:
    """Suggest more held-out images where the accuracy is known roughly only."""
    accuracy = run.evaluation["accuracy"]
    width = accuracy["high"] - accuracy["low"]
    if width > MAX_INTERVAL:
        yield (
            "Judge by more images.",
            f"With {pluralise(run.evaluation['images'], 'held-out image')} the interval is "
            f"{100 * width:.0f} points wide: smaller differences between runs mean nothing.",
        )
