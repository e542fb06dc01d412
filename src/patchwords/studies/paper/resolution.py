"""Section 3.2: how far can interpolated positions be stretched, and does fine-tuning make it good?

The study notes say that interpolation loses accuracy when it goes from 256 to 512 and 768 pixels,
without a number. Here a ViT is asked about photos of up to three times the size that it learned,
with each interpolation that there is, as it is and fine-tuned at that size. A ViT without position
embeddings, which has nothing to interpolate, shows what the larger size alone does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchwords.model.resize import METHODS
from patchwords.report.words import plural
from patchwords.studies.bench import Bench
from patchwords.studies.paper.bands import over_seeds
from patchwords.studies.paper.small import SMALL_VIT
from patchwords.studies.paper.sources import FLOWERS, IMAGENET
from patchwords.studies.paper.trained import data_of_encoder
from patchwords.studies.study import ENCODER, VERB, Cell, Claim, Numbers, Scale, Study
from patchwords.studies.training import judge_training, measure_training

if TYPE_CHECKING:
    from patchwords.report.curves import Curve
    from patchwords.weights.pretrained import Pretrained

FACTORS = {"1x": 1.0, "1.5x": 1.5, "2x": 2.0, "3x": 3.0}  # of the side of an image
OWN = "1x"
AUTHORS, *OTHERS = METHODS  # the authors' interpolation, and those of timm and transformers
POSITIONS, NONE = "with positions", "without positions"  # the encoders
AS_IS, TUNED = "as it is", "fine-tuned"
BARE = f"{AS_IS}, {NONE}"
ROWS = (  # of the table
    *(f"{AS_IS}, {method}" for method in METHODS),
    BARE,
    *(f"{TUNED}, {method}" for method in METHODS),
)


def cell_of(row: str, factor: str) -> str:
    """The cell that a place of the table is read from: at 1x all interpolations are one.

    >>> cell_of("fine-tuned, bicubic", "1x"), cell_of("fine-tuned, bicubic", "2x")
    ('fine-tuned, 1x', 'fine-tuned, bicubic, 2x')
    """
    start, method = row.split(", ")
    return f"{start}, {factor}" if factor == OWN and method in METHODS else f"{row}, {factor}"


def method_of(cell: str) -> str:
    """How the positions of a cell are resized, if they are."""
    return next((method for method in OTHERS if f", {method}, " in cell), AUTHORS)


def grid_of(side: int) -> dict[str, dict[str, Any]]:
    """Every place of the table, at these sizes; what is as it is takes no training."""
    grid: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        for factor, times in FACTORS.items():
            own = {
                ENCODER: NONE if row == BARE else POSITIONS,
                "image_size": (round(side * times),),
            }
            verb = {VERB: "none"} if row.startswith(AS_IS) else {}
            grid[cell_of(row, factor)] = {**own, **verb}
    return grid


def lost(positions: str) -> str:
    """The label of what is lost between 1x and 3x."""
    return f"lost between 1x and 3x, {positions}"


CLAIMS = (
    Claim(
        "Interpolated to three times the size, positions lose accuracy",
        "nothing; study notes: 256 to 512 and 768 pixels loses accuracy, no numbers",
        (f"{AS_IS}, {AUTHORS}, 1x",),
        (f"{AS_IS}, {AUTHORS}, 3x",),
    ),
    Claim(
        "The further they are stretched, the more",
        "nothing; study notes: fails when stretched far, no numbers",
        (f"{AS_IS}, {AUTHORS}, 1.5x",),
        (f"{AS_IS}, {AUTHORS}, 3x",),
    ),
    Claim(
        "It is the positions: without any, less is lost",
        "nothing; study notes: the interpolation loses it",
        (lost(POSITIONS),),
        (lost(NONE),),
    ),
    Claim(
        "Fine-tuning at 1.5 or 2 times the size beats as much fine-tuning at 1x",
        "often beneficial (Section 3.2); the authors' ViT-B/16 on ImageNet, 84.5 at 384 pixels and "
        "81.2 at 224, 1.7 times fewer (vit_jax README)",
        (f"{TUNED}, {AUTHORS}, 1.5x", f"{TUNED}, {AUTHORS}, 2x"),
        (f"{TUNED}, {AUTHORS}, 1x",),
    ),
    Claim(
        "Fine-tuning at three times the size does, too",
        "nothing; the largest is 2.3 times (Table 2, 512 and 518 pixels)",
        (f"{TUNED}, {AUTHORS}, 3x",),
        (f"{TUNED}, {AUTHORS}, 1x",),
    ),
    Claim(
        "Once fine-tuned, the interpolation does not matter",
        "nothing; the authors, timm and transformers have one each",
        tuple(f"{TUNED}, {AUTHORS}, {factor}" for factor in FACTORS if factor != OWN),
        tuple(f"{TUNED}, bicubic, {factor}" for factor in FACTORS if factor != OWN),
        0.01,  # a point, a third of what the larger size brings the authors
    ),
)

# A model that is asked about other sizes must know the classes, so it learns photos from scratch.
LEARNING = {
    **SMALL_VIT,
    "verb": "finetune",
    "lr": 1e-3,
    "validation": 0.0,
    "steps": 1000,  # 22 passes
    "warmup_steps": 100,
    "save_every": 500,
}
MINI = Scale(
    data=FLOWERS,
    verb="finetune",
    settings={
        **{name: LEARNING[name] for name in ("optimizer", "schedule", "weight_decay")},
        **{name: LEARNING[name] for name in ("crop_area", "split_seed")},
        "lr": 3e-4,
        # 1.3 passes over the photos: at three times the size one takes ten times as long
        "batch_size": 32,
        "steps": 120,
        "warmup_steps": 12,
        "validation": 0.0,
    },
    grid=grid_of(32),
    encoders={
        POSITIONS: LEARNING,
        NONE: {**LEARNING, "position": "none"},
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
)
IMAGENET_B16: dict[str, Any] = {"recipe": "vit-b16-imagenet", "model": "ViT-B/16"}
FULL = Scale(
    data=IMAGENET,
    verb="finetune",
    settings={"recipe": "paper-finetune-imagenet"},
    grid=grid_of(224),
    encoders={POSITIONS: IMAGENET_B16, NONE: {**IMAGENET_B16, "position": "none"}},
    seeds=1,
    time="by --plan",
)


def measure(cell: Cell, bench: Bench) -> Numbers:
    """Train what is fine-tuned; what is as it is has nothing to choose by."""
    if is_as_it_is(cell):
        return {}
    if not bench.encoder(cell).is_dir():
        return {"validation": None, "diverged": 1.0}  # before it
    return measure_training(from_resized(cell, bench), bench)


def judge(cell: Cell, bench: Bench) -> Numbers:
    """Accuracy on the test images, at the cell's size."""
    if is_as_it_is(cell):
        return judge_as_it_is(cell, bench)
    return judge_training(from_resized(cell, bench), bench)


