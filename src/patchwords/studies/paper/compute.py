"""Figure 5 and Table 6: accuracy against pre-training compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from patchwords.planning.table6 import EXAFLOP, TABLE6, TABLE6_DATA_SETS, Table6Row
from patchwords.studies.grid import read_trial_metrics
from patchwords.studies.page import NOT_AVAILABLE, format_flops
from patchwords.studies.page_blocks import PageBlock, PageTable, PageText
from patchwords.studies.paper.setups import (
    CIFAR10,
    IMAGENET,
    JFT,
    LARGE_HYBRID,
    LARGE_VIT_SHAPE,
    RESNET_14,
    RESNET_26,
    SMALL_HYBRID,
    SMALL_VIT_SHAPE,
    SMALL_VIT_TRAINING,
)
from patchwords.studies.study import (
    ENCODER,
    RESULT_FILE,
    Claim,
    DisplayUnit,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
    collect_accuracies,
)
from patchwords.studies.training import evaluate_on_test, train_and_measure

# Values that claims compare: how much compute a family saves, and where it is ahead.
#
# A family is its frontier: its trainings that no cheaper one of the family beats, joined by straight
# lines over the logarithm of the compute. Table 6 goes through the same functions.


VIT, RESNET, HYBRID = FAMILIES = ("ViT", "ResNet", "hybrid")
TRAINING_FLOPS = "training flops"  # metric of a trial: the FLOPs of its encoder, if it has one

VIT_SAVING = "ResNet's compute over ViT's, equal accuracy"
HYBRID_SAVING = "ViT's compute over hybrid's, equal accuracy"
HYBRID_LEAD_LEAST_COMPUTE = "hybrid less ViT, least compute"
HYBRID_LEAD_MOST_COMPUTE = "hybrid less ViT, most compute"
VIT_LAST_GAIN = "ViT, most compute less the next"
FIVE_DATA_SETS = TABLE6_DATA_SETS[1:]  # averaged in Figure 5; the others are ImageNet

ComputePoint = tuple[float, float]  # (FLOPs, accuracy)


def parse_family(name: str) -> str:
    """Parse the model family of a trial or model name.

    >>> parse_family("R50+ViT-B/32, 7 epochs"), parse_family("BiT-R50x1"), parse_family("small ViT, 9")
    ('hybrid', 'ResNet', 'ViT')
    """
    if "+" in name or HYBRID in name:
        return HYBRID
    return VIT if VIT in name else RESNET


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Compute accuracies, savings and gaps; diverged trainings are no points of their family."""
    points: dict[str, list[ComputePoint]] = {family: [] for family in FAMILIES}
    for name in labels.values():
        flops, accuracy = found[name].get(TRAINING_FLOPS), found[name].get("accuracy")
        if flops is not None and accuracy is not None:
            points[parse_family(name)].append((flops, accuracy))
    return {**collect_accuracies(labels, found), **compute_family_values(points)}


def compute_family_values(points: Mapping[str, Sequence[ComputePoint]]) -> dict[str, float | None]:
    first, last = compute_end_gaps(points[HYBRID], points[VIT])
    return {
        VIT_SAVING: compute_saving(points[VIT], points[RESNET]),
        HYBRID_SAVING: compute_saving(points[HYBRID], points[VIT]),
        HYBRID_LEAD_LEAST_COMPUTE: first,
        HYBRID_LEAD_MOST_COMPUTE: last,
        VIT_LAST_GAIN: compute_last_gain(points[VIT]),
    }


def compute_frontier(points: Sequence[ComputePoint]) -> tuple[np.ndarray, np.ndarray]:
    """Compute the compute frontier: (log2 of FLOPs, accuracies), both rising."""
    best: list[ComputePoint] = []
    for flops, accuracy in sorted(points):
        if not best or accuracy > best[-1][1]:
            best.append((flops, accuracy))
    flops_, accuracies = np.array(best).reshape(-1, 2).T
    return np.log2(flops_), accuracies


def compute_saving(points: Sequence[ComputePoint], others: Sequence[ComputePoint]) -> float | None:
    """Compute the doublings of compute that the others need for the same accuracy.

    The mean over all accuracies that both reach; None if there are none.
    """
    if not points or not others:
        return None
    (ours, reached), (theirs, also) = compute_frontier(points), compute_frontier(others)
    low, high = max(reached[0], also[0]), min(reached[-1], also[-1])
    if not low < high:
        return None
    knots = np.unique([low, high, *(a for a in (*reached, *also) if low < a < high)])
    gaps = np.interp(knots, also, theirs) - np.interp(knots, reached, ours)
    return float(np.trapezoid(gaps, knots) / (high - low))  # exact: straight between knots


