"""Figure 9: class token or mean of the patches (GAP), each at its best learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchwords.report.format import pluralise
from patchwords.studies.paper.analysis import build_rate_curves, build_seed_curve, choose_best_rates
from patchwords.studies.paper.setups import CIFAR10, IMAGENET, JFT, SMALL_VIT_SETTINGS
from patchwords.studies.study import Claim, Scale, Study, TrialGrid
from patchwords.studies.training import evaluate_on_test, train_and_measure

if TYPE_CHECKING:
    from patchwords.report.figures.plots import Curve

HEADS = {"class token": "token", "GAP": "gap"}
RATES = (3e-4, 1e-3, 3e-3, 1e-2)

TOKEN_BEST_RATE = "class token, its best rate"
GAP_SAME_RATE = "GAP, the class token's rate"
GAP_BEST_RATE = "GAP, its best rate"
VALIDATION_PREFIX = "validation at "  # prefix of metrics during training: the share of the steps
EVALUATIONS = 7  # validations per training: Figure 9 shows seven epochs


def build_head_grid(rates: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Build a trial per head and learning rate."""
    return {
        f"{head}, lr {lr:g}": {"classifier": HEADS[head], "lr": lr}
        for head in HEADS
        for lr in rates[head]
    }


MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **SMALL_VIT_SETTINGS,
        "validation": 0.05,  # to choose the rate
        "eval_every": -(-SMALL_VIT_SETTINGS["steps"] // EVALUATIONS),
        "save_every": 500,
    },
    grid=build_head_grid(dict.fromkeys(HEADS, RATES)),
    seeds=3,
    time="about 25 minutes on two cores",
)
# Appendix D.3: a linear classifier follows the mean; the class token keeps its tanh layer.
FULL_GRID = {
    name: {**own, "head": "linear" if own["classifier"] == "gap" else "tanh"}
    for name, own in build_head_grid({"class token": (8e-4,), "GAP": (3e-4, 8e-4)}).items()
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


def choose_trials(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]]
) -> dict[str, str]:
    """Choose each head's best rate, and GAP at the class token's rate."""
    best = choose_best_rates(grid, validation, lambda name: str(grid[name]["classifier"]))
    token, gap = (best[head] for head in HEADS.values())
    same = next(
        name
        for name, own in grid.items()
        if own["classifier"] == "gap" and own["lr"] == grid[token]["lr"]
    )
    return {TOKEN_BEST_RATE: token, GAP_SAME_RATE: same, GAP_BEST_RATE: gap}


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw Figure 9: accuracy during training of the chosen trials, and the rate curves."""
    from patchwords.report.figures.plots import Panel, draw_panels

    caption = (
        f"Accuracy on validation images, mean over {pluralise(results['seeds'], 'seed')}; bands "
        "reach from the lowest to the highest. The left panel is Figure 9's; it has seven epochs."
    )
    over_time = [
        build_validation_curve(results, one["cell"], one["label"]) for one in results["labels"]
    ]
    over_rate = list(build_rate_curves(results, parse_head_type).values())
    rates = sorted({own["lr"] for own in results["grid"].values()})
    panels = [
        Panel("While training", "share of the training", "accuracy, %", over_time),
        Panel("At the end", "peak learning rate", "accuracy, %", over_rate, True, x_ticks=rates),
    ]
    return draw_panels(panels, caption, "head-type")


def parse_head_type(trial: str) -> str:
    """Parse the head of a trial.

    >>> parse_head_type("class token, lr 0.001")
    'class token'
    """
    return trial.partition(", lr ")[0]


def build_validation_curve(results: Mapping[str, Any], trial: str, label: str) -> Curve:
    """Build the validation curve of a trial."""
    found: dict[float, list[float | None]] = {}
    for row in results["cells"]:
        if row["name"] == trial:
            for name, value in row.items():
                if name.startswith(VALIDATION_PREFIX):
                    found.setdefault(float(name.removeprefix(VALIDATION_PREFIX)), []).append(value)
    return build_seed_curve(f"{label} ({results['grid'][trial]['lr']:g})", found)


STUDY = Study(
    name="head-type",
    version=1,
    title="Class token or global average pooling",
    question="Is a class token better than the mean of the patches, or does the mean only need "
    "another learning rate?",
    source="Figure 9, Appendix D.3",
    quantity="accuracy on test images, per cent",
    note="Each head has the rate that is best on validation images; the test images are read for "
    "the chosen cells only. Where GAP's best rate is the class token's, its two rows are one cell, "
    "and nothing is said of a rate that suits one head alone.",
    paper={},
    paper_quantity="curves only; Figure 9 prints no numbers",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "At its own best rate, GAP is as good as the class token",
            "GAP at 3e-4 meets the class token at 8e-4, at which GAP is far below (Figure 9)",
            (GAP_BEST_RATE,),
            (TOKEN_BEST_RATE,),
            0.01,  # one point: visible in the figure
        ),
    ),
    measure_trial=train_and_measure,
    evaluate_trial=evaluate_on_test,
    choose_trials=choose_trials,
    draw_figures=draw_study_figures,
)