def is_as_it_is(cell: Cell) -> bool:
    return bool(cell.settings[VERB] == "none")


def from_resized(cell: Cell, bench: Bench) -> Cell:
    """The cell as a training from a copy of its encoder, whose positions are resized its way.

    No flag of a training says how, so it has to be done before.
    """
    from patchwords.weights.store import save_pretrained

    start, found = bench.place(cell) / "start", resized(cell, bench)
    save_pretrained(found.model, start, labels=found.labels, preprocess=found.preprocess)
    settings = {name: value for name, value in cell.settings.items() if name != ENCODER}
    return replace(cell, settings={**settings, "weights": str(start)})


def resized(cell: Cell, bench: Bench) -> Pretrained:
    """The encoder for images of the cell's size."""
    from patchwords.weights.store import from_pretrained

    [side] = cell.settings["image_size"]
    return from_pretrained(bench.encoder(cell), image_size=side, resize=method_of(cell.name))


def judge_as_it_is(cell: Cell, bench: Bench) -> Numbers:
    """The encoder's accuracy on the test images of its own run, at the cell's size."""
    from patchwords.data.workers import useful_workers
    from patchwords.device import choose_device
    from patchwords.evaluate import held_out

    if not bench.encoder(cell).is_dir():
        return {"accuracy": None}  # it diverged
    found = resized(cell, bench)
    _, examples = held_out.final_split(data_of_encoder(cell, bench))
    device = choose_device(bench.device, "fp32")  # as a training is judged
    workers = useful_workers(examples)
    predictions = held_out.predict(found.model, examples, found.preprocess, device, workers)
    said = held_out.judge(predictions, examples, found.labels, 0.01)
    return {"accuracy": said["accuracy"]["value"], "test images": said["images"]}


def read(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    """Every place of the table, and what is lost between its ends."""
    accuracy = {name: numbers["accuracy"] for name, numbers in found.items()}
    table = {
        f"{row}, {factor}": accuracy[cell_of(row, factor)] for row in ROWS for factor in FACTORS
    }
    for positions, row in ((POSITIONS, f"{AS_IS}, {AUTHORS}"), (NONE, BARE)):
        near, far = table[f"{row}, 1x"], table[f"{row}, 3x"]
        table[lost(positions)] = None if near is None or far is None else near - far
    return table


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Accuracy over the size of the images, as it is and fine-tuned."""
    from patchwords.report.curves import Panel, draw_panels

    caption = (
        f"Accuracy on test images, mean over {plural(results['seeds'], 'seed')}; bands reach "
        f"from the lowest to the highest. bilinear-corners is the authors' interpolation."
    )
    panels = [
        Panel(
            title,
            "size of the images over that of training",
            "accuracy, %",
            [curve(results, row) for row in ROWS if row.startswith(start)],
            x_ticks=list(FACTORS.values()),
        )
        for title, start in (("As it is", AS_IS), ("Fine-tuned at each size", TUNED))
    ]
    return draw_panels(panels, caption, STUDY.name)


def curve(results: Mapping[str, Any], row: str) -> Curve:
    """A row of the table over the sizes."""
    values = {one["label"]: one["values"] for one in results["labels"]}
    places = {times: values[f"{row}, {factor}"] for factor, times in FACTORS.items()}
    return over_seeds(row.split(", ")[1], places)


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
    measure=measure,
    judge=judge,
    read=read,
    draw=draw,
    layout=(ROWS, tuple(FACTORS)),
)
