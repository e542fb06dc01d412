"""`patchwords fewshot MODEL DATA`: what a frozen model knows, by a few images of each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwords.cli.evaluate.measurement import FrozenModelCommand, describe_image_counts
from patchwords.cli.format import make_console, make_number_table, print_lines
from patchwords.evaluation.probes.defaults import DEFAULT_DRAWS, DEFAULT_L2, DEFAULT_SHOTS


@dataclass(frozen=True)
class FewshotCommand(FrozenModelCommand):
    """Measure few-shot linear accuracy (Sec. 4.1 of the paper) of a frozen model.

    A few training images of each class are drawn, and a linear map from the model's features to the
    classes is fitted by regularised least squares, in closed form; the accuracy is that on the test
    images. The model is not trained, so the command takes seconds once the features are computed.
    Each seed is another draw: the mean is printed, and the standard deviation over draws.

    For a run on DATA its own training and test images are used; else the splits of DATA, or a fifth
    is held out for test. The regularisation is not tuned: each strength has its own line.

    Example: patchwords fewshot google/vit-base-patch16-224-in21k flowers/ --shots 1 5 10 25
    """

    shots: tuple[int, ...] = DEFAULT_SHOTS
    """training images per class"""
    seeds: int = DEFAULT_DRAWS
    """random draws for each number of shots"""
    l2: tuple[float, ...] = (DEFAULT_L2,)
    """regularisation strengths to report; a path costs little more than one (2^10 is the authors'
    value)"""
    seed: int = 0
    """seed of the first draw, and of the split into train and test where DATA has no splits"""


def run_fewshot(config: FewshotCommand) -> int:
    """Measure, write and print the results."""
    from patchwords.api.probes import fewshot

    return config.measure(fewshot, "table", draw_fewshot_curve, print_fewshot)


def draw_fewshot_curve(results: dict[str, Any]) -> dict[str, bytes]:
    """Draw accuracy over shots: a curve per regularisation strength, with its deviation."""
    from patchwords.report.figures.plots import Curve, Panel, draw_panels

    curves = []
    for l2 in dict.fromkeys(row["l2"] for row in results["table"]):
        rows = [row for row in results["table"] if row["l2"] == l2]
        rows.sort(key=lambda row: row["shots"])
        mean = [100 * row["mean"] for row in rows]
        spread = [100 * (row["std"] or 0.0) for row in rows]
        curves.append(
            Curve(
                f"l2 {l2:g}",
                [row["shots"] for row in rows],
                mean,
                [m - s for m, s in zip(mean, spread, strict=True)],
                [m + s for m, s in zip(mean, spread, strict=True)],
            )
        )
    ticks = sorted({row["shots"] for row in results["table"]})
    panel = Panel(
        "Few-shot linear", "images of each class", "accuracy (%)", curves, log_x=True, x_ticks=ticks
    )
    caption = (
        f"{results['model']} on {results['data']}: {results['test']:,} images of test. Band: one "
        f"standard deviation over {results['table'][0]['n']} draws."
    )
    return draw_panels([panel], caption, "fewshot")


def print_fewshot(results: dict[str, Any], folder: Path | None) -> None:
    console = make_console()
    table = make_number_table("shots", "l2", "accuracy", "deviation", "draws")
    for row in results["table"]:
        deviation = "-" if row["std"] is None else f"{row['std']:.2%}"
        table.add_row(
            *(f"{row['shots']}", f"{row['l2']:g}", f"{row['mean']:.2%}", deviation, f"{row['n']}")
        )
    console.print(table)

    print_lines(
        console,
        f"drawn from {results['pool']:,} images of train",
        *describe_image_counts(results),
        *([] if folder is None else [f"results: {folder}"]),
    )
