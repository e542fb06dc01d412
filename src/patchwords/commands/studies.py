"""`patchwords studies`: what can be measured again, what it asks, needs and costs."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from patchwords.commands.study import StudyCommand
    from patchwords.studies.cost import TrialCost
    from patchwords.studies.study import ScaleName, Study
    from patchwords.train.hardware import Hardware


@dataclass(frozen=True)
class StudiesCommand:
    """List the studies of the paper's tables and figures: what each asks, needs and costs.

    Example: patchwords studies
    """

    json: bool = False
    """print JSON"""


def run_studies(config: StudiesCommand) -> int:
    from rich.console import Console

    from patchwords.studies.table import STUDIES, load_study

    rows = [study_to_dict(load_study(name)) for name in STUDIES]
    if config.json:
        print(jsonlib.dumps(rows, indent=1))
        return 0
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {row['source']}")
        console.print(f"  {row['question']}", markup=False, soft_wrap=True)
        for scale, about in row["scales"].items():
            console.print(f"  {scale}: {format_scale_cost(about)}", markup=False, soft_wrap=True)
    console.print(
        "\npatchwords study NAME --data DATA --output FOLDER; --plan says what cells cost"
    )
    return 0


def study_to_dict(study: Study) -> dict[str, Any]:
    """A study, for JSON."""
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
        "needs": scale.data and scale.data.what,
        "transfer": scale.transfer and scale.transfer.what,
        "tuned": scale.tuned,
        "pretrainings": len(scale.encoders),
        "cells": len(scale.grid),
        "seeds": scale.seeds,
        "training_flops": scale.seeds * sum(cost.flops for cost in costs),
        "time": scale.time,
    }


def format_scale_cost(about: dict[str, Any]) -> str:
    from patchwords.report.words import pluralise
    from patchwords.studies.contents import format_flops

    first = f"{about['pretrainings']} pre-trainings and " if about["pretrainings"] else ""
    cost = format_flops(about["training_flops"]) if about["training_flops"] else "no training"
    return (
        f"{first}{about['cells']} cells x {pluralise(about['seeds'], 'seed')}, {cost}, "
        f"{about['time']}; {format_data_needs(about)}"
    )


def format_data_needs(about: dict[str, Any]) -> str:
    """Which images it takes, and what for."""
    if not about["needs"]:
        return "needs no images"
    if not about["transfer"]:
        return f"needs {about['needs']}"
    use = "trains its cells" if about["tuned"] else "is judged"
    return f"needs {about['needs']}; {use} on {about['transfer']}"


def estimate_study_costs(
    study: Study, name: ScaleName, hardware: Hardware | None = None
) -> list[TrialCost]:
    """Of every pre-training and cell, with one seed."""
    from patchwords.studies.bench import StudyContext
    from patchwords.studies.cost import estimate_trial_cost

    scale = study.scales[name]
    bench = StudyContext(Path("."), scale, "data", "transfer")
    return [
        estimate_trial_cost(cell, bench, hardware)
        for cell in (*scale.pretrainings(1), *scale.cells(1))
    ]


def print_study_plan(study: Study, config: StudyCommand) -> None:
    """A line for each cell, and the sum over cells and seeds."""
    from rich.console import Console
    from rich.table import Table

    from patchwords.report.words import format_compact
    from patchwords.studies.contents import format_flops
    from patchwords.studies.cost import ASSUMED_UTILISATION
    from patchwords.train.hardware import find_hardware

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
    costs = [cost for cost in costs if cost.images]  # what only measures costs little
    if not costs:
        print(f"{study.name} trains nothing; {config.scale} takes {scale.time}")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("cell", "parameters", "MACs", "images", "steps", "compute", "device-days"):
        table.add_column(column, justify="left" if column == "cell" else "right", no_wrap=True)
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
    console: Console = Console(highlight=False)
    console.print(table)
    total_flops = seeds * sum(cost.flops for cost in costs)
    for line in (
        f"{len(costs)} trainings x {seeds}: {format_flops(total_flops)}, {days:.3g} device-days on "
        f"{hardware.name} at {ASSUMED_UTILISATION:.0%} of its peak (an assumption; see patchwords plan)",
        format_data_needs(scale_to_dict(study, config.scale)),
    ):
        console.print(line, markup=False, soft_wrap=True)
