"""`patchwords compare A B DATA`: which of two models is better, on what, and is it chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

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
    """Ask or read, compare, write, say."""
    from patchwords.distributed import is_main_process, join_process_group, run_on_main_process
    from patchwords.evaluation.compare import compare_predictions, list_disagreements
    from patchwords.evaluation.predictions import match_predictions

    check_compare(config)
    device = config.where.choose()
    with join_process_group(device.type == "cuda"):
        answers, about = (
            read_compared_predictions(config)
            if config.data is None
            else predict_compared(config, config.data)
        )
        a, b = match_predictions(*answers)
        run_on_main_process(config.results.claim)
    if not is_main_process():
        return 0
    results = {
        **about,
        "left_out": [len(one) - len(a) for one in answers],
        **compare_predictions(a, b),
    }
    other = list_disagreements(a, b)
    config.results.give(
        results,
        results["per_class"],
        lambda: make_comparison_files(results, other),
        lambda: print_comparison(results, other, config.results.output),
    )
    return 0


def check_compare(config: CompareCommand) -> None:
    """Raise ConfigError for what cannot be meant."""
    from patchwords.errors import ConfigError

    if config.data is None and config.split != "held-out":
        raise ConfigError(f"--split {config.split} has a meaning with DATA, and none is given")
    if Path(config.a).resolve() == Path(config.b).resolve():
        raise ConfigError(f"{config.a} is named twice: a model need not be compared with itself")


def read_compared_predictions(
    config: CompareCommand,
) -> tuple[list[LabelledPredictions], dict[str, Any]]:
    """The answers that both have left, and what is known of their images."""
    from patchwords.evaluation.predictions import read_labelled_predictions

    answers = [read_labelled_predictions(Path(folder)) for folder in (config.a, config.b)]
    known = {side: one.trained_on for side, one in zip("ab", answers, strict=True)}
    return answers, {"data": None, "split": None, "trained_on": known}


def predict_compared(
    config: CompareCommand, spec: str
) -> tuple[list[LabelledPredictions], dict[str, Any]]:
    """What both say of the held-out images of the data, and which images these are."""
    from patchwords.cli.progress import show_progress
    from patchwords.distributed import is_main_process, run_on_main_process
    from patchwords.evaluation.compare import predict_with_models
    from patchwords.evaluation.held_out import (
        map_to_model_labels,
        merge_run_splits,
        read_run_splits,
        select_held_out,
    )
    from patchwords.evaluation.imagenet import rename_wnid_classes
    from patchwords.evaluation.predictions import load_model_on_device, require_same_classes

    names, device = (config.a, config.b), config.where.choose()
    subjects = [load_model_on_device(name, device, config.where.workers) for name in names]
    for subject in subjects:
        subject.source.require_classes(subject.name)
    a, b = subjects
    require_same_classes(a.name, a.source.labels, b.name, b.source.labels)
    recorded = [read_run_splits(Path(name)) for name in names]
    data = config.read.open(spec, need_labels=False)
    selection = select_held_out(data, merge_run_splits(recorded), config.split)
    examples = rename_wnid_classes(selection.examples, a.source.labels, a.name)
    examples = map_to_model_labels(examples, a.source.labels, spec)
    run_on_main_process(config.results.claim)  # before the work
    with show_progress(f"asking {a.name} and {b.name}") as progress:
        answers = predict_with_models(
            subjects, examples, config.read.max_bad, progress if is_main_process() else None
        )
    trained = "train" in selection.split.split("+")
    return answers, {
        "data": spec,
        "split": selection.split,
        "trained_on": {
            side: trained if record else None for side, record in zip("ab", recorded, strict=True)
        },
        "left_out_as_trained_on": 0 if trained else selection.trained_on,
    }


def make_comparison_files(results: dict[str, Any], other: list[dict[str, Any]]) -> dict[str, bytes]:
    """disagreements.csv and the figure."""
    from patchwords.cli.options import format_csv
    from patchwords.evaluation.compare import DISAGREEMENT_COLUMNS
    from patchwords.report.figures.comparison import draw_recall_comparison

    # a file name that is not UTF-8 is written as the bytes that it is
    text = format_csv(other) if other else ",".join(DISAGREEMENT_COLUMNS) + "\n"
    return {
        "disagreements.csv": text.encode("utf-8", "surrogateescape"),
        **draw_recall_comparison(results["per_class"], results["a"]["name"], results["b"]["name"]),
    }


# What `patchwords compare` prints.


MAX_CLASS_ROWS = 20  # rows, those with the largest differences; results.csv has them all
MAX_DISAGREEMENTS = 5  # that the models disagree on; disagreements.csv has them all


def print_comparison(
    results: dict[str, Any], other: Sequence[dict[str, Any]], folder: Path | None
) -> None:
    """Print tables of the models and of the classes, then the conclusion."""
    from rich.console import Console

    console = Console()
    console.print(make_comparison_table(results))
    console.print()
    console.print(make_recall_table(results["per_class"]))
    console.print()
    lines = [
        *describe_comparison(results),
        *list_comparison_warnings(results),
        *describe_disagreements(other),
    ]
    if folder is not None:
        lines.append(f"written: {folder}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_comparison_table(results: dict[str, Any]) -> Table:
    """Accuracy and macro F1 of each, and how far they are apart."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "accuracy", "95 %", "macro F1", "95 %"):
        table.add_column(name, justify="left" if not name else "right")
    for side in ("a", "b"):
        one = results[side]
        cells = [*format_share_cells(one, "accuracy"), *format_share_cells(one, "macro_f1")]
        table.add_row(f"{side.upper()} {escape(one['name'])}", *cells)
    apart = results["difference"]
    table.add_row(
        "B less A",
        *format_point_cells(apart, "accuracy"),
        *format_point_cells(apart, "macro_f1"),
        style="bold",
    )
    return table


