"""`patchwords robustness MODEL [MODEL ...] DATA`: what is left of accuracy on disturbed images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from patchwords.cli.options import DataOptions, DeviceOptions, OutputOptions

if TYPE_CHECKING:
    from patchwords.cli.options import ComparedModels
    from patchwords.evaluation.predictions import LoadedModel
    from patchwords.evaluation.robustness.perturbation import Perturbation


@dataclass(frozen=True)
class RobustnessCommand:
    """Measure accuracy on perturbed images, for one model or several.

    All models see the same images, each cropped to the model's size; classes are matched by name.
    Images that any of the runs was trained on are left out. The perturbations are those of Naseer
    et al. (2021), each at several levels: patches dropped, tiles shuffled, texture removed,
    corruptions, attacks. docs/robustness.md describes each, with the published results.

    Families for --only: occlusion, permutation, texture, noise, blur, digital, weather, extra,
    attack, patch. The last three are slow or repeat others, and are measured only if named.

    With --output: results.json, results.csv with a row per level and seed, and a figure for each
    family.

    Example: patchwords robustness runs/vit runs/resnet photos/ --images 500 --output robust
    """

    models_and_data: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL [MODEL ...] DATA")
    ]
    """run folders or model folders, then the labelled images"""
    only: tuple[str, ...] = ()
    """perturbations to measure, by name (occlusion-random) or family (occlusion), or all; default:
    all except extra, attack and patch"""
    seeds: int = 3
    """repetitions of each random perturbation, with different seeds"""
    images: int | None = None
    """number of held-out images, drawn class by class; default: all"""
    grid: int | None = None
    """patches per side for occlusion; default: 14, fewer for images below 112 pixels"""
    saliency: str | None = None
    """model that decides which patches are salient; default: each model decides for itself"""
    results: OutputOptions = field(default_factory=OutputOptions)
    read: DataOptions = field(default_factory=DataOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)


def run_robustness(config: RobustnessCommand) -> int:
    """Load, measure, write, say."""
    from patchwords.cli.options import (
        load_compared_models,
        split_models_and_data,
    )
    from patchwords.cli.progress import show_progress_in_turn
    from patchwords.distributed import is_main_process, join_process_group, run_on_main_process
    from patchwords.errors import ConfigError
    from patchwords.evaluation.robustness.measure import choose_perturbations, measure_robustness

    models, spec = split_models_and_data(config.models_and_data, "robustness")
    if config.seeds < 1:
        raise ConfigError(f"--seeds {config.seeds}: it is how often to draw, 1 or more")
    if config.grid is not None and config.grid < 1:
        raise ConfigError(f"--grid {config.grid}: it is a number of patches to a side, 1 or more")
    wanted = choose_perturbations(config.only)  # a wrong name is told before anything is loaded
    device = config.where.choose()
    with join_process_group(device.type == "cuda"):
        compared = load_compared_models(
            models,
            config.read.open(spec, need_labels=False),
            device,
            config.images,
            workers=config.where.workers,
            training=any(each.prepare is not None for each in wanted),
        )
        judge = find_saliency_model(config.saliency, compared.subjects)
        disturbances = choose_perturbations(config.only, config.grid, judge)
        run_on_main_process(config.results.claim)
        with show_progress_in_turn() as progress:
            rows = measure_robustness(
                compared.subjects,
                compared.chosen.judged,
                disturbances,
                range(config.seeds),
                compared.chosen.training,
                config.read.max_bad,
                progress,
            )
    if is_main_process():
        write_robustness_results(config, compared, disturbances, rows)
    return 0


def find_saliency_model(name: str | None, subjects: Sequence[LoadedModel]) -> LoadedModel | None:
    """The model of --saliency: one of the subjects, or another that is loaded for it."""
    from patchwords.evaluation.predictions import load_model_on_device

    if name is None:
        return None
    known = {subject.name: subject for subject in subjects}
    return known[name] if name in known else load_model_on_device(name, subjects[0].device)


def write_robustness_results(
    config: RobustnessCommand,
    compared: ComparedModels,
    disturbances: Sequence[Perturbation],
    rows: Sequence[dict[str, Any]],
) -> None:
    """Write results, rows and figures; print the points."""
    from patchwords.evaluation.robustness.corruptions import summarise_corruptions
    from patchwords.evaluation.robustness.measure import summarise_robustness
    from patchwords.report.figures.comparison import draw_robustness

    points = summarise_robustness(rows)
    results = {
        **compared.describe(),
        "seeds": config.seeds,
        "grid": config.grid,
        "saliency": config.saliency,
        "disturbances": {
            each.name: {"title": each.title, "level": each.x_label, "published": each.published}
            for each in disturbances
        },
        "points": points,
        "rows": list(rows),
        "corruptions": summarise_corruptions(rows),
    }
    config.results.give(
        results,
        rows,
        lambda: draw_robustness(disturbances, points),
        lambda: print_robustness(disturbances, points, compared.in_words(), config.results.output),
    )


# The results of `patchwords robustness` as tables on the screen.


def print_robustness(
    disturbances: Sequence[Perturbation],
    points: Sequence[Mapping[str, Any]],
    lines: Sequence[str],
    output: Path | None,
) -> None:
    """A table for each disturbance, and what was measured on."""
    console = Console()
    for disturbance in disturbances:
        mine = [point for point in points if point["disturbance"] == disturbance.name]
        console.print(f"\n{disturbance.title}", style="bold", markup=False, highlight=False)
        console.print(make_robustness_table(disturbance.x_label, mine))
    written = [] if output is None else [f"results and figures: {output}"]
    for line in ("", *lines, *written):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_robustness_table(x_label: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each level, a column for each curve: accuracy and its deviation over seeds, in %"""
    from patchwords.report.figures.comparison import robustness_curve_name

    curves = list(dict.fromkeys(robustness_curve_name(point) for point in points))
    cells = {
        (point["level"], robustness_curve_name(point)): format_mean_accuracy(point)
        for point in points
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (x_label, *curves):
        table.add_column(name, justify="right", overflow="fold")
    for level in sorted({point["level"] for point in points}):
        # a level that one model's images allow may be too fine for another's
        table.add_row(f"{level:g}", *(cells.get((level, curve), "-") for curve in curves))
    return table


def format_mean_accuracy(point: Mapping[str, Any]) -> str:
    mean = f"{100 * point['mean']:.1f}"
    return mean if point["std"] is None else f"{mean} ± {100 * point['std']:.1f}"
