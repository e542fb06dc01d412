"""`patchwords knn MODEL DATA`: classes of the nearest training images, by a frozen model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwords.cli.evaluate.measurement import FrozenModelCommand, describe_image_counts
from patchwords.cli.format import make_console, make_number_table, print_lines
from patchwords.evaluation.probes.defaults import DEFAULT_TEMPERATURE


@dataclass(frozen=True)
class KnnCommand(FrozenModelCommand):
    """Measure k-nearest-neighbour accuracy of a frozen model, as DINO does.

    The k training images whose features have the largest cosine similarity s vote for their
    classes, with weight exp(s / T). The search is exact. Every k is printed; the bold one was
    chosen without the test images: on training images, each classified by the others.

    For a run on DATA its own training and test images are used; else the splits of DATA, or a fifth
    is held out for test.

    Example: patchwords knn runs/pretrained flowers/ --k 10 20 100
    """

    k: tuple[int, ...] = ()
    """numbers of neighbours; default: 10 20 100, up to the number of training images"""
    temperature: float = DEFAULT_TEMPERATURE
    """temperature T of the votes: the smaller, the more the nearest images count"""
    seed: int = 0
    """seed of the 5,000 training images that k is chosen on, if there are more, and of the split
    into train and test where DATA has no splits"""


def run_knn(config: KnnCommand) -> int:
    """Measure, write and print the results."""
    from patchwords.api.probes import knn

    return config.measure(knn, "path", draw_knn_curve, print_knn)


def draw_knn_curve(results: dict[str, Any]) -> dict[str, bytes]:
    """Draw accuracy over the number of neighbours, with its interval."""
    from patchwords.report.figures.plots import Curve, Panel, draw_panels

    rows = sorted(results["path"], key=lambda row: row["k"])
    ks = [row["k"] for row in rows]
    value, low, high = ([100 * row[name] for row in rows] for name in ("value", "low", "high"))
    curves = [Curve("test", ks, value, low, high)]
    if results["chosen"]:
        curves.append(Curve("train, each by the others", ks, [100 * row["train"] for row in rows]))
    panel = Panel("k-NN", "k", "accuracy (%)", curves, log_x=True, x_ticks=ks)
    caption = (
        f"{results['model']} on {results['data']}: {results['train']:,} images of train vote, "
        f"{results['test']:,} of test are classified, T = {results['temperature']:g}. Band: 95 % "
        "interval."
    )
    return draw_panels([panel], caption, "knn")


def print_knn(results: dict[str, Any], folder: Path | None) -> None:
    console = make_console()
    table = make_number_table("k", "train", "test", "95 % interval")
    for row in results["path"]:
        chosen = "-" if row["train"] is None else f"{row['train']:.2%}"
        interval = f"{row['low']:.2%} to {row['high']:.2%}"
        style = "bold" if results["chosen"] and row["k"] == results["k"] else None
        table.add_row(str(row["k"]), chosen, f"{row['value']:.2%}", interval, style=style)
    console.print(table)

    lines = [
        f"{results['train']:,} images of train vote, with T = {results['temperature']:g}",
        *describe_image_counts(results),
    ]
    if results["chosen"]:
        judges = f"{results['judges']:,} images of train, each classified by the others"
        lines.insert(0, f"k {results['k']} was chosen on {judges}")
    if folder is not None:
        lines.append(f"results: {folder}")
    print_lines(console, *lines)