def format_share_cells(numbers: dict[str, Any], name: str) -> tuple[str, str]:
    low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
    return f"{numbers[name]:.2%}", f"{low:.2%} to {high:.2%}"


def format_point_cells(numbers: dict[str, Any], name: str) -> tuple[str, str]:
    """A difference in percentage points."""
    value, low, high = (100 * numbers[key] for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value:+.2f}", f"{low:+.2f} to {high:+.2f}"


def make_recall_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Recall of each class, the widest apart first."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("class", "recall of A", "of B", "B less A", "95 %", "images"):
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
    """What the numbers say."""
    from patchwords.evaluation.statistics import (
        PairedCounts,
        format_mcnemar_result,
        format_paired_counts,
    )

    pairs = PairedCounts(**results["pairs"])
    where = "" if results["split"] is None else f" of {results['split']}"
    lines = [
        f"{results['images']:,} images{where}: {format_paired_counts(pairs)}; the same answer to "
        f"{results['agreement']:.2%}",
        format_mcnemar_result(pairs),
    ]
    if left := results.get("left_out_as_trained_on"):
        lines.append(f"{left:,} images were left out: a run trained on them")
    if any(results["left_out"]):
        a, b = results["left_out"]
        lines.append(f"left out: {a:,} images of A and {b:,} of B that the other did not answer")
    return lines


def list_comparison_warnings(results: dict[str, Any]) -> list[str]:
    """What may flatter one of them."""
    names = {side: results[side]["name"] for side in ("a", "b")}
    trained, unknown = (
        [names[side] for side, found in results["trained_on"].items() if found is value]
        for value in (True, None)
    )
    return [
        *(f"beware: {name} was trained on some of these images" for name in trained),
        *(f"beware: what {name} was trained on is not recorded with it" for name in unknown),
    ]


def describe_disagreements(other: Sequence[dict[str, Any]]) -> list[str]:
    """The images on which both are sure, of different answers."""
    if not other:
        return []
    return [
        f"they answer {len(other):,} images differently; both are surest on:",
        *(
            f"  {row['path']} ({row['label']}): A {row['prediction_a']} "
            f"{row['probability_a']:.0%}, B {row['prediction_b']} {row['probability_b']:.0%}"
            for row in other[:MAX_DISAGREEMENTS]
        ),
    ]
