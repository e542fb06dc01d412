"""Tables 2, 5 and 9: fine-tuning a pre-trained ViT on tasks of a few thousand images.

Pre-trained on few or many images, then fine-tuned as in Table 4: SGD at several learning rates;
validation images choose the rate per start and task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from patchwords.report.format import pluralise
from patchwords.studies.paper.analysis import build_rate_curves, choose_best_rates
from patchwords.studies.paper.setups import (
    CIFAR10,
    FLOWERS,
    SHAPE_SETTING_NAMES,
    SMALL_VIT_SETTINGS,
)
from patchwords.studies.study import (
    ENCODER,
    Claim,
    Contrast,
    DatasetSpec,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialGrid,
    TrialMetrics,
)
from patchwords.studies.training import evaluate_on_test, train_and_measure

RANDOM, FEW, MANY = "random weights", "few images", "many images"  # a start
PAPER_STARTS = ("the paper's B/16", "the paper's L/16")  # more of them, at full scale
PHOTOS, DIGITS, CIFAR = "flowers", "digits", "CIFAR-10"  # a task
RATES = (0.001, 0.003, 0.01, 0.03)  # Table 4
# For small models with short training, the best rate of every start is 0.03 or above.
MINI_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)

PAPER = {  # Table 5, ViT-B/16 on Flowers-102: pre-trained on ImageNet, and on ImageNet-21k
    f"{FEW}, {PHOTOS}": 0.8949,
    f"{MANY}, {PHOTOS}": 0.9938,
}


def make_start_labels(start: str) -> tuple[str, ...]:
    return tuple(f"{start}, {task}" for task in (PHOTOS, DIGITS))


def helped(task: str, name: str) -> Contrast:
    """Make a control: pre-training on many images helps this task."""
    return Contrast(name, (f"{MANY}, {task}",), (f"{RANDOM}, {task}",))


CLAIMS = (
    Claim(
        "Fine-tuning what was pre-trained beats as many steps from random weights",
        "+6.1 points over the task's own images alone: ImageNet from ImageNet-21k 83.97, from "
        "itself 77.91 (Table 5, ViT-B/16)",
        make_start_labels(MANY),
        make_start_labels(RANDOM),
        parts=(helped(PHOTOS, PHOTOS), helped(DIGITS, DIGITS)),
    ),
    Claim(
        "Pre-training on ten times as many images transfers better to photos",
        "+9.9 points: Flowers-102 from ImageNet-21k 99.38, from ImageNet 89.49 (Table 5, ViT-B/16)",
        (f"{MANY}, {PHOTOS}",),
        (f"{FEW}, {PHOTOS}",),
        controls=(helped(PHOTOS, f"on {PHOTOS}, {MANY} less {RANDOM}"),),
    ),
    Claim(
        "And to digits, which are no photos",
        "+6.5 points: SVHN from JFT-300M 87.4, from ImageNet-21k 80.9 (Table 9, ViT-L/16)",
        (f"{MANY}, {DIGITS}",),
        (f"{FEW}, {DIGITS}",),
        controls=(helped(DIGITS, f"on {DIGITS}, {MANY} less {RANDOM}"),),
    ),
)


def build_transfer_grid(
    starts: Mapping[str, Mapping[str, Any]],
    tasks: Mapping[str, Mapping[str, Any]],
    rates: Sequence[float] = RATES,
) -> dict[str, dict[str, Any]]:
    """Build a trial per start, task and learning rate."""
    return {
        f"{start}, {task}, lr {lr:g}": {**of_start, **of_task, "lr": lr}
        for start, of_start in starts.items()
        for task, of_task in tasks.items()
        for lr in rates
    }


RANDOM_START_SETTINGS = {
    name: SMALL_VIT_SETTINGS[name] for name in (*SHAPE_SETTING_NAMES, "image_size")
}
# Optimizer and schedule of Table 4; smaller batches, as there are fewer images.
TABLE_4_SETTINGS = {"optimizer": "sgd", "schedule": "cosine", "weight_decay": 0.0}
PRETRAINING_SETTINGS = {**SMALL_VIT_SETTINGS, "lr": 1e-3, "validation": 0.0, "save_every": 500}
MINI = Scale(
    data=CIFAR10,
    transfer=FLOWERS,
    tuned=True,
    verb="finetune",
    settings={
        **TABLE_4_SETTINGS,
        "batch_size": 64,
        "steps": 120,
        "warmup_steps": 12,
        "validation": 0.1,  # as for Pets and Flowers in Table 4; to choose the rate
        "eval_every": 120,
        "split_seed": 0,
    },
    grid=build_transfer_grid(
        {RANDOM: RANDOM_START_SETTINGS, FEW: {ENCODER: FEW}, MANY: {ENCODER: MANY}},
        {
            PHOTOS: {"crop_area": (0.4, 1.0)},
            # a mirrored 2 is not a 2, and a part of a digit is no digit
            DIGITS: {"crop_area": (0.7, 1.0), "crop_ratio": (0.9, 1.1), "flip": False},
        },
        MINI_RATES,
    ),
    encoders={
        # as ImageNet to ImageNet-21k; equal steps, so that only the images differ
        FEW: {**PRETRAINING_SETTINGS, "steps": 1200, "warmup_steps": 120, "train_images": 5_000},
        MANY: {**PRETRAINING_SETTINGS, "steps": 1200, "warmup_steps": 120},
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
)

# Public checkpoints: AugReg on ImageNet and ImageNet-21k, the paper's on ImageNet-21k.
VIT_B16, VIT_L16 = {"model": "ViT-B/16"}, {"model": "ViT-L/16"}
AUGREG_IMAGENET = "B_16-i1k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.1-sd_0.1"
FULL_STARTS = {
    FEW: {**VIT_B16, "weights": AUGREG_IMAGENET},
    MANY: {**VIT_B16, "weights": "howto-i21k-B/16"},
    PAPER_STARTS[0]: {**VIT_B16, "weights": "imagenet21k/ViT-B_16"},
    PAPER_STARTS[1]: {**VIT_L16, "weights": "imagenet21k/ViT-L_16"},
}
FULL_TASKS: dict[str, dict[str, Any]] = {
    PHOTOS: {"recipe": "paper-finetune-flowers102"},
    DIGITS: {"recipe": "paper-finetune-vtab", "flip": False},
    CIFAR: {"recipe": "paper-finetune-cifar10", "validation": 0.02},
}
# Table 4's recipes start from weights; training from scratch has the same length.
SCRATCH_SETTINGS: dict[str, Any] = {
    **{**VIT_B16, **TABLE_4_SETTINGS, "dropout": 0.0, "batch_size": 512, "image_size": (384,)},
    **{"random_crop": 384 / 448, "resize": "crop", "crop_fraction": 384 / 448},
}
FULL_STEPS: dict[str, dict[str, Any]] = {
    PHOTOS: {"steps": 500, "warmup_steps": 100},
    DIGITS: {"steps": 2_500, "warmup_steps": 200, "flip": False},
    CIFAR: {"steps": 10_000, "warmup_steps": 500, "validation": 0.02},
}
FULL = Scale(
    data=CIFAR10,
    transfer=DatasetSpec("Oxford Flowers-102, with a validation and a test part", 1_020, 102),
    tuned=True,
    verb="finetune",
    settings={},
    grid={
        **build_transfer_grid({RANDOM: SCRATCH_SETTINGS}, FULL_STEPS),
        **build_transfer_grid(FULL_STARTS, FULL_TASKS),
    },
    seeds=3,  # Table 2
    time="by --plan",
)


def with_task_data(trial: Trial, context: StudyContext) -> StudyContext:
    """Point the context to the trial's images: digits, --data (CIFAR-10) or --transfer (flowers).

    A trial's name has its task.
    """
    task = trial.name.split(", ")[1]
    return replace(
        context, transfer={DIGITS: "digits", CIFAR: context.data}.get(task, context.transfer)
    )


def measure_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    return train_and_measure(trial, with_task_data(trial, context))


def evaluate_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    return evaluate_on_test(trial, with_task_data(trial, context))


def choose_trials(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]]
) -> dict[str, str]:
    """Choose the best rate of each start on each task."""
    return choose_best_rates(grid, validation, strip_last_part)


def strip_last_part(trial: str) -> str:
    """Remove the last part of a trial's name.

    >>> strip_last_part("few images, digits, lr 0.01")
    'few images, digits'
    """
    return trial.rpartition(", ")[0]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw validation accuracy over the rates, a panel per task."""
    from patchwords.report.figures.plots import Panel, draw_panels

    labels = [one["label"].split(", ") for one in results["labels"]]
    tasks = list(dict.fromkeys(task for _, task in labels))
    curves = build_rate_curves(results, strip_last_part)
    panels = [
        Panel(
            task,
            "learning rate",
            "accuracy, %",
            [
                replace(curves[f"{start}, {one}"], label=start)
                for start, one in labels
                if one == task
            ],
            True,
            x_ticks=sorted({own["lr"] for own in results["grid"].values()}),
        )
        for task in tasks
    ]
    seeds = pluralise(results["seeds"], "seed")
    caption = (
        f"Accuracy on the validation images that choose the learning rate, mean over {seeds}; "
        "bands reach from the lowest to the highest."
    )
    return draw_panels(panels, caption, STUDY.name)


