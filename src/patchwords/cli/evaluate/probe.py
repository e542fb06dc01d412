"""`patchwords probe MODEL DATA`: a linear classifier on the features of a frozen model."""

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
class ProbeCommand:
    """Measure linear-probe accuracy: softmax regression on the features of a frozen model.

    The regularisation is chosen on images held out of train, the classifier is then fitted on all
    of train, and the test images are read once. Features are computed once and cached, so the next
    probe of the same model and images takes seconds.

    For a run on DATA its own training and test images are used; else the splits of DATA, or a fifth
    is held out for test.

    Example: patchwords probe runs/pretrained flowers/ --output runs/probe
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """run folder, model folder, file of weights or hub id"""
    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """labelled images: a folder, CSV, parquet, tar shards, hf:NAME or digits"""
    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    """regularisation strengths to choose from; a single one is used as it is. The loss is the mean
    cross-entropy plus l2 / 2 times the squared weights, on features of mean 0 and deviation 1"""
    dev: float = 0.1
    """share of each class's training images that is held out to choose the regularisation"""
    seeds: int = 1
    """number of such splits; the mean accuracy over them decides"""
    seed: int = 0
    """seed of these splits, and of the split into train and test where DATA has no splits"""
    results: OutputOptions = field(default_factory=OutputOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    where: DeviceOptions = field(default_factory=DeviceOptions)
    images: DataOptions = field(default_factory=DataOptions)


def run_probe(config: ProbeCommand) -> int:
    from patchwords.api.probes import probe
    from patchwords.distributed import is_main_process
    from patchwords.evaluation.probes.linear import ProbeSettings

    ProbeSettings(config.l2, config.dev, tuple(range(config.seed, config.seed + config.seeds)))
    config.results.claim()
    results = probe(
        config.model,
        config.data,
        l2=config.l2,
        dev=config.dev,
        seeds=config.seeds,
        seed=config.seed,
        **vars(config.images),
        **vars(config.where),
        **vars(config.cache),
    ).to_dict()
    if not is_main_process():
        return 0
    config.results.give(
        results,
        results["path"],
        lambda: draw_probe_path(results) if results["chosen"] else {},
        lambda: print_probe(results, config.results.output),
    )
    return 0


def draw_probe_path(results: dict[str, Any]) -> dict[str, bytes]:
    """Draw dev accuracy over the regularisation, and the test accuracy of the chosen one."""
    from patchwords.report.figures.plots import Curve, Panel, draw_panels

    l2s = [row["l2"] for row in results["path"]]
    accuracy = results["results"]["accuracy"]
    curves = [
        Curve("dev", l2s, [100 * row["dev"] for row in results["path"]]),
        Curve("test, of the one chosen", [results["l2"]], [100 * accuracy["value"]]),
    ]
    panel = Panel("Linear probe", "l2", "accuracy (%)", curves, log_x=True)
    caption = (
        f"{results['model']} on {results['data']}: {results['train']:,} images of train, "
        f"{results['path'][0]['images']:,} held out to choose by, {results['test']:,} of test."
    )
    return draw_panels([panel], caption, "probe")


def print_probe(results: dict[str, Any], folder: Path | None) -> None:
    from rich.console import Console

    console = Console()
    if results["chosen"]:
        table = make_number_table("l2", "dev accuracy")
        for row in results["path"]:
            style = "bold" if row["l2"] == results["l2"] else None
            table.add_row(f"{row['l2']:g}", f"{row['dev']:.2%}", style=style)
        console.print(table)

    accuracy = results["results"]["accuracy"]
    lines = [
        f"accuracy {accuracy['value']:.2%} (95 % interval {accuracy['low']:.2%} to "
        f"{accuracy['high']:.2%}), macro F1 {results['results']['macro']['f1']:.3f}, with l2 "
        f"{results['l2']:g}, from {results['train']:,} images of train",
        *describe_image_counts(results),
    ]
    if results["at_end"]:
        lines.append("warning: the best regularisation is the last one tried; try more by --l2")
    if not results["converged"]:
        lines.append("warning: L-BFGS stopped before the minimum; a larger --l2 converges faster")
    if folder is not None:
        lines.append(f"results: {folder}")
    print_lines(console, *lines)
