"""What is left of a ViT and of a ResNet when images are disturbed: Naseer et al.'s four cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from patchwords.report.words import plural
from patchwords.studies.contents import Heading, Piece, Rows, Text, flops
from patchwords.studies.paper.bands import over_seeds
from patchwords.studies.paper.robustness_measure import levels, measure, share_left
from patchwords.studies.paper.small import SMALL_VIT, TRAINING
from patchwords.studies.paper.sources import CIFAR10, IMAGENET
from patchwords.studies.study import ENCODER, Claim, Numbers, Scale, Study

if TYPE_CHECKING:
    from patchwords.report.curves import Curve

VIT, RESNET = "ViT", "ResNet"
MODELS = (VIT, RESNET)
KEPT = {  # what was done -> the disturbance
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
CASES = {  # case of Naseer et al. -> its disturbances
    "occlusion": tuple(name for name in KEPT.values() if name.startswith("occlusion")),
    "permutation": ("permutation",),
    "texture": ("texture-smoothing", "texture-shuffling"),
    "adversarial patch": ("patch-adversarial", "patch-noise", "patch-grey"),
}
AS_IT_IS = "accuracy as it is"
DROPPED = (50, 80, 90)  # percent of the patches, as the text of Sec. 3.1 names them


def dropped(percent: int) -> str:
    return f"accuracy, {percent} % of patches dropped"


def kept(what: str) -> str:
    return f"kept, {what}"


LARGER = kept("tiles of 2x2 patches shuffled")
OWN, SMALLER = kept("its own patches shuffled"), kept("quarters of patches shuffled")
ROWS = (AS_IT_IS, *map(dropped, DROPPED), *map(kept, KEPT), LARGER, OWN, SMALLER)
PAPER = {  # Naseer et al., Sec. 3.1: top-1 accuracy on ImageNet; DeiT-S, DeiT, DeiT-B and ResNet-50
    f"{dropped(50)}, {VIT}": 0.70,
    f"{dropped(80)}, {VIT}": 0.60,
    f"{dropped(90)}, {VIT}": 0.37,
    f"{dropped(50)}, {RESNET}": 0.001,
    f"{dropped(80)}, {RESNET}": 0.0,
}


def more(text: str, paper: str, what: str) -> Claim:
    """That more is left of the ViT than of the ResNet."""
    return Claim(text, paper, (f"{kept(what)}, {VIT}",), (f"{kept(what)}, {RESNET}",))


BY_FIGURE = "a figure only (Naseer et al., Sec. 3.1, by the attention of DINO)"
BY_WORD = (
    "ViTs are less biased towards local texture than CNNs (Naseer et al., abstract; with "
    "Stylized-ImageNet, Sec. 3.2: no number compares)"
)
CLAIMS = (
    more(
        "The ViT keeps more when patches are dropped at random",
        "half of them dropped: DeiT-S 70 %, ResNet-50 0.1 % (Naseer et al., Sec. 3.1)",
        "patches dropped at random",
    ),
    more(
        "The ViT keeps more when salient patches are dropped first",
        BY_FIGURE,
        "salient patches dropped first",
    ),
    more(
        "The ViT keeps more when salient patches are dropped last",
        BY_FIGURE,
        "salient patches dropped last",
    ),
    more(
        "The ViT keeps more when tiles of the image are shuffled",
        "DeiT keeps more than CNNs; a figure only (Naseer et al., Sec. 3.3, Figs. 10 and 11)",
        "tiles shuffled",
    ),
    Claim(
        "The ViT keeps most where the tiles are its own patches",
        "the peak is there; a figure only (Naseer et al., Sec. 3.3, Figs. 10 and 11)",
        (f"{OWN}, {VIT}",),
        (f"{LARGER}, {VIT}", f"{SMALLER}, {VIT}"),
    ),
    more("The ViT keeps more when texture is smoothed away", BY_WORD, "texture smoothed away"),
    more(
        "The ViT keeps more when pixels are shuffled in squares",
        BY_WORD,
        "pixels shuffled in squares",
    ),
    more(
        "The ViT keeps more under an adversarial patch",
        "a figure only (Naseer et al., Sec. 3.4, Fig. 12); Gu et al. (arXiv 2111.10659, abstract) "
        "find ViTs more vulnerable",
        "adversarial patch",
    ),
)

GRID: dict[str, dict[str, Any]] = {
    f"{model}, {case}": {ENCODER: model, "disturbances": names}
    for model in MODELS
    for case, names in CASES.items()
}
BOTH: dict[str, Any] = {  # Nothing is chosen, so nothing is held out of the training images.
    **TRAINING,
    **{"lr": 1e-3, "validation": 0.0, "save_every": 500, "steps": 2000, "warmup_steps": 200},
}
MINI = Scale(
    data=CIFAR10,
    verb="none",
    settings={"images": 1000},  # of the test images, each class by its share
    grid=GRID,
    seeds=3,
    time="about 20 minutes on two cores",
    # An image costs the ResNet 3.2 times the multiplications, so it sees so many fewer: both take
    # the same training compute. It has no other settings of its own; none were tuned for either.
    encoders={
        VIT: {"verb": "finetune", **SMALL_VIT, **BOTH},
        RESNET: {
            **{"verb": "finetune", **BOTH, "model": "BiT-R26x1"},
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


def read(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    """What stands in each row of the table, for both models."""
    values: dict[str, float | None] = {}
    for model in MODELS:
        numbers = {case: found[f"{model}, {case}"] for case in CASES}
        occluded, permuted = numbers["occlusion"], numbers["permutation"]
        values[f"{AS_IT_IS}, {model}"] = occluded["accuracy"]
        for percent in DROPPED:
            at = f"occlusion-random at {percent}"
            values[f"{dropped(percent)}, {model}"] = occluded.get(at)
        for what, name in KEPT.items():
            case = next(case for case, names in CASES.items() if name in names)
            values[f"{kept(what)}, {model}"] = share_left(
                numbers[case], levels(numbers[case], name)
            )
        if model == VIT:
            own = permuted.get("own grid") or 0
            for row, grid in ((LARGER, own / 2), (OWN, own), (SMALLER, 2 * own)):
                values[f"{row}, {model}"] = share_left(permuted, [f"permutation at {grid:g}"])
    return values


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Accuracy over the levels, as Naseer et al. draw it: a figure for each case."""
    from patchwords.evaluate.robustness.table import list_disturbances
    from patchwords.report.curves import Panel, draw_panels

    known = list_disturbances()
    files: dict[str, bytes] = {}
    bands = "; bands reach from the lowest to the highest" if results["seeds"] > 1 else ""
    caption = (
        f"Accuracy on {results['settings']['images']:,} held-out images, mean over "
        f"{plural(results['seeds'], 'seed')}{bands}. The first point "
        "of each line is of the images as they are."
    )
    for figure, cases in FIGURES.items():
        panels = []
        for case in cases:
            for name in CASES[case]:
                curves = [curve for m in MODELS if (curve := curve_of(results, m, case, name))]
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


