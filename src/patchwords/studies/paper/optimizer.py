"""Table 7: ResNets pre-trained with Adam and with SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.report.format import pluralise
from patchwords.studies.page_blocks import PageBlock, PageTable, PageText
from patchwords.studies.paper.analysis import build_rate_curves, choose_best_rates
from patchwords.studies.paper.setups import (
    CIFAR10,
    FEWSHOT_LABEL,
    FLOOR,
    FLOWERS,
    IMAGENET,
    JFT,
    RESNET_14,
    SMALL_VIT_TRAINING,
    build_step_schedule,
    evaluate_on_test_and_fewshot,
)
from patchwords.studies.study import (
    ENCODER,
    Claim,
    DisplayUnit,
    Scale,
    Study,
    TrialGrid,
    TrialMetrics,
)
from patchwords.studies.training import train_and_measure

ADAM, SGD = "Adam", "SGD"
ADAM_LEAD = "Adam less SGD"
ADAM_LEAD_FEWSHOT = f"Adam less SGD, {FEWSHOT_LABEL}"

# Table 7: accuracy in per cent, fine-tuned after JFT; models by our names.
TABLE_7_DATA_SETS = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "average")
TABLE_7 = {
    f"R50x1, {ADAM}": (77.54, 97.67, 86.07, 91.11, 94.26, 89.33),
    f"R50x1, {SGD}": (78.24, 97.46, 85.17, 91.00, 92.06, 88.79),
    f"R152x2, {ADAM}": (84.97, 99.06, 92.05, 95.37, 98.62, 94.01),
    f"R152x2, {SGD}": (84.37, 99.07, 91.06, 94.79, 99.32, 93.72),
}

# Weight decay belongs to the optimizer; 0.001 is that of BiT's recipes.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    ADAM: {"optimizer": "adamw", "weight_decay": SMALL_VIT_TRAINING["weight_decay"]},
    SGD: {"optimizer": "sgd", "weight_decay": 1e-3},
}
RATES = {ADAM: (3e-4, 1e-3, 3e-3), SGD: (0.03, 0.1, 0.3)}
STEP_SCHEDULE = build_step_schedule(16_000, 64)
TRANSFERS = "What it learned by Adam transfers better"
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **{
            name: value
            for name, value in SMALL_VIT_TRAINING.items()
            if name not in OPTIMIZERS[ADAM]
        },
        **RESNET_14,
        **STEP_SCHEDULE,
        "validation": 0.04,  # to choose the rate
        "eval_every": STEP_SCHEDULE["steps"],
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
    untested={TRANSFERS: FLOOR},
)

# "SGD with BiT hyper-parameters": BiT has none for JFT, so those of ImageNet-21k.
BIT_RECIPE: dict[str, Any] = {"recipe": "bit-imagenet21k", "epochs": 7}
ENCODERS: dict[str, dict[str, Any]] = {
    f"R50x1 by {ADAM}": {"recipe": "r50x1-jft"},
    f"R50x1 by {SGD}": BIT_RECIPE,
    f"R152x2 by {ADAM}": {"recipe": "r152x2-jft"},
    f"R152x2 by {SGD}": {**BIT_RECIPE, "model": "BiT-R152x2"},
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


def strip_learning_rate(cell: str) -> str:
    """Remove the learning rate from a trial's name.

    >>> strip_learning_rate("R14x1, SGD, lr 0.1"), strip_learning_rate("R50x1, Adam")
    ('R14x1, SGD', 'R50x1, Adam')
    """
    return cell.partition(", lr ")[0]


def choose_trials(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]]
) -> dict[str, str]:
    """Choose the best rate of each optimizer."""
    return choose_best_rates(grid, validation, strip_learning_rate)


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Compute accuracies of the chosen rates, and Adam's mean lead over the models."""
    tested = {label: found[name].get("accuracy") for label, name in labels.items()}
    shown = {
        label: found[name].get(FEWSHOT_LABEL, found[name].get("accuracy"))
        for label, name in labels.items()
    }
    apart = any(FEWSHOT_LABEL in found[name] for name in labels.values())
    few = {f"{label}, {FEWSHOT_LABEL}": value for label, value in shown.items()} if apart else {}
    return {
        **tested,
        **few,
        ADAM_LEAD: compute_adam_lead(tested),
        ADAM_LEAD_FEWSHOT: compute_adam_lead(shown),
    }


