"""Table 7: is a ResNet pre-trained better by Adam than by SGD?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.report.words import plural
from patchwords.studies.contents import Piece, Rows, Text
from patchwords.studies.paper.families import RESNET_14, passes
from patchwords.studies.paper.judging import FEWSHOT, judge_both
from patchwords.studies.paper.rates import choose_rates, curves_of_rates
from patchwords.studies.paper.small import TRAINING
from patchwords.studies.paper.sources import CIFAR10, FLOWERS, IMAGENET, JFT
from patchwords.studies.study import ENCODER, Claim, Grid, Numbers, Scale, Study, Unit
from patchwords.studies.training import measure_training

ADAM, SGD = "Adam", "SGD"
LEADS = "Adam less SGD"
LEADS_FEWSHOT = f"Adam less SGD, {FEWSHOT}"

# Table 7: accuracy in per cent, fine-tuned after JFT. The columns of the models are ours by name.
DATA_SETS = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "average")
TABLE_7 = {
    f"R50x1, {ADAM}": (77.54, 97.67, 86.07, 91.11, 94.26, 89.33),
    f"R50x1, {SGD}": (78.24, 97.46, 85.17, 91.00, 92.06, 88.79),
    f"R152x2, {ADAM}": (84.97, 99.06, 92.05, 95.37, 98.62, 94.01),
    f"R152x2, {SGD}": (84.37, 99.07, 91.06, 94.79, 99.32, 93.72),
}

# Weight decay goes with the optimizer: a thousandth is that of BiT's recipes.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    ADAM: {"optimizer": "adamw", "weight_decay": TRAINING["weight_decay"]},
    SGD: {"optimizer": "sgd", "weight_decay": 1e-3},
}
RATES = {ADAM: (3e-4, 1e-3, 3e-3), SGD: (0.03, 0.1, 0.3)}
LENGTH = passes(16_000, 64)
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **{name: value for name, value in TRAINING.items() if name not in OPTIMIZERS[ADAM]},
        **RESNET_14,
        **LENGTH,
        "validation": 0.04,  # chooses the rate
        "eval_every": LENGTH["steps"],
        "save_every": 125,
    },
    grid={
        f"R14x1, {name}, lr {lr:g}": {**own, "lr": lr}
        for name, own in OPTIMIZERS.items()
        for lr in RATES[name]
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
    transfer=FLOWERS,
)

# "SGD with BiT hyper-parameters", which has none for JFT: those of ImageNet-21k.
BIT: dict[str, Any] = {"recipe": "bit-imagenet21k", "epochs": 7}
ENCODERS: dict[str, dict[str, Any]] = {
    f"R50x1 by {ADAM}": {"recipe": "r50x1-jft"},
    f"R50x1 by {SGD}": BIT,
    f"R152x2 by {ADAM}": {"recipe": "r152x2-jft"},
    f"R152x2 by {SGD}": {**BIT, "model": "BiT-R152x2"},
}
FULL = Scale(
    data=JFT,
    verb="finetune",
    settings={"recipe": "paper-finetune-imagenet", "validation": 0.01},
    grid={name.replace(" by", ","): {ENCODER: name} for name in ENCODERS},
    seeds=1,
    time="by --plan",
    transfer=IMAGENET,
    tuned=True,
    encoders=ENCODERS,
)


def label_of(cell: str) -> str:
    """
    >>> label_of("R14x1, SGD, lr 0.1"), label_of("R50x1, Adam")
    ('R14x1, SGD', 'R50x1, Adam')
    """
    return cell.partition(", lr ")[0]


def choose(grid: Grid, validation: Mapping[str, Sequence[float | None]]) -> dict[str, str]:
    """Each optimizer at its best rate."""
    return choose_rates(grid, validation, label_of)


def read(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    """The accuracies of the chosen rates, and Adam's lead, the mean over the models."""
    tested = {label: found[name].get("accuracy") for label, name in labels.items()}
    shown = {
        label: found[name].get(FEWSHOT, found[name].get("accuracy"))
        for label, name in labels.items()
    }
    apart = any(FEWSHOT in found[name] for name in labels.values())
    few = {f"{label}, {FEWSHOT}": value for label, value in shown.items()} if apart else {}
    return {**tested, **few, LEADS: lead(tested), LEADS_FEWSHOT: lead(shown)}


