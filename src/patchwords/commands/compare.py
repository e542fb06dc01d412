"""`patchwords compare A B DATA`: which of two models is better, on what, and is it chance."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.commands.evaluator import Images, Results, Where

if TYPE_CHECKING:
    from patchwords.evaluate.answers import Answers


@dataclass(frozen=True)
class Compare:
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
    results: Results = field(default_factory=Results)
    read: Images = field(default_factory=Images)
    where: Where = field(default_factory=Where)


def run(config: Compare) -> int:
    """Ask or read, compare, write, say."""
    from patchwords.commands.compare_summary import show
    from patchwords.distributed import by_main, joined, speaks
    from patchwords.evaluate.answers import matched
    from patchwords.evaluate.compare import compare, disagreements

    check(config)
    device = config.where.choose()
    with joined(device.type == "cuda"):
        answers, about = read(config) if config.data is None else asked(config, config.data)
        a, b = matched(*answers)
        by_main(config.results.claim)
    if not speaks():
        return 0
    results = {**about, "left_out": [len(one) - len(a) for one in answers], **compare(a, b)}
    other = disagreements(a, b)
    config.results.give(
        results,
        results["per_class"],
        lambda: draw(results, other),
        lambda: show(results, other, config.results.output),
    )
    return 0


def check(config: Compare) -> None:
    """Raise ConfigError for what cannot be meant."""
    from patchwords.errors import ConfigError

    if config.data is None and config.split != "held-out":
        raise ConfigError(f"--split {config.split} has a meaning with DATA, and none is given")
    if Path(config.a).resolve() == Path(config.b).resolve():
        raise ConfigError(f"{config.a} is named twice: a model need not be compared with itself")


def read(config: Compare) -> tuple[list[Answers], dict[str, Any]]:
    """The answers that both have left, and what is known of their images."""
    from patchwords.evaluate.answers import read_answers

    answers = [read_answers(Path(folder)) for folder in (config.a, config.b)]
    known = {side: one.trained_on for side, one in zip("ab", answers, strict=True)}
    return answers, {"data": None, "split": None, "trained_on": known}


def asked(config: Compare, spec: str) -> tuple[list[Answers], dict[str, Any]]:
    """What both say of the held-out images of the data, and which images these are."""
    from patchwords.commands.doctor_summary import following
    from patchwords.distributed import by_main, speaks
    from patchwords.evaluate.answers import refuse_other_classes
    from patchwords.evaluate.ask import ask
    from patchwords.evaluate.held_out import as_model_knows, read_recorded, select, unite_records
    from patchwords.evaluate.imagenet import in_words_of
    from patchwords.evaluate.subject import load_subject

    names, device = (config.a, config.b), config.where.choose()
    subjects = [load_subject(name, device, config.where.workers) for name in names]
    for subject in subjects:
        subject.source.require_classes(subject.name)
    a, b = subjects
    refuse_other_classes(a.name, a.source.labels, b.name, b.source.labels)
    recorded = [read_recorded(Path(name)) for name in names]
    data = config.read.open(spec, need_labels=False)
    selection = select(data, unite_records(recorded), config.split)
    examples = in_words_of(selection.examples, a.source.labels, a.name)
    examples = as_model_knows(examples, a.source.labels, spec)
    by_main(config.results.claim)  # before the work
    with following(f"asking {a.name} and {b.name}") as progress:
        answers = ask(subjects, examples, config.read.max_bad, progress if speaks() else None)
    trained = "train" in selection.split.split("+")
    return answers, {
        "data": spec,
        "split": selection.split,
        "trained_on": {
            side: trained if record else None for side, record in zip("ab", recorded, strict=True)
        },
        "left_out_as_trained_on": 0 if trained else selection.trained_on,
    }


def draw(results: dict[str, Any], other: list[dict[str, Any]]) -> dict[str, bytes]:
    """disagreements.csv and the figure."""
    from patchwords.commands.evaluator import table
    from patchwords.evaluate.compare import DISAGREEMENT
    from patchwords.report.recalls import draw_recalls

    # a file name that is not UTF-8 is written as the bytes that it is
    text = table(other) if other else ",".join(DISAGREEMENT) + "\n"
    return {
        "disagreements.csv": text.encode("utf-8", "surrogateescape"),
        **draw_recalls(results["per_class"], results["a"]["name"], results["b"]["name"]),
    }
