"""Section 3.2: interpolated position embeddings at larger sizes, and what fine-tuning restores.

The study notes say, without a number, that interpolation loses accuracy from 256 to 512 and 768
pixels. Here a ViT is evaluated on photos of up to three times its training size, with each
interpolation method, as it is and fine-tuned at that size. A ViT without position embeddings, which
has nothing to interpolate, shows the effect of the larger size alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchwords.report.format import pluralise
from patchwords.studies.paper.analysis import build_seed_curve
from patchwords.studies.paper.setups import FLOWERS, IMAGENET, SMALL_VIT_SETTINGS, load_encoder_data
from patchwords.studies.study import (
    ENCODER,
    VERB,
    Claim,
    Contrast,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
)
from patchwords.studies.training import evaluate_on_test, train_and_measure

if TYPE_CHECKING:
    from patchwords.report.figures.plots import Curve
    from patchwords.weights.pretrained import Pretrained

SIZE_FACTORS = {
    "1x": 1.0,
    "1.5x": 1.5,
    "2x": 2.0,
    "3x": 3.0,
}  # relative to the side of the training images
TRAINING_SIZE = "1x"
METHODS = AUTHORS_METHOD, *OTHER_METHODS = (
    "bilinear-corners",  # the authors' method, and those of timm and transformers
    "bicubic-antialias",
    "bicubic",
)
WITH_POSITIONS, WITHOUT_POSITIONS = "with positions", "without positions"  # the encoders
AS_IS, FINETUNED = "as it is", "fine-tuned"
AS_IS_WITHOUT_POSITIONS = f"{AS_IS}, {WITHOUT_POSITIONS}"
ROWS = (
    *(f"{AS_IS}, {method}" for method in METHODS),
    AS_IS_WITHOUT_POSITIONS,
    *(f"{FINETUNED}, {method}" for method in METHODS),
)


def find_resolution_trial(row: str, factor: str) -> str:
    """Return the trial of a table entry: at 1x all interpolations are the same.

    >>> find_resolution_trial("fine-tuned, bicubic", "1x"), find_resolution_trial("fine-tuned, bicubic", "2x")
    ('fine-tuned, 1x', 'fine-tuned, bicubic, 2x')
    """
    start, method = row.split(", ")
    return (
        f"{start}, {factor}"
        if factor == TRAINING_SIZE and method in METHODS
        else f"{row}, {factor}"
    )


def parse_resize_method(trial: str) -> str:
    """Parse how the positions of a trial are resized; None if they are not."""
    return next((method for method in OTHER_METHODS if f", {method}, " in trial), AUTHORS_METHOD)


def build_resolution_grid(side: int) -> dict[str, dict[str, Any]]:
    """Build a trial per table entry; those without fine-tuning train nothing."""
    grid: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        for factor, times in SIZE_FACTORS.items():
            own = {
                ENCODER: WITHOUT_POSITIONS if row == AS_IS_WITHOUT_POSITIONS else WITH_POSITIONS,
                "image_size": (round(side * times),),
            }
            verb = {VERB: "none"} if row.startswith(AS_IS) else {}
            grid[find_resolution_trial(row, factor)] = {**own, **verb}
    return grid


def make_accuracy_lost_label(positions: str) -> str:
    """Make the label of the accuracy lost between 1x and 3x."""
    return f"lost between 1x and 3x, {positions}"


# Interpolation of positions says nothing about a model that does not use them.
IN_USE = Contrast(
    "at the size of its training, a model with positions less one without",
    (f"{AS_IS}, {AUTHORS_METHOD}, {TRAINING_SIZE}",),
    (f"{AS_IS_WITHOUT_POSITIONS}, {TRAINING_SIZE}",),
)
CLAIMS = (
    Claim(
        "Interpolated to three times the size, positions lose accuracy",
        "nothing; study notes: 256 to 512 and 768 pixels loses accuracy, no numbers",
        (f"{AS_IS}, {AUTHORS_METHOD}, 1x",),
        (f"{AS_IS}, {AUTHORS_METHOD}, 3x",),
        controls=(IN_USE,),
    ),
    Claim(
        "The further they are stretched, the more",
        "nothing; study notes: fails when stretched far, no numbers",
        (f"{AS_IS}, {AUTHORS_METHOD}, 1.5x",),
        (f"{AS_IS}, {AUTHORS_METHOD}, 3x",),
        controls=(IN_USE,),
    ),
    Claim(
        "It is the positions: without any, less is lost",
        "nothing; study notes: the interpolation loses it",
        (make_accuracy_lost_label(WITH_POSITIONS),),
        (make_accuracy_lost_label(WITHOUT_POSITIONS),),
        controls=(IN_USE,),
    ),
    Claim(
        "Fine-tuning at 1.5 or 2 times the size beats as much fine-tuning at 1x",
        "often beneficial (Section 3.2); the authors' ViT-B/16 on ImageNet, 84.5 at 384 pixels and "
        "81.2 at 224, and 384 is 1.7 times 224 (vit_jax README)",
        (f"{FINETUNED}, {AUTHORS_METHOD}, 1.5x", f"{FINETUNED}, {AUTHORS_METHOD}, 2x"),
        (f"{FINETUNED}, {AUTHORS_METHOD}, 1x",),
        parts=tuple(
            Contrast(
                factor,
                (f"{FINETUNED}, {AUTHORS_METHOD}, {factor}",),
                (f"{FINETUNED}, {AUTHORS_METHOD}, 1x",),
            )
            for factor in ("1.5x", "2x")
        ),
    ),
    Claim(
        "Fine-tuning at three times the size does, too",
        "nothing; the largest is 2.3 times (Table 2, 512 and 518 pixels)",
        (f"{FINETUNED}, {AUTHORS_METHOD}, 3x",),
        (f"{FINETUNED}, {AUTHORS_METHOD}, 1x",),
    ),
    Claim(
        "Once fine-tuned, the interpolation does not matter",
        "nothing; the authors, timm and transformers have one each",
        tuple(
            f"{FINETUNED}, {AUTHORS_METHOD}, {factor}"
            for factor in SIZE_FACTORS
            if factor != TRAINING_SIZE
        ),
        tuple(
            f"{FINETUNED}, bicubic, {factor}" for factor in SIZE_FACTORS if factor != TRAINING_SIZE
        ),
        0.01,  # one point, a third of the authors' gain from the larger size
        (IN_USE,),
    ),
)

# A model evaluated at other sizes must know the classes, so it trains on photos from scratch.
ENCODER_SETTINGS = {
    **SMALL_VIT_SETTINGS,
    "verb": "finetune",
    "lr": 1e-3,
    "validation": 0.0,
    "steps": 1000,  # 22 epochs
    "warmup_steps": 100,
    "save_every": 500,
}
MINI = Scale(
    data=FLOWERS,
    verb="finetune",
    settings={
        **{name: ENCODER_SETTINGS[name] for name in ("optimizer", "schedule", "weight_decay")},
        **{name: ENCODER_SETTINGS[name] for name in ("crop_area", "split_seed")},
        "lr": 3e-4,
        # 1.3 epochs: at three times the size an epoch takes ten times as long
        "batch_size": 32,
        "steps": 120,
        "warmup_steps": 12,
        "validation": 0.0,
    },
    grid=build_resolution_grid(32),
    encoders={
        WITH_POSITIONS: ENCODER_SETTINGS,
        WITHOUT_POSITIONS: {**ENCODER_SETTINGS, "position": "none"},
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
)
IMAGENET_B16: dict[str, Any] = {"recipe": "vit-b16-imagenet", "model": "ViT-B/16"}
FULL = Scale(
    data=IMAGENET,
    verb="finetune",
    settings={"recipe": "paper-finetune-imagenet"},
    grid=build_resolution_grid(224),
    encoders={
        WITH_POSITIONS: IMAGENET_B16,
        WITHOUT_POSITIONS: {**IMAGENET_B16, "position": "none"},
    },
    seeds=1,
    time="by --plan",
)


def measure_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Train if the trial fine-tunes; otherwise there is nothing to choose by."""
    if is_not_finetuned(trial):
        return {}
    if not context.encoder(trial).is_dir():
        return {"validation": None, "diverged": 1.0}  # in pre-training
    return train_and_measure(start_from_resized(trial, context), context)


