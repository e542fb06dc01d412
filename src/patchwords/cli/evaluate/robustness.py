"""`patchwords robustness MODEL [MODEL ...] DATA`: accuracy on perturbed images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from patchwords.cli.evaluate.measurement import (
    ComparedModels,
    ComparedModelsCommand,
    ModelsAndData,
)
from patchwords.cli.format import make_console, print_lines

if TYPE_CHECKING:
    from patchwords.evaluation.predictions import LoadedModel
    from patchwords.evaluation.robustness.perturbation import Perturbation


@dataclass(frozen=True)
class RobustnessCommand(ComparedModelsCommand):
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

    models_and_data: ModelsAndData
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


def run_robustness(config: RobustnessCommand) -> int:
    """Load the models, measure, write and print the results."""
    from patchwords.distributed import is_main_process, run_on_main_process
    from patchwords.errors import ConfigError
    from patchwords.evaluation.robustness.measure import choose_perturbations, measure_robustness
    from patchwords.training.logs.progress import show_progress_in_turn

    if config.seeds < 1:
        raise ConfigError(f"--seeds {config.seeds} must be at least 1")
    if config.grid is not None and config.grid < 1:
        raise ConfigError(f"--grid {config.grid} must be at least 1 patch")
    requested = choose_perturbations(config.only)  # refuses an unknown name before models load
    training = any(perturbation.prepare is not None for perturbation in requested)
    with config.load("robustness", config.images, training=training) as compared:
        judge = find_saliency_model(config.saliency, compared.subjects)
        perturbations = choose_perturbations(config.only, config.grid, judge)
        run_on_main_process(config.results.claim)
        with show_progress_in_turn() as progress:
            rows = measure_robustness(
                compared.subjects,
                compared.chosen.judged,
                perturbations,
                range(config.seeds),
                compared.chosen.training,
                config.read.max_bad,
                progress,
            )
    if is_main_process():
        write_robustness_results(config, compared, perturbations, rows)
    return 0


def find_saliency_model(name: str | None, subjects: Sequence[LoadedModel]) -> LoadedModel | None:
    """Find the model of --saliency among the compared models, or load it."""
    from patchwords.evaluation.predictions import load_model_on_device

    if name is None:
        return None
    by_name = {subject.name: subject for subject in subjects}
    return by_name.get(name) or load_model_on_device(name, subjects[0].device)


def write_robustness_results(
    config: RobustnessCommand,
    compared: ComparedModels,
    perturbations: Sequence[Perturbation],
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
            perturbation.name: {
                "title": perturbation.title,
                "level": perturbation.x_label,
                "published": perturbation.published,
            }
            for perturbation in perturbations
        },
        "points": points,
        "rows": list(rows),
        "corruptions": summarise_corruptions(rows),
    }
    config.results.give(
        results,
        rows,
        lambda: draw_robustness(perturbations, points),
        lambda: print_robustness(
            perturbations, points, compared.summarise(), config.results.output
        ),
    )


def print_robustness(
    perturbations: Sequence[Perturbation],
    points: Sequence[Mapping[str, Any]],
    lines: Sequence[str],
    output: Path | None,
) -> None:
    """Print a table for each perturbation, then which images were measured."""
    console = make_console()
    for perturbation in perturbations:
        own_points = [point for point in points if point["disturbance"] == perturbation.name]
        console.print(f"\n{perturbation.title}", style="bold", markup=False, highlight=False)
        console.print(make_robustness_table(perturbation.x_label, own_points))
    written = [] if output is None else [f"results and figures: {output}"]
    print_lines(console, "", *lines, *written)


def make_robustness_table(x_label: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of accuracy and its deviation over seeds in %: levels by curves."""
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
