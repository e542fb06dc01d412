"""`patchwords translation MODEL [MODEL ...] DATA`: does a shifted image give shifted features?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchwords.cli.evaluate.measurement import ComparedModelsCommand
from patchwords.cli.format import make_console, make_number_table, print_lines

if TYPE_CHECKING:
    from patchwords.evaluation.predictions import LoadedModel


@dataclass(frozen=True)
class EquivarianceCommand(ComparedModelsCommand):
    """Measure shift equivariance: how far f(g(x)) is from g(f(x)) for shifts g by 1, 2, ... pixels.

    The relative error of the features is 0 if they only move with the image, and 1.41 if they are
    unrelated to the features of the unshifted image. It is measured after the stem (a ResNet's
    root, a ViT's patch embedding) and before the head. The logits should not change at all; `same
    answer` is the share of images whose predicted class stays. Images are shifted in a circle.

    With --output: results.json, results.csv and a figure.

    Example: patchwords translation runs/vit runs/resnet photos/ --images 200 --output moved
    """

    shifts: int | None = None
    """largest shift in pixels; default: the largest patch size of the models, 16 without patches"""
    images: int | None = None
    """number of held-out images, drawn class by class; default: all"""


def run_equivariance(config: EquivarianceCommand) -> int:
    """Load the models, measure, write and print the results."""
    from patchwords.distributed import is_main_process, run_on_main_process
    from patchwords.errors import ConfigError
    from patchwords.evaluation.equivariance import measure_shift_equivariance
    from patchwords.report.figures.comparison import draw_equivariance
    from patchwords.training.logs.progress import show_progress_in_turn

    if config.shifts is not None and config.shifts < 1:
        raise ConfigError(f"--shifts {config.shifts} must be at least 1 pixel")
    with config.load("translation", config.images, need_classes=False) as compared:
        run_on_main_process(config.results.claim)
        shifts = range(1, 1 + (config.shifts or choose_shift_count(compared.subjects)))
        examples = compared.chosen.judged
        with show_progress_in_turn() as progress:
            rows = measure_shift_equivariance(
                compared.subjects, examples, shifts, config.read.max_bad, progress
            )
    if not is_main_process():
        return 0
    results = {**compared.describe(), "rows": rows}
    config.results.give(
        results,
        rows,
        lambda: draw_equivariance(rows),
        lambda: print_equivariance(rows, compared.summarise(), config.results.output),
    )
    return 0


def choose_shift_count(subjects: Sequence[LoadedModel]) -> int:
    """Choose the largest shift: the largest patch size, below the smallest image size."""
    from patchwords.models.vit import ViT

    patches = [s.model.config.stride for s in subjects if isinstance(s.model, ViT)]
    smallest = min(min(subject.preprocess.image_size) for subject in subjects)
    return min(max(patches, default=16), smallest - 1)


def print_equivariance(
    rows: Sequence[Mapping[str, Any]], lines: Sequence[str], output: Path | None
) -> None:
    """Print a table for each model: a row per shift, errors averaged over both axes."""
    from patchwords.report.figures.comparison import mean_shift_error

    console = make_console()
    for model in dict.fromkeys(row["model"] for row in rows):
        model_rows = [row for row in rows if row["model"] == model]
        errors = {
            layer: dict(zip(*mean_shift_error(model_rows, model, layer), strict=True))
            for layer in dict.fromkeys(row["place"] for row in model_rows)
        }
        table = make_number_table("shift, pixels", *errors, "same answer")
        for pixels in dict.fromkeys(row["pixels"] for row in model_rows):
            same = [row["same_answer"] for row in model_rows if row["pixels"] == pixels]
            at_shift = [by_pixels.get(pixels) for by_pixels in errors.values()]
            cells = ("-" if error is None else f"{error:.3f}" for error in at_shift)
            table.add_row(str(pixels), *cells, f"{sum(same) / len(same):.1%}")
        console.print(f"\n{model}", style="bold", markup=False, highlight=False)
        console.print(table)
    written = [] if output is None else [f"results and figure: {output}"]
    print_lines(console, "", *lines, *written)
