"""Section 4.6 and Appendix B.1.2: is there something to be learned from patches without labels?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.studies.paper.paired import dots_of, gaps, over_paired_seeds
from patchwords.studies.paper.small import SMALL_VIT
from patchwords.studies.paper.sources import CIFAR10, IMAGENET, JFT
from patchwords.studies.study import Claim, Scale, Study
from patchwords.studies.training import judge_training, measure_training

TARGETS = {"mean colour": "mean-colour", "4x4 colours": "small-patch", "pixels": "pixels"}
RATIOS = {"50 %": 0.5, "15 %": 0.15}  # of the patches are corrupted

SHORT = "from scratch, as long as fine-tuning"
LONG = "from scratch, as long as both"
LABELS = "pre-trained with labels"
MASKED = {
    f"{ratio} masked, {target}": {
        "objective": "masked",
        "target": TARGETS[target],
        "mask_ratio": RATIOS[ratio],
    }
    for ratio in RATIOS
    for target in TARGETS
}
USUAL = "50 % masked, mean colour"  # what the paper reports

PAPER = {  # ViT-B/16, ImageNet: Table 5, and Section 4.6 for masked patches
    LONG: 0.7791,
    USUAL: 0.799,
    LABELS: 0.8397,
}


def masked(some: str) -> tuple[str, ...]:
    """The cells with this target, or this share of patches."""
    return tuple(name for name in MASKED if some in name)


CLAIMS = (
    Claim(
        "Masked pre-training beats the same steps from scratch",
        "not in the paper, whose training from scratch is longer than fine-tuning",
        (USUAL,),
        (SHORT,),
    ),
    Claim(
        "Masked pre-training beats a long training from scratch",
        "+2.0 points: 79.9 (Section 4.6), 77.91 (Table 5)",
        (USUAL,),
        (LONG,),
    ),
    Claim(
        "Labels are worth more than masked patches",
        "+4.1 points: 83.97 (Table 5, ImageNet-21k), 79.9 (Section 4.6)",
        (LABELS,),
        (USUAL,),
    ),
    Claim(
        "All three targets work",
        "all work well (Appendix B.1.2; no numbers)",
        masked("50 %"),
        (SHORT,),
    ),
    Claim(
        "Pixels are a slightly worse target than colours",
        "slightly worse (Appendix B.1.2; no numbers)",
        (*masked("mean colour"), *masked("4x4 colours")),
        masked("pixels"),
    ),
    Claim(
        "15 % of the patches is slightly worse than 50 %",
        "slightly worse (Appendix B.1.2; no numbers)",
        masked("50 %"),
        masked("15 %"),
    ),
)

# Nobody has labels of ImageNet before they are fine-tuned on: one half of the classes is to be
# pre-trained on, the other to be fine-tuned on, by a tenth of its images.
PRETRAINED = ("airplane", "bird", "deer", "frog", "ship")
TUNED = ("automobile", "cat", "dog", "horse", "truck")
LABELLED = 2_500
PRETRAINING, TUNING = 1_200, 300  # steps: 3.1 passes over 25,000 images, 7.7 over 2,500


def lasting(steps: int) -> dict[str, int]:
    return {"steps": steps, "warmup_steps": steps // 10}


# Patches of 8: of the 4x4 pixels of SMALL_VIT's, a down-sized patch of 4x4 would be every pixel.
# 16 patches cost a quarter, too, and there are seven pre-trainings.
SHAPE: dict[str, Any] = {
    **{name: SMALL_VIT[name] for name in ("image_size", "width", "depth", "heads", "mlp_width")},
    **{"model": "ViT-Ti/8", "dropout": SMALL_VIT["dropout"]},
}
LEARNING: dict[str, Any] = {
    **{name: SMALL_VIT[name] for name in ("optimizer", "schedule", "weight_decay", "crop_area")},
    **{"lr": 1e-3, "batch_size": 64, "validation": 0.0, "save_every": 500, "split_seed": 0},
}
MINI_ENCODERS: dict[str, dict[str, Any]] = {LABELS: {"objective": "supervised"}, **MASKED}
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={**LEARNING, "classes": TUNED, "train_images": LABELLED},
    grid={
        SHORT: {**SHAPE, **lasting(TUNING)},
        LONG: {**SHAPE, **lasting(TUNING + PRETRAINING)},
        **{name: {"encoder": name, **lasting(TUNING)} for name in MINI_ENCODERS},
    },
    encoders={
        name: {**SHAPE, **LEARNING, "classes": PRETRAINED, **own, **lasting(PRETRAINING)}
        for name, own in MINI_ENCODERS.items()
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
)

# The paper's own: every encoder is fine-tuned on ImageNet at 384 pixels, as Table 4 has it.
B16 = {"model": "ViT-B/16"}
TABLE_4: dict[str, Any] = {"recipe": "paper-finetune-imagenet"}
SCRATCH: dict[str, Any] = {"verb": "pretrain", "recipe": "vit-b16-imagenet", **B16}
FULL = Scale(
    data=JFT,
    transfer=IMAGENET,
    tuned=True,
    verb="finetune",
    settings={},
    grid={
        SHORT: {**SCRATCH, "steps": 20_000},
        LONG: SCRATCH,
        **{name: {"encoder": name, **TABLE_4} for name in MINI_ENCODERS},
    },
    encoders={
        LABELS: {"recipe": "vit-b16-jft", **B16},
        **{name: {"recipe": "masked-vit-b16-jft", **B16, **own} for name, own in MASKED.items()},
    },
    seeds=1,
    time="by --plan",
)


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """How far every beginning is from the long training from scratch, paired by seed."""
    from patchwords.report.dots import Dots, draw_dots

    found = gaps(results, [one["label"] for one in results["labels"]], LONG)
    nothing = float("nan")  # is not drawn
    paper = [100 * (PAPER[name] - PAPER[LONG]) if name in PAPER else nothing for name in found]
    caption = (
        "Accuracy after fine-tuning, as differences. Ours: mean over "
        f"{over_paired_seeds(results)}. Paper: ViT-B/16, ImageNet, one run, for the three "
        "beginnings that it has numbers for."
    )
    series = [dots_of(found), Dots("paper", paper)]
    across = "points above a long training from scratch"
    return draw_dots(list(found), series, across, caption, STUDY.name)


STUDY = Study(
    name="masked-patches",
    version=1,
    title="Masked patch prediction",
    question="Does a ViT that has learned to fill in hidden patches, without labels, do better "
    "than one from scratch, and how far is it from one that has learned with labels?",
    source="Section 4.6, Appendix B.1.2",
    quantity="accuracy on test images after fine-tuning, per cent",
    note=(
        "What the paper trains from scratch has seen 38 times as many images as fine-tuning shows, "
        "so it stands beside the long training here, which sees as many images as pre-training and "
        "fine-tuning together, all of them from the labelled ones. The short one sees as many as "
        "fine-tuning. At the mini scale half of CIFAR-10's classes are pre-trained on, for 3.1 "
        "passes (the paper: 14), and a tenth of the other half has labels."
    ),
    paper=PAPER,
    paper_quantity="ViT-B/16, ImageNet, per cent: from scratch (Table 5), masked patches of "
    "JFT-300M (Section 4.6), labels of ImageNet-21k (Table 5)",
    scales={"mini": MINI, "full": FULL},
    claims=CLAIMS,
    measure=measure_training,
    judge=judge_training,
    draw=draw,
)
