"""Figure 5 and Table 6: accuracy for the compute that it took to learn."""

from __future__ import annotations

from typing import Any

from patchwords.model.table6 import TABLE6, Table6Row
from patchwords.studies.bench import RESULT_FILE, StudyContext
from patchwords.studies.paper.compute_numbers import (
    HYBRID_LEAD_LEAST_COMPUTE,
    HYBRID_LEAD_MOST_COMPUTE,
    HYBRID_SAVING,
    TRAINING_FLOPS,
    VIT_LAST_GAIN,
    VIT_SAVING,
    collect_table6_points,
    compute_family_values,
    compute_values,
)
from patchwords.studies.paper.compute_page import build_tables, draw_study_figures
from patchwords.studies.paper.families import (
    LARGE_HYBRID,
    LARGE_VIT_SHAPE,
    RESNET_14,
    RESNET_26,
    SMALL_HYBRID,
    SMALL_VIT_SHAPE,
)
from patchwords.studies.paper.small import SMALL_VIT_TRAINING
from patchwords.studies.paper.sources import CIFAR10, IMAGENET, JFT
from patchwords.studies.record import read_trial_metrics
from patchwords.studies.study import ENCODER, Claim, DisplayUnit, Scale, Study, Trial, TrialMetrics
from patchwords.studies.training import evaluate_on_test, train_and_measure

BATCH = 64
# Each size for two lengths, the second three times the first, as steps of a batch. The compute of
# ViTs and hybrids is alike, that of ResNets a fraction, and each family's spreads over about a
# factor of eight: so that there are accuracies that all of them reach.
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
        "validation": 0.0,  # nothing is chosen
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

# Table 3 has all of Table 6's models but one: for R200x3 its neighbour's row, twice as long.
RECIPES_NOT_IN_TABLE_3: dict[str, dict[str, Any]] = {
    "BiT-R200x3": {"recipe": "r152x2-jft", "model": "BiT-R200x3", "epochs": 14},
    "BiT-R152x2, 14": {"recipe": "r152x2-jft", "epochs": 14},
}


def make_table6_name(row: Table6Row) -> str:
    """
    >>> make_table6_name(TABLE6[0])
    'ViT-B/32, 7 epochs'
    """
    return f"{row.model}, {row.epochs} epochs"


def choose_table6_recipe(row: Table6Row) -> dict[str, Any]:
    """The pre-training of a row of Table 6, by Table 3."""
    for name in (row.model, f"{row.model}, {row.epochs}"):
        if name in RECIPES_NOT_IN_TABLE_3:
            return RECIPES_NOT_IN_TABLE_3[name]
    model = row.model.removeprefix("BiT-").replace("+", "-").replace("/", "").lower()
    both = row.model in {"ViT-L/16", "R50+ViT-L/16"}  # have a row for each length
    return {"recipe": f"{model}-jft{f'-{row.epochs}ep' if both else ''}"}


def build_image_size_setting(row: Table6Row) -> dict[str, Any]:
    """384 pixels, of which patches of 14 are no whole number: 392 is the nearest that has."""
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


def measure_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """A training, and what its compute is: that of the pre-training, where there was one.

    Table 6 leaves fine-tuning out.
    """
    numbers = train_and_measure(cell, bench)
    if ENCODER not in cell.settings:
        return {**numbers, TRAINING_FLOPS: numbers.get("flops")}
    encoder = Trial(cell.settings[ENCODER], cell.seed, {}, shared=True)
    before = read_trial_metrics(bench.place(encoder) / RESULT_FILE) or {}
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
    quantity="accuracy on test images, per cent; ratios of compute in doublings, of which 1 is "
    "twice as much",
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
    measure=measure_trial,
    judge=evaluate_on_test,
    read=compute_values,
    units={
        **dict.fromkeys((VIT_SAVING, HYBRID_SAVING), DOUBLINGS_UNIT),
        **dict.fromkeys(
            (HYBRID_LEAD_LEAST_COMPUTE, HYBRID_LEAD_MOST_COMPUTE, VIT_LAST_GAIN), POINTS_UNIT
        ),
    },
    draw=draw_study_figures,
    tables=build_tables,
)
