"""Figure 9: class token or mean of the patches (GAP)? It is a matter of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.studies.paper.small import SMALL_VIT
from patchwords.studies.paper.sources import CIFAR10, IMAGENET, JFT
from patchwords.studies.study import Claim, Grid, Scale, Study
from patchwords.studies.training import judge_training, measure_training

HEADS = {"class token": "token", "GAP": "gap"}
RATES = (3e-4, 1e-3, 3e-3, 1e-2)

TOKEN = "class token, its best rate"
SAME = "GAP, the class token's rate"
OWN = "GAP, its best rate"
LOOKS = 7  # at the validation images during a training: Figure 9 shows seven epochs


def grid_of(rates: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Head -> its rates, as cells."""
    return {
        f"{head}, lr {lr:g}": {"classifier": HEADS[head], "lr": lr}
        for head in HEADS
        for lr in rates[head]
    }


MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **SMALL_VIT,
        "validation": 0.05,  # chooses the rate
        "eval_every": -(-SMALL_VIT["steps"] // LOOKS),
        "save_every": 500,
    },
    grid=grid_of(dict.fromkeys(HEADS, RATES)),
    seeds=3,
    time="about 25 minutes on two cores",
)
# Appendix D.3: a linear classifier follows the mean; the class token keeps its tanh layer.
FULL_GRID = {
    name: {**own, "head": "linear" if own["classifier"] == "gap" else "tanh"}
    for name, own in grid_of({"class token": (8e-4,), "GAP": (3e-4, 8e-4)}).items()
}
FULL = Scale(
    data=JFT,
    verb="pretrain",
    settings={"recipe": "vit-b16-jft"},
    grid=FULL_GRID,
    seeds=1,
    time="by --plan",
    shots=5,
    transfer=IMAGENET,
)


def choose(grid: Grid, validation: Mapping[str, Sequence[float | None]]) -> dict[str, str]:
    """Each head at the rate with the best mean over the seeds, and GAP at the class token's.

    A rate at which any seed diverged is out; of equally good ones the smallest is taken.
    """
    token, gap = (best_rate(grid, validation, head) for head in HEADS.values())
    same = next(
        name
        for name, own in grid.items()
        if own["classifier"] == "gap" and own["lr"] == grid[token]["lr"]
    )
    return {TOKEN: token, SAME: same, OWN: gap}


def best_rate(grid: Grid, validation: Mapping[str, Sequence[float | None]], head: str) -> str:
    """The cell of this head; the lowest rate where all diverged."""
    cells = sorted(
        (name for name, own in grid.items() if own["classifier"] == head),
        key=lambda name: float(grid[name]["lr"]),
    )
    return max(cells, key=lambda name: mean(validation[name]))


def mean(values: Sequence[float | None]) -> float:
    alive = [value for value in values if value is not None]
    return sum(alive) / len(alive) if len(alive) == len(values) else -1.0


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 9: accuracy over the training, of the chosen cells; and what chose them."""
    from patchwords.report.curves import Panel, draw_panels

    seeds = results["seeds"]
    caption = (
        f"Accuracy on validation images, mean over {seeds} seed{'s' if seeds > 1 else ''}; bands "
        "reach from the lowest to the highest. The left panel is Figure 9's; it has seven epochs."
    )
    over_time = [
        curve(results, one["cell"], one["label"], over_training(results, one["cell"]))
        for one in results["labels"]
    ]
    over_rate = [curve_of_rates(results, head) for head in HEADS]
    rates = sorted({own["lr"] for own in results["grid"].values()})
    panels = [
        Panel("While training", "share of the training", "accuracy, %", over_time),
        Panel("At the end", "peak learning rate", "accuracy, %", over_rate, True, x_ticks=rates),
    ]
    return draw_panels(panels, caption, "head-type")


def over_training(results: Mapping[str, Any], cell: str) -> list[str]:
    """The names of the numbers that were taken on the way."""
    rows = (one for one in results["cells"] if one["name"] == cell)
    return [name for name in next(rows) if name.startswith("validation at ")]


def curve(results: Mapping[str, Any], cell: str, label: str, keys: Sequence[str]) -> Any:
    from patchwords.report.curves import Curve

    rows = [one for one in results["cells"] if one["name"] == cell and not one.get("diverged")]
    x = [float(key.removeprefix("validation at ")) for key in keys]
    values = [[100 * row[key] for row in rows] for key in keys]
    return Curve(
        f"{label} ({results['grid'][cell]['lr']:g})",
        x,
        [sum(some) / len(some) for some in values],
        [min(some) for some in values],
        [max(some) for some in values],
    )


def curve_of_rates(results: Mapping[str, Any], head: str) -> Any:
    """Final validation accuracy of a head over its rates; what diverged is not drawn."""
    from patchwords.report.curves import Curve

    found: dict[float, list[float]] = {}
    for row in results["cells"]:
        own = results["grid"][row["name"]]
        if own["classifier"] == HEADS[head] and row["validation"] is not None:
            found.setdefault(own["lr"], []).append(100 * row["validation"])
    rates = sorted(found)
    return Curve(
        head,
        rates,
        [sum(found[lr]) / len(found[lr]) for lr in rates],
        [min(found[lr]) for lr in rates],
        [max(found[lr]) for lr in rates],
    )


STUDY = Study(
    name="head-type",
    version=1,
    title="Class token or global average pooling",
    question="Is a class token better than the mean of the patches, or does the mean only need "
    "another learning rate?",
    source="Figure 9, Appendix D.3",
    quantity="accuracy on test images, per cent",
    note="Each head has the rate that is best on validation images; the test images are read for "
    "the three chosen cells only.",
    paper={},
    paper_quantity="curves only; Figure 9 prints no numbers",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "At the class token's learning rate, GAP is worse",
            "GAP is far below at 8e-4, the class token's rate (Figure 9)",
            (TOKEN,),
            (SAME,),
        ),
        Claim(
            "At a rate of its own, GAP is as good as the class token",
            "GAP at 3e-4 meets the class token at 8e-4 (Figure 9)",
            (OWN,),
            (TOKEN,),
            0.01,  # a point: what a reader would see in the figure
        ),
    ),
    measure=measure_training,
    judge=judge_training,
    choose=choose,
    draw=draw,
)
