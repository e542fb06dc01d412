"""`patchwords study NAME`: a table or figure of the paper, measured again here."""

from __future__ import annotations

import json as jsonlib
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.device import DeviceName, PrecisionName
from patchwords.errors import ConfigError

if TYPE_CHECKING:
    from patchwords.planning.hardware import Hardware
    from patchwords.studies.budget import TrialCost
    from patchwords.studies.runner import StudyRequest
    from patchwords.studies.study import ScaleName, Study


@dataclass(frozen=True)
class StudyCommand:
    """Measure a table or figure of the paper again and test its claims; without NAME: list them.

    A study is a grid of trainings. Its folder gets page.html and page.md with the paper's numbers
    next to yours and a verdict on each claim, results.json, results.csv and the figure. The rule
    behind the verdicts is fixed before the run.

    After an interruption the same command continues. Several processes share the grid, by --jobs
    or by starting the command several times with the same --output.

    Example: patchwords study position-embeddings --data cifar10/ --output runs/positions

    Example: patchwords study head-type --scale full --plan
    """

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """name of the study; default: list the studies, with what each measures, needs and costs"""
    scale: Literal["mini", "full"] = "mini"
    """mini: small models on small data, within an hour; full: the paper's own setting"""
    data: str | None = None
    """images to train on, if the study trains: `patchwords study` says which; default: none"""
    transfer: str | None = None
    """images to evaluate pre-trained models on, if the study does; default: none"""
    output: Path | None = None
    """folder to write, or to continue in; required except with --plan; default: none"""
    seeds: int | None = None
    """trainings per trial, with different seeds; default: 3 for mini, 1 for full"""
    budget: float | None = None
    """time budget in minutes: fewer seeds first, then fewer steps, as the page then says; default:
    no limit"""
    jobs: int | None = None
    """processes that share the trials; default: one per CPU core, or one on a GPU"""
    device: DeviceName = "auto"
    """device to train on; auto: a GPU if there is one"""
    precision: PrecisionName = "auto"
    """precision of matrix products; auto: bf16 where it is fast"""
    plan: bool = False
    """only print what each trial costs"""
    gpu: str = "h100"
    """hardware that --plan estimates device-days for"""
    json: bool = False
    """print the list, the results or the plan as JSON, and progress to stderr"""


