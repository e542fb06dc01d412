"""What the model of a run has learned, looked at once, for its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchwords.data.examples import Examples
    from patchwords.device import DeviceName
    from patchwords.evaluate.insight import Insight
    from patchwords.report.run import Prediction, Run
    from patchwords.train.job import Job

EACH = 3  # right answers with maps, and wrong ones


def look_at_job(job: Job, examples: Examples) -> None:
    """Write insight.json and insight.npz of a run that has ended training."""
    from patchwords.evaluate.beginning import beginning
    from patchwords.evaluate.insight import look_inside
    from patchwords.report.run import read_run
    from patchwords.train.settings import flatten
    from patchwords.weights.pretrained import Pretrained

    def look() -> Insight:
        start = job.start
        labels = tuple(job.aim.classes(job.data))
        source = Pretrained(start.model, start.preprocess, labels, start.name)
        begun = beginning(start.model.config, flatten(job.config))
        shown = examples_to_show(read_run(job.folder.path).predictions)
        return look_inside(source, begun, examples, shown)

    write(job.folder.path, look)


def look_at_run(run: Run, examples: Examples | None, device: DeviceName = "auto") -> None:
    """The same of a run folder, by the model that lies in it.

    The examples may have others among them than the held-out ones, which predictions.csv names.
    """
    from patchwords.device import choose_device
    from patchwords.evaluate.beginning import beginning
    from patchwords.evaluate.insight import look_inside
    from patchwords.weights.store import from_pretrained

    def look() -> Insight:
        source = from_pretrained(run.folder)
        source.model.to(choose_device(device, "fp32").torch_device)
        begun = beginning(source.model.config, run.config)
        judged = examples
        if examples is not None and run.predictions:
            place = {key: i for i, key in enumerate(examples.keys)}
            judged = examples.select([place[row.path] for row in run.predictions])
        return look_inside(source, begun, judged, examples_to_show(run.predictions))

    write(run.folder, look)


def report_with_insight(folder: Path, examples: Examples, device: DeviceName = "auto") -> Path:
    """Look at a run of a series and write its report, as training a single run does; -> the page"""
    from patchwords.report.run import read_run
    from patchwords.report.write import write_report

    run = read_run(folder)
    if lacks_insight(run, examples):  # else it was stopped after the look
        look_at_run(run, examples, device)
    return write_report(folder, examples)


def lacks_insight(run: Run, examples: Examples | None) -> bool:
    """Whether a look at the run's model could say more than its folder does."""
    if not (run.folder / "model").is_dir():
        return False
    if not run.insight or not run.arrays or "error" in run.insight:
        return True
    return examples is not None and run.insight.get("images") is False


def write(folder: Path, look: Callable[[], Insight]) -> None:
    """A report is not to be lost for a picture: what goes wrong becomes a sentence of it."""
    from patchwords.evaluate.insight import Insight

    try:
        found = look()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        found = Insight({"error": reason})
    found.write(folder)


def examples_to_show(rows: Sequence[Prediction]) -> list[str]:
    """Right and wrong answers by turns: the surest mistakes, and of each class the surest right."""
    surest = sorted(rows, key=lambda row: -row.probability)
    wrong = [row for row in surest if row.correct is False]
    best: dict[str, Prediction] = {}
    for row in surest:
        if row.correct:
            best.setdefault(row.label, row)
    first = list(best.values())
    right = first + [row for row in surest if row.correct and row not in first]
    pairs = zip(padded(right), padded(wrong), strict=True)
    return [row.path for pair in pairs for row in pair if row is not None]


def padded(rows: Sequence[Prediction]) -> list[Prediction | None]:
    return [*rows[:EACH], *[None] * (EACH - len(rows[:EACH]))]