def compute_end_gaps(
    points: Sequence[ComputePoint], others: Sequence[ComputePoint]
) -> tuple[float | None, float | None]:
    """Compute the gap of two families at the least and the most compute that both have."""
    if not points or not others:
        return None, None
    ours, theirs = compute_frontier(points), compute_frontier(others)
    costs = [np.log2([flops for flops, _ in family]) for family in (points, others)]
    ends = max(cost.min() for cost in costs), min(cost.max() for cost in costs)
    if not ends[0] < ends[1]:
        return None, None
    first, last = (float(np.interp(end, *ours) - np.interp(end, *theirs)) for end in ends)
    return first, last


def compute_last_gain(points: Sequence[ComputePoint]) -> float | None:
    """Compute the gain of the most expensive training over the best of the others."""
    if len(points) < 2:
        return None
    *others, (_, accuracy) = sorted(points)
    return accuracy - max(one for _, one in others)


def build_table6_point(row: Table6Row) -> ComputePoint:
    """Build the (FLOPs, mean accuracy of five data sets) point of a row of Table 6.
    its accuracies on five data sets."""
    exaflops = row.counted() if row.doubt else row.exaflops
    return EXAFLOP * exaflops, sum(row.accuracies[1:]) / len(FIVE_DATA_SETS) / 100


def collect_table6_points() -> dict[str, list[ComputePoint]]:
    """Collect the trainings of Table 6 by family."""
    return {
        family: [build_table6_point(row) for row in TABLE6 if parse_family(row.model) == family]
        for family in FAMILIES
    }


# The page: compute ratios, costs of all trainings, Figure 5 next to the paper's.


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Build tables of compute ratios and of the compute of each training, ours and the paper's."""
    return [
        PageText("Compute for the same accuracy, with the 95 % interval over the seeds."),
        PageTable(("", "here", "Table 6"), build_ratio_rows(results)),
        PageText("What each training took."),
        PageTable(("here", "compute", "accuracy, %"), build_own_rows(results)),
        PageTable(
            ("Table 6", "exaFLOPs", "ImageNet, %", "average of five, %"), build_table6_rows()
        ),
    ]


def build_ratio_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    by_label = {one["label"]: one for one in results["labels"]}
    rows: list[tuple[str, ...]] = []
    for label, name in ((VIT_SAVING, "ResNet to ViT"), (HYBRID_SAVING, "ViT to hybrid")):
        over, paper = by_label[label]["over_seeds"], by_label[label]["paper"]
        rows.append(
            (name, NOT_AVAILABLE if over is None else format_ratio(over), f"{2**paper:.1f}")
        )
    return rows


def format_ratio(over: Mapping[str, float | None]) -> str:
    """Format log2 of a ratio as a ratio with its interval.

    >>> format_ratio({"mean": 1.0, "low": -0.5, "high": 2.5}), format_ratio({"mean": -1.0, "low": None})
    ('2.00 (0.71 to 5.66)', '0.50')
    """
    said = f"{2 ** (over['mean'] or 0.0):.2f}"
    low, high = over["low"], over.get("high")
    return said if low is None or high is None else f"{said} ({2**low:.2f} to {2**high:.2f})"


def build_own_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    costs = {one["name"]: one.get(TRAINING_FLOPS) for one in results["cells"] if one["seed"] == 0}
    rows: list[tuple[str, ...]] = []
    for one in results["labels"]:
        if (cost := costs.get(one["cell"])) is not None and one["over_seeds"] is not None:
            rows.append(
                (one["label"], format_flops(cost), f"{100 * one['over_seeds']['mean']:.1f}")
            )
    return rows


