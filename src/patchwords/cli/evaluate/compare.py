"""`patchwords compare A B DATA`: which of two models is better, on what, and is it chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.cli.format import make_console, print_lines
from patchwords.cli.options import DataOptions, DeviceOptions, OutputOptions

if TYPE_CHECKING:
    from rich.table import Table

    from patchwords.evaluation.predictions import LabelledPredictions


@dataclass(frozen=True)
class CompareCommand:
    """Compare two models on the same images: accuracies, their difference, and where they disagree.

    With DATA both models predict its held-out images; images that either run was trained on are
    left out. Without DATA no model runs: the images that are in both folders' predictions.csv
    (written by training and by `patchwords evaluate`) are compared.

    Differences are B minus A: above zero B is better. p is McNemar's, from the images that only one
    model has right; see docs/comparing.md.

    With --output: results.json, results.csv with a row per class, disagreements.csv with a row per
    image that the models classify differently, and a figure.

    Example: patchwords compare runs/vit runs/resnet photos/ --output runs/vit-or-resnet
    """

    a: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A")]
    """run folder or model folder"""
    b: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B")]
    """run folder or model folder to compare with A"""
    data: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="DATA")] = None
    """labelled images: a folder, CSV, parquet, tar shards, hf:NAME or digits; default: compare
    predictions.csv of both folders"""
    split: Literal["held-out", "test", "validation", "train", "all"] = "held-out"
    """which images to compare on, by the runs' records of what they trained on"""
    results: OutputOptions = field(default_factory=OutputOptions)
    read: DataOptions = field(default_factory=DataOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)


def run_compare(config: CompareCommand) -> int:
    """Predict or read predictions, compare, write and print the results."""
    from patchwords.distributed import is_main_process, join_process_group, run_on_main_process
    from patchwords.evaluation.compare import compare_predictions, list_disagreements
    from patchwords.evaluation.predictions import match_predictions

    check_compare(config)
    device = config.where.choose()
    with join_process_group(device.type == "cuda"):
        predictions, about = (
            read_compared_predictions(config)
            if config.data is None
            else predict_compared(config, config.data)
        )
        a, b = match_predictions(*predictions)
        run_on_main_process(config.results.claim)
    if not is_main_process():
        return 0
    results = {
        **about,
        "left_out": [len(answered) - len(a) for answered in predictions],
        **compare_predictions(a, b),
    }
    disagreements = list_disagreements(a, b)
    config.results.give(
        results,
        results["per_class"],
        lambda: make_comparison_files(results, disagreements),
        lambda: print_comparison(results, disagreements, config.results.output),
    )
    return 0


def check_compare(config: CompareCommand) -> None:
    """Refuse flags that contradict one another."""
    from patchwords.errors import ConfigError

    if config.data is None and config.split != "held-out":
        raise ConfigError(f"--split {config.split} needs DATA")
    if Path(config.a).resolve() == Path(config.b).resolve():
        raise ConfigError(f"{config.a} is given twice: give two different models")


def read_compared_predictions(
    config: CompareCommand,
) -> tuple[list[LabelledPredictions], dict[str, Any]]:
    """Read predictions.csv of both folders, and what is known of their images."""
    from patchwords.evaluation.predictions import read_labelled_predictions

    predictions = [read_labelled_predictions(Path(folder)) for folder in (config.a, config.b)]
    trained_on = {side: p.trained_on for side, p in zip("ab", predictions, strict=True)}
    return predictions, {"data": None, "split": None, "trained_on": trained_on}


def predict_compared(
    config: CompareCommand, spec: str
) -> tuple[list[LabelledPredictions], dict[str, Any]]:
    """Predict the held-out images of the data with both models; also say which these are."""
    from patchwords.distributed import is_main_process, run_on_main_process
    from patchwords.evaluation.compare import predict_with_models
    from patchwords.evaluation.held_out import (
        map_to_model_labels,
        merge_run_splits,
        read_run_splits,
        recognise_run_images,
        select_held_out,
    )
    from patchwords.evaluation.imagenet import rename_wnid_classes
    from patchwords.evaluation.predictions import load_model_on_device, require_same_classes
    from patchwords.training.logs.progress import show_progress

    names, device = (config.a, config.b), config.where.choose()
    subjects = [load_model_on_device(name, device, config.where.workers) for name in names]
    for subject in subjects:
        subject.source.require_classes(subject.name)
    a, b = subjects
    require_same_classes(a.name, a.source.labels, b.name, b.source.labels)
    recorded = [read_run_splits(Path(name)) for name in names]
    data = config.read.open(spec, need_labels=False)
    renamed = merge_run_splits([recognise_run_images(Path(name), data) for name in names])
    selection = select_held_out(data, merge_run_splits(recorded), config.split, renamed)
    examples = rename_wnid_classes(selection.examples, a.source.labels, a.name)
    examples = map_to_model_labels(examples, a.source.labels, spec)
    run_on_main_process(config.results.claim)  # before the work
    with show_progress(f"running {a.name} and {b.name}") as progress:
        predictions = predict_with_models(
            subjects, examples, config.read.max_bad, progress if is_main_process() else None
        )
    trained = "train" in selection.split.split("+")
    return predictions, {
        "data": spec,
        "split": selection.split,
        "trained_on": {
            side: trained if record else None for side, record in zip("ab", recorded, strict=True)
        },
        "left_out_as_trained_on": 0 if trained else selection.trained_on,
        "left_out_by_content": 0 if trained else selection.recognised,
    }


