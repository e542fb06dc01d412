"""Tables and figure of the speeds of models at several sizes of the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.evaluate.spread import spread
from patchwords.report.words import plural
from patchwords.studies.contents import Piece, Rows, Text
from patchwords.studies.paper.speed_numbers import SIZES, SPAN, models_of, name_of, power
from patchwords.studies.study import Numbers

GIB = 2**30


def tables(results: Mapping[str, Any]) -> list[Piece]:
    """Speeds, how they fall with the size, the largest batches, and on what all was measured."""
    models, means = models_of(results["grid"]), means_of(results)
    pixels = tuple(f"{size} px" for size in SIZES)
    return [
        Text(where(results)),
        Rows(
            ("images/s at", *pixels),
            [(model, *(speed(results, model, size) for size in SIZES)) for model in models],
        ),
        Text(
            "How the time of an image, and its multiplications, grow with its side between "
            f"{SPAN[0]} and {SPAN[1]} pixels: a power of 2 is in proportion to the pixels, one of "
            "4 would be bi-quadratic."
        ),
        Rows(
            ("model", "power, time", "power, multiplications", "share of the peak at 224 px"),
            [growth(means, model) for model in models],
        ),
        Text(memory(means)),
        Rows(
            ("largest batch at", *pixels),
            [(model, *(largest(means, model, size) for size in SIZES)) for model in models],
        ),
    ]


def where(results: Mapping[str, Any]) -> str:
    one, cells = results["cells"][0], results["cells"]
    threads = plural(int(one["threads"]), "thread")
    batches = " or ".join(f"{batch:.0f}" for batch in sorted({c["at a time"] for c in cells}))
    return (
        f"Measured on {results['device']} with {threads} in {'bf16' if one['bf16'] else 'fp32'}, "
        "one cell after the other, through the call that `patchwords predict` makes: images come "
        "from main memory as bytes, scores go back to it. Each speed is the best over images at a "
        f"time ({batches} won), and of each the median of several runs. A repeat stands for a "
        "seed: weights are as they begin, and do not matter."
    )


def memory(means: Mapping[str, Numbers]) -> str:
    free = [one["free bytes"] or 0.0 for one in means.values()]
    return (
        "The largest batch is by arithmetic, not by filling the machine: what a training step "
        "with Adam holds (weights, gradients, two moments, activations) in nine tenths of the "
        f"memory that was free, {min(free) / GIB:.1f} to {max(free) / GIB:.1f} GiB. The tests hold "
        "that arithmetic to what torch takes, within 13 %."
    )


def speed(results: Mapping[str, Any], model: str, size: int) -> str:
    """With the standard deviation of a repeat."""
    over = spread(values_of(results, model, size, "images/s"))
    digits = 0 if over.mean >= 100 else 1
    beside = "" if over.std is None else f" ± {over.std:.{digits}f}"
    return f"{over.mean:.{digits}f}{beside}"


def growth(means: Mapping[str, Numbers], model: str) -> tuple[str, ...]:
    time, work = power(means, model, "images/s"), power(means, model, "macs")
    assert time is not None
    assert work is not None
    share = means[name_of(model, 224)]["share of peak"] or 0.0
    return model, f"{time:.2f}", f"{-work:.2f}", f"{share:.0%}"


def largest(means: Mapping[str, Numbers], model: str, size: int) -> str:
    return f"{means[name_of(model, size)]['largest batch']:,.0f}"


def values_of(results: Mapping[str, Any], model: str, size: int, what: str) -> list[float]:
    """Of every repeat."""
    name = name_of(model, size)
    return [cell[what] for cell in results["cells"] if cell["name"] == name]


def means_of(results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Cell -> its numbers, the mean of the repeats."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell in results["cells"]:
        found.setdefault(cell["name"], []).append(cell)
    about = {"name", "seed", "folder"}
    return {
        name: {key: sum(c[key] for c in cells) / len(cells) for key in cells[0].keys() - about}
        for name, cells in found.items()
    }


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 12: both panels over the size of the image."""
    from patchwords.report.curves import Panel, draw_panels

    caption = (
        f"On {results['device']}. Left: the best over images at a time, mean of "
        f"{plural(results['seeds'], 'repeat')}, bands from the slowest to the fastest. Right: what "
        "fits into the free memory in training with Adam, by arithmetic."
    )
    panels = [
        Panel(title, "image size, pixels", what, curves(results, what), True, True, SIZES)
        for title, what in (("Speed", "images/s"), ("Memory", "largest batch"))
    ]
    return draw_panels(panels, caption, "speed")


def curves(results: Mapping[str, Any], what: str) -> Sequence[Any]:
    """A line for each model; where it does not fit, it is not drawn."""
    from patchwords.report.curves import Curve

    found = []
    for model in models_of(results["grid"]):
        values = {size: values_of(results, model, size, what) for size in SIZES}
        fit = {size: some for size, some in values.items() if min(some) > 0}
        means = [sum(some) / len(some) for some in fit.values()]
        low, high = [min(some) for some in fit.values()], [max(some) for some in fit.values()]
        found.append(Curve(model, list(fit), means, low, high))
    return found