def build_table6_rows() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row in TABLE6:
        cost, five = build_table6_point(row)
        printed = f"{row.exaflops:,}{f' (counted: {cost / EXAFLOP:,.0f})' if row.doubt else ''}"
        name = f"{row.model}, {row.epochs} epochs"
        rows.append((name, printed, f"{row.accuracies[0]:.2f}", f"{100 * five:.2f}"))
    return rows


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw Figure 5 for our trainings and for Table 6: a dot per training."""
    from patchwords.report.figures.plots import Panel, draw_panels

    here: dict[str, list[ComputePoint]] = {family: [] for family in FAMILIES}
    for one in results["cells"]:
        if one.get(TRAINING_FLOPS) is not None and one.get("accuracy") is not None:
            here[parse_family(one["name"])].append((one[TRAINING_FLOPS], one["accuracy"]))
    unit = 1e12 if max(cost for some in here.values() for cost, _ in some) < EXAFLOP else EXAFLOP
    costs = [cost / unit for some in here.values() for cost, _ in some]
    name = f"{'tera' if unit < EXAFLOP else 'exa'}FLOPs"
    panels = [
        Panel(
            "Here",
            name,
            "%",
            build_point_curves(here, unit),
            log_x=True,
            x_ticks=choose_log_ticks(costs),
        ),
        Panel(
            "Table 6, average of five",
            "exaFLOPs",
            "%",
            build_point_curves(collect_table6_points(), EXAFLOP),
            True,
        ),
        Panel(
            "Table 6, ImageNet",
            "exaFLOPs",
            "%",
            build_point_curves(collect_imagenet_points(), EXAFLOP),
            True,
        ),
    ]
    caption = (
        f"Left: {results['quantity'].partition(';')[0]}, a dot for each training and seed. The "
        "others are Figure 5 as Table 6 has it, fine-tuned from JFT-300M. Compute is 6 x MACs x "
        "images."
    )
    return draw_panels(panels, caption, "compute")


def choose_log_ticks(costs: Sequence[float]) -> list[float]:
    """Choose round tick values for a short logarithmic axis.

    >>> choose_log_ticks([0.7, 3.0, 40.0])
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    low, high = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
    every = (round(figure * 10.0**power, 9) for power in range(low, high) for figure in (1, 2, 5))
    return [one for one in every if min(costs) <= one <= max(costs)]


def collect_imagenet_points() -> dict[str, list[ComputePoint]]:
    found: dict[str, list[ComputePoint]] = {family: [] for family in FAMILIES}
    for row in TABLE6:
        found[parse_family(row.model)].append((build_table6_point(row)[0], row.accuracies[0] / 100))
    return found


def build_point_curves(points: Mapping[str, Sequence[ComputePoint]], unit: float) -> list[Any]:
    from patchwords.report.figures.plots import Curve

    return [
        Curve(
            family,
            [cost / unit for cost, _ in sorted(some)],
            [100 * accuracy for _, accuracy in sorted(some)],
            line=False,
        )
        for family, some in points.items()
        if some
    ]


BATCH = 64
# Each size is trained for two lengths, the second three times the first. ViTs and hybrids have about
# the same compute, ResNets a fraction, and each family spans a factor of about eight, so that all
# families reach common accuracies.
MINI_SIZES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "small ViT": (SMALL_VIT_SHAPE, (300, 900)),
    "large ViT": (LARGE_VIT_SHAPE, (240, 720)),
    "ResNet-14": (RESNET_14, (50, 150)),
    "ResNet-26": (RESNET_26, (60, 180)),
    "small hybrid": (SMALL_HYBRID, (260, 780)),
    "large hybrid": (LARGE_HYBRID, (230, 690)),
}
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **{name: value for name, value in SMALL_VIT_TRAINING.items() if "steps" not in name},
        "batch_size": BATCH,
        "lr": 1e-3,
        "validation": 0.0,  # nothing is chosen by validation
        "save_every": 200,
    },
    grid={
        f"{name}, {steps * BATCH:,} images": {**own, "steps": steps, "warmup_steps": steps // 10}
        for name, (own, lengths) in MINI_SIZES.items()
        for steps in lengths
    },
    seeds=3,
    time="about twenty minutes on two cores",
)

# Table 3 has all models of Table 6 except R200x3, which gets its neighbour's row, twice as long.
RECIPES_NOT_IN_TABLE_3: dict[str, dict[str, Any]] = {
    "BiT-R200x3": {"recipe": "r152x2-jft", "model": "BiT-R200x3", "epochs": 14},
    "BiT-R152x2, 14": {"recipe": "r152x2-jft", "epochs": 14},
}


def make_table6_name(row: Table6Row) -> str:
    """Format the name of a row of Table 6.

    >>> make_table6_name(TABLE6[0])
    'ViT-B/32, 7 epochs'
    """
    return f"{row.model}, {row.epochs} epochs"


