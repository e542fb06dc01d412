"""`patchwords study NAME`: a table or figure of the paper, measured again here."""

from __future__ import annotations

import json as jsonlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.device import DeviceName, PrecisionName
from patchwords.errors import ConfigError

if TYPE_CHECKING:
    from patchwords.studies.run import StudyRequest


@dataclass(frozen=True)
class StudyCommand:
    """Measure a table or figure of the paper again, and say which of its claims hold here.

    `patchwords studies` lists what there is. A study is a grid of trainings; the folder gets
    page.html and page.md with the paper's numbers beside yours and a verdict on each claim,
    results.json, results.csv and the figure. Verdicts follow a rule that is fixed before the run.

    The same command goes on where one was stopped or killed. Several processes share the grid, by
    --jobs or by starting the command several times with the same --output.

    Example: patchwords study position-embeddings --data cifar10/ --output runs/positions

    Example: patchwords study head-type --scale full --plan
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """the study"""
    scale: Literal["mini", "full"] = "mini"
    """mini: small models on small data, within an hour; full: the paper's own setting"""
    data: str | None = None
    """what is trained on; `patchwords studies` says what a study needs"""
    transfer: str | None = None
    """what the frozen models are judged on, where a study does that"""
    output: Path | None = None
    """folder to write, or to go on in"""
    seeds: int | None = None
    """trainings of each cell; none given: three for mini, one for full"""
    budget: float | None = None
    """minutes that it may take: seeds are left out first, then steps, and the page says so"""
    jobs: int | None = None
    """processes that share the cells; none given: one for each core, or one on a GPU"""
    device: DeviceName = "auto"
    """where to compute"""
    precision: PrecisionName = "auto"
    """of matrix products; auto: bf16 where it is fast"""
    plan: bool = False
    """only say what each cell costs"""
    gpu: str = "h100"
    """for --plan: the hardware whose days are told"""
    json: bool = False
    """print the results, or the plan, as JSON, and progress to stderr"""


def run_study(config: StudyCommand) -> int:
    from patchwords.studies.table import load_study

    study = load_study(config.name)
    if config.plan:
        from patchwords.commands.studies import print_study_plan

        print_study_plan(study, config)
        return 0
    if config.output is None:
        raise ConfigError(f"say where the results go: --output FOLDER, such as runs/{config.name}")
    from rich.console import Console

    from patchwords.studies.run import StudyRequest
    from patchwords.studies.run import execute_study as carry_out

    console = Console(stderr=config.json)

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    asked = StudyRequest(
        study,
        config.scale,
        config.output,
        config.data,
        config.transfer,
        config.seeds,
        config.budget,
        config.jobs,
        config.device,
        config.precision,
    )
    results = carry_out(asked, tell, format_study_command(config))
    write_study(asked, results, format_study_command(config))
    if config.json:
        print(jsonlib.dumps(results))
    else:
        print_study(results, config.output, tell)
    return 0


def format_study_command(config: StudyCommand) -> str:
    """What was asked for, as it can be said again."""
    words = ["patchwords", "study", config.name, "--scale", config.scale]
    for name in ("data", "transfer", "output", "seeds", "budget", "jobs"):
        value = getattr(config, name)
        if value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    for name in ("device", "precision"):
        if getattr(config, name) != "auto":
            words += [f"--{name}", getattr(config, name)]
    return shlex.join(words)


def write_study(asked: StudyRequest, results: dict[str, Any], command: str) -> None:
    """results.json and results.csv, the figure, and the two pages."""
    from patchwords.commands.evaluator import write_results
    from patchwords.files import write_atomically
    from patchwords.studies.contents import build_page_blocks
    from patchwords.studies.page import render_html_page, render_markdown_page

    figures = {**asked.study.draw(results), **asked.study.draw_kept(asked.output, results)}
    write_results(asked.output, results, results["cells"], figures)
    pictures = [name.removesuffix(".png") for name in figures if name.endswith(".png")]
    pieces = build_page_blocks(asked.study, results, pictures, command)
    write_atomically(
        asked.output / "page.html", render_html_page(asked.study.title, pieces, figures)
    )
    write_atomically(asked.output / "page.md", render_markdown_page(asked.study.title, pieces))


def print_study(results: dict[str, Any], folder: Path, tell: Any) -> None:
    """The verdicts, and where the rest is."""
    from patchwords.studies.contents import format_difference

    for claim in results["claims"]:
        tell(f"{claim['verdict']}: {claim['text']}: {format_difference(claim)}")
    tell(f"page:    {folder / 'page.html'}")
