"""Figure 13: accuracy of axial attention against compute and inference speed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.report.format import pluralise
from patchwords.studies.page_blocks import PageBlock, PageTable, PageText
from patchwords.studies.paper.analysis import compute_label_gaps, format_gap
from patchwords.studies.paper.setups import (
    CIFAR10,
    IMAGENET,
    JFT,
    SHAPE_SETTING_NAMES,
    SMALL_VIT_SETTINGS,
    SMALL_VIT_TRAINING,
)
from patchwords.studies.study import (
    VERB,
    Claim,
    DisplayUnit,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialGrid,
    TrialMetrics,
)
from patchwords.studies.training import evaluate_on_test, train_and_measure

# Values that claims compare: accuracies, speeds, time per multiplication.


# The labels are the same at both scales: patches of 8 and 4 pixels of 32, of 32 and 16 of 224.
VIT_LARGE_PATCHES, VIT_SMALL_PATCHES = "ViT, large patches", "ViT, small patches"
AXIAL_LARGE_PATCHES, AXIAL_SMALL_PATCHES = "Axial-ViT, large patches", "Axial-ViT, small patches"
DEEPER_VIT = "ViT, small patches, deeper"
RESNET, AXIAL_RESNET = "ResNet", "AxialResNet"
SPEED_TRIAL = "speed"  # the trial that times all models in turn
TIMED_BATCH = 32  # batch size of the timed models
MODELS = (
    VIT_LARGE_PATCHES,
    VIT_SMALL_PATCHES,
    DEEPER_VIT,
    AXIAL_LARGE_PATCHES,
    AXIAL_SMALL_PATCHES,
    RESNET,
    AXIAL_RESNET,
)
SLOWDOWN_PER_MAC = "AxialResNet: time per MAC relative to ResNet's, in doublings"


def make_rate_label(name: str) -> str:
    return f"{name}: images/s"


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Collect accuracies, speeds and the slowdown of AxialResNet per multiplication."""
    clock = found[SPEED_TRIAL]
    return {
        **{label: found[name].get("accuracy") for label, name in labels.items()},
        **{make_rate_label(label): clock[make_rate_label(name)] for label, name in labels.items()},
        SLOWDOWN_PER_MAC: compute_slowdown(found),
    }


def compute_slowdown(found: Mapping[str, TrialMetrics]) -> float | None:
    """Compute log2 of the time per multiplication relative to the ResNet's."""
    pace = []  # multiplications per second
    for name in (RESNET, AXIAL_RESNET):
        macs, rate = compute_macs_per_image(found[name]), found[SPEED_TRIAL][make_rate_label(name)]
        if macs is None or rate is None:
            return None
        pace.append(macs * rate)
    return math.log2(pace[0] / pace[1])


def compute_macs_per_image(numbers: Mapping[str, Any]) -> float | None:
    """Compute MACs per image; a training step takes 6 FLOPs for each."""
    flops, images = numbers.get("flops"), numbers.get("images")
    return flops / images / 6 if flops and images else None


