"""VTAB-1k: 19 tasks of 1,000 training images each, with one protocol (Section 4.1, D.10).

The score is the plain mean of the tasks' top-1 accuracies, as in Table 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchwords.data.dataset import ALL, TEST, TRAIN, VALIDATION, DatasetSplits
from patchwords.data.open import open_data
from patchwords.data.splits import fingerprint_dataset
from patchwords.distributed import broadcast_from_main, run_on_all_processes
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.sweeps.config import VTAB_RECIPE, VtabConfig
from patchwords.evaluation.sweeps.series import (
    ReportWriter,
    add_resume_hint,
    build_run_config,
    evaluate_and_report,
    is_run_finished,
    open_series,
    read_evaluation,
    train_or_resume,
)
from patchwords.evaluation.sweeps.vtab_tasks import (
    VTAB_GROUPS,
    VTAB_TASKS,
    VTAB_TRAIN_IMAGES,
    VtabGroup,
    VtabTask,
)
from patchwords.training.config import FinetuneConfig, flatten_config, read_config_yaml
from patchwords.training.logs.display import Display
from patchwords.training.logs.run_folder import RunFolder, check_output_overlap
from patchwords.training.logs.run_record import choose_output_folder
from patchwords.training.recipes import find_recipe
from patchwords.training.settings import share_config_across_processes

# Data of the tasks: ROOT holds a source of images per task, by the task's name, with splits: `train`
# and, if separate, `validation` (800 and 200 images, all of them trained on) and `test`.
#
# | under ROOT | is |
# |---|---|
# | `TASK/` | train/, val/, test/ with a folder per class in each, or parquets of these names |
# | `TASK/labels.csv` | `path,label,split`: for labels that are counts or bins |
# | `TASK.csv`, `TASK.parquet` | the same, next to each other |


TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class VtabTaskData:
    """Size and classes of a task's data."""

    train: int
    classes: int
    fingerprint: str


def find_vtab_sources(config: VtabConfig) -> tuple[dict[VtabTask, str], list[str]]:
    """Find the data of each task, and list tasks without data; in the order of Table 9."""
    root = Path(config.data)
    if not root.is_dir():
        raise ConfigError(f"{root}: ROOT is a folder with a folder for each task; there is none")
    asked = config.choice.tasks
    places = {task: find_task_source(root, task.name) for task in VTAB_TASKS}
    sources = {
        task: source
        for task, source in places.items()
        if source is not None and (asked is None or task.name in asked)
    }
    missing = [task.name for task, source in places.items() if source is None]
    for name in asked or ():
        if name in missing:
            raise ConfigError(f"--tasks {name}: no data; there is neither {root / name}/ nor .csv")
    if not sources:
        raise ConfigError(
            f"{root}: no data of a task of VTAB-1k; the folders are to be called "
            f"{', '.join(task.name for task in VTAB_TASKS)}"
        )
    return sources, missing


def find_task_source(root: Path, name: str) -> str | None:
    """Find the source of a task; None if there is none."""
    labels = root / name / "labels.csv"
    if labels.is_file():
        return str(labels)
    if (root / name).is_dir():
        return str(root / name)
    files = (root / f"{name}{suffix}" for suffix in TABLE_SUFFIXES)
    return next((str(file) for file in files if file.is_file()), None)


def inspect_task_data(task: VtabTask, source: str, config: VtabConfig) -> VtabTaskData:
    """Open the data of a task; raise DataError if a split is missing."""
    settings = config.data_settings
    data = open_data(
        source,
        image_column=settings.image_column,
        label_column=settings.label_column,
        classes=settings.classes,
        unseen_classes=True,
    )
    for split in (TRAIN, TEST):
        if not len(data.splits.get(split, ())):
            raise DataError(
                f"task {task.name}: {source} has no split {split}; {_describe_splits(data)}"
            )
    train = sum(len(data.splits.get(split, ())) for split in (TRAIN, VALIDATION))
    return VtabTaskData(train, len(data.classes), fingerprint_dataset(data))


def _describe_splits(data: DatasetSplits) -> str:
    if ALL in data.splits:
        return f"its {len(data.splits[ALL]):,} images are not divided: make train/ and test/ of it"
    return "it has " + ", ".join(f"{len(part):,} {name}" for name, part in data.splits.items())


def join_fingerprints(counts: Mapping[VtabTask, VtabTaskData]) -> str:
    """Join the fingerprints of all tasks."""
    return " ".join(f"{task.name}:{found.fingerprint}" for task, found in counts.items())


@dataclass(frozen=True)
class VtabScore:
    """Result of one task."""

    task: VtabTask
    source: str
    counts: VtabTaskData
    folder: str  # within the series' folder
    evaluation: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return float(self.evaluation["accuracy"]["value"])

    @property
    def differences(self) -> list[str]:
        """Describe how the data differ from VTAB-1k's."""
        found = (
            ("training images", self.counts.train, VTAB_TRAIN_IMAGES),
            ("classes", self.counts.classes, self.task.classes),
            ("test images", self.evaluation["images"], self.task.test),
        )
        return [f"{n:,} {what} (VTAB-1k: {m:,})" for what, n, m in found if n != m]


