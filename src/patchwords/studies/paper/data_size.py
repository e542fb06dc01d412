"""Figures 3 and 4, Table 5: ViT and ResNet against the number of training images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from patchwords.report.format import pluralise
from patchwords.studies.page_blocks import PageBlock, PageTable, PageText
from patchwords.studies.paper.analysis import build_seed_curve, compute_paired_differences
from patchwords.studies.paper.setups import (
    CIFAR10,
    FEWSHOT_LABEL,
    FLOOR,
    FLOWERS,
    IMAGENET,
    JFT,
    MIDDLE_VIT_SHAPE,
    RESNET_14,
    SMALL_HYBRID,
    SMALL_VIT_SHAPE,
    SMALL_VIT_TRAINING,
    build_step_schedule,
    evaluate_on_test_and_fewshot,
)
from patchwords.studies.study import Claim, Contrast, DisplayUnit, Scale, Study, TrialMetrics
from patchwords.studies.training import train_and_measure

# Values that claims compare: gaps at both ends, and how they change in between.


SMALL_VIT_NAME, LARGE_VIT_NAME, RESNET_NAME = "small ViT", "large ViT", "ResNet"

RESNET_LEAD_FEWEST_IMAGES = "ResNet less large ViT, fewest images"
VIT_LEAD_MOST_IMAGES = "large ViT less ResNet, most images"
SMALL_VIT_LEAD_FEWEST_IMAGES = "small ViT less large ViT, fewest images"
VIT_GAIN = "large ViT gains on ResNet, per doubling"
VIT_GAIN_FEWSHOT = f"{VIT_GAIN}, {FEWSHOT_LABEL}"
GROWS = "large ViT, most images less the next"
LARGE_VIT_GAIN = "large ViT gains on small ViT, per doubling"

AccuracyByImages = Mapping[str, Mapping[int, float | None]]  # model -> images -> accuracy


def make_data_size_label(model: str, images: int) -> str:
    """Format the name of a trial and label.

    >>> make_data_size_label("ResNet", 25_000)
    'ResNet, 25,000'
    """
    return f"{model}, {images:,}"


def parse_data_size_label(name: str) -> tuple[str, int]:
    """Parse the name of a trial.

    >>> parse_data_size_label("ResNet, 25,000")
    ('ResNet', 25000)
    """
    model, _, images = name.partition(", ")
    return model, int(images.replace(",", ""))


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Compute accuracies and the gaps between models of one seed.

    If everything is evaluated few-shot, that takes the place of test accuracy.
    """
    tested: dict[str, dict[int, float | None]] = {}
    shown: dict[str, dict[int, float | None]] = {}
    for name in labels.values():
        model, images = parse_data_size_label(name)
        accuracy = found[name].get("accuracy")
        tested.setdefault(model, {})[images] = accuracy
        shown.setdefault(model, {})[images] = found[name].get(FEWSHOT_LABEL, accuracy)
    apart = any(FEWSHOT_LABEL in found[name] for name in labels.values())
    sizes = sorted(tested[RESNET_NAME])
    first, last = sizes[0], sizes[-1]
    return {
        **build_label_table(tested, ""),
        **(build_label_table(shown, f", {FEWSHOT_LABEL}") if apart else {}),
        RESNET_LEAD_FEWEST_IMAGES: subtract_accuracies(tested, RESNET_NAME, LARGE_VIT_NAME)[first],
        VIT_LEAD_MOST_IMAGES: subtract_accuracies(tested, LARGE_VIT_NAME, RESNET_NAME)[last],
        VIT_GAIN: fit_gain_per_doubling(subtract_accuracies(tested, LARGE_VIT_NAME, RESNET_NAME)),
        VIT_GAIN_FEWSHOT: fit_gain_per_doubling(
            subtract_accuracies(shown, LARGE_VIT_NAME, RESNET_NAME)
        ),
        GROWS: less_fewer(tested[LARGE_VIT_NAME], last, sizes[-2]),
        SMALL_VIT_LEAD_FEWEST_IMAGES: subtract_accuracies(tested, SMALL_VIT_NAME, LARGE_VIT_NAME)[
            first
        ],
        LARGE_VIT_GAIN: fit_gain_per_doubling(
            subtract_accuracies(tested, LARGE_VIT_NAME, SMALL_VIT_NAME)
        ),
    }


def build_label_table(curves: AccuracyByImages, suffix: str) -> dict[str, float | None]:
    return {
        f"{make_data_size_label(model, images)}{suffix}": value
        for model, curve in curves.items()
        for images, value in curve.items()
    }


def subtract_accuracies(
    curves: AccuracyByImages, first: str, second: str
) -> dict[int, float | None]:
    """Subtract two models per number of images; None where one diverged."""
    gaps: dict[int, float | None] = {}
    for images, value in curves[first].items():
        beside = curves[second][images]
        gaps[images] = None if value is None or beside is None else value - beside
    return gaps


