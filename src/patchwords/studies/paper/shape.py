"""Figure 8: which dimension of a ViT is worth its compute?"""

from __future__ import annotations

from typing import Any

from patchwords.studies.paper.shape_numbers import (
    ALL_DIMENSIONS,
    BASE_TRIAL,
    COMPUTE_CORRELATION_LEAD,
    DEPTH,
    MLP,
    PATCH_SIZE,
    WIDTH,
    compute_values,
    make_gain_label,
)
from patchwords.studies.paper.shape_page import build_tables, draw_study_figures
from patchwords.studies.paper.small import SMALL_VIT_SETTINGS
from patchwords.studies.paper.sources import CIFAR10, IMAGENET, JFT
from patchwords.studies.study import Claim, DisplayUnit, Scale, Study
from patchwords.studies.training import evaluate_on_test, train_and_measure

ShapeSettings = dict[str, Any]


def make_shape(depth: int, width: int, mlp_width: int, head: int = 32) -> ShapeSettings:
    """Heads are as wide as ever: more of them are part of a wider model."""
    return {"depth": depth, "width": width, "heads": width // head, "mlp_width": mlp_width}


# The middle of Figure 8 has 8 blocks of 1,024, an MLP of 2,048 and patches of 32: here all of that
# is smaller, and the MLP twice the width as there. Each dimension is raised until the compute is 2
# to 4 times that of the middle.
MODEL_BY_PATCH_SIZE = {32: "ViT-Ti/8", 16: "ViT-Ti/4"}  # of the paper, at 224 pixels; ours at 32
MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    settings={
        **{
            n: v for n, v in SMALL_VIT_SETTINGS.items() if n not in {"model", *make_shape(1, 32, 1)}
        },
        "steps": 1000,
        "warmup_steps": 100,
        "lr": 1e-3,
        "validation": 0.0,  # nothing is chosen
        "save_every": 500,
    },
    grid={
        BASE_TRIAL: {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 64, 128)},
        f"{DEPTH} 8": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(8, 64, 128)},
        f"{DEPTH} 16": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(16, 64, 128)},
        f"{WIDTH} 128": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 128, 128)},
        f"{MLP} 512": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 64, 512)},
        f"{MLP} 1,024": {"model": MODEL_BY_PATCH_SIZE[32], **make_shape(4, 64, 1024)},
        f"{PATCH_SIZE} 4": {"model": MODEL_BY_PATCH_SIZE[16], **make_shape(4, 64, 128)},
        f"{ALL_DIMENSIONS}, 1.5 times": {
            "model": MODEL_BY_PATCH_SIZE[32],
            **make_shape(6, 96, 192),
        },
    },
    seeds=3,
    time="about a quarter of an hour on two cores",
)


def make_full_shape(
    depth: int = 8, width: int = 1024, mlp_width: int = 2048, patch: int = 32
) -> ShapeSettings:
    return {"model": f"ViT-B/{patch}", **make_shape(depth, width, mlp_width, head=64)}


# Figure 8 prints none of its points but the middle: those here span its axis, 1 to 10.
FULL = Scale(
    data=JFT,
    verb="pretrain",
    settings={"recipe": "vit-b32-jft"},
    grid={
        BASE_TRIAL: make_full_shape(),
        f"{DEPTH} 16": make_full_shape(depth=16),
        f"{DEPTH} 32": make_full_shape(depth=32),
        f"{DEPTH} 64": make_full_shape(depth=64),
        f"{WIDTH} 2,048": make_full_shape(width=2048),
        f"{WIDTH} 3,072": make_full_shape(width=3072),
        f"{MLP} 8,192": make_full_shape(mlp_width=8192),
        f"{MLP} 16,384": make_full_shape(mlp_width=16384),
        f"{PATCH_SIZE} 16": make_full_shape(patch=16),
        f"{ALL_DIMENSIONS}, 1.5 times": make_full_shape(12, 1536, 3072),
        f"{ALL_DIMENSIONS}, twice": make_full_shape(16, 2048, 4096),
    },
    seeds=1,
    time="by --plan",
    shots=5,
    transfer=IMAGENET,
)

PER_DOUBLING_UNIT = DisplayUnit(
    "points per doubling of compute", "points per doubling of compute", 100.0, 2
)
STUDY = Study(
    name="shape",
    version=1,
    title="The shape of a ViT",
    question="Which dimension of a ViT is worth its compute: depth, width, the MLP's width, or "
    "smaller patches?",
    source="Figure 8, Appendix D.2",
    quantity="accuracy on test images, per cent; gains in points per doubling of the compute, from "
    "the middle to the dearest of a dimension",
    note="Every model sees the same images with the same settings: nothing is tuned for any shape. "
    "The figure says what large models gain from 300 million images; small ones that learn for a "
    "moment may need width first.",
    paper={},
    paper_quantity="curves only; Figure 8 prints no numbers",
    scales={"mini": MINI, "full": FULL},
    claims=(
        Claim(
            "Depth is worth more than width",
            "depth brings most and width least for the compute (Figure 8)",
            (make_gain_label(DEPTH),),
            (make_gain_label(WIDTH),),
        ),
        Claim(
            "Smaller patches help, with no more weights in the layers",
            "robustly (Figure 8)",
            (make_gain_label(PATCH_SIZE),),
            (),
        ),
        Claim(
            "All dimensions together help",
            "robustly (Figure 8)",
            (make_gain_label(ALL_DIMENSIONS),),
            (),
        ),
        Claim(
            "Compute tells more of the accuracy than parameters do",
            "compute might be the better predictor (Appendix D.2)",
            (COMPUTE_CORRELATION_LEAD,),
            (),
        ),
    ),
    measure=train_and_measure,
    judge=evaluate_on_test,
    read=compute_values,
    units={
        **{
            make_gain_label(line): PER_DOUBLING_UNIT
            for line in (DEPTH, WIDTH, MLP, PATCH_SIZE, ALL_DIMENSIONS)
        },
        COMPUTE_CORRELATION_LEAD: DisplayUnit("correlation", "in correlation", 1.0, 2),
    },
    draw=draw_study_figures,
    tables=build_tables,
)
