"""Figure 9: class token or mean of the patches (GAP)? It is a matter of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchwords.report.words import plural
from patchwords.studies.paper.bands import over_seeds
from patchwords.studies.paper.rates import choose_rates, curves_of_rates
from patchwords.studies.paper.small import SMALL_VIT
from patchwords.studies.paper.sources import CIFAR10, IMAGENET, JFT
from patchwords.studies.study import Claim, Grid, Scale, Study
from patchwords.studies.training import judge_training, measure_training

if TYPE_CHECKING:
    from patchwords.report.curves import Curve

HEADS = {"class token": "token", "GAP": "gap"}
RATES = (3e-4, 1e-3, 3e-3, 1e-2)

TOKEN = "class token, its best rate"
SAME = "GAP, the class token's rate"
OWN = "GAP, its best rate"
WAY = "validation at "  # of a number that was taken on the way: the share of the steps
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
    """Each head at its best rate, and GAP at the class token's."""
    best = choose_rates(grid, validation, lambda name: str(grid[name]["classifier"]))
    token, gap = (best[head] for head in HEADS.values())
    same = next(
        name
        for name, own in grid.items()
        if own["classifier"] == "gap" and own["lr"] == grid[token]["lr"]
    )
    return {TOKEN: token, SAME: same, OWN: gap}


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 9: accuracy over the training, of the chosen cells; and what chose them."""
    from patchwords.report.curves import Panel, draw_panels

    caption = (
        f"Accuracy on validation images, mean over {plural(results['seeds'], 'seed')}; bands "
        "reach from the lowest to the highest. The left panel is Figure 9's; it has seven epochs."
    )
    over_time = [over_training(results, one["cell"], one["label"]) for one in results["labels"]]
    over_rate = list(curves_of_rates(results, head_of).values())
    rates = sorted({own["lr"] for own in results["grid"].values()})
    panels = [
        Panel("While training", "share of the training", "accuracy, %", over_time),
        Panel("At the end", "peak learning rate", "accuracy, %", over_rate, True, x_ticks=rates),
    ]
    return draw_panels(panels, caption, "head-type")


def head_of(cell: str) -> str:
    """
    >>> head_of("class token, lr 0.001")
    'class token'
    """
    return cell.partition(", lr ")[0]


def over_training(results: Mapping[str, Any], cell: str, label: str) -> Curve:
    """Validation accuracy of a cell on the way."""
    found: dict[float, list[float | None]] = {}
    for row in results["cells"]:
        if row["name"] == cell:
            for name, value in row.items():
                if name.startswith(WAY):
                    found.setdefault(float(name.removeprefix(WAY)), []).append(value)
    return over_seeds(f"{label} ({results['grid'][cell]['lr']:g})", found)


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