STUDY = Study(
    name="transfer",
    version=2,
    title="Transfer",
    question="What does pre-training bring to tasks of a few thousand images, and does more of it "
    "bring more?",
    source="Tables 2, 5 and 9, with Table 4 for fine-tuning",
    quantity="accuracy on test images, per cent",
    note=(
        "Few images are a tenth of the many. Each start has the learning rate that is best on "
        "validation images, and the cell with it is judged; the paper trains once more, on those, "
        "too. Rates are Table 4's, 0.001 to 0.03, at the full scale; at the mini scale they go ten "
        "times higher, as in version 1 of the study every start was best at the highest. There "
        "pre-training has ten classes, so little to transfer, and digits are judged by 359 images; "
        "random weights have 120 steps alone, where a longer training brings digits to 95.7 % "
        "(docs/results.md)."
    ),
    paper=PAPER,
    paper_quantity="ViT-B/16 on Flowers-102, per cent, pre-trained on ImageNet (few) and on "
    "ImageNet-21k (many), which has 11 times as many images (Table 5)",
    scales={"mini": MINI, "full": FULL},
    claims=CLAIMS,
    measure_trial=measure_trial,
    evaluate_trial=evaluate_trial,
    choose_trials=choose_trials,
    draw_figures=draw_study_figures,
)