def lead(values: Mapping[str, float | None]) -> float | None:
    gaps = []
    for label, adam in values.items():
        model, _, optimizer = label.partition(", ")
        if optimizer == ADAM:
            sgd = values[f"{model}, {SGD}"]
            if adam is None or sgd is None:
                return None
            gaps.append(adam - sgd)
    return sum(gaps) / len(gaps)


def tables(results: Mapping[str, Any]) -> list[Piece]:
    """Which rates were chosen; and all of Table 7."""
    rows = [(name, *(f"{value:.2f}" for value in row)) for name, row in TABLE_7.items()]
    for model in ("R50x1", "R152x2"):
        pairs = zip(TABLE_7[f"{model}, {ADAM}"], TABLE_7[f"{model}, {SGD}"], strict=True)
        rows.append((f"{model}, {LEADS}", *(f"{a - b:+.2f}" for a, b in pairs)))
    tried: dict[str, list[str]] = {}
    for cell, own in results["grid"].items():
        if "lr" in own:
            tried.setdefault(label_of(cell), []).append(f"{own['lr']:g}")
    rates = [
        (one["label"], f"{results['grid'][one['cell']]['lr']:g}", ", ".join(tried[one["label"]]))
        for one in results["labels"]
        if one["cell"] is not None and "lr" in results["grid"][one["cell"]]
    ]
    chosen: list[Piece] = [Rows(("", "rate that validation chose", "of"), rates)] if rates else []
    return [
        *chosen,
        Text("Table 7: accuracy in per cent, fine-tuned after 7 epochs of JFT-300M."),
        Rows(("paper", *DATA_SETS), rows),
    ]


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Validation accuracy over the rates, from which each optimizer has its best."""
    from patchwords.report.curves import Panel, draw_panels

    curves = list(curves_of_rates(results, label_of).values())
    if not curves:
        return {}  # published settings: nothing was chosen
    caption = (
        f"Accuracy on validation images at the end, mean over {plural(results['seeds'], 'seed')}; "
        "bands reach from the lowest to the highest."
    )
    panel = Panel("Each at its best rate", "peak learning rate", "accuracy, %", curves, log_x=True)
    return draw_panels([panel], caption, "optimizer")


POINTS = Unit("points", "points", 100.0)
STUDY = Study(
    name="optimizer",
    version=1,
    title="Adam or SGD for a ResNet",
    question="Is a ResNet pre-trained better by Adam, which ViT needs, than by SGD, its own?",
    source="Table 7, Appendix D.1",
    quantity="accuracy on test images, per cent; with 5-shot: linear accuracy from five images of "
    "each class of --transfer",
    note="The paper compares after fine-tuning, each optimizer with settings found elsewhere. At "
    "scale mini each has the best of three rates by validation images, and is judged on the images "
    "that it learned to tell apart, and by few shots on others.",
    paper={name: row[0] / 100 for name, row in TABLE_7.items()},
    paper_quantity="Table 7, ImageNet after fine-tuning, per cent",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "Adam pre-trains a ResNet better than SGD",
            "+0.5 points for R50x1, +0.3 for R152x2, average of five data sets; on ImageNet alone "
            "-0.7 and +0.6 (Table 7)",
            (LEADS,),
            (),
        ),
        Claim(
            "What it learned by Adam transfers better",
            "on CIFAR-100 +0.9 and +1.0 points, on Pets +0.1 and +0.6, on Flowers +2.2 and -0.7 "
            "(Table 7)",
            (LEADS_FEWSHOT,),
            (),
        ),
    ),
    measure=measure_training,
    judge=judge_both,
    choose=choose,
    read=read,
    units=dict.fromkeys((LEADS, LEADS_FEWSHOT), POINTS),
    draw=draw,
    tables=tables,
)
