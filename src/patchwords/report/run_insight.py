"""What the model of a run has learned, looked at once, for its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patchwords.download import forbid_downloads
from patchwords.errors import DataError
from patchwords.report.page import write_report
from patchwords.report.run_data import PredictionRow, RunData, read_run_data

if TYPE_CHECKING:  # what a report of a run without a model does without
    from patchwords.data.dataset import ImageDataset
    from patchwords.device import DeviceName
    from patchwords.evaluation.model_insight import ModelInsight
    from patchwords.training.training_run import TrainingRun

EXAMPLES_PER_KIND = 3  # right answers with maps, and wrong ones


def find_run_images(run: RunData) -> ImageDataset | None:
    """The images that predictions.csv names, or the held-out ones of a run without classes.

    None where the run does not say which.

    Raises DataError where they are gone, or are no longer the ones of the run.
    """
    from patchwords.data.open import open_data
    from patchwords.data.shards.stream import DEFAULT_CACHE_GIB
    from patchwords.data.splits import exclude_listed_images, fingerprint_dataset

    recorded = run.environment.get("data") or {}
    if not (run.predictions or run.masked) or not recorded.get("source"):
        return None
    settings = run.config
    data = open_data(
        recorded["source"],
        image_column=settings.get("image_column"),
        label_column=settings.get("label_column"),
        classes=settings.get("classes"),
        need_labels=False,
        cache_size=settings.get("cache_size", DEFAULT_CACHE_GIB),
    )
    if settings.get("exclude"):
        data = exclude_listed_images(data, settings["exclude"])
    if fingerprint_dataset(data) != recorded.get("fingerprint"):
        raise DataError(
            f"{recorded['source']} is not what it was when the run was made (its fingerprint "
            "differs), so its images may be others"
        )
    if run.masked:
        from patchwords.evaluation.held_out import read_run_splits, select_held_out

        return select_held_out(data, read_run_splits(run.folder)).examples
    named = {row.path for row in run.predictions}
    return max(data.splits.values(), key=lambda examples: len(named.intersection(examples.keys)))


def write_training_insight(job: TrainingRun, examples: ImageDataset) -> None:
    """Write insight.json and insight.npz of a run that has ended training."""
    from patchwords.evaluation.model_insight import analyse_model, load_initial_weights
    from patchwords.training.config import flatten_config
    from patchwords.weights.pretrained import Pretrained

    def look() -> ModelInsight:
        start = job.start
        labels = tuple(job.objective.classes(job.data))
        source = Pretrained(start.model, start.preprocess, labels, start.name)
        with forbid_downloads():  # the run had them
            begun = load_initial_weights(start.model.config, flatten_config(job.config))
        shown = choose_insight_examples(read_run_data(job.folder.path).predictions)
        return analyse_model(source, begun, examples, shown)

    write_insight(job.folder.path, look)


def write_run_insight(
    run: RunData, examples: ImageDataset | None, device: DeviceName = "auto"
) -> None:
    """The same of a run folder, by the model that lies in it.

    The examples may have others among them than the held-out ones, which predictions.csv names.
    """
    from patchwords.device import choose_device
    from patchwords.evaluation.model_insight import analyse_model, load_initial_weights
    from patchwords.weights.store import from_pretrained

    def look() -> ModelInsight:
        source = from_pretrained(run.folder)
        source.model.to(choose_device(device, "fp32").torch_device)
        begun = load_initial_weights(source.model.config, run.config)
        judged = examples
        if examples is not None and run.predictions:
            place = {key: i for i, key in enumerate(examples.keys)}
            judged = examples.select([place[row.path] for row in run.predictions])
        return analyse_model(source, begun, judged, choose_insight_examples(run.predictions))

    write_insight(run.folder, look)


def write_report_with_insight(
    folder: Path, examples: ImageDataset, device: DeviceName = "auto"
) -> Path:
    """Look at a run of a series and write its report, as training a single run does; -> the page"""
    run = read_run_data(folder)
    if lacks_insight(run, examples):  # else it was stopped after the look
        write_run_insight(run, examples, device)
    return write_report(folder, examples)


def lacks_insight(run: RunData, examples: ImageDataset | None) -> bool:
    """Whether a look at the run's model could say more than its folder does."""
    if not (run.folder / "model").is_dir():
        return False
    if not run.insight or not run.arrays or "error" in run.insight:
        return True
    return examples is not None and run.insight.get("images") is False


def write_insight(folder: Path, look: Callable[[], ModelInsight]) -> None:
    """A report is not to be lost for a picture: what goes wrong becomes a sentence of it."""
    from patchwords.evaluation.model_insight import ModelInsight

    try:
        found = look()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        found = ModelInsight({"error": reason})
    found.write(folder)


def choose_insight_examples(rows: Sequence[PredictionRow]) -> list[str]:
    """Right and wrong answers by turns: the surest mistakes, and of each class the surest right."""
    surest = sorted(rows, key=lambda row: -row.probability)
    wrong = [row for row in surest if row.correct is False]
    best: dict[str, PredictionRow] = {}
    for row in surest:
        if row.correct:
            best.setdefault(row.label, row)
    first = list(best.values())
    right = first + [row for row in surest if row.correct and row not in first]
    pairs = zip(pad_examples(right), pad_examples(wrong), strict=True)
    return [row.path for pair in pairs for row in pair if row is not None]


def pad_examples(rows: Sequence[PredictionRow]) -> list[PredictionRow | None]:
    return [
        *rows[:EXAMPLES_PER_KIND],
        *[None] * (EXAMPLES_PER_KIND - len(rows[:EXAMPLES_PER_KIND])),
    ]
