"""Training on a GPU in bf16: the share of its measured peak, and timm with torch.compile."""

from __future__ import annotations

import gc

import torch

from benchmarks import machine, peers, shapes, training
from benchmarks.asked import Asked
from benchmarks.table import Section, compare
from benchmarks.timing import interleave
from patchwords.models.cost import compute_training_flops, count_forward_macs

BATCHES = (256, 128, 64, 32)  # the first that fits the memory with all contenders in it
UTILISATION = 0.5  # of the peak, at least
AHEAD = 1.0  # of timm


def measure(asked: Asked) -> Section:
    section = Section("gpu")
    if not torch.cuda.is_available():
        section.remark("no GPU here: skipped")
        return section
    bf16 = machine.peak("bf16", "cuda")
    section.remark(
        f"{torch.cuda.get_device_name()}: bf16 matrix products at most {bf16 / 1e12:.0f} TFLOP/s; "
        "all with fused AdamW and autocast; compiling is not in the time"
    )
    for shape in (shapes.TINY,) if asked.quick else (shapes.B, shapes.L):
        for count in BATCHES:
            try:
                add_model(section, shape, count, bf16, asked)
                break
            except torch.cuda.OutOfMemoryError:
                section.remark(f"{shape.title}, batch {count}: does not fit the memory")
            gc.collect()  # outside the handler, whose traceback held the models
            torch.cuda.empty_cache()
    return section


def add_model(section: Section, shape: shapes.Shape, count: int, bf16: float, asked: Asked) -> None:
    model = peers.random_model(shape.name, shape.image_size)
    batch = training.draw(shape, count, model.config.num_classes, "cuda")
    steps: dict[str, training.Step] = {}
    try:
        timm = torch.compile(peers.timm_model(model))
        steps["timm + compile"] = training.peer_step(timm, batch, "bf16", "cuda")
    except peers.Absent as absent:
        section.remark(str(absent))
    steps["ours"] = training.our_step(model, batch, "bf16", "cuda", compiled=True)
    found = interleave(steps, asked.rounds_or(7), asked.seconds, torch.cuda.synchronize)
    seconds = found["ours"]
    at_peak = compute_training_flops(count_forward_macs(model.config), images=count) / bf16
    limit = ("the bf16 peak", [at_peak] * len(seconds))
    what = f"{shape.title}, batch {count}, bf16"
    share = at_peak / sorted(seconds)[len(seconds) // 2]
    section.add(
        compare(what, "images/s", seconds, limit, goal=UTILISATION, work=count, share=share)
    )
    if "timm + compile" in found:
        timm_found = ("timm + compile", found["timm + compile"])
        section.add(compare(what, "images/s", seconds, timm_found, goal=AHEAD, work=count))
