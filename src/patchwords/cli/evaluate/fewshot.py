"""`patchwords fewshot MODEL DATA`: what a frozen model knows, by a few images of each class."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from patchwords.cli.format import make_number_table, print_lines
from patchwords.cli.options import (
    CacheOptions,
    DataOptions,
    DeviceOptions,
    OutputOptions,
    describe_image_counts,
)


@dataclass(frozen=True)
class FewshotCommand:
    """Measure few-shot linear accuracy (Sec. 4.1 of the paper) of a frozen model.

    A few training images of each class are drawn, and a linear map from the model's features to the
    classes is fitted by regularised least squares, in closed form; the accuracy is that on the test
    images. The model is not trained, so the command takes seconds once the features are computed.
    Each seed is another draw: the mean is printed, and the standard deviation over draws.

    For a run on DATA its own training and test images are used; else the splits of DATA, or a fifth
    is held out for test. The regularisation is not tuned: each strength has its own line.

    Example: patchwords fewshot google/vit-base-patch16-224-in21k flowers/ --shots 1 5 10 25
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """run folder, model folder, file of weights or hub id"""
    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """labelled images: a folder, CSV, parquet, tar shards, hf:NAME or digits"""
    shots: tuple[int, ...] = (1, 5, 10, 25)
    """training images per class"""
    seeds: int = 3
    """random draws for each number of shots"""
    l2: tuple[float, ...] = (1024.0,)
    """regularisation strengths to report; a path costs little more than one (2^10 is the authors'
    value)"""
    seed: int = 0
    """seed of the first draw, and of the split into train and test where DATA has no splits"""
    results: OutputOptions = field(default_factory=OutputOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)
    images: DataOptions = field(default_factory=DataOptions)


def run_fewshot(config: FewshotCommand) -> int:
    from patchwords.api.probes import fewshot
    from patchwords.distributed import is_main_process
    from patchwords.errors import ConfigError
    from patchwords.evaluation.probes.fewshot import require_positive_penalties

    if config.seeds < 1:
        raise ConfigError(f"--seeds {config.seeds} must be at least 1")
    require_positive_penalties(config.l2)
    config.results.claim()
    results = fewshot(
        config.model,
        config.data,
        shots=config.shots,
        seeds=config.seeds,
        l2=config.l2,
        seed=config.seed,
        **vars(config.images),
        **vars(config.where),
        **vars(config.cache),
    ).to_dict()
    if not is_main_process():
        return 0
    config.results.give(
        results,
        results["table"],
        lambda: draw_fewshot_curve(results),
        lambda: print_fewshot(results, config.results.output),
    )
    return 0


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
    from rich.console import Console

    console = Console()
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
