"""Robustness of a ViT and a ResNet to Naseer et al.'s four perturbations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchwords.report.format import pluralise
from patchwords.studies.page import format_flops
from patchwords.studies.page_blocks import PageBlock, PageHeading, PageTable, PageText
from patchwords.studies.paper.analysis import build_seed_curve
from patchwords.studies.paper.setups import (
    CIFAR10,
    IMAGENET,
    SMALL_VIT_SETTINGS,
    SMALL_VIT_TRAINING,
    load_encoder_data,
    load_encoder_model,
)
from patchwords.studies.study import (
    ENCODER,
    Claim,
    Contrast,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
)

if TYPE_CHECKING:
    from patchwords.report.figures.plots import Curve


# Accuracy of a trained model on perturbed images, and the share that is kept.
#
# The models differ on clean images already, and perturbations rarely push accuracy below chance. So
# claims compare the share of a model's lead over chance that is kept, as a mean over the levels of a
# perturbation: 1 where nothing is lost, 0 at chance.


def measure_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Measure held-out accuracy on clean images and at each perturbation level."""
    from patchwords.data.dataset import TRAIN
    from patchwords.evaluation.held_out import choose_final_split
    from patchwords.evaluation.robustness.measure import choose_perturbations, measure_robustness
    from patchwords.evaluation.robustness.perturbation import draw_stratified_subset
    from patchwords.models.vit import ViT

    loaded = load_encoder_model(trial, context)
    if loaded is None:
        return {"accuracy": None}
    data = load_encoder_data(trial, context)
    _, held_out = choose_final_split(data)
    judged = held_out.select(
        draw_stratified_subset(held_out, min(trial.settings["images"], len(held_out)))
    )
    rows = measure_robustness(
        [loaded],
        judged,
        choose_perturbations(trial.settings["disturbances"]),
        seeds=(trial.seed,),
        training=data.splits[TRAIN],
    )
    vit = loaded.model
    return {
        "accuracy": rows[0]["accuracy"],  # each curve begins with clean images
        **{f"{row['disturbance']} at {row['level']:g}": row["accuracy"] for row in rows},
        **({"own grid": vit.config.grid[0]} if isinstance(vit, ViT) else {}),
        "classes": len(data.classes),
        "test images": rows[0]["images"],
    }


def list_level_names(numbers: Mapping[str, Any], name: str) -> list[str]:
    """List the metrics of a perturbation at all levels except the first, which changes nothing."""
    return [key for key in numbers if key.startswith(f"{name} at ")][1:]


def compute_share_kept(numbers: TrialMetrics, keys: Sequence[str]) -> float | None:
    """Compute the kept share of the lead over chance, mean over levels; None without a lead.

    >>> compute_share_kept({"accuracy": 0.5, "classes": 10, "a": 0.3, "b": 0.1}, ["a", "b"])
    0.25
    """
    clean, classes = numbers["accuracy"], numbers.get("classes")
    if clean is None or not classes or clean <= 1 / classes:
        return None
    chance = 1 / classes
    found = [numbers[key] or 0.0 for key in keys]
    return (sum(found) / len(found) - chance) / (clean - chance)


VIT, RESNET = "ViT", "ResNet"
MODELS = (VIT, RESNET)
PERTURBATION_BY_ROW = {  # row -> perturbation
    "patches dropped at random": "occlusion-random",
    "salient patches dropped first": "occlusion-salient",
    "salient patches dropped last": "occlusion-non-salient",
    "tiles shuffled": "permutation",
    "texture smoothed away": "texture-smoothing",
    "pixels shuffled in squares": "texture-shuffling",
    "adversarial patch": "patch-adversarial",
    "patch of noise": "patch-noise",
    "grey patch": "patch-grey",
}
PERTURBATION_CASES = {  # case of Naseer et al. -> perturbations
    "occlusion": tuple(
        name for name in PERTURBATION_BY_ROW.values() if name.startswith("occlusion")
    ),
    "permutation": ("permutation",),
    "texture": ("texture-smoothing", "texture-shuffling"),
    "adversarial patch": ("patch-adversarial", "patch-noise", "patch-grey"),
}
CLEAN_ACCURACY = "accuracy as it is"
DROPPED_PERCENTAGES = (50, 80, 90)  # percent of the patches, as in Sec. 3.1


def make_dropped_label(percent: int) -> str:
    return f"accuracy, {percent} % of patches dropped"


def make_kept_label(what: str) -> str:
    return f"kept, {what}"


LARGER_TILES = make_kept_label("tiles of 2x2 patches shuffled")
OWN_PATCH_TILES, SMALLER_TILES = (
    make_kept_label("its own patches shuffled"),
    make_kept_label("quarters of patches shuffled"),
)
ROWS = (
    CLEAN_ACCURACY,
    *map(make_dropped_label, DROPPED_PERCENTAGES),
    *map(make_kept_label, PERTURBATION_BY_ROW),
    LARGER_TILES,
    OWN_PATCH_TILES,
    SMALLER_TILES,
)
PAPER = {  # Naseer et al., Sec. 3.1: top-1 accuracy on ImageNet; DeiT-S, DeiT, DeiT-B and ResNet-50
    f"{make_dropped_label(50)}, {VIT}": 0.70,
    f"{make_dropped_label(80)}, {VIT}": 0.60,
    f"{make_dropped_label(90)}, {VIT}": 0.37,
    f"{make_dropped_label(50)}, {RESNET}": 0.001,
    f"{make_dropped_label(80)}, {RESNET}": 0.0,
}