def compute_adam_lead(values: Mapping[str, float | None]) -> float | None:
    gaps = []
    for label, adam in values.items():
        model, _, optimizer = label.partition(", ")
        if optimizer == ADAM:
            sgd = values[f"{model}, {SGD}"]
            if adam is None or sgd is None:
                return None
            gaps.append(adam - sgd)
    return sum(gaps) / len(gaps)


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Build tables of the chosen rates and of Table 7."""
    rows = [(name, *(f"{value:.2f}" for value in row)) for name, row in TABLE_7.items()]
    for model in ("R50x1", "R152x2"):
        pairs = zip(TABLE_7[f"{model}, {ADAM}"], TABLE_7[f"{model}, {SGD}"], strict=True)
        rows.append((f"{model}, {ADAM_LEAD}", *(f"{a - b:+.2f}" for a, b in pairs)))
    tried: dict[str, list[str]] = {}
    for cell, own in results["grid"].items():
        if "lr" in own:
            tried.setdefault(strip_learning_rate(cell), []).append(f"{own['lr']:g}")
    rates = [
        (one["label"], f"{results['grid'][one['cell']]['lr']:g}", ", ".join(tried[one["label"]]))
        for one in results["labels"]
        if one["cell"] is not None and "lr" in results["grid"][one["cell"]]
    ]
    chosen: list[PageBlock] = (
        [PageTable(("", "rate that validation chose", "of"), rates)] if rates else []
    )
    return [
        *chosen,
        *(PageText(f"{name}: {AT_THE_EDGE}") for name, rate, of in rates if is_at_edge(rate, of)),
        PageText("Table 7: accuracy in per cent, fine-tuned after 7 epochs of JFT-300M."),
        PageTable(("paper", *TABLE_7_DATA_SETS), rows),
    ]


AT_THE_EDGE = (
    "the best rate stands at the edge of those that were tried, so one beyond may be better, and "
    "what is said of the optimizer is said of these rates."
)


def is_at_edge(rate: str, of: str) -> bool:
    """Whether a rate is at an end of its grid.

    >>> is_at_edge("0.3", "0.03, 0.1, 0.3"), is_at_edge("0.1", "0.03, 0.1, 0.3")
    (True, False)
    """
    rates = of.split(", ")
    return rate in (rates[0], rates[-1])


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw validation accuracy over the rates, which each optimizer's rate was chosen by."""
    from patchwords.report.figures.plots import Panel, draw_panels

    curves = list(build_rate_curves(results, strip_learning_rate).values())
    if not curves:
        return {}  # published settings: nothing was chosen
    caption = (
        f"Accuracy on validation images at the end, mean over {pluralise(results['seeds'], 'seed')}; "
        "bands reach from the lowest to the highest."
    )
    panel = Panel("Each at its best rate", "peak learning rate", "accuracy, %", curves, log_x=True)
    return draw_panels([panel], caption, "optimizer")


POINTS_UNIT = DisplayUnit("points", "points", 100.0)
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
            (ADAM_LEAD,),
            (),
        ),
        Claim(
            TRANSFERS,
            "on CIFAR-100 +0.9 and +1.0 points, on Pets +0.1 and +0.6, on Flowers +2.2 and -0.7 "
            "(Table 7)",
            (ADAM_LEAD_FEWSHOT,),
            (),
        ),
    ),
    measure_trial=train_and_measure,
    evaluate_trial=evaluate_on_test_and_fewshot,
    choose_trials=choose_trials,
    compute_values=compute_values,
    units=dict.fromkeys((ADAM_LEAD, ADAM_LEAD_FEWSHOT), POINTS_UNIT),
    draw_figures=draw_study_figures,
    build_tables=build_tables,
)
