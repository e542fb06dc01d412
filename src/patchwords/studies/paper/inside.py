"""Figures 6, 7, 10, 11 and 14: how their contents emerge during the training of a ViT."""

from __future__ import annotations

from collections.abc import Mapping

from patchwords.studies.paper.inside_pictures import (
    LAST,
    STAGES,
    UNTRAINED,
    draw_stored_figures,
    draw_study_figures,
    measure_trial,
    parse_head_distances,
)
from patchwords.studies.paper.setups import CIFAR10, JFT, SMALL_VIT_SETTINGS
from patchwords.studies.study import ENCODER, Claim, Scale, Study, TrialMetrics

ACCURACY = "accuracy"
LOW_FREQUENCIES = "filters, in low frequencies"
BY_DISTANCE, BY_LINES = "positions, by distance", "positions, by rows and columns"
NEAREST, FARTHEST = "first layer, nearest head", "first layer, farthest head"
FARTHEST_BEYOND = "first layer, farthest head beyond 3/4"
DEEPER_HALF = "deeper half, farther by"
ROLLOUT = "rollout, truer than random maps by"
ROWS = (
    *(ACCURACY, LOW_FREQUENCIES, BY_DISTANCE, BY_LINES),
    *(NEAREST, FARTHEST, FARTHEST_BEYOND, DEEPER_HALF, ROLLOUT),
)
FAR_DISTANCE = 0.75  # relative to a head with uniform attention: "far"
TRAINED_STAGES = {
    name: share for name, share in STAGES.items() if share
}  # without the untrained one


def make_stage_label(row: str, stage: str = LAST) -> str:
    return f"{row}, {stage}"


def make_growth_claim(text: str, paper: str, row: str) -> Claim:
    """Make a claim that a row is higher after training than before."""
    return Claim(text, paper, (make_stage_label(row),), (make_stage_label(row, UNTRAINED),))


CLAIMS = (
    make_growth_claim(
        "The filters of the patch embedding become smooth",
        "the principal components resemble plausible basis functions of the fine structure within "
        "a patch (Sec. 4.5; Fig. 7, left)",
        LOW_FREQUENCIES,
    ),
    make_growth_claim(
        "Patches that are nearer get position embeddings that are more alike",
        "closer patches tend to have more similar ones (Sec. 4.5; Fig. 7, centre)",
        BY_DISTANCE,
    ),
    make_growth_claim(
        "A structure of rows and columns appears in the position embeddings",
        "patches in the same row or column have similar ones (Sec. 4.5; Fig. 7, centre)",
        BY_LINES,
    ),
    Claim(
        "In the first layer some heads come to look near",
        "low layers have very local heads (Sec. 4.5; Figs. 7, right, and 11)",
        (make_stage_label(NEAREST, UNTRAINED),),
        (make_stage_label(NEAREST),),
    ),
    Claim(
        "In the first layer some heads look far, beyond 3/4 of looking everywhere alike",
        "some heads attend to most of the image already in the lowest layers (Sec. 4.5; Figs. 7, "
        "right, and 11)",
        (make_stage_label(FARTHEST_BEYOND),),
        (),
    ),
    make_growth_claim(
        "How far heads look grows with depth",
        "the distance increases with depth; in the second half most heads look far (Sec. 4.5, "
        "App. D.7; Figs. 7, right, and 11)",
        DEEPER_HALF,
    ),
    make_growth_claim(
        "Rollout's maps point at what the answer hangs on",
        "the model attends to what is semantically relevant for the class (Sec. 4.5; Figs. 6 and "
        "14): pictures only",
        ROLLOUT,
    ),
)

# A run keeps no intermediate checkpoints. With a constant rate, however, a short run is the exact
# beginning of a long one: each stage is a run of its own.
STEPS, WARMUP = 3500, 350
MINI = Scale(
    data=CIFAR10,
    verb="none",
    settings={},
    grid={
        stage: {
            ENCODER: stage if stage in TRAINED_STAGES else next(iter(TRAINED_STAGES)),
            "trained": share > 0,
        }
        for stage, share in STAGES.items()
    },
    seeds=3,
    time="about 15 minutes on two cores",
    encoders={
        stage: {
            **{
                "verb": "finetune",
                **SMALL_VIT_SETTINGS,
                "heads": 4,
                "schedule": "constant",
                "lr": 1e-3,
            },
            **{"steps": round(share * STEPS), "warmup_steps": WARMUP},
            **{"validation": 0.0, "save_every": 500},
        }
        for stage, share in TRAINED_STAGES.items()
    },
)
JFT_STEPS = 1_035_645  # 14 epochs in batches of 4,096
FULL = Scale(
    data=JFT,
    verb="none",
    settings={},
    grid=MINI.grid,
    seeds=1,
    time="by --plan",
    # The paper's linear decay at the last stage; earlier stages have its start at the peak rate: a
    # decaying run has lost 1 %, 10 % and 30 % of the rate there.
    encoders={
        stage: {
            "recipe": "vit-l16-jft-14ep",
            **(
                {} if stage == LAST else {"schedule": "constant", "steps": round(share * JFT_STEPS)}
            ),
        }
        for stage, share in TRAINED_STAGES.items()
    },
)


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Collect every row of the table at each stage."""
    values: dict[str, float | None] = {}
    for stage in STAGES:
        column = compute_stage_values(found[stage])
        values |= {make_stage_label(row, stage): column.get(row) for row in ROWS}
    return values


def compute_stage_values(numbers: TrialMetrics) -> dict[str, float | None]:
    """Collect the rows of one stage; none if its training diverged."""
    if numbers["accuracy"] is None:
        return {}
    distances = parse_head_distances(numbers)  # [L, K]
    half = len(distances) // 2
    first = distances[0]
    return {
        ACCURACY: numbers["accuracy"],
        LOW_FREQUENCIES: numbers["low frequencies"],
        BY_DISTANCE: numbers["by distance"],
        BY_LINES: numbers["by rows and columns"],
        NEAREST: float(first.min()),
        FARTHEST: float(first.max()),
        FARTHEST_BEYOND: float(first.max()) - FAR_DISTANCE,
        DEEPER_HALF: float(distances[-half:].mean() - distances[:half].mean()),
        ROLLOUT: numbers["rollout"],
    }


STUDY = Study(
    name="inside",
    version=1,
    title="Inside a ViT",
    question="How do filters, position structure, attention distance and rollout develop while a "
    "ViT is trained?",
    source="Figures 6, 7, 10, 11 and 14, Section 4.5, Appendices D.4, D.7 and D.8",
    quantity="all rows in per cent, as explained below",
    note="Filters: the share of their variance in the lower half of frequencies each way; noise "
    "has a quarter. Positions: the share of the variance of similarities that distance, or row and "
    "column, explains; noise has 0. Heads: attention distance as a share of that of a head that "
    "looks at all patches alike; deeper half: by how much the mean of the deeper layers exceeds "
    "that of the others. Rollout: area under insertion less that under deletion, less the same of "
    "random maps. What a model shows without training is no finding, so each claim but one is of "
    "the trained model less the untrained one. The exception is that heads look far, which the "
    "untrained ones do by themselves; what is to be learned is to look near. In 32 pixels with 64 "
    "patches there is less near and far to choose from than in the paper's 224 with 196.",
    paper={},
    paper_quantity="pictures only; the figures print no numbers",
    scales={"mini": MINI, "full": FULL},
    claims=CLAIMS,
    measure_trial=measure_trial,
    compute_values=compute_values,
    draw_figures=draw_study_figures,
    draw_stored_figures=draw_stored_figures,
    layout=(ROWS, tuple(STAGES)),
)
