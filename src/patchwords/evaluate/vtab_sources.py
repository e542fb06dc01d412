"""Where the data of VTAB-1k's tasks lie on the disk, and whether they are whole.

ROOT holds a source of images for each task by the task's name, with splits: `train` and, if they
are kept apart, `validation` (800 and 200 images, all of which are trained on) and `test`.

| under ROOT | is |
|---|---|
| `TASK/` | train/, val/, test/ with a folder per class in each, or parquets of these names |
| `TASK/labels.csv` | `path,label,split`: for labels that are counts or bins |
| `TASK.csv`, `TASK.parquet` | the same beside one another |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patchwords.data.examples import ALL, TEST, TRAIN, VALIDATION, DatasetSplits
from patchwords.data.open import open_data
from patchwords.data.split import fingerprint_dataset
from patchwords.errors import ConfigError, DataError
from patchwords.evaluate.vtab_config import VtabConfig
from patchwords.evaluate.vtab_tasks import VTAB_TASKS, VtabTask

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class VtabTaskData:
    """What a task's data hold."""

    train: int
    classes: int
    fingerprint: str


def find_vtab_sources(config: VtabConfig) -> tuple[dict[VtabTask, str], list[str]]:
    """Where the data of each task lie, and the tasks without; in the order of Table 9."""
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
    """What `open_data` takes for a task; None where there is nothing by its name."""
    labels = root / name / "labels.csv"
    if labels.is_file():
        return str(labels)
    if (root / name).is_dir():
        return str(root / name)
    files = (root / f"{name}{suffix}" for suffix in TABLE_SUFFIXES)
    return next((str(file) for file in files if file.is_file()), None)


def inspect_task_data(task: VtabTask, source: str, config: VtabConfig) -> VtabTaskData:
    """Open the data of a task; raises DataError where a split lacks, by the task's name."""
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
    """Of the data of all tasks."""
    return " ".join(f"{task.name}:{found.fingerprint}" for task, found in counts.items())