# The page: model costs and Figure 13.


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Build the tables of model costs and of gains at equal compute."""
    first = {one["name"]: one for one in results["cells"] if one["seed"] == 0}
    labels = {one["label"]: one["over_seeds"] for one in results["labels"]}
    rows = []
    for name in MODELS:
        macs, count = compute_macs_per_image(first[name]), first[name].get("parameters")
        rows.append(
            (
                f"{name}: {format_trial_model(results, name)}",
                "-" if count is None else f"{count:,.0f}",
                "-" if macs is None else f"{macs / 1e6:,.1f}",
                "-"
                if macs is None
                else f"{macs * labels[make_rate_label(name)]['mean'] / 1e9:.1f}",
            )
        )
    return [
        PageText(
            "Speed is of frozen copies, asked one after the other in turn, "
            f"{TIMED_BATCH} images at a time, on {results['device']}, while other cells may be at work: "
            "compare models, not machines."
        ),
        PageTable(("model", "parameters", "million MACs an image", "billion MACs a second"), rows),
        *build_equal_compute_note(results),
    ]


def format_trial_model(results: Mapping[str, Any], name: str) -> str:
    own = results["grid"][name]
    depth = f", {own['depth']} blocks" if "depth" in own else ""
    return f"{own.get('model', own.get('recipe'))}{depth}"


def build_equal_compute_note(results: Mapping[str, Any]) -> list[PageBlock]:
    """Compare with the ViT of the same compute, which Figure 13 lacks."""
    found = compute_label_gaps(results, [AXIAL_SMALL_PATCHES], DEEPER_VIT)
    if AXIAL_SMALL_PATCHES not in found:
        return []
    return [
        PageText(
            "An Axial-ViT has two layers for each block. How many points it is above a ViT with "
            "more blocks at the same cost, which the figure lacks: "
            f"{format_gap(found[AXIAL_SMALL_PATCHES])}."
        )
    ]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw Figure 13: accuracy over compute and over speed, a line per family."""
    from patchwords.report.figures.plots import Panel, draw_panels

    flops = {one["name"]: one.get("flops") for one in results["cells"] if one["seed"] == 0}
    labels = {one["label"]: one["over_seeds"] for one in results["labels"]}
    rates = {name: (labels[make_rate_label(name)] or {}).get("mean") for name in MODELS}
    caption = (
        f"{results['quantity'].capitalize()}; mean over {pluralise(results['seeds'], 'seed')}, "
        "lines join large patches with small ones. Left: 6 x MACs x images, over that of ViT with "
        "small patches. "
        f"Right: frozen copies, {TIMED_BATCH} images at a time."
    )
    usual = flops[VIT_SMALL_PATCHES] or 1.0
    compute = {name: flops[name] and flops[name] / usual for name in MODELS}
    first, ticks = build_family_curves(labels, compute), (0.25, 0.5, 1, 2)
    panels = [
        Panel("Compute", "training compute", "accuracy, %", first, True, x_ticks=ticks),
        Panel("Speed", "images/s", "accuracy, %", build_family_curves(labels, rates), True),
    ]
    return draw_panels(panels, caption, "axial")


FAMILIES = {
    "ViT": (VIT_LARGE_PATCHES, VIT_SMALL_PATCHES),
    "Axial-ViT": (AXIAL_LARGE_PATCHES, AXIAL_SMALL_PATCHES),
    "ViT, deeper": (DEEPER_VIT,),
    "ResNet": (RESNET,),
    "AxialResNet": (AXIAL_RESNET,),
}


def build_family_curves(labels: Mapping[str, Any], places: Mapping[str, float | None]) -> list[Any]:
    """Build a curve per family; diverged trainings are left out."""
    from patchwords.report.figures.plots import Curve

    found = []
    for family, names in FAMILIES.items():
        alive = [name for name in names if labels[name] is not None and places[name]]
        heights = [100 * labels[name]["mean"] for name in alive]
        found.append(Curve(family, [places[name] or 0.0 for name in alive], heights))
    return found


ROUNDS, SECONDS = 5, 0.25  # each model has its turn, so that a slow moment hits all

SMALL_SHAPE = {name: SMALL_VIT_SETTINGS[name] for name in SHAPE_SETTING_NAMES if name != "model"}
VIT_STEPS = {"steps": 560, "warmup_steps": 56}
# The smallest ResNets have 2 to 2.4 times the MACs of ViT with small patches, and are slower per
# MAC: they see fewer images, so that all three cost the same.
RESNET_STEPS = {"steps": 278, "warmup_steps": 28}
AXIAL_RESNET_STEPS = {"steps": 238, "warmup_steps": 24}
AXIAL_SETTINGS = {**SMALL_SHAPE, **VIT_STEPS}
GAP_SETTINGS = {**AXIAL_SETTINGS, "classifier": "gap"}  # Axial-ViT has no class token

