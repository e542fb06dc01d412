"""Figure 8: which dimension of a ViT is worth its compute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from patchwords.report.format import pluralise
from patchwords.studies.page import NOT_AVAILABLE
from patchwords.studies.page_blocks import PageBlock, PageTable, PageText
from patchwords.studies.paper.analysis import build_seed_curve
from patchwords.studies.paper.setups import CIFAR10, IMAGENET, JFT, SMALL_VIT_SETTINGS
from patchwords.studies.study import (
    Claim,
    Contrast,
    DisplayUnit,
    Scale,
    Study,
    TrialMetrics,
    collect_accuracies,
)
from patchwords.studies.training import evaluate_on_test, train_and_measure

if TYPE_CHECKING:
    from patchwords.report.figures.plots import Curve


# Values that claims compare: the gain along each dimension, and what predicts accuracy.


BASE_TRIAL = "the middle"
DEPTH, WIDTH, MLP, PATCH_SIZE, ALL_DIMENSIONS = DIMENSIONS = (
    "depth",
    "width",
    "MLP",
    "patch",
    "all",
)
WITH_COMPUTE = "correlation of accuracy with compute"
COMPUTE_CORRELATION_LEAD = "r² of accuracy with compute less that with parameters"


def make_gain_label(line: str) -> str:
    """Make the label of a dimension's gain."""
    return f"{line}, per doubling"


def parse_dimension(name: str) -> str:
    """Parse the dimension that a trial scales.

    >>> parse_dimension("depth 16"), parse_dimension("all, twice"), parse_dimension("the middle")
    ('depth', 'all', 'the middle')
    """
    return next((line for line in DIMENSIONS if name.startswith(line)), BASE_TRIAL)


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    return {
        **collect_accuracies(labels, found),
        **{make_gain_label(line): compute_gain(line, found) for line in DIMENSIONS},
        WITH_COMPUTE: correlation(found, "flops"),
        COMPUTE_CORRELATION_LEAD: compute_correlation_lead(found),
    }


def compute_gain(line: str, found: Mapping[str, TrialMetrics]) -> float | None:
    """Compute points per doubling of compute, from the middle to a dimension's largest model."""
    of_line = [one for name, one in found.items() if parse_dimension(name) == line]
    alive = [one for one in of_line if one.get("flops") is not None]
    base = found[BASE_TRIAL].get("accuracy")
    if base is None or len(alive) < len(of_line):
        return None
    costliest = max(alive, key=lambda one: one["flops"] or 0.0)
    accuracy = costliest.get("accuracy")
    return (
        None
        if accuracy is None
        else (accuracy - base) / count_compute_doublings(costliest, found[BASE_TRIAL])
    )


def count_compute_doublings(one: TrialMetrics, base: TrialMetrics) -> float:
    cost, usual = one["flops"], base["flops"]
    assert cost
    assert usual
    return math.log2(cost / usual)


def compute_correlation_lead(found: Mapping[str, TrialMetrics]) -> float | None:
    """Compute by how much log compute explains accuracy better than log parameters."""
    by_compute, by_size = (correlation(found, name) for name in ("flops", "parameters"))
    return None if by_compute is None or by_size is None else by_compute**2 - by_size**2


def correlation(found: Mapping[str, TrialMetrics], name: str) -> float | None:
    """Correlate accuracy with the log of a metric; None if a trial diverged."""
    rows = [[one.get("accuracy"), one.get(name)] for one in found.values()]
    whole = np.array([row for row in rows if None not in row], dtype=np.float64)
    if len(whole) < len(rows):
        return None
    accuracy, number = whole.T
    return float(np.corrcoef(accuracy, np.log2(number))[0, 1])


# The page: model costs and Figure 8.


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Build the table of compute and parameters, relative to the middle."""
    cells = {one["name"]: one for one in results["cells"] if one["seed"] == 0}
    base, rows = cells[BASE_TRIAL], []
    for name, one in cells.items():
        ratios = (
            NOT_AVAILABLE
            if None in (one.get(key), base.get(key))
            else f"{one[key] / base[key]:.2f}"
            for key in ("flops", "parameters")
        )
        rows.append((name, *ratios))
    return [
        PageText("Compute and parameters, the middle's being 1."),
        PageTable(("", "compute", "parameters"), rows),
    ]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw Figure 8: a line per dimension from the middle, over compute and parameters."""
    from patchwords.report.figures.plots import Panel, draw_panels

    panels = [
        Panel(
            f"By {words}",
            f"relative {words}",
            "accuracy, %",
            [build_dimension_curve(results, line, key) for line in DIMENSIONS],
            log_x=True,
            x_ticks=(1, 2, 4, 8),
        )
        for words, key in (("compute", "flops"), ("parameters", "parameters"))
    ]
    seeds = pluralise(results["seeds"], "seed")
    caption = (
        f"{results['quantity'].partition(';')[0].capitalize()}, mean over {seeds}, bands from the "
        "lowest to the highest. Lines start at the middle; each has more of one dimension, or of "
        "all. The left panel is Figure 8's."
    )
    return draw_panels(panels, caption, "shape")


def build_dimension_curve(results: Mapping[str, Any], line: str, key: str) -> Curve:
    """Build the curve of a dimension over its cost; diverged trials are left out."""
    found: dict[float, list[float | None]] = {}
    usual = next(one[key] for one in results["cells"] if one["name"] == BASE_TRIAL and key in one)
    for one in results["cells"]:
        if parse_dimension(one["name"]) in (line, BASE_TRIAL) and one.get("accuracy") is not None:
            found.setdefault(one[key] / usual, []).append(one["accuracy"])
    return build_seed_curve(line, found)


