"""`patchwords report RUN`: write the report of a run again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from patchwords.report.run_data import RunData


@dataclass(frozen=True)
class ReportCommand:
    """Rebuild report.html and figures/ of a run from the files in its folder.

    Pictures are read from the run's data, if that is still unchanged.

    Example: patchwords report runs/photos

    Example: patchwords report runs/photos --beside runs/photos-from-scratch
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """run folder"""
    beside: tuple[str, ...] = ()
    """other runs on the same images to compare with on the page; default: none"""


def run_report(config: ReportCommand) -> int:
    """Write the page and print its path."""
    from patchwords.errors import PatchwordsError
    from patchwords.report.page import write_report
    from patchwords.report.run_data import read_run_data
    from patchwords.report.run_insight import find_run_images, lacks_insight, write_run_insight

    contents = read_run_data(Path(config.run))
    others = [read_run_data(Path(folder)) for folder in config.beside]
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
    """Refuse runs without an accuracy to compare."""
    from patchwords.errors import ConfigError

    for compared in (run, *others) if others else ():
        if not compared.evaluation:
            raise ConfigError(
                f"--beside: {compared.folder} has no evaluation.json, so no accuracy yet"
            )