def evaluate_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Measure accuracy on test images at the trial's size."""
    if is_not_finetuned(trial):
        return evaluate_without_finetuning(trial, context)
    return evaluate_on_test(start_from_resized(trial, context), context)


def is_not_finetuned(trial: Trial) -> bool:
    return bool(trial.settings[VERB] == "none")


def start_from_resized(trial: Trial, context: StudyContext) -> Trial:
    """Start the trial from a copy of its encoder with resized positions.

    No training flag selects the method, so the positions are resized before.
    """
    from patchwords.weights.store import save_pretrained

    start, found = context.trial_folder(trial) / "start", load_resized_encoder(trial, context)
    save_pretrained(found.model, start, labels=found.labels, preprocess=found.preprocess)
    settings = {name: value for name, value in trial.settings.items() if name != ENCODER}
    return replace(trial, settings={**settings, "weights": str(start)})


def load_resized_encoder(trial: Trial, context: StudyContext) -> Pretrained:
    """Load the encoder for images of the trial's size."""
    from patchwords.weights.store import from_pretrained

    [side] = trial.settings["image_size"]
    return from_pretrained(
        context.encoder(trial), image_size=side, resize=parse_resize_method(trial.name)
    )


def evaluate_without_finetuning(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Evaluate the encoder on the test images of its run, at the trial's size."""
    from patchwords.data.loader import choose_num_workers
    from patchwords.device import choose_device
    from patchwords.evaluation import held_out

    if not context.encoder(trial).is_dir():
        return {"accuracy": None}  # the pre-training diverged
    found = load_resized_encoder(trial, context)
    _, examples = held_out.choose_final_split(load_encoder_data(trial, context))
    device = choose_device(context.device, "fp32")  # as a training is evaluated
    workers = choose_num_workers(examples)
    predictions = held_out.predict_examples(
        found.model, examples, found.preprocess, device, workers
    )
    said = held_out.evaluate_predictions(predictions, examples, found.labels, 0.01)
    return {"accuracy": said["accuracy"]["value"], "test images": said["images"]}


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Collect every table entry, and the loss between its ends."""
    accuracy = {name: numbers["accuracy"] for name, numbers in found.items()}
    table = {
        f"{row}, {factor}": accuracy[find_resolution_trial(row, factor)]
        for row in ROWS
        for factor in SIZE_FACTORS
    }
    for positions, row in (
        (WITH_POSITIONS, f"{AS_IS}, {AUTHORS_METHOD}"),
        (WITHOUT_POSITIONS, AS_IS_WITHOUT_POSITIONS),
    ):
        near, far = table[f"{row}, 1x"], table[f"{row}, 3x"]
        table[make_accuracy_lost_label(positions)] = (
            None if near is None or far is None else near - far
        )
    return table


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw accuracy over image size, as it is and fine-tuned."""
    from patchwords.report.figures.plots import Panel, draw_panels

    caption = (
        f"Accuracy on test images, mean over {pluralise(results['seeds'], 'seed')}; bands reach "
        f"from the lowest to the highest. bilinear-corners is the authors' interpolation."
    )
    panels = [
        Panel(
            title,
            "size of the images over that of training",
            "accuracy, %",
            [build_size_curve(results, row) for row in ROWS if row.startswith(start)],
            x_ticks=list(SIZE_FACTORS.values()),
        )
        for title, start in (("As it is", AS_IS), ("Fine-tuned at each size", FINETUNED))
    ]
    return draw_panels(panels, caption, STUDY.name)


def build_size_curve(results: Mapping[str, Any], row: str) -> Curve:
    """Build the curve of a table row over the sizes."""
    values = {one["label"]: one["values"] for one in results["labels"]}
    places = {times: values[f"{row}, {factor}"] for factor, times in SIZE_FACTORS.items()}
    return build_seed_curve(row.split(", ")[1], places)


STUDY = Study(
    name="resolution",
    version=1,
    title="Resolution",
    question="How far can interpolated positions be stretched, and does fine-tuning at the larger "
    "size make it good?",
    source="Section 3.2; claim of the study notes",
    quantity="accuracy on test images, per cent",
    note=(
        "A photo at twice the size has four times as many patches, of a quarter of the area each: "
        "what is lost as it is, is lost to the positions and to the patches. A model without "
        "positions tells the two apart. bicubic-antialias differs from bicubic by its kernel "
        "alone, as nothing is made smaller."
    ),
    paper={},
    paper_quantity="it has no such table",
    scales={"mini": MINI, "full": FULL},
    claims=CLAIMS,
    measure_trial=measure_trial,
    evaluate_trial=evaluate_trial,
    compute_values=compute_values,
    draw_figures=draw_study_figures,
    layout=(ROWS, tuple(SIZE_FACTORS)),
)
