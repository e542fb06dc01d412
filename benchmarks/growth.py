"""How time and memory grow with tokens, batch, depth and width, beside the analytic count.

Each kind of size is changed by itself, from ViT-Ti/16 at 224 pixels with a batch of 4. Writes
growth.csv, growth.png and growth.svg. An exponent is the slope on a log-log plot: 1 doubles the
cost with the size, 2 makes it four times as much.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import child, shapes, training
from benchmarks.asked import Asked
from benchmarks.growth_figure import draw
from benchmarks.inference import ours
from benchmarks.table import Section, number
from benchmarks.timing import interleave
from patchwords.device import peak_memory
from patchwords.files import write_atomically
from patchwords.models.cost import count_macs
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model

HEADER = ("grows", "pass", "from", "to", "time", "memory", "MACs", "local exponents of time")
HEAD = 64  # width of a head, as in all of Table 1
PRECISION = "fp32"


@dataclass(frozen=True)
class Point:
    """A ViT of patches of 16x16 without a class token: tokens are (image size / 16)^2."""

    side: int = 14  # tokens along an edge
    batch: int = 4
    depth: int = 12
    width: int = 192

    def build(self) -> ViT:
        model = create_model(
            "ViT-Ti/16",
            image_size=16 * self.side,
            depth=self.depth,
            width=self.width,
            heads=max(1, self.width // HEAD),
            mlp_width=4 * self.width,
            classifier="gap",
            gelu="erf",
        )
        assert isinstance(model, ViT)
        return model


GROWS: dict[str, tuple[Point, ...]] = {
    "tokens": tuple(Point(side=side) for side in (8, 12, 16, 24, 32, 48)),  # 64 to 2,304
    "batch": tuple(Point(batch=batch) for batch in (1, 2, 4, 8, 16, 32)),
    "depth": tuple(Point(depth=depth) for depth in (2, 4, 8, 16, 24)),
    "width": tuple(Point(width=width) for width in (64, 128, 256, 512, 1024)),
}
QUICK = {"tokens": tuple(Point(side, batch=1, depth=1, width=64) for side in (2, 5))}
PASSES = ("forward", "step")


def measure(asked: Asked) -> Section:
    section = Section("growth", HEADER)
    section.remark(
        "exponents over all sizes, fitted on the logarithms; local: between neighbouring sizes; "
        f"{PRECISION}; memory is what the process takes above the libraries"
    )
    grown = QUICK if asked.quick else GROWS
    rows = [row for grows, points in grown.items() for row in measured(grows, points, asked)]
    for grows in grown:
        for what in PASSES:
            summarise(section, [r for r in rows if r["grows"] == grows and r["pass"] == what])
    section.records = rows
    width = Point().width
    section.remark(
        f"the knee over tokens: a block takes 12 N D^2 MACs for its matrices and 2 N^2 D for "
        f"attention, which are equal at N = 6 D = {6 * width:,} tokens of width D = {width}; "
        "below it the exponent is near 1, above it goes to 2"
    )
    save(section, rows, asked)
    return section


def measured(grows: str, points: tuple[Point, ...], asked: Asked) -> list[dict[str, Any]]:
    """Every point is timed in each round, so that a slow moment meets them all."""
    rows = []
    for what in PASSES:
        calls = {str(i): runner(point, what) for i, point in enumerate(points)}
        times = interleave(calls, asked.rounds_or(5), asked.seconds)
        for i, point in enumerate(points):
            size = point.side**2 if grows == "tokens" else asdict(point)[grows]
            with torch.device("meta"):
                cost = count_macs(point.build().config)
            memory = child.ask("growth", (what, json.dumps(asdict(point))))
            factor = 1 if what == "forward" else 3
            rows.append(
                {
                    "grows": grows,
                    "pass": what,
                    "size": size,
                    "seconds": statistics.median(times[str(i)]),
                    "bytes": memory["bytes"],
                    "macs": factor * cost * point.batch,
                }
            )
    return rows


def runner(point: Point, what: str) -> Any:
    """A call without arguments: a pass over a batch that is there."""
    shape = shapes.Shape("", "", 16 * point.side)
    model = point.build()
    batch = training.draw(shape, point.batch, model.config.num_classes)
    if what == "step":
        return training.our_step(model, batch, PRECISION)
    answer, images = ours(model, PRECISION), batch.images / 127.5 - 1
    return lambda: answer(images)


def summarise(section: Section, rows: list[dict[str, Any]]) -> None:
    sizes = [row["size"] for row in rows]
    slopes = [exponent(sizes, [row[key] for row in rows]) for key in ("seconds", "bytes", "macs")]
    section.rows.append(
        [
            *(rows[0]["grows"], rows[0]["pass"], f"{sizes[0]:,}", f"{sizes[-1]:,}"),
            *(f"{slope:.2f}" for slope in slopes),
            ", ".join(f"{slope:.2f}" for slope in local(sizes, [row["seconds"] for row in rows])),
        ]
    )


def exponent(sizes: list[float], costs: list[float]) -> float:
    """The slope of the line that fits best.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(costs, 1e-12)), 1)[0])


def local(sizes: list[float], costs: list[float]) -> list[float]:
    """The slopes between neighbours: one fewer than sizes."""
    return np.divide(np.diff(np.log(np.maximum(costs, 1e-12))), np.diff(np.log(sizes))).tolist()


def save(section: Section, rows: list[dict[str, Any]], asked: Asked) -> None:
    asked.output.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    files: dict[str, str | bytes] = {"growth.csv": text.getvalue(), **draw(rows)}
    for name, content in files.items():
        write_atomically(asked.output / name, content)
    largest = max(rows, key=lambda row: row["bytes"])
    section.remark(
        f"the largest took {number(largest['bytes'] / 2**20)} MiB; curves: "
        f"{', '.join(str(asked.output / name) for name in files)}"
    )


def main() -> None:
    """The memory of one point, in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=PASSES)
    parser.add_argument("point", type=json.loads)
    args = parser.parse_args()
    print(json.dumps({"bytes": memory_of(Point(**args.point), args.what)}))


def memory_of(point: Point, what: str) -> int:
    """Bytes above what a tiny model has taken already: that is what libraries take."""
    cpu = torch.device("cpu")
    runner(QUICK["tokens"][0], what)()
    before = peak_memory(cpu)
    call = runner(point, what)
    call()
    call()
    return peak_memory(cpu) - before


if __name__ == "__main__":
    main()