@dataclass(frozen=True)
class VtabResult:
    """Results of all tasks, and departures from the paper."""

    folder: Path
    scores: list[VtabScore]
    missing: list[str]  # tasks without data
    departures: list[str]  # from the paper's settings

    @property
    def groups(self) -> list[VtabGroup]:
        """Groups that have a task, in the order of Table 9."""
        return [group for group in VTAB_GROUPS if any(s.task.group == group for s in self.scores)]

    def mean(self, group: VtabGroup | None = None) -> float:
        """Average accuracy over the tasks of a group, or over all."""
        return _mean([s.accuracy for s in self.chosen(group)])

    def published(self, model: int, group: VtabGroup | None = None) -> float:
        """The paper's mean over the same tasks; `model` is an index in TABLE_9."""
        return _mean([s.task.table_9[model] / 100 for s in self.chosen(group)])

    def chosen(self, group: VtabGroup | None = None) -> list[VtabScore]:
        return [s for s in self.scores if group in (None, s.task.group)]


def evaluate_vtab(
    config: VtabConfig, display: Display, report: ReportWriter | None = None
) -> VtabResult:
    """Fine-tune on each task that has data, and evaluate on its test images.

    Under torchrun every process calls it. The folder gets a run folder per task. Raises ConfigError
    and DataError before anything is trained, Interrupted with the command to resume.
    """
    with share_config_across_processes(config) as asked:
        asked.check()
        sources, missing = run_on_all_processes(lambda: find_vtab_sources(asked))
        config = scale_vtab_warmup(asked)
        counts = run_on_all_processes(
            lambda: {task: inspect_task_data(task, sources[task], asked) for task in sources}
        )
        output = broadcast_from_main(
            Path(config.output or choose_output_folder(config.data, "vtab"))
        )
        check_output_overlap(
            output, Path(config.data), Path(config.weights) if config.weights else None
        )
        about = {"source": config.data, "kind": "vtab", "fingerprint": join_fingerprints(counts)}
        folder = open_series(config, asked, output, about)
        if missing:
            display.say(f"no data for {', '.join(missing)}")
        scores = []
        with add_resume_hint(config, output):
            for number, (task, source) in enumerate(sources.items(), start=1):
                display.say(f"task {number} of {len(sources)}: {task.name}")
                evaluation = train_and_evaluate_task(config, task, source, folder, display, report)
                scores.append(VtabScore(task, source, counts[task], task.name, evaluation))
        settings = broadcast_from_main(
            read_config_yaml(RunFolder(output / scores[0].folder).config)
        )
    return VtabResult(output, scores, missing, list_departures(settings))


def scale_vtab_warmup(config: VtabConfig) -> VtabConfig:
    """Scale the warm-up if there are fewer steps than in the paper."""
    recipe = config.recipe
    if recipe.recipe != VTAB_RECIPE or recipe.steps is None or recipe.warmup_steps is not None:
        return config
    row = find_recipe(VTAB_RECIPE)
    warmup = round(row.warmup_steps / row.steps * recipe.steps)
    return replace(config, recipe=replace(recipe, warmup_steps=warmup))


def train_and_evaluate_task(
    config: VtabConfig,
    task: VtabTask,
    source: str,
    folder: RunFolder,
    display: Display,
    report: ReportWriter | None,
) -> dict[str, Any]:
    """Train on the task, or resume, unless it is finished; return its evaluation."""
    run = RunFolder(folder.path / task.name)
    if not is_run_finished(run, report):
        evaluate_and_report(
            train_or_resume(build_task_config(config, source, run.path), display), report
        )
    return broadcast_from_main(read_evaluation(run))


def build_task_config(config: VtabConfig, source: str, folder: Path) -> FinetuneConfig:
    """Build a run on all training images of a task; some classes may have none (SUN397)."""
    run = replace(build_run_config(config, folder), data=source)
    settings = replace(run.data_settings, validation=0.0, join_validation=True, unseen_classes=True)
    return replace(run, data_settings=settings)


def list_departures(stored: Mapping[str, Any]) -> list[str]:
    """List settings that are not the paper's, each as `steps 100 (paper: 2,500)`."""
    row = find_recipe(VTAB_RECIPE)
    size = {"steps": row.steps, "batch_size": row.batch_size, "lr": row.lr}
    plain = flatten_config(FinetuneConfig())
    fixed = {"layer_decay": 1.0, "balance": "none", "train": "all"}
    fixed |= {name: plain[name] for name in ("color_jitter", "erase")}
    paper = {**size, "warmup_steps": row.warmup_steps, **row.settings, **fixed}
    return [
        f"{name} {_format_setting(stored[name])} (paper: {_format_setting(value)})"
        for name, value in paper.items()
        if _format_setting(stored[name]) != _format_setting(value)
    ]


def _format_setting(value: Any) -> str:
    """Format a value; the side of a square counts as both of its sides.

    >>> _format_setting((384,)) == _format_setting([384, 384]), _format_setting(2500), _format_setting(0.01)
    (True, '2,500', '0.01')
    """
    if isinstance(value, list | tuple):
        return " ".join(_format_setting(part) for part in (value * 2 if len(value) == 1 else value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
