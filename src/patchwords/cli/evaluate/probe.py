"""`patchwords probe MODEL DATA`: a linear classifier on the features of a frozen model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwords.cli.evaluate.measurement import FrozenModelCommand, describe_image_counts
from patchwords.cli.format import make_console, make_number_table, print_lines
from patchwords.evaluation.probes.defaults import DEFAULT_DEV_SHARE, DEFAULT_L2S


@dataclass(frozen=True)
class ProbeCommand(FrozenModelCommand):
    """Measure linear-probe accuracy: softmax regression on the features of a frozen model.

    The regularisation is chosen on images held out of train, the classifier is then fitted on all
    of train, and the test images are read once. Features are computed once and cached, so the next
    probe of the same model and images takes seconds.

    For a run on DATA its own training and test images are used; else the splits of DATA, or a fifth
    is held out for test.

    Example: patchwords probe runs/pretrained flowers/ --output runs/probe
    """

    l2: tuple[float, ...] = DEFAULT_L2S
    """regularisation strengths to choose from; a single one is used as it is. The loss is the mean
    cross-entropy plus l2 / 2 times the squared weights, on features of mean 0 and deviation 1"""
    dev: float = DEFAULT_DEV_SHARE
    """share of each class's training images that is held out to choose the regularisation"""
    seeds: int = 1
    """number of such splits; the mean accuracy over them decides"""
    seed: int = 0
    """seed of these splits, and of the split into train and test where DATA has no splits"""


def run_probe(config: ProbeCommand) -> int:
    """Measure, write and print the results."""
    from patchwords.api.probes import probe

    return config.measure(probe, "path", draw_probe_path, print_probe)


def draw_probe_path(results: dict[str, Any]) -> dict[str, bytes]:
    """Draw dev accuracy over the regularisation, and the test accuracy of the chosen one; {} for one l2."""
    from patchwords.report.figures.plots import Curve, Panel, draw_panels

    if not results["chosen"]:
        return {}
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
    console = make_console()
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