def make_comparison_files(
    results: dict[str, Any], disagreements: list[dict[str, Any]]
) -> dict[str, bytes]:
    """Make disagreements.csv and the figure."""
    from patchwords.cli.options import format_csv
    from patchwords.evaluation.compare import DISAGREEMENT_COLUMNS
    from patchwords.report.figures.comparison import draw_recall_comparison

    # file names that are not UTF-8 are written as their bytes
    text = format_csv(disagreements) if disagreements else ",".join(DISAGREEMENT_COLUMNS) + "\n"
    return {
        "disagreements.csv": text.encode("utf-8", "surrogateescape"),
        **draw_recall_comparison(results["per_class"], results["a"]["name"], results["b"]["name"]),
    }


MAX_CLASS_ROWS = 20  # the classes with the largest differences; results.csv has all
MAX_DISAGREEMENTS = 5  # disagreements.csv has all


def print_comparison(
    results: dict[str, Any], disagreements: Sequence[dict[str, Any]], folder: Path | None
) -> None:
    """Print tables of the models and of the classes, then the conclusion."""
    console = make_console()
    console.print(make_comparison_table(results))
    console.print()
    console.print(make_recall_table(results["per_class"]))
    console.print()
    lines = [
        *describe_comparison(results),
        *list_comparison_warnings(results),
        *describe_disagreements(disagreements),
    ]
    if folder is not None:
        lines.append(f"written: {folder}")
    print_lines(console, *lines)


def make_comparison_table(results: dict[str, Any]) -> Table:
    """Make the table of both models' accuracy and macro F1, and of their differences."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "accuracy", "95 %", "macro F1", "95 %"):
        table.add_column(name, justify="left" if not name else "right")
    for side in ("a", "b"):
        model = results[side]
        cells = [*format_share_cells(model, "accuracy"), *format_share_cells(model, "macro_f1")]
        table.add_row(f"{side.upper()} {escape(model['name'])}", *cells)
    difference = results["difference"]
    table.add_row(
        "B - A",
        *format_point_cells(difference, "accuracy"),
        *format_point_cells(difference, "macro_f1"),
        style="bold",
    )
    return table


def format_share_cells(numbers: dict[str, Any], name: str) -> tuple[str, str]:
    low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
    return f"{numbers[name]:.2%}", f"{low:.2%} to {high:.2%}"


def format_point_cells(numbers: dict[str, Any], name: str) -> tuple[str, str]:
    """Format a difference and its interval in percentage points."""
    value, low, high = (100 * numbers[key] for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value:+.2f}", f"{low:+.2f} to {high:+.2f}"


def make_recall_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Make the table of each class's recall, the largest differences first."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("class", "recall of A", "of B", "B - A", "95 %", "images"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for row in sorted(rows, key=lambda row: -abs(row["difference"]))[:MAX_CLASS_ROWS]:
        recalls = (f"{row[f'recall_{side}']:.3f}" for side in "ab")
        table.add_row(
            escape(row["class"]),
            *recalls,
            *format_point_cells(row, "difference"),
            f"{row['support']:,}",
        )
    return table


def describe_comparison(results: dict[str, Any]) -> list[str]:
    """Describe who is right where, and whether the difference is significant."""
    from patchwords.evaluation.held_out import describe_left_out
    from patchwords.evaluation.statistics import (
        PairedCounts,
        format_mcnemar_result,
        format_paired_counts,
    )

    pairs = PairedCounts(**results["pairs"])
    split = "" if results["split"] is None else f" of {results['split']}"
    lines = [
        f"{results['images']:,} images{split}: {format_paired_counts(pairs)}; the same prediction for "
        f"{results['agreement']:.2%}",
        format_mcnemar_result(pairs),
    ]
    if left := results.get("left_out_as_trained_on"):
        lines.append(describe_left_out("a run", left, results["left_out_by_content"]))
    if any(results["left_out"]):
        a, b = results["left_out"]
        lines.append(
            f"left out: {a:,} images of A and {b:,} of B that the other has no prediction for"
        )
    return lines


def list_comparison_warnings(results: dict[str, Any]) -> list[str]:
    """List what may favour one of the models."""
    names = {side: results[side]["name"] for side in ("a", "b")}
    trained, unknown = (
        [names[side] for side, known in results["trained_on"].items() if known is value]
        for value in (True, None)
    )
    return [
        *(f"warning: {name} was trained on some of these images" for name in trained),
        *(f"warning: the training images of {name} are not recorded" for name in unknown),
    ]


def describe_disagreements(disagreements: Sequence[dict[str, Any]]) -> list[str]:
    """Describe the images that the models classify differently with the most confidence."""
    if not disagreements:
        return []
    return [
        f"{len(disagreements):,} images are classified differently; the most confident:",
        *(
            f"  {row['path']} ({row['label']}): A {row['prediction_a']} "
            f"{row['probability_a']:.0%}, B {row['prediction_b']} {row['probability_b']:.0%}"
            for row in disagreements[:MAX_DISAGREEMENTS]
        ),
    ]