def less_fewer(curve: Mapping[int, float | None], many: int, few: int) -> float | None:
    """Subtract the accuracy with few images from that with many; None if one diverged."""
    more, fewer = curve[many], curve[few]
    return None if more is None or fewer is None else more - fewer


def fit_gain_per_doubling(gaps: Mapping[int, float | None]) -> float | None:
    """Fit the slope per doubling of images by least squares; None if one is missing."""
    values = [value for value in gaps.values() if value is not None]
    if len(values) < len(gaps):
        return None
    return float(np.polyfit(np.log2(list(gaps)), values, 1)[0])


# The page: Figure 4 and Table 5.


# Table 5: accuracy on ImageNet, fine-tuned at 384 pixels, after each of three data sets.
TABLE_5 = {
    "ViT-B/16": (77.91, 83.97, 84.15),
    "ViT-L/16": (76.53, 85.15, 87.12),
    "ViT-B/32": (73.38, 81.28, 80.73),
    "ViT-L/32": (71.16, 80.99, 84.37),
}
TABLE_5_DATA_SETS = ("ImageNet, 1.3 million", "ImageNet-21k, 14 million", "JFT, 303 million")


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Build the paper's numbers for Figure 3, which uses other data sets instead of subsets."""
    rows = [(model, *(f"{value:.2f}" for value in row)) for model, row in TABLE_5.items()]
    for patch in (16, 32):
        small, large = TABLE_5[f"ViT-B/{patch}"], TABLE_5[f"ViT-L/{patch}"]
        gaps = (f"{b - a:+.2f}" for a, b in zip(small, large, strict=True))
        rows.append((f"L/{patch} less B/{patch}", *gaps))
    return [
        PageText(
            "Table 5: accuracy on ImageNet in per cent, fine-tuned, by what it was trained on."
        ),
        PageTable(("paper", *TABLE_5_DATA_SETS), rows),
    ]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw Figure 4 by test and few-shot accuracy, and the gap of the claims."""
    from patchwords.report.figures.plots import Panel, draw_panels

    values = {one["label"]: one["values"] for one in results["labels"]}
    names = [parse_data_size_label(name) for name in results["grid"]]
    models, sizes = list(dict(names)), sorted({images for _, images in names})
    panels = []
    for title, suffix in (("Accuracy", ""), ("5-shot linear accuracy", f", {FEWSHOT_LABEL}")):
        if make_data_size_label(RESNET_NAME, sizes[0]) + suffix not in values:
            continue  # everything is evaluated few-shot
        curves = [
            build_seed_curve(
                model, {float(n): values[make_data_size_label(model, n) + suffix] for n in sizes}
            )
            for model in models
        ]
        panels.append(Panel(title, "training images", "%", curves, log_x=True, x_ticks=sizes))
    lead = {
        float(n): compute_paired_differences(
            values, make_data_size_label(RESNET_NAME, n), make_data_size_label(LARGE_VIT_NAME, n)
        )
        for n in sizes
    }
    gap = [build_seed_curve("ResNet less large ViT", lead)]
    panels.append(Panel("ResNet's lead", "training images", "points", gap, True, x_ticks=sizes))
    caption = (
        f"Mean over {pluralise(results['seeds'], 'seed')}, bands from the lowest to the highest. "
        "Figure 4 has 5-shot linear accuracy on ImageNet after 9 to 300 million images of JFT. "
        "The lead is that over the large ViT."
    )
    return draw_panels(panels, caption, "data-size")


# Three epochs of the largest subset, 77 of the smallest. A third of that, as in version 1, is too
# short: no ViT had learned enough for the number of images to matter.
MINI_SIZES = (800, 4_000, 20_000)
IMAGES_SEEN = 61_440
EVALUATIONS = 3  # on validation images: the best is kept, as the paper stops early
MINI_MODELS: dict[str, dict[str, Any]] = {
    "small ViT": SMALL_VIT_SHAPE,
    "large ViT": MIDDLE_VIT_SHAPE,  # 32 million MACs per image, the ResNet 30
    "ResNet": RESNET_14,
    "hybrid": SMALL_HYBRID,
}
STEP_SCHEDULE = build_step_schedule(IMAGES_SEEN, 64)
FEWSHOT_TOO = "The ViT gains on the ResNet in few-shot accuracy, too"
# If a ViT gains nothing from more images, its training was too short to use them.
MORE_HELP = Contrast("the large ViT's gain from the last step to more images", (GROWS,))
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **SMALL_VIT_TRAINING,
        **STEP_SCHEDULE,
        "lr": 1e-3,
        "validation": 0.02,
        "eval_every": -(-STEP_SCHEDULE["steps"] // EVALUATIONS),
        "early_stop": EVALUATIONS,  # never stops before the end; keeps the best
        "save_every": 200,
    },
    grid={
        make_data_size_label(model, images): {**own, "train_images": images}
        for model, own in MINI_MODELS.items()
        for images in MINI_SIZES
    },
    seeds=3,
    time="about forty minutes on two cores",
    transfer=FLOWERS,
    untested={FEWSHOT_TOO: FLOOR},
)

# Figure 4's models, with B/16, to which Table 5 compares L/16, and its hybrid.
FULL_MODELS: dict[str, dict[str, Any]] = {
    "small ViT": {"recipe": "vit-b16-jft"},
    "large ViT": {"recipe": "vit-l16-jft-7ep"},
    "ResNet": {"recipe": "r152x2-jft"},
    "hybrid": {"recipe": "r50-vit-b16-jft"},
    # ViT-b/32 there; it has no row in Table 3
    "half of ViT-B/32": {"recipe": "vit-b32-jft", "model": "ViT-b/32"},
    "ViT-B/32": {"recipe": "vit-b32-jft"},
    "ViT-L/32": {"recipe": "vit-l32-jft"},
    "R50x1": {"recipe": "r50x1-jft"},
}
FULL_SIZES = (9_000_000, 30_000_000, 90_000_000, JFT.count)
FULL = Scale(
    data=JFT,
    verb="pretrain",
    # The same settings for all sizes, with early stopping: Section 4.3. As long as Table 3 has it.
    settings={"examples": 7 * JFT.count, "early_stop": 10},
    grid={
        make_data_size_label(model, images): own
        if images == JFT.count  # minus what is held out for early stopping
        else {**own, "train_images": images}
        for model, own in FULL_MODELS.items()
        for images in FULL_SIZES
    },
    seeds=1,
    time="by --plan",
    shots=5,
    transfer=IMAGENET,
)


POINTS_UNIT = DisplayUnit("points", "points", 100.0)
PER_DOUBLING_UNIT = DisplayUnit("points per doubling", "points per doubling", 100.0, 2)
STUDY = Study(
    name="data-size",
    version=2,
    title="How many images ViT and ResNet need",
    question="Does a ResNet lead where images are few, and does the ViT close the gap as they "
    "become more?",
    source="Figures 3 and 4, Table 5, Section 4.3",
    quantity="accuracy on test images, per cent; with 5-shot: linear accuracy from five images of "
    "each class of --transfer",
    note="Every training sees as many images as the others, so that fewer come more often. "
    "At scale mini the paper's 9 million images are 800, and its 300 million 20,000: where the "
    "gap closes here says nothing of where it does there. Version 1 of the study saw a third of "
    "the images at scale mini: its ViTs had 33 to 35 % with however few, which told nothing. "
    "Three times that is short, too: 1.2 passes over CIFAR-10.",
    paper={},
    paper_quantity="curves only; Figure 4 prints no numbers. Table 5 is below",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "With the fewest images the ResNet is ahead of a ViT of equal compute",
            "on 9 million images of JFT (Figure 4)",
            (RESNET_LEAD_FEWEST_IMAGES,),
            (),
        ),
        Claim(
            "The ViT gains on the ResNet as images become more",
            "their curves cross between 30 and 90 million images (Figure 4)",
            (VIT_GAIN,),
            (),
            controls=(MORE_HELP,),
        ),
        Claim(
            FEWSHOT_TOO,
            "the curves of Figure 4, which cross, are of few-shot accuracy",
            (VIT_GAIN_FEWSHOT,),
            (),
            controls=(MORE_HELP,),
        ),
        Claim(
            "With the most images the ViT is ahead of the ResNet",
            "from 90 million images on (Figure 4)",
            (VIT_LEAD_MOST_IMAGES,),
            (),
            controls=(MORE_HELP,),
        ),
        Claim(
            "With the fewest images the smaller ViT is ahead of the larger",
            "+1.4 points, B/16 less L/16, after ImageNet (Table 5)",
            (SMALL_VIT_LEAD_FEWEST_IMAGES,),
            (),
        ),
        Claim(
            "The larger ViT gains on the smaller as images become more",
            "L/16 less B/16: -1.4 points after ImageNet, +1.2 after ImageNet-21k, +3.0 after JFT "
            "(Table 5)",
            (LARGE_VIT_GAIN,),
            (),
            controls=(MORE_HELP,),
        ),
    ),
    measure_trial=train_and_measure,
    evaluate_trial=evaluate_on_test_and_fewshot,
    compute_values=compute_values,
    units={
        **dict.fromkeys(
            (RESNET_LEAD_FEWEST_IMAGES, VIT_LEAD_MOST_IMAGES, GROWS, SMALL_VIT_LEAD_FEWEST_IMAGES),
            POINTS_UNIT,
        ),
        **dict.fromkeys((VIT_GAIN, VIT_GAIN_FEWSHOT, LARGE_VIT_GAIN), PER_DOUBLING_UNIT),
    },
    draw_figures=draw_study_figures,
    build_tables=build_tables,
    layout=(
        tuple(FULL_MODELS),
        tuple(
            f"{images:,}{measure}"
            for measure in ("", f", {FEWSHOT_LABEL}")
            for images in (*MINI_SIZES, *FULL_SIZES)
        ),
    ),
)
