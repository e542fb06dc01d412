"""`patchwords robustness MODEL [MODEL ...] DATA`: what is left of accuracy on disturbed images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from patchwords.commands.evaluator import DataOptions, DeviceOptions, OutputOptions

if TYPE_CHECKING:
    from patchwords.commands.side_by_side import ComparedModels
    from patchwords.evaluate.robustness.disturbance import Perturbation
    from patchwords.evaluate.subject import LoadedModel


@dataclass(frozen=True)
class RobustnessCommand:
    """Disturb images in many ways, and draw what accuracy is left, of one model or of several.

    All models see the same images, each cut to its own size; classes are matched by name. Images
    that any of the runs was trained on are left out. The disturbances are those of Naseer et al.
    (2021), each at several levels: patches dropped, tiles shuffled, texture removed, corruptions,
    attacks. docs/robustness.md says what each one does, and what has been published of it.

    Families for --only: occlusion, permutation, texture, noise, blur, digital, weather, extra,
    attack, patch. The last three cost most or repeat others, and are measured if named.

    With --output: results.json, results.csv with a row per level and seed, and a figure for each
    family of disturbances.

    Example: patchwords robustness runs/vit runs/resnet photos/ --images 500 --output robust
    """

    models_and_data: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL [MODEL ...] DATA")
    ]
    """run folders or model folders, and at last a source of labelled images"""
    only: tuple[str, ...] = ()
    """these disturbances, by name (occlusion-random) or family (occlusion), or all; none given:
    all but extra, attack and patch"""
    seeds: int = 3
    """how often what is random is drawn anew"""
    images: int | None = None
    """so many of the held-out images, each class by its share; none given: all"""
    grid: int | None = None
    """patches to a side for occlusion; none given: 14, fewer in images below 112 pixels"""
    saliency: str | None = None
    """the model that says which patches are salient; none given: each says it for itself"""
    results: OutputOptions = field(default_factory=OutputOptions)
    read: DataOptions = field(default_factory=DataOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)


def run_robustness(config: RobustnessCommand) -> int:
    """Load, measure, write, say."""
    from patchwords.commands.side_by_side import (
        load_compared_models,
        show_progress_in_turn,
        split_models_and_data,
    )
    from patchwords.distributed import is_main_process, join_process_group, run_on_main_process
    from patchwords.errors import ConfigError
    from patchwords.evaluate.robustness.measure import measure_robustness
    from patchwords.evaluate.robustness.table import choose_perturbations

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
    from patchwords.evaluate.subject import load_model_on_device

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
    from patchwords.commands.robustness_summary import print_robustness
    from patchwords.evaluate.robustness.corruptions import summarise_corruptions
    from patchwords.evaluate.robustness.summary import summarise_robustness
    from patchwords.report.robustness import draw_robustness

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
