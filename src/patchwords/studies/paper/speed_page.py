"""Tables and figure of the speeds of models at several sizes of the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.evaluate.spread import compute_seed_statistics
from patchwords.report.words import pluralise
from patchwords.studies.contents import PageBlock, PageTable, PageText
from patchwords.studies.paper.speed_numbers import (
    GROWTH_SPAN,
    IMAGE_SIZES,
    fit_growth_power,
    make_speed_trial_name,
    parse_model_names,
)
from patchwords.studies.study import TrialMetrics

GIB = 2**30


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Speeds, how they fall with the size, the largest batches, and on what all was measured."""
    models, means = parse_model_names(results["grid"]), average_repeats(results)
    pixels = tuple(f"{size} px" for size in IMAGE_SIZES)
    return [
        PageText(format_speed_setup(results)),
        PageTable(
            ("images/s at", *pixels),
            [
                (model, *(format_speed(results, model, size) for size in IMAGE_SIZES))
                for model in models
            ],
        ),
        PageText(
            "How the time of an image, and its multiplications, grow with its side between "
            f"{GROWTH_SPAN[0]} and {GROWTH_SPAN[1]} pixels: a power of 2 is in proportion to the pixels, one of "
            "4 would be bi-quadratic."
        ),
        PageTable(
            ("model", "power, time", "power, multiplications", "share of the peak at 224 px"),
            [build_growth_row(means, model) for model in models],
        ),
        PageText(format_memory_note(means)),
        PageTable(
            ("largest batch at", *pixels),
            [
                (model, *(format_largest_batch(means, model, size) for size in IMAGE_SIZES))
                for model in models
            ],
        ),
    ]


def format_speed_setup(results: Mapping[str, Any]) -> str:
    one, cells = results["cells"][0], results["cells"]
    threads = pluralise(int(one["threads"]), "thread")
    batches = " or ".join(f"{batch:.0f}" for batch in sorted({c["at a time"] for c in cells}))
    return (
        f"Measured on {results['device']} with {threads} in {'bf16' if one['bf16'] else 'fp32'}, "
        "one cell after the other, through the call that `patchwords predict` makes: images come "
        "from main memory as bytes, scores go back to it. Each speed is the best over images at a "
        f"time ({batches} won), and of each the median of several runs. A repeat stands for a "
        "seed: weights are as they begin, and do not matter."
    )


def format_memory_note(means: Mapping[str, TrialMetrics]) -> str:
    free = [one["free bytes"] or 0.0 for one in means.values()]
    return (
        "The largest batch is by arithmetic, not by filling the machine: what a training step "
        "with Adam holds (weights, gradients, two moments, activations) in nine tenths of the "
        f"memory that was free, {min(free) / GIB:.1f} to {max(free) / GIB:.1f} GiB. The tests hold "
        "that arithmetic to what torch takes, within 13 %."
    )


def format_speed(results: Mapping[str, Any], model: str, size: int) -> str:
    """With the standard deviation of a repeat."""
    over = compute_seed_statistics(collect_repeat_values(results, model, size, "images/s"))
    digits = 0 if over.mean >= 100 else 1
    beside = "" if over.std is None else f" ± {over.std:.{digits}f}"
    return f"{over.mean:.{digits}f}{beside}"


def build_growth_row(means: Mapping[str, TrialMetrics], model: str) -> tuple[str, ...]:
    time, work = fit_growth_power(means, model, "images/s"), fit_growth_power(means, model, "macs")
    assert time is not None
    assert work is not None
    share = means[make_speed_trial_name(model, 224)]["share of peak"] or 0.0
    return model, f"{time:.2f}", f"{-work:.2f}", f"{share:.0%}"


def format_largest_batch(means: Mapping[str, TrialMetrics], model: str, size: int) -> str:
    return f"{means[make_speed_trial_name(model, size)]['largest batch']:,.0f}"


def collect_repeat_values(
    results: Mapping[str, Any], model: str, size: int, what: str
) -> list[float]:
    """Of every repeat."""
    name = make_speed_trial_name(model, size)
    return [cell[what] for cell in results["cells"] if cell["name"] == name]


def average_repeats(results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Cell -> its numbers, the mean of the repeats."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell in results["cells"]:
        found.setdefault(cell["name"], []).append(cell)
    about = {"name", "seed", "folder"}
    return {
        name: {key: sum(c[key] for c in cells) / len(cells) for key in cells[0].keys() - about}
        for name, cells in found.items()
    }


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 12: both panels over the size of the image."""
    from patchwords.report.curves import Panel, draw_panels

    caption = (
        f"On {results['device']}. Left: the best over images at a time, mean of "
        f"{pluralise(results['seeds'], 'repeat')}, bands from the slowest to the fastest. Right: what "
        "fits into the free memory in training with Adam, by arithmetic."
    )
    panels = [
        Panel(
            title,
            "image size, pixels",
            what,
            build_model_curves(results, what),
            True,
            True,
            IMAGE_SIZES,
        )
        for title, what in (("Speed", "images/s"), ("Memory", "largest batch"))
    ]
    return draw_panels(panels, caption, "speed")


def build_model_curves(results: Mapping[str, Any], what: str) -> Sequence[Any]:
    """A line for each model; where it does not fit, it is not drawn."""
    from patchwords.report.curves import Curve

    found = []
    for model in parse_model_names(results["grid"]):
        values = {size: collect_repeat_values(results, model, size, what) for size in IMAGE_SIZES}
        fit = {size: some for size, some in values.items() if min(some) > 0}
        means = [sum(some) / len(some) for some in fit.values()]
        low, high = [min(some) for some in fit.values()], [max(some) for some in fit.values()]
        found.append(Curve(model, list(fit), means, low, high))
    return found