def make_kept_claim(text: str, paper: str, what: str) -> Claim:
    """Make a claim that the ViT keeps more of its accuracy than the ResNet."""
    return Claim(
        text, paper, (f"{make_kept_label(what)}, {VIT}",), (f"{make_kept_label(what)}, {RESNET}",)
    )


FIGURE_ONLY = "a figure only (Naseer et al., Sec. 3.1, by the attention of DINO)"
TEXTURE_ONLY_IN_TEXT = (
    "ViTs are less biased towards local texture than CNNs (Naseer et al., abstract; with "
    "Stylized-ImageNet, Sec. 3.2: no number compares)"
)
CLAIMS = (
    make_kept_claim(
        "The ViT keeps more when patches are dropped at random",
        "half of them dropped: DeiT-S 70 %, ResNet-50 0.1 % (Naseer et al., Sec. 3.1)",
        "patches dropped at random",
    ),
    make_kept_claim(
        "The ViT keeps more when salient patches are dropped first",
        FIGURE_ONLY,
        "salient patches dropped first",
    ),
    make_kept_claim(
        "The ViT keeps more when salient patches are dropped last",
        FIGURE_ONLY,
        "salient patches dropped last",
    ),
    make_kept_claim(
        "The ViT keeps more when tiles of the image are shuffled",
        "DeiT keeps more than CNNs; a figure only (Naseer et al., Sec. 3.3, Figs. 10 and 11)",
        "tiles shuffled",
    ),
    Claim(
        "The ViT keeps most where the tiles are its own patches",
        "the peak is there; a figure only (Naseer et al., Sec. 3.3, Figs. 10 and 11)",
        (f"{OWN_PATCH_TILES}, {VIT}",),
        (f"{LARGER_TILES}, {VIT}", f"{SMALLER_TILES}, {VIT}"),
        parts=tuple(
            Contrast(f"than with {what}", (f"{OWN_PATCH_TILES}, {VIT}",), (f"{other}, {VIT}",))
            for what, other in (
                ("tiles of 2x2 patches", LARGER_TILES),
                ("quarters of patches", SMALLER_TILES),
            )
        ),
    ),
    make_kept_claim(
        "The ViT keeps more when texture is smoothed away",
        TEXTURE_ONLY_IN_TEXT,
        "texture smoothed away",
    ),
    make_kept_claim(
        "The ViT keeps more when pixels are shuffled in squares",
        TEXTURE_ONLY_IN_TEXT,
        "pixels shuffled in squares",
    ),
    make_kept_claim(
        "The ViT keeps more under an adversarial patch",
        "a figure only (Naseer et al., Sec. 3.4, Fig. 12); Gu et al. (arXiv 2111.10659, abstract) "
        "find ViTs more vulnerable",
        "adversarial patch",
    ),
)

