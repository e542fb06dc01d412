"""`patchwords evaluate MODEL DATA`: how good a trained model is on images it has not seen."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.cli.options import DataOptions, InferenceOptions

if TYPE_CHECKING:
    from rich.table import Table

    from patchwords.evaluation.held_out import HeldOutSelection


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure a trained model: accuracy with its interval, and the results of each class.

    A segmentation model is measured on a folder of images/ and masks/: mIoU with its interval.

    The labels of DATA are matched to the model's classes by name. Images that the run was trained
    on are left out, unless --split says otherwise: `held-out` is the test split and all images that
    the run never saw.

    Example: patchwords evaluate runs/photos photos/ --output runs/photos-again
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """run folder or model folder"""
    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """labelled images: a folder, CSV, parquet, tar shards, hf:NAME or digits; for a segmentation
    model a folder with images/ and masks/"""
    split: Literal["held-out", "test", "validation", "train", "all"] = "held-out"
    """which images to evaluate on, by the run's record of what it trained on"""
    output: Path | None = None
    """new folder for report.html, evaluation.json and predictions.csv; default: print only"""
    overwrite: bool = False
    """overwrite the files in --output"""
    real: Path | None = None
    """also evaluate with several correct classes per image: ImageNet-ReaL's real.json, or your own
    JSON object {"image.jpg": ["class", ...]}; default: no"""
    json: bool = False
    """print the results as JSON"""
    read: DataOptions = field(default_factory=DataOptions)
    where: InferenceOptions = field(default_factory=InferenceOptions)


def run_evaluate(config: EvaluateCommand) -> int:
    from patchwords.api.runs import evaluate

    evaluation = evaluate(
        config.model,
        config.data,
        split=config.split,
        real=config.real,
        output=config.output,
        overwrite=config.overwrite,
        **vars(config.read),
        **vars(config.where),
    )
    if config.json:
        print(jsonlib.dumps(evaluation.to_dict()))
    elif "miou" in evaluation:
        print_mask_evaluation(evaluation.to_dict(), evaluation.selection, evaluation.report)
    else:
        print_evaluation(evaluation.to_dict(), evaluation.selection, evaluation.report)
    return 0


def print_mask_evaluation(
    evaluation: dict[str, Any], selection: HeldOutSelection, page: Path | None
) -> None:
    """Print the results of a segmentation model: IoU of each class, mIoU with its interval."""
    from rich.table import Table

    from patchwords.cli.format import make_console
    from patchwords.errors import escape_control_characters

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    console = make_console()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class", overflow="fold")
    for name in ("IoU", "95 %", "precision", "recall", "pixels"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in evaluation["per_class"]:
        ends = f"{share(row['iou_low'])} to {share(row['iou_high'])}"
        cells = [share(row["iou"]), ends, share(row["precision"]), share(row["recall"])]
        table.add_row(escape_control_characters(row["class"]), *cells, share(row["share"]))
    console.print(table)
    miou, accuracy = evaluation["miou"], evaluation["pixel_accuracy"]
    lines = [
        f"mIoU {miou['value']:.2%} on {evaluation['images']:,} images of {selection.split} (95 % "
        f"interval {miou['low']:.2%} to {miou['high']:.2%}); always the most frequent class: "
        f"{evaluation['baseline']:.2%}",
        f"pixel accuracy {accuracy['value']:.2%} ({accuracy['low']:.2%} to {accuracy['high']:.2%})",
    ]
    if page is not None:
        lines.append(f"report: {page}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_evaluation(
    evaluation: dict[str, Any], selection: HeldOutSelection, page: Path | None
) -> None:
    from patchwords.cli.format import make_console
    from patchwords.evaluation.held_out import describe_left_out

    console = make_console()
    console.print(make_scores_table(evaluation))
    accuracy = evaluation["accuracy"]
    lines = [
        f"accuracy {accuracy['value']:.2%} on {evaluation['images']:,} images of "
        f"{selection.split} (95 % interval {accuracy['low']:.2%} to {accuracy['high']:.2%}); "
        f"always predicting the most frequent class: {evaluation['baseline']:.2%}",
        format_metric_line("macro F1", evaluation["macro"], "f1"),
    ]
    if evaluation["top5"] is not None:
        lines.append(format_metric_line("top-5 accuracy", evaluation, "top5"))
    if real := evaluation.get("real"):
        words = format_metric_line(f"accuracy by the classes of {real['file']}", real, "accuracy")
        lines.append(f"{words}, on {real['images']:,} images; {real['left_out']:,} have none there")
    if selection.trained_on and "train" not in selection.split:
        lines.append(describe_left_out("the run", selection.trained_on, selection.recognised))
    if evaluation["trained_on"]:
        lines.append("warning: the model was trained on some of these images")
    if evaluation["trained_on"] is None:
        lines.append("warning: the training images of the model are not recorded")
    if evaluation["skipped"]:
        first = evaluation["skipped"][0]
        lines.append(
            f"{len(evaluation['skipped'])} images cannot be read, the first: "
            f"{first['path']} ({first['reason']})"
        )
    if page is not None:
        lines.append(f"report: {page}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_scores_table(evaluation: dict[str, Any]) -> Table:
    """A row for each class, and the averages."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("class", "precision", "recall", "95 %", "F1", "images"):
        table.add_column(name, justify="left" if name == "class" else "right")

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    for row in evaluation["per_class"]:
        ends = f"{row['recall_low']:.2f}-{row['recall_high']:.2f}" if row["support"] else "-"
        scores = number(row["precision"]), number(row["recall"]), ends, number(row["f1"])
        table.add_row(escape(row["class"]), *scores, f"{row['support']:,}")
    for name in ("macro", "weighted"):
        precision, recall, f1 = (number(evaluation[name][s]) for s in ("precision", "recall", "f1"))
        images = f"{evaluation['images']:,}"
        table.add_row(f"{name} average", precision, recall, "", f1, images, style="bold")
    return table


def format_metric_line(what: str, numbers: dict[str, Any], name: str) -> str:
    """What it is, its value and its 95 % interval, on a line."""
    low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
    return f"{what} {numbers[name]:.2%} (95 % interval {low:.2%} to {high:.2%})"
