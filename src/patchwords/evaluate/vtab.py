"""VTAB-1k: 19 tasks of 1,000 training images each, one protocol for all (Section 4.1, D.10).

The score is the plain mean of the tasks' top-1 accuracies, as in Table 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchwords.distributed import from_main, together
from patchwords.evaluate.series import (
    Report,
    as_run,
    finish,
    going_on_with,
    is_finished,
    open_series,
    read_evaluation,
    train_or_go_on,
)
from patchwords.evaluate.vtab_config import RECIPE, VtabConfig
from patchwords.evaluate.vtab_sources import Counts, examine, find_sources, joint_fingerprint
from patchwords.evaluate.vtab_tasks import GROUPS, TRAIN_IMAGES, Group, Task
from patchwords.train.config import FinetuneConfig
from patchwords.train.finetune import in_all_processes
from patchwords.train.job import default_output
from patchwords.train.named_recipe import find
from patchwords.train.progress import Display
from patchwords.train.run_folder import RunFolder, refuse_harm
from patchwords.train.settings import flatten, read_yaml


@dataclass(frozen=True)
class Score:
    """A task, done."""

    task: Task
    source: str
    counts: Counts
    folder: str  # in that of the series
    evaluation: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return float(self.evaluation["accuracy"]["value"])

    @property
    def differences(self) -> list[str]:
        """By what the data are not VTAB-1k's, for a person."""
        found = (
            ("training images", self.counts.train, TRAIN_IMAGES),
            ("classes", self.counts.classes, self.task.classes),
            ("test images", self.evaluation["images"], self.task.test),
        )
        return [f"{n:,} {what} (VTAB-1k: {m:,})" for what, n, m in found if n != m]


@dataclass(frozen=True)
class Outcome:
    """All tasks that were done, and what is not as the paper has it."""

    folder: Path
    scores: list[Score]
    missing: list[str]  # tasks without data
    departures: list[str]  # from the paper's settings

    @property
    def groups(self) -> list[Group]:
        """Those that have a task, in the order of Table 9."""
        return [group for group in GROUPS if any(s.task.group == group for s in self.scores)]

    def mean(self, group: Group | None = None) -> float:
        """Of the accuracies of a group's tasks that were done, or of all."""
        return _mean([s.accuracy for s in self.chosen(group)])

    def published(self, model: int, group: Group | None = None) -> float:
        """The paper's mean over the same tasks, as a share; `model` is a place in TABLE_9."""
        return _mean([s.task.table_9[model] / 100 for s in self.chosen(group)])

    def chosen(self, group: Group | None = None) -> list[Score]:
        return [s for s in self.scores if group in (None, s.task.group)]


def vtab(config: VtabConfig, display: Display, report: Report | None = None) -> Outcome:
    """Fine-tune on each task whose data is there, and judge by its test images.

    Under torchrun every process calls it. The folder gets a run folder for each task. Raises
    ConfigError and DataError before anything is trained, Interrupted with the command to go on.
    """
    with in_all_processes(config) as asked:
        asked.check()
        sources, missing = together(lambda: find_sources(asked))
        config = with_warmup(asked)
        counts = together(lambda: {task: examine(task, sources[task], asked) for task in sources})
        output = from_main(Path(config.output or default_output(config.data, "vtab")))
        refuse_harm(output, Path(config.data), Path(config.weights) if config.weights else None)
        about = {"source": config.data, "kind": "vtab", "fingerprint": joint_fingerprint(counts)}
        folder = open_series(config, asked, output, about)
        if missing:
            display.say(f"no data for {', '.join(missing)}")
        scores = []
        with going_on_with(config, output):
            for number, (task, source) in enumerate(sources.items(), start=1):
                display.say(f"task {number} of {len(sources)}: {task.name}")
                evaluation = carry_out(config, task, source, folder, display, report)
                scores.append(Score(task, source, counts[task], task.name, evaluation))
        settings = from_main(read_yaml(RunFolder(output / scores[0].folder).config))
    return Outcome(output, scores, missing, departures(settings))


def with_warmup(config: VtabConfig) -> VtabConfig:
    """Where the steps are fewer than the paper's, the warm-up keeps its share of them."""
    recipe = config.recipe
    if recipe.recipe != RECIPE or recipe.steps is None or recipe.warmup_steps is not None:
        return config
    row = find(RECIPE)
    warmup = round(row.warmup_steps / row.steps * recipe.steps)
    return replace(config, recipe=replace(recipe, warmup_steps=warmup))


def carry_out(
    config: VtabConfig,
    task: Task,
    source: str,
    folder: RunFolder,
    display: Display,
    report: Report | None,
) -> dict[str, Any]:
    """Train on the task, or go on, unless that is done; -> its evaluation."""
    run = RunFolder(folder.path / task.name)
    if not is_finished(run, report):
        finish(train_or_go_on(task_config(config, source, run.path), display), report)
    return from_main(read_evaluation(run))


def task_config(config: VtabConfig, source: str, folder: Path) -> FinetuneConfig:
    """A run on all training images of a task; of some classes there may be none (SUN397)."""
    run = replace(as_run(config, folder), data=source)
    settings = replace(run.data_settings, validation=0.0, join_validation=True, unseen_classes=True)
    return replace(run, data_settings=settings)


def departures(stored: Mapping[str, Any]) -> list[str]:
    """Settings of a run that are not the paper's, each as `steps 100 (paper: 2,500)`."""
    row = find(RECIPE)
    size = {"steps": row.steps, "batch_size": row.batch_size, "lr": row.lr}
    plain = flatten(FinetuneConfig())
    fixed = {"layer_decay": 1.0, "balance": "none", "train": "all"}
    fixed |= {name: plain[name] for name in ("color_jitter", "erase")}
    paper = {**size, "warmup_steps": row.warmup_steps, **row.settings, **fixed}
    return [
        f"{name} {_said(stored[name])} (paper: {_said(value)})"
        for name, value in paper.items()
        if _said(stored[name]) != _said(value)
    ]


def _said(value: Any) -> str:
    """A value for a person; a square's side counts as both of its sides.

    >>> _said((384,)) == _said([384, 384]), _said(2500), _said(0.01)
    (True, '2,500', '0.01')
    """
    if isinstance(value, list | tuple):
        return " ".join(_said(part) for part in (value * 2 if len(value) == 1 else value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