GRID: dict[str, dict[str, Any]] = {
    f"{model}, {case}": {ENCODER: model, "disturbances": names}
    for model in MODELS
    for case, names in PERTURBATION_CASES.items()
}
SHARED_TRAINING: dict[str, Any] = {  # Nothing is chosen, so no validation images are held out.
    **SMALL_VIT_TRAINING,
    **{"lr": 1e-3, "validation": 0.0, "save_every": 500, "steps": 2000, "warmup_steps": 200},
}
MINI = Scale(
    data=CIFAR10,
    verb="none",
    settings={"images": 1000},  # test images, stratified by class
    grid=GRID,
    seeds=3,
    time="about 20 minutes on two cores",
    # An image costs the ResNet 3.2 times the MACs, so it sees fewer images: both have the same
    # training compute. All other settings are shared; none were tuned for either.
    encoders={
        VIT: {"verb": "finetune", **SMALL_VIT_SETTINGS, **SHARED_TRAINING},
        RESNET: {
            **{"verb": "finetune", **SHARED_TRAINING, "model": "BiT-R26x1"},
            **{"steps": 634, "warmup_steps": 63},
        },
    },
)
FULL = Scale(
    data=IMAGENET,
    verb="none",
    settings={"images": 50_000},
    grid=GRID,
    seeds=1,
    time="by --plan",
    # As large as DeiT-S and ResNet-50, and of about the same compute: 4.6 and 4.1 GMACs an image.
    encoders={
        VIT: {"recipe": "better-plain-vit-s16-90ep"},
        RESNET: {"recipe": "bit-imagenet"},
    },
)


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Compute every row of the table for both models."""
    values: dict[str, float | None] = {}
    for model in MODELS:
        numbers = {case: found[f"{model}, {case}"] for case in PERTURBATION_CASES}
        occluded, permuted = numbers["occlusion"], numbers["permutation"]
        values[f"{CLEAN_ACCURACY}, {model}"] = occluded["accuracy"]
        for percent in DROPPED_PERCENTAGES:
            at = f"occlusion-random at {percent}"
            values[f"{make_dropped_label(percent)}, {model}"] = occluded.get(at)
        for what, name in PERTURBATION_BY_ROW.items():
            case = next(case for case, names in PERTURBATION_CASES.items() if name in names)
            values[f"{make_kept_label(what)}, {model}"] = compute_share_kept(
                numbers[case], list_level_names(numbers[case], name)
            )
        if model == VIT:
            own = permuted.get("own grid") or 0
            for row, grid in (
                (LARGER_TILES, own / 2),
                (OWN_PATCH_TILES, own),
                (SMALLER_TILES, 2 * own),
            ):
                values[f"{row}, {model}"] = compute_share_kept(
                    permuted, [f"permutation at {grid:g}"]
                )
    return values


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw accuracy over the levels, as Naseer et al. do: a figure per case."""
    from patchwords.evaluation.robustness.measure import list_perturbations
    from patchwords.report.figures.plots import Panel, draw_panels

    known = list_perturbations()
    files: dict[str, bytes] = {}
    bands = "; bands reach from the lowest to the highest" if results["seeds"] > 1 else ""
    caption = (
        f"Accuracy on {results['settings']['images']:,} held-out images, mean over "
        f"{pluralise(results['seeds'], 'seed')}{bands}. The first point "
        "of each line is of the images as they are."
    )
    for figure, cases in FIGURE_CASES.items():
        panels = []
        for case in cases:
            for name in PERTURBATION_CASES[case]:
                curves = [
                    curve
                    for m in MODELS
                    if (curve := build_perturbation_curve(results, m, case, name))
                ]
                about = known[name]
                ticks = sorted({x for one in curves for x in one.x}) if about.log_x else None
                panels.append(
                    Panel(
                        *(about.title, about.x_label, "accuracy, %", curves, about.log_x),
                        x_ticks=ticks,
                    )
                )
        files |= draw_panels(panels, caption, figure)
    return files


FIGURE_CASES = {
    "robustness-occlusion": ("occlusion",),
    "robustness-order-and-texture": ("permutation", "texture"),
    "robustness-patch": ("adversarial patch",),
}


def build_perturbation_curve(
    results: Mapping[str, Any], model: str, case: str, name: str
) -> Curve | None:
    """Build the curve of a perturbation; None if every seed diverged."""
    trial, found = f"{model}, {case}", dict[float, list[float | None]]()
    for row in results["cells"]:
        if row["name"] == trial and row["accuracy"] is not None:
            for key in (key for key in row if key.startswith(f"{name} at ")):
                found.setdefault(float(key.removeprefix(f"{name} at ")), []).append(row[key])
    return build_seed_curve(model, found) if found else None


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Build the table of both models' compute."""
    rows = []
    for model in MODELS:
        ones = [one for one in results["pretrainings"] if one["name"] == model and "flops" in one]
        if ones:
            first, minutes = ones[0], sum(one["seconds"] for one in ones) / len(ones) / 60
            about = results["encoders"][model]
            rows.append(
                (
                    f"{model} ({about.get('model') or about['recipe']})",
                    f"{first['parameters']:,}",
                    f"{first['images']:,}",
                    format_flops(first["flops"]),
                    f"{minutes:.1f}",
                )
            )
    head = ("model", "parameters", "images seen", "training compute", "minutes, mean")
    return [PageHeading("The two models"), PageText(EQUAL_COMPUTE_NOTE), PageTable(head, rows)]


EQUAL_COMPUTE_NOTE = (
    "Both are trained from random weights, with about equal training compute by the number of "
    "images; at scale mini with the same settings, none of them tuned for either."
)
STUDY = Study(
    name="robustness",
    version=1,
    title="Robustness",
    question="What is left of a ViT, and what of a ResNet of equal compute, when patches are "
    "dropped or shuffled, texture is removed, or an adversarial patch is pasted in?",
    source="Naseer et al. (2021, arXiv 2105.10497), Figure 1: four cases, which are not claims of "
    "the ViT paper",
    quantity="accuracy, per cent; and, where a row says kept, the share of the lead over chance "
    "that is kept, per cent, as a mean over all levels of a disturbance",
    note="A ViT that has learned little of where its patches are is not disturbed by a shuffle: "
    "that is no merit. The ViT's salient patches are told by its attention, the ResNet's by its "
    "gradient, so these rows are less comparable than the others. Texture is removed by two "
    "stand-ins for Stylized-ImageNet, and a patch of noise and a grey one say what hiding as much "
    "does by itself.",
    paper=PAPER,
    paper_quantity="top-1 accuracy on ImageNet, per cent, of DeiT-S (50 %), the best DeiT (80 %), "
    "DeiT-B (90 %) and ResNet-50 (Sec. 3.1)",
    scales={"mini": MINI, "full": FULL},
    claims=CLAIMS,
    measure_trial=measure_trial,
    compute_values=compute_values,
    draw_figures=draw_study_figures,
    build_tables=build_tables,
    layout=(ROWS, MODELS),
)