def choose_table6_recipe(row: Table6Row) -> dict[str, Any]:
    """Choose the pre-training recipe of a row of Table 6, from Table 3."""
    for name in (row.model, f"{row.model}, {row.epochs}"):
        if name in RECIPES_NOT_IN_TABLE_3:
            return RECIPES_NOT_IN_TABLE_3[name]
    model = row.model.removeprefix("BiT-").replace("+", "-").replace("/", "").lower()
    both = row.model in {"ViT-L/16", "R50+ViT-L/16"}  # these have a row per length
    return {"recipe": f"{model}-jft{f'-{row.epochs}ep' if both else ''}"}


def build_image_size_setting(row: Table6Row) -> dict[str, Any]:
    """Return 384 pixels, or 392 for patches of 14, which do not divide 384."""
    return {"image_size": (392,)} if row.model == "ViT-H/14" else {}


FULL = Scale(
    data=JFT,
    verb="finetune",
    settings={"recipe": "paper-finetune-imagenet", "validation": 0.01},
    grid={
        make_table6_name(row): {
            ENCODER: f"{make_table6_name(row)} of JFT",
            **build_image_size_setting(row),
        }
        for row in TABLE6
    },
    seeds=1,
    time="by --plan",
    transfer=IMAGENET,
    tuned=True,
    encoders={f"{make_table6_name(row)} of JFT": choose_table6_recipe(row) for row in TABLE6},
)


def measure_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Train, and record the compute: that of the pre-training, if there was one.

    Table 6 does not count fine-tuning.
    """
    numbers = train_and_measure(trial, context)
    if ENCODER not in trial.settings:
        return {**numbers, TRAINING_FLOPS: numbers.get("flops")}
    encoder = Trial(trial.settings[ENCODER], trial.seed, {}, shared=True)
    before = read_trial_metrics(context.trial_folder(encoder) / RESULT_FILE) or {}
    return {**numbers, TRAINING_FLOPS: before.get("flops")}


DOUBLINGS_UNIT = DisplayUnit("doublings", "doublings", 1.0, 2)
POINTS_UNIT = DisplayUnit("points", "points", 100.0)
PAPER = compute_family_values(collect_table6_points())
STUDY = Study(
    name="compute",
    version=1,
    title="Accuracy for compute",
    question="Which family learns most for the compute that it takes: ViT, ResNet or hybrid?",
    source="Figure 5, Table 6, Section 4.4",
    quantity="accuracy on test images, per cent; ratios of compute in doublings (1 is "
    "twice as much)",
    note="A family is its frontier: trainings that no cheaper one of it beats, joined by straight "
    "lines over the logarithm of the compute. Ratios are the mean over all accuracies that both "
    "families reach; the paper's are read off Table 6 in the same way, by the average of its five "
    "data sets. Compute is that of the multiplications, not of the clock.",
    paper={
        **{label: value for label, value in PAPER.items() if value is not None},
        **{make_table6_name(row): row.accuracies[0] / 100 for row in TABLE6},
    },
    paper_quantity="Table 6, ImageNet after fine-tuning, per cent",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "A ResNet takes more compute than a ViT for the same accuracy",
            "2 to 4 times as much (Section 4.4, Figure 5); 3.4 times by Table 6",
            (VIT_SAVING,),
            (),
        ),
        Claim(
            "A ViT takes more compute than a hybrid for the same accuracy",
            "hybrids are ahead where compute is small (Section 4.4); 1.6 times by Table 6",
            (HYBRID_SAVING,),
            (),
        ),
        Claim(
            "The hybrid's lead fades as compute grows",
            "+0.8 points at 106 exaFLOPs, -0.1 at 1,668 (Table 6, average of five data sets)",
            (HYBRID_LEAD_LEAST_COMPUTE,),
            (HYBRID_LEAD_MOST_COMPUTE,),
        ),
        Claim(
            "ViT does not saturate",
            "+0.3 points from the last step of compute (Table 6, average of five data sets)",
            (VIT_LAST_GAIN,),
            (),
        ),
    ),
    measure_trial=measure_trial,
    evaluate_trial=evaluate_on_test,
    compute_values=compute_values,
    units={
        **dict.fromkeys((VIT_SAVING, HYBRID_SAVING), DOUBLINGS_UNIT),
        **dict.fromkeys(
            (HYBRID_LEAD_LEAST_COMPUTE, HYBRID_LEAD_MOST_COMPUTE, VIT_LAST_GAIN), POINTS_UNIT
        ),
    },
    draw_figures=draw_study_figures,
    build_tables=build_tables,
)
