"""Tables 2, 5 and 9: what does a pre-trained ViT bring to tasks of a few thousand images?

Pre-trained on few images or on many, then fine-tuned as Table 4 has it: SGD at several learning
rates, of which validation images choose one for each start and task.
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
# Of models so small, trained so briefly, every start has its best at 0.03 or above.
MINI_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)

PAPER = {  # Table 5, ViT-B/16 on Flowers-102: pre-trained on ImageNet, and on ImageNet-21k
    f"{FEW}, {PHOTOS}": 0.8949,
    f"{MANY}, {PHOTOS}": 0.9938,
}


def make_start_labels(start: str) -> tuple[str, ...]:
    return tuple(f"{start}, {task}" for task in (PHOTOS, DIGITS))


def helped(task: str, name: str) -> Contrast:
    """What pre-training on many images brings to a task."""
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
    """Every start on every task at every rate."""
    return {
        f"{start}, {task}, lr {lr:g}": {**of_start, **of_task, "lr": lr}
        for start, of_start in starts.items()
        for task, of_task in tasks.items()
        for lr in rates
    }


RANDOM_START_SETTINGS = {
    name: SMALL_VIT_SETTINGS[name] for name in (*SHAPE_SETTING_NAMES, "image_size")
}
# Table 4's optimizer and schedule; smaller batches, as there are far fewer images.
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
        "validation": 0.1,  # as Table 4's of Pets and Flowers; chooses the rate
        "eval_every": 120,
        "split_seed": 0,
    },
    grid=build_transfer_grid(
        {RANDOM: RANDOM_START_SETTINGS, FEW: {ENCODER: FEW}, MANY: {ENCODER: MANY}},
        {
            PHOTOS: {"crop_area": (0.4, 1.0)},
            # a mirrored 2 is not a 2, and a part of a digit is none
            DIGITS: {"crop_area": (0.7, 1.0), "crop_ratio": (0.9, 1.1), "flip": False},
        },
        MINI_RATES,
    ),
    encoders={
        # as ImageNet is to ImageNet-21k; as many steps, so that it is the images that count
        FEW: {**PRETRAINING_SETTINGS, "steps": 1200, "warmup_steps": 120, "train_images": 5_000},
        MANY: {**PRETRAINING_SETTINGS, "steps": 1200, "warmup_steps": 120},
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
)

# Public checkpoints: AugReg's of ImageNet and of ImageNet-21k, and the paper's of ImageNet-21k.
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
# Table 4's recipes start from weights alone; the same lengths without them.
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


def with_task_data(cell: Trial, bench: StudyContext) -> StudyContext:
    """The bench with the cell's images: digits need no file, CIFAR-10 is --data, flowers the other.

    A cell's name has its task.
    """
    task = cell.name.split(", ")[1]
    return replace(bench, transfer={DIGITS: "digits", CIFAR: bench.data}.get(task, bench.transfer))


def measure_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    return train_and_measure(cell, with_task_data(cell, bench))


def evaluate_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    return evaluate_on_test(cell, with_task_data(cell, bench))


def choose_trials(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]]
) -> dict[str, str]:
    """Each start on each task at its best rate."""
    return choose_best_rates(grid, validation, strip_last_part)


def strip_last_part(cell: str) -> str:
    """
    >>> strip_last_part("few images, digits, lr 0.01")
    'few images, digits'
    """
    return cell.rpartition(", ")[0]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """A panel for each task: what the rate was chosen by, of every start."""
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
    measure=measure_trial,
    judge=evaluate_trial,
    choose=choose_trials,
    draw=draw_study_figures,
)
