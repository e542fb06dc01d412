"""`patchwords report RUN`: write the report of a run again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from patchwords.data.examples import ImageDataset
    from patchwords.report.run import RunData


@dataclass(frozen=True)
class ReportCommand:
    """Write report.html and figures/ of a run again, from the files in its folder.

    The pictures are taken from the run's data, where it still is what it was.

    Example: patchwords report runs/photos

    Example: patchwords report runs/photos --beside runs/photos-from-scratch
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """the folder of a training run"""
    beside: tuple[str, ...] = ()
    """other runs on the same images, to compare with on the page"""


def run_report(config: ReportCommand) -> int:
    """Write the page and print its path."""
    from patchwords.commands.run_insight import lacks_insight, write_run_insight
    from patchwords.errors import PatchwordsError
    from patchwords.report.run import read_run_data
    from patchwords.report.write import write_report

    contents = read_run_data(Path(config.run))
    others = [read_run_data(Path(other)) for other in config.beside]
    refuse_incomparable(contents, others)
    try:
        examples = find_run_images(contents)
    except PatchwordsError as error:
        print(f"without pictures: {error}", file=sys.stderr)
        examples = None
    if lacks_insight(contents, examples):
        write_run_insight(contents, examples)
    print(write_report(config.run, examples, others))
    return 0


def refuse_incomparable(run: RunData, others: Sequence[RunData]) -> None:
    """Raise ConfigError where one of several runs has no accuracy to compare."""
    from patchwords.errors import ConfigError

    for one in (run, *others) if others else ():
        if not one.evaluation:
            raise ConfigError(f"--beside: {one.folder} has no evaluation.json, so no accuracy yet")


def find_run_images(run: RunData) -> ImageDataset | None:
    """The images that predictions.csv names, or the held-out ones of a run without classes.

    None where the run does not say which.

    Raises DataError where they are gone, or are no longer the ones of the run.
    """
    from patchwords.data.exclude import exclude_listed_images
    from patchwords.data.open import open_data
    from patchwords.data.split import fingerprint_dataset
    from patchwords.data.stream import DEFAULT_CACHE_GIB
    from patchwords.errors import DataError
    from patchwords.evaluate.held_out import read_run_splits, select_held_out

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
        return select_held_out(data, read_run_splits(run.folder)).examples
    named = {row.path for row in run.predictions}
    return max(data.splits.values(), key=lambda examples: len(named.intersection(examples.keys)))
