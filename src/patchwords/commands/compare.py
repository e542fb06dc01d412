"""`patchwords compare A B DATA`: which of two models is better, on what, and is it chance."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.commands.evaluator import DataOptions, DeviceOptions, OutputOptions

if TYPE_CHECKING:
    from patchwords.evaluate.answers import LabelledPredictions


@dataclass(frozen=True)
class CompareCommand:
    """Compare two models on the same images: accuracies, their difference, and where they differ.

    With DATA both are asked about its held-out images, each read once; what either run was trained
    on is left out. Without DATA the two folders hold predictions.csv, as runs and `patchwords
    evaluate` leave them: no model runs, and the images that are in both are compared.

    Differences are B less A: above zero B is better. The p is McNemar's, of images that only one of
    them has right; docs/comparing.md says what it means.

    With --output: results.json, results.csv with a row per class, disagreements.csv with a row per
    image that they answer differently, and a figure.

    Example: patchwords compare runs/vit runs/resnet photos/ --output runs/vit-or-resnet
    """

    a: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A")]
    """a run folder or a model folder"""
    b: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B")]
    """another"""
    data: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="DATA")] = None
    """a folder, CSV, parquet, tar shards, hf:NAME or digits; none given: predictions.csv of both"""
    split: Literal["held-out", "test", "validation", "train", "all"] = "held-out"
    """which images, by the runs' own records of what they trained on"""
    results: OutputOptions = field(default_factory=OutputOptions)
    read: DataOptions = field(default_factory=DataOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)


def run_compare(config: CompareCommand) -> int:
    """Ask or read, compare, write, say."""
    from patchwords.commands.compare_summary import print_comparison
    from patchwords.distributed import is_main_process, join_process_group, run_on_main_process
    from patchwords.evaluate.answers import match_predictions
    from patchwords.evaluate.compare import compare_predictions, list_disagreements

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
    from patchwords.evaluate.answers import read_labelled_predictions

    answers = [read_labelled_predictions(Path(folder)) for folder in (config.a, config.b)]
    known = {side: one.trained_on for side, one in zip("ab", answers, strict=True)}
    return answers, {"data": None, "split": None, "trained_on": known}


def predict_compared(
    config: CompareCommand, spec: str
) -> tuple[list[LabelledPredictions], dict[str, Any]]:
    """What both say of the held-out images of the data, and which images these are."""
    from patchwords.commands.doctor_summary import show_progress
    from patchwords.distributed import is_main_process, run_on_main_process
    from patchwords.evaluate.answers import require_same_classes
    from patchwords.evaluate.ask import predict_with_models
    from patchwords.evaluate.held_out import (
        map_to_model_labels,
        merge_run_splits,
        read_run_splits,
        select_held_out,
    )
    from patchwords.evaluate.imagenet import rename_wnid_classes
    from patchwords.evaluate.subject import load_model_on_device

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
    from patchwords.commands.evaluator import format_csv
    from patchwords.evaluate.compare import DISAGREEMENT_COLUMNS
    from patchwords.report.recalls import draw_recall_comparison

    # a file name that is not UTF-8 is written as the bytes that it is
    text = format_csv(other) if other else ",".join(DISAGREEMENT_COLUMNS) + "\n"
    return {
        "disagreements.csv": text.encode("utf-8", "surrogateescape"),
        **draw_recall_comparison(results["per_class"], results["a"]["name"], results["b"]["name"]),
    }