ShapeSettings = dict[str, Any]


def make_shape(depth: int, width: int, mlp_width: int, head: int = 32) -> ShapeSettings:
    """Build the settings of a shape; heads keep their width, so a wider model has more."""
    return {"depth": depth, "width": width, "heads": width // head, "mlp_width": mlp_width}


# The middle of Figure 8 has 8 blocks of width 1,024, an MLP of 2,048 and patches of 32: here all is
# smaller, with the MLP at twice the width as there. Each dimension is scaled until the compute is 2
# to 4 times that of the middle.
MODEL_BY_PATCH_SIZE = {
    32: "ViT-Ti/8",
    16: "ViT-Ti/4",
}  # patch size of the paper, at 224 pixels -> our model, at 32
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **{
            n: v for n, v in SMALL_VIT_SETTINGS.items() if n not in {"model", *make_shape(1, 32, 1)}
        },
        "steps": 1000,
        "warmup_steps": 100,
        "lr": 1e-3,
        "validation": 0.0,  # nothing is chosen by validation
        "save_every": 500,
    },
    grid={
        BASE_TRIAL: {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 64, 128)},
        f"{DEPTH} 8": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(8, 64, 128)},
        f"{DEPTH} 16": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(16, 64, 128)},
        f"{WIDTH} 128": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 128, 128)},
        f"{MLP} 512": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 64, 512)},
        f"{MLP} 1,024": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 64, 1024)},
        f"{PATCH_SIZE} 4": {"model": MODEL_BY_PATCH_SIZE[16], **make_shape(4, 64, 128)},
        f"{ALL_DIMENSIONS}, 1.5 times": {
            "model": MODEL_BY_PATCH_SIZE[32],
            **make_shape(6, 96, 192),
        },
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
)


def make_full_shape(
    depth: int = 8, width: int = 1024, mlp_width: int = 2048, patch: int = 32
) -> ShapeSettings:
    return {"model": f"ViT-B/{patch}", **make_shape(depth, width, mlp_width, head=64)}


# Figure 8 prints only the middle of its points; those here span its axis, 1 to 10.
FULL = Scale(
    data=JFT,
    verb="pretrain",
    settings={"recipe": "vit-b32-jft"},
    grid={
        BASE_TRIAL: make_full_shape(),
        f"{DEPTH} 16": make_full_shape(depth=16),
        f"{DEPTH} 32": make_full_shape(depth=32),
        f"{DEPTH} 64": make_full_shape(depth=64),
        f"{WIDTH} 2,048": make_full_shape(width=2048),
        f"{WIDTH} 3,072": make_full_shape(width=3072),
        f"{MLP} 8,192": make_full_shape(mlp_width=8192),
        f"{MLP} 16,384": make_full_shape(mlp_width=16384),
        f"{PATCH_SIZE} 16": make_full_shape(patch=16),
        f"{ALL_DIMENSIONS}, 1.5 times": make_full_shape(12, 1536, 3072),
        f"{ALL_DIMENSIONS}, twice": make_full_shape(16, 2048, 4096),
    },
    seeds=1,
    time="by --plan",
    shots=5,
    transfer=IMAGENET,
)

PER_DOUBLING_UNIT = DisplayUnit(
    "points per doubling of compute", "points per doubling of compute", 100.0, 2
)
STUDY = Study(
    name="shape",
    version=1,
    title="The shape of a ViT",
    question="Which dimension of a ViT is worth its compute: depth, width, the MLP's width, or "
    "smaller patches?",
    source="Figure 8, Appendix D.2",
    quantity="accuracy on test images, per cent; gains in points per doubling of the compute, from "
    "the middle to the most expensive model of a dimension",
    note="Every model sees the same images with the same settings: nothing is tuned for any shape. "
    "The figure says what large models gain from 300 million images; small ones that learn for a "
    "moment may need width first. At scale mini each sees 64,000 images, 1.3 passes over CIFAR-10, "
    "at one learning rate with 100 steps of warm-up: the deepest may need another.",
    paper={},
    paper_quantity="curves only; Figure 8 prints no numbers",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "Depth is worth more than width",
            "depth brings most and width least for the compute (Figure 8)",
            (make_gain_label(DEPTH),),
            (make_gain_label(WIDTH),),
        ),
        Claim(
            "Smaller patches help, with no more weights in the layers",
            "robustly (Figure 8)",
            (make_gain_label(PATCH_SIZE),),
            (),
        ),
        Claim(
            "All dimensions together help",
            "robustly (Figure 8)",
            (make_gain_label(ALL_DIMENSIONS),),
            (),
        ),
        Claim(
            "Compute tells more of the accuracy than parameters do",
            "compute might be the better predictor (Appendix D.2)",
            (COMPUTE_CORRELATION_LEAD,),
            (),
            # accuracy that does not rise with compute cannot show how well compute predicts it
            controls=(Contrast(WITH_COMPUTE, (WITH_COMPUTE,)),),
        ),
    ),
    measure_trial=train_and_measure,
    evaluate_trial=evaluate_on_test,
    compute_values=compute_values,
    units={
        **{
            make_gain_label(line): PER_DOUBLING_UNIT
            for line in (DEPTH, WIDTH, MLP, PATCH_SIZE, ALL_DIMENSIONS)
        },
        WITH_COMPUTE: DisplayUnit("correlation", "in r", 1.0, 2),
        COMPUTE_CORRELATION_LEAD: DisplayUnit("share of the variance", "in r²", 1.0, 2),
    },
    draw_figures=draw_study_figures,
    build_tables=build_tables,
)
