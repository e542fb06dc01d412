"""Figure 12: images a second, and the most images that fit, against the size of the image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from patchwords.studies.bench import Bench
from patchwords.studies.paper.speed_numbers import (
    EXCESS,
    PAIRS,
    RESNET_POWER,
    SIZES,
    VIT_POWER,
    batch_of,
    name_of,
    read,
    speed_of,
)
from patchwords.studies.paper.speed_page import draw, tables
from patchwords.studies.study import Cell, Claim, Numbers, Scale, Study, Unit

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


def grid_of(models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A cell for each model and size of the image."""
    return {
        name_of(model, size): {
            "model": model,
            "image_size": (SIZES_OF_14[size] if model.endswith("/14") else size,),
        }
        for model in models
        for size in SIZES
    }


def scale_of(models: Iterable[str], time: str) -> Scale:
    """Repeats in the place of seeds: nothing is learned."""
    return Scale(data=None, verb="none", settings={}, grid=grid_of(models), seeds=3, time=time)


def measure(cell: Cell, bench: Bench) -> Numbers:
    """The best speed over the numbers of images at a time; the most that fit, by arithmetic.

    Whoever else is at work in the folder waits, so that nothing else is timed meanwhile.
    """
    import torch

    from patchwords.data.shard_cache import locked
    from patchwords.device import choose_device, free_memory
    from patchwords.measure.clock import forget_peak
    from patchwords.model.cost import macs
    from patchwords.studies.paper.answering import speeds, subject_of

    device = choose_device(bench.device, bench.precision)
    subject = subject_of(cell, bench, device, BATCHES[device.type])
    with locked(bench.folder / ".clock.lock"):
        forget_peak(device)  # which gives back what the cell before has left
        free = free_memory(device.torch_device)
        rows = speeds(subject, SECONDS)
    best = max(rows, key=lambda row: row.images_per_second or 0.0)
    return {
        "images/s": best.images_per_second,
        "at a time": best.batch,
        "share of peak": best.share_of_peak,
        "macs": macs(subject.shape),
        "side": subject.shape.image_size[0],
        "largest batch": most_images(subject.shape, device.precision, free),
        "free bytes": free,
        "threads": torch.get_num_threads(),
        "bf16": float(device.bf16),
    }


def most_images(shape: Any, precision: str, free: int) -> int:
    """At a time in training with Adam, by which Table 3 trains them all."""
    from patchwords.train.footprint import Layout, Update, footprint

    update = Update("adamw", False, "bf16" if precision == "bf16" else "fp32")
    return footprint(shape, Layout(1, "ddp", False), update).most_images(free)


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
        "mini": scale_of(MINI_MODELS, "about ten minutes on two cores"),
        "full": scale_of(FULL_MODELS, "not measured yet; some seconds a cell on a large GPU"),
    },
    claims=(
        *(
            Claim(
                f"{vit} is about as fast as {resnet}, mean of all sizes",
                "ViTs have speed comparable to similar ResNets (Figure 12, Appendix D.5)",
                (speed_of(vit, resnet),),
                (),
                1.0,  # comparable: within a factor of two
            )
            for vit, resnet in PAIRS
        ),
        Claim(
            "ViT's time grows about as the pixels: bi-quadratic scaling is barely visible",
            "barely visible (Figure 12, Appendix D.5)",
            (EXCESS,),
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
                (batch_of(vit, resnet),),
                (),
            )
            for vit, resnet in PAIRS
        ),
    ),
    measure=measure,
    draw=draw,
    timed=True,
    read=read,
    units={
        **{of(*pair): Unit("log2", "doublings") for of in (speed_of, batch_of) for pair in PAIRS},
        **dict.fromkeys((VIT_POWER, RESNET_POWER, EXCESS), Unit("", "in the power", 1.0, 2)),
    },
    tables=tables,
)
