"""`patchwords evaluate MODEL DATA`: how good a trained model is on images it has not seen."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.cli.options import DataOptions, InferenceOptions, claim_output_folder

if TYPE_CHECKING:
    from rich.table import Table

    from patchwords.data.dataset import DatasetSplits
    from patchwords.device import Device
    from patchwords.evaluation.held_out import HeldOutSelection


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure a trained model: accuracy with its interval, and the results of each class.

    The labels of DATA are matched to the model's classes by name. Images that the run was trained
    on are left out, unless --split says otherwise: `held-out` is the test split and all images that
    the run never saw.

    Example: patchwords evaluate runs/photos photos/ --output runs/photos-again
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """run folder or model folder"""
    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """labelled images: a folder, CSV, parquet, tar shards, hf:NAME or digits"""
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
    from patchwords.data.loader import choose_num_workers
    from patchwords.evaluation.held_out import (
        describe_evaluated_model,
        evaluate_predictions,
        map_to_model_labels,
        predict_examples,
        read_run_splits,
        select_held_out,
        write_evaluation,
    )
    from patchwords.evaluation.imagenet import (
        evaluate_accepted_classes,
        read_accepted_classes,
        rename_wnid_classes,
    )
    from patchwords.weights.store import from_pretrained

    device = config.where.choose()
    source = from_pretrained(config.model)
    source.require_classes(config.model)
    source.model.to(device.torch_device)
    if device.int8:  # which needs more than the weights
        source = source.for_inference(device)
    data = config.read.open(config.data, need_labels=False)
    recorded = read_run_splits(Path(config.model))
    selection = select_held_out(data, recorded, config.split)
    examples = rename_wnid_classes(selection.examples, source.labels, config.model)
    examples = map_to_model_labels(examples, source.labels, config.data)
    right = None
    if config.real is not None:  # before the work, as it may not fit
        right = read_accepted_classes(config.real, examples, source.labels, config.model)
    folder = claim_output_folder(config.output, config.overwrite)
    workers = choose_num_workers(examples) if config.where.workers is None else config.where.workers
    predictions = predict_examples(source.model, examples, source.preprocess, device, workers)
    evaluation = {
        "split": selection.split,
        "selected": False,
        "trained_on": "train" in selection.split.split("+") if recorded else None,
        "of": config.model,
        **describe_evaluated_model(source, device),
        **evaluate_predictions(predictions, examples, source.labels, config.read.max_bad),
    }
    if config.real is not None and right is not None:
        evaluation["real"] = evaluate_accepted_classes(config.real, right, predictions)
    page = None
    if folder is not None:
        from patchwords.report.page import write_report

        write_evaluation(folder, examples, predictions, evaluation)
        record_evaluation_context(folder, replace(data, splits={selection.split: examples}), device)
        page = write_report(folder, examples)
    if config.json:
        print(jsonlib.dumps(evaluation))
    else:
        print_evaluation(evaluation, selection, page)
    return 0


def record_evaluation_context(folder: Path, data: DatasetSplits, device: Device) -> None:
    """What was evaluated, by what, for the report."""
    from patchwords.data.splits import fingerprint_dataset
    from patchwords.training.logs.run_folder import (
        RunFolder,
        describe_data,
        describe_environment,
        write_json,
    )

    about = {"source": data.source, "kind": data.kind, "fingerprint": fingerprint_dataset(data)}
    write_json(RunFolder(folder).environment, describe_environment(device.describe(), about))
    write_json(RunFolder(folder).data, describe_data(data, {}))


def print_evaluation(
    evaluation: dict[str, Any], selection: HeldOutSelection, page: Path | None
) -> None:
    from rich.console import Console

    console = Console()
    console.print(make_scores_table(evaluation))
    accuracy = evaluation["accuracy"]
    lines = [
        f"accuracy {accuracy['value']:.2%} on {evaluation['images']:,} images of "
        f"{selection.split} (95 % interval {accuracy['low']:.2%} to {accuracy['high']:.2%}); "
        f"always answering the commonest class: {evaluation['baseline']:.2%}",
        format_metric_line("macro F1", evaluation["macro"], "f1"),
    ]
    if evaluation["top5"] is not None:
        lines.append(format_metric_line("top-5 accuracy", evaluation, "top5"))
    if real := evaluation.get("real"):
        words = format_metric_line(f"accuracy by the classes of {real['file']}", real, "accuracy")
        lines.append(f"{words}, on {real['images']:,} images; {real['left_out']:,} have none there")
    if selection.trained_on and "train" not in selection.split:
        lines.append(f"{selection.trained_on:,} images were left out: the run trained on them")
    if evaluation["trained_on"]:
        lines.append("beware: the model was trained on some of these images")
    if evaluation["trained_on"] is None:
        lines.append("beware: what the model was trained on is not recorded with it")
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
