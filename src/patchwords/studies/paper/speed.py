"""Figure 12: images a second, and the most images that fit, against the size of the image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from patchwords.studies.bench import StudyContext
from patchwords.studies.paper.speed_numbers import (
    IMAGE_SIZES,
    MODEL_PAIRS,
    RESNET_POWER,
    VIT_POWER,
    VIT_POWER_EXCESS,
    compute_values,
    make_batch_label,
    make_speed_label,
    make_speed_trial_name,
)
from patchwords.studies.paper.speed_page import build_tables, draw_study_figures
from patchwords.studies.study import Claim, DisplayUnit, Scale, Study, Trial, TrialMetrics

SECONDS = 0.6  # for each number of images at a time
BATCHES = {"cpu": (1, 4, 16, 64), "cuda": (8, 32, 128, 512)}  # the fastest counts, as in Figure 12
# Of these sizes patches of 14 pixels divide 224 alone: the nearest multiples, 518 as in Table 2.
SIZES_OF_14 = {64: 70, 128: 126, 224: 224, 384: 378, 512: 518}

MINI_MODELS = ("ViT-S/32", "ViT-S/16", "ViT-B/32", "ViT-B/16", "BiT-R50x1", "BiT-R50x2")
FULL_MODELS = (  # those of Figure 12
    "ViT-B/32",
    "ViT-L/32",
    "ViT-B/16",
    "ViT-L/16",
    "ViT-H/14",
    "BiT-R50x1",
    "BiT-R50x2",
    "BiT-R152x4",
)


def build_speed_grid(models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A cell for each model and size of the image."""
    return {
        make_speed_trial_name(model, size): {
            "model": model,
            "image_size": (SIZES_OF_14[size] if model.endswith("/14") else size,),
        }
        for model in models
        for size in IMAGE_SIZES
    }


def build_speed_scale(models: Iterable[str], time: str) -> Scale:
    """Repeats in the place of seeds: nothing is learned."""
    return Scale(
        data=None, verb="none", settings={}, grid=build_speed_grid(models), seeds=3, time=time
    )


def measure_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """The best speed over the numbers of images at a time; the most that fit, by arithmetic.

    Whoever else is at work in the folder waits, so that nothing else is timed meanwhile.
    """
    import torch

    from patchwords.data.shard_cache import file_lock
    from patchwords.device import choose_device, free_memory
    from patchwords.measure.clock import reset_peak_memory
    from patchwords.model.cost import count_macs
    from patchwords.studies.paper.answering import build_timing_workload, measure_inference_speeds

    device = choose_device(bench.device, bench.precision)
    subject = build_timing_workload(cell, bench, device, BATCHES[device.type])
    with file_lock(bench.folder / ".clock.lock"):
        reset_peak_memory(device)  # which gives back what the cell before has left
        free = free_memory(device.torch_device)
        rows = measure_inference_speeds(subject, SECONDS)
    best = max(rows, key=lambda row: row.images_per_second or 0.0)
    return {
        "images/s": best.images_per_second,
        "at a time": best.batch,
        "share of peak": best.share_of_peak,
        "macs": count_macs(subject.shape),
        "side": subject.shape.image_size[0],
        "largest batch": estimate_largest_batch(subject.shape, device.precision, free),
        "free bytes": free,
        "threads": torch.get_num_threads(),
        "bf16": float(device.bf16),
    }


def estimate_largest_batch(shape: Any, precision: str, free: int) -> int:
    """At a time in training with Adam, by which Table 3 trains them all."""
    from patchwords.train.footprint import OptimizerSpec, ParallelLayout, estimate_memory_footprint

    update = OptimizerSpec("adamw", False, "bf16" if precision == "bf16" else "fp32")
    return estimate_memory_footprint(shape, ParallelLayout(1, "ddp", False), update).most_images(
        free
    )


STUDY = Study(
    name="speed",
    version=1,
    title="Speed and memory against the size of the image",
    question="How fast is a ViT beside a ResNet of like compute, how does that change with the "
    "size of the image, and which of them needs less memory?",
    source="Figure 12, Appendix D.5",
    quantity="what the claims are about; the speeds themselves stand below",
    note="The figure is of one TPUv3 core. A ResNet is BiT, as in the paper: GroupNorm, and "
    "weights that are standardised, here once before it is asked.",
    paper={},
    paper_quantity="curves only; Figure 12 prints no numbers",
    scales={
        "mini": build_speed_scale(MINI_MODELS, "about ten minutes on two cores"),
        "full": build_speed_scale(
            FULL_MODELS, "not measured yet; some seconds a cell on a large GPU"
        ),
    },
    claims=(
        *(
            Claim(
                f"{vit} is about as fast as {resnet}, mean of all sizes",
                "ViTs have speed comparable to similar ResNets (Figure 12, Appendix D.5)",
                (make_speed_label(vit, resnet),),
                (),
                1.0,  # comparable: within a factor of two
            )
            for vit, resnet in MODEL_PAIRS
        ),
        Claim(
            "ViT's time grows about as the pixels: bi-quadratic scaling is barely visible",
            "barely visible (Figure 12, Appendix D.5)",
            (VIT_POWER_EXCESS,),
            (),
            0.5,  # a quarter of the way from a power of 2 to one of 4
        ),
        Claim(
            "ViT's speed falls with the size of the image about as ResNet's does",
            "barely visible bi-quadratic scaling, speeds comparable (Figure 12, Appendix D.5)",
            (VIT_POWER,),
            (RESNET_POWER,),
            0.5,
        ),
        *(
            Claim(
                f"{vit} fits more images into memory than {resnet}, at 224 px",
                "ViT is more memory-efficient (Figure 12, Appendix D.5)",
                (make_batch_label(vit, resnet),),
                (),
            )
            for vit, resnet in MODEL_PAIRS
        ),
    ),
    measure=measure_trial,
    draw=draw_study_figures,
    timed=True,
    read=compute_values,
    units={
        **{
            of(*pair): DisplayUnit("log2", "doublings")
            for of in (make_speed_label, make_batch_label)
            for pair in MODEL_PAIRS
        },
        **dict.fromkeys(
            (VIT_POWER, RESNET_POWER, VIT_POWER_EXCESS), DisplayUnit("", "in the power", 1.0, 2)
        ),
    },
    tables=build_tables,
)