def run_study(config: StudyCommand) -> int:
    from patchwords.studies.registry import load_study

    if config.name is None:
        print_studies(config.json)
        return 0
    study = load_study(config.name)
    if config.plan:
        print_study_plan(study, config)
        return 0
    if config.output is None:
        raise ConfigError(
            f"--output is missing: give a folder for the results, such as runs/{config.name}"
        )
    from rich.console import Console

    from patchwords.cli.format import print_lines
    from patchwords.studies.runner import StudyRequest, execute_study

    console = Console(stderr=config.json)
    show = partial(print_lines, console)
    request = StudyRequest(
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
    results = execute_study(request, show, format_study_command(config))
    write_study(request, results, format_study_command(config))
    if config.json:
        print(jsonlib.dumps(results))
    else:
        print_study(results, config.output, show)
    return 0


def format_study_command(config: StudyCommand) -> str:
    """Format the command line that repeats this study."""
    words = ["patchwords", "study", str(config.name), "--scale", config.scale]
    for name in ("data", "transfer", "output", "seeds", "budget", "jobs"):
        value = getattr(config, name)
        if value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    for name in ("device", "precision"):
        if getattr(config, name) != "auto":
            words += [f"--{name}", getattr(config, name)]
    return shlex.join(words)


def write_study(request: StudyRequest, results: dict[str, Any], command: str) -> None:
    """Write results.json, results.csv, the figures, and the page as HTML and Markdown."""
    from patchwords.cli.options import write_results
    from patchwords.files import write_atomically
    from patchwords.studies.page import build_page_blocks, render_html_page, render_markdown_page

    figures = {
        **request.study.draw_figures(results),
        **request.study.draw_stored_figures(request.output, results),
    }
    write_results(request.output, results, results["cells"], figures)
    pictures = [name.removesuffix(".png") for name in figures if name.endswith(".png")]
    blocks = build_page_blocks(request.study, results, pictures, command)
    write_atomically(
        request.output / "page.html", render_html_page(request.study.title, blocks, figures)
    )
    write_atomically(request.output / "page.md", render_markdown_page(request.study.title, blocks))


def print_study(results: dict[str, Any], folder: Path, show: Callable[[str], None]) -> None:
    """Print the verdicts, and the path of the page."""
    from patchwords.studies.page import format_difference

    for claim in results["claims"]:
        show(f"{claim['verdict']}: {claim['text']}: {format_difference(claim)}")
    show(f"page:    {folder / 'page.html'}")


def print_studies(json: bool) -> None:
    """List the studies: what each asks, needs and costs."""
    from rich.console import Console

    from patchwords.studies.registry import STUDIES, load_study

    rows = [study_to_dict(load_study(name)) for name in STUDIES]
    if json:
        print(jsonlib.dumps(rows, indent=1))
        return
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {row['source']}")
        console.print(f"  {row['question']}", markup=False, soft_wrap=True)
        for scale, about in row["scales"].items():
            console.print(f"  {scale}: {format_scale_cost(about)}", markup=False, soft_wrap=True)
    console.print(
        "\npatchwords study NAME --data DATA --output FOLDER; --plan says what its trials cost"
    )


def study_to_dict(study: Study) -> dict[str, Any]:
    """Describe a study for JSON."""
    from patchwords.studies.study import SCALES

    return {
        "name": study.name,
        "title": study.title,
        "source": study.source,
        "question": study.question,
        "claims": [claim.text for claim in study.claims],
        "scales": {name: scale_to_dict(study, name) for name in SCALES},
    }


def scale_to_dict(study: Study, name: ScaleName) -> dict[str, Any]:
    scale, costs = study.scales[name], estimate_study_costs(study, name)
    return {
        "needs": scale.data and scale.data.description,
        "transfer": scale.transfer and scale.transfer.description,
        "tuned": scale.tuned,
        "pretrainings": len(scale.encoders),
        "cells": len(scale.grid),
        "seeds": scale.seeds,
        "training_flops": scale.seeds * sum(cost.flops for cost in costs),
        "time": scale.time,
    }


def format_scale_cost(about: dict[str, Any]) -> str:
    from patchwords.report.format import pluralise
    from patchwords.studies.page import format_flops

    first = f"{about['pretrainings']} pre-trainings and " if about["pretrainings"] else ""
    cost = format_flops(about["training_flops"]) if about["training_flops"] else "no training"
    return (
        f"{first}{about['cells']} trials x {pluralise(about['seeds'], 'seed')}, {cost}, "
        f"{about['time']}; {format_data_needs(about)}"
    )


def format_data_needs(about: dict[str, Any]) -> str:
    """Describe the images that a study needs."""
    if not about["needs"]:
        return "needs no images"
    if not about["transfer"]:
        return f"needs {about['needs']}"
    use = "trains its trials" if about["tuned"] else "is evaluated"
    return f"needs {about['needs']}; {use} on {about['transfer']}"


def estimate_study_costs(
    study: Study, name: ScaleName, hardware: Hardware | None = None
) -> list[TrialCost]:
    """Estimate the cost of every pre-training and trial, for one seed."""
    from patchwords.studies.budget import estimate_trial_cost
    from patchwords.studies.study import StudyContext

    scale = study.scales[name]
    context = StudyContext(Path("."), scale, "data", "transfer")
    return [
        estimate_trial_cost(trial, context, hardware)
        for trial in (*scale.list_pretrainings(1), *scale.list_trials(1))
    ]


def print_study_plan(study: Study, config: StudyCommand) -> None:
    """Print the cost of each trial, and the sum over trials and seeds."""
    from rich.console import Console

    from patchwords.cli.format import make_table, print_lines
    from patchwords.planning.hardware import find_hardware
    from patchwords.report.format import format_compact
    from patchwords.studies.budget import ASSUMED_UTILISATION
    from patchwords.studies.page import format_flops

    hardware = find_hardware(config.gpu)
    scale = study.scales[config.scale]
    seeds = config.seeds or scale.seeds
    costs = estimate_study_costs(study, config.scale, hardware)
    days = seeds * sum(cost.device_days or 0.0 for cost in costs)
    if config.json:
        rows = [asdict(cost) for cost in costs]
        total = {"seeds": seeds, "hardware": hardware.name, "device_days": days}
        print(jsonlib.dumps({"cells": rows, **total}, indent=1))
        return
    costs = [cost for cost in costs if cost.images]  # trials that only measure cost little
    if not costs:
        print(f"{study.name} trains nothing; {config.scale} takes {scale.time}")
        return
    columns = ("parameters", "MACs", "images", "steps", "compute", "device-days")
    table = make_table("trial", *columns)
    for cost in costs:
        table.add_row(
            cost.name,
            f"{cost.parameters:,}",
            format_compact(cost.macs),
            format_compact(cost.images),
            f"{cost.steps:,}",
            format_flops(cost.flops),
            f"{cost.device_days:.3g}",
        )
    console = Console()
    console.print(table)
    total_flops = seeds * sum(cost.flops for cost in costs)
    print_lines(
        console,
        f"{len(costs)} trainings x {seeds}: {format_flops(total_flops)}, {days:.3g} device-days on "
        f"{hardware.name} at {ASSUMED_UTILISATION:.0%} of its peak (an assumption; see patchwords plan)",
        format_data_needs(scale_to_dict(study, config.scale)),
    )