FIGURES = {
    "robustness-occlusion": ("occlusion",),
    "robustness-order-and-texture": ("permutation", "texture"),
    "robustness-patch": ("adversarial patch",),
}


def curve_of(results: Mapping[str, Any], model: str, case: str, name: str) -> Curve | None:
    """None where every seed diverged."""
    cell, found = f"{model}, {case}", dict[float, list[float | None]]()
    for row in results["cells"]:
        if row["name"] == cell and row["accuracy"] is not None:
            for key in (key for key in row if key.startswith(f"{name} at ")):
                found.setdefault(float(key.removeprefix(f"{name} at ")), []).append(row[key])
    return over_seeds(model, found) if found else None


def tables(results: Mapping[str, Any]) -> list[Piece]:
    """Whether the two are models of equal compute, and what they took."""
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
                    flops(first["flops"]),
                    f"{minutes:.1f}",
                )
            )
    head = ("model", "parameters", "images seen", "training compute", "minutes, mean")
    return [Heading("The two models"), Text(EQUAL), Rows(head, rows)]


EQUAL = (
    "Both are trained from random weights, for so many images that the training compute is about "
    "equal; at scale mini by the same settings, none of them tuned for either."
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
    measure=measure,
    read=read,
    draw=draw,
    tables=tables,
    layout=(ROWS, MODELS),
)