MINI_GRID: dict[str, dict[str, Any]] = {
    VIT_LARGE_PATCHES: {**GAP_SETTINGS, "model": "ViT-Ti/8"},
    VIT_SMALL_PATCHES: {**GAP_SETTINGS, "model": "ViT-Ti/4"},
    # Same cost as the 2 x 4 blocks of Axial-ViT, within 1 %. Not in the figure; it shows what the
    # compute alone brings.
    DEEPER_VIT: {**GAP_SETTINGS, "model": "ViT-Ti/4", "depth": 7},
    AXIAL_LARGE_PATCHES: {**AXIAL_SETTINGS, "model": "Axial-ViT-Ti/8"},
    AXIAL_SMALL_PATCHES: {**AXIAL_SETTINGS, "model": "Axial-ViT-Ti/4"},
    RESNET: {**RESNET_STEPS, "model": "BiT-R14x1"},
    AXIAL_RESNET: {**AXIAL_RESNET_STEPS, "model": "AxialResNet-14"},
    SPEED_TRIAL: {VERB: "none"},
}
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **{name: v for name, v in SMALL_VIT_TRAINING.items() if name not in VIT_STEPS},
        "lr": 1e-3,
        "validation": 0.0,  # nothing is chosen by validation
        "save_every": 200,
    },
    grid=MINI_GRID,
    seeds=3,
    time="about twelve minutes on two cores",
)
# GAP needs 3e-4 where the class token has 8e-4, and a linear head (App. D.3).
GAP_RECIPE = {"head": "linear", "lr": 3e-4}
FULL_GRID: dict[str, dict[str, Any]] = {
    VIT_LARGE_PATCHES: {"recipe": "vit-b32-jft"},
    VIT_SMALL_PATCHES: {"recipe": "vit-b16-jft"},
    DEEPER_VIT: {"recipe": "vit-b16-jft", "depth": 23},
    AXIAL_LARGE_PATCHES: {"recipe": "vit-b32-jft", "model": "Axial-ViT-B/32", **GAP_RECIPE},
    AXIAL_SMALL_PATCHES: {"recipe": "vit-b16-jft", "model": "Axial-ViT-B/16", **GAP_RECIPE},
    RESNET: {"recipe": "r50x1-jft"},
    AXIAL_RESNET: {"recipe": "r50x1-jft", "model": "AxialResNet-50"},
    SPEED_TRIAL: {VERB: "none"},
}
FULL = Scale(
    data=JFT,
    verb="pretrain",
    settings={},
    grid=FULL_GRID,
    seeds=1,
    time="by --plan",
    shots=5,
    transfer=IMAGENET,
)


def measure_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Train a model, or time the inference of all models."""
    if trial.settings[VERB] != "none":
        return train_and_measure(trial, context)
    from patchwords.device import choose_device
    from patchwords.studies.paper.analysis import build_timing_workload, measure_inference_speeds

    device = choose_device(context.device, context.precision)
    asked = {
        one.name: build_timing_workload(one, context, device, (TIMED_BATCH,))
        for one in context.scale.list_trials(1)
        if one.settings[VERB] != "none"
    }
    found: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS):
        for name, subject in asked.items():
            [row] = measure_inference_speeds(subject, SECONDS)
            assert row.images_per_second is not None, "nothing is too large to be tried"
            found[name].append(row.images_per_second)
    return {make_rate_label(name): statistics.median(values) for name, values in found.items()}


def choose_trials(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]]
) -> dict[str, str]:
    """Label every trial that trains."""
    return {name: name for name, own in grid.items() if own.get(VERB) != "none"}


STUDY = Study(
    name="axial",
    version=1,
    title="Axial attention",
    question="Is attention along rows and then columns worth what it costs, in compute and in "
    "time?",
    source="Figure 13, Appendix D.6",
    quantity="accuracy on test images, per cent",
    note="The paper leaves Axial-ViT's head and positions open: here the mean of the patches, for "
    "ViT as well at scale mini, and 1-D positions. Grids of 4 x 4 and 8 x 8 patches have little "
    "to gain from shorter attention. At scale mini the ResNets see half of the images, so that "
    "they cost what ViT with small patches costs; in the figure all see the same.",
    paper={},
    paper_quantity="dots only; Figure 13 prints no numbers",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "Axial-ViT beats ViT with the same large patches, at more compute",
            "AxialViT-B/32 is above ViT-B/32 (Figure 13)",
            (AXIAL_LARGE_PATCHES,),
            (VIT_LARGE_PATCHES,),
        ),
        Claim(
            "Axial-ViT beats ViT with the same small patches, at more compute",
            "AxialViT-B/16 is above ViT-B/16 (Figure 13)",
            (AXIAL_SMALL_PATCHES,),
            (VIT_SMALL_PATCHES,),
        ),
        Claim(
            "AxialResNet takes more time than its compute says",
            "reasonable in FLOPs, extremely slow on TPUs (Appendix D.6)",
            (SLOWDOWN_PER_MAC,),
            (),
        ),
    ),
    measure_trial=measure_trial,
    evaluate_trial=evaluate_on_test,
    choose_trials=choose_trials,
    compute_values=compute_values,
    units={
        **{make_rate_label(name): DisplayUnit("images/s", "images/s", 1.0, 0) for name in MODELS},
        SLOWDOWN_PER_MAC: DisplayUnit("log2", "doublings", 1.0, 1),
    },
    draw_figures=draw_study_figures,
    build_tables=build_tables,
)
