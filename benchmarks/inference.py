"""Images a second through the model, at several batch sizes, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import machine, peers, shapes
from benchmarks.agreement import add_agreement
from benchmarks.asked import Asked
from benchmarks.table import Section, compare, typical
from benchmarks.timing import interleave
from patchwords.device import choose_device
from patchwords.models.build import Model
from patchwords.models.cost import count_forward_macs
from patchwords.models.inference.calibration import collect_activation_ranges
from patchwords.models.inference.int8 import find_int8_obstacle, quantise_model
from patchwords.models.inference.packed import pack_for_inference
from patchwords.models.vit import ViT

BATCHES = (1, 8, 32)
GOALS = {  # (model, precision of ours) -> how many times timm in fp32
    **{(size, "bf16"): 2.0 for size in ("Ti/16", "S/16", "B/16")},
    **{("Ti/16", "fp32"): 1.1, ("S/16", "fp32"): 1.1, ("B/16", "fp32"): 1.05},
    ("B/16", "int8"): 2.8,
}
PEERS: dict[str, Callable[[ViT, str], peers.Answer]] = {
    "timm": lambda model, precision: peers.eager(peers.timm_model(model), precision),
    "transformers": lambda model, precision: peers.eager(
        peers.transformers_model(model), precision
    ),
    "OpenVINO": peers.openvino,
}


def ours(model: ViT, precision: str, seen: Tensor | None = None) -> peers.Answer:
    """What `predict` does with a batch, from normalised images to logits.

    For int8 the ranges are those of the images `seen`.
    """
    device = choose_device("cpu", precision)  # type: ignore[arg-type]
    model.eval()
    if device.int8:
        assert seen is not None
        fast: Model = quantise_model(model, collect_activation_ranges(model, [seen]))
    else:
        fast = pack_for_inference(model, device.bf16)

    def answer(images: Tensor) -> Tensor:
        with torch.inference_mode(), device.autocast():
            return fast(images).float()

    return answer


def measure(asked: Asked) -> Section:
    section = Section("inference")
    section.remark("same weights, images and threads; bf16 of timm and transformers: autocast")
    models = (shapes.TINY,) if asked.quick else (shapes.TI, shapes.S, shapes.B)
    for shape in models:
        add_model(section, shape, asked)
    add_agreement(section, asked, ours)
    return section


def add_model(section: Section, shape: shapes.Shape, asked: Asked) -> None:
    model = peers.random_model(shape.name, shape.image_size)
    answers = contenders(model, section)
    noise = torch.Generator().manual_seed(1)
    side = shape.image_size
    for batch in (2,) if asked.quick else BATCHES:
        images = torch.randn(batch, 3, side, side, generator=noise)
        add_answers(section, shape, answers, images)
        calls = {name: lambda run=run, x=images: run(x) for name, run in answers.items()}
        found = interleave(calls, asked.rounds_or(7), asked.seconds)
        add_rows(
            section,
            f"{shape.title}, batch {batch}",
            shape,
            found,
            batch,
            count_forward_macs(model.config),
        )


def contenders(model: ViT, section: Section) -> dict[str, peers.Answer]:
    """Ours first; peers that are not here are named in the section."""
    found = {f"ours {precision}": ours(model, precision) for precision in ("fp32", "bf16")}
    if (reason := find_int8_obstacle()) is None:
        noise = torch.Generator().manual_seed(2)
        seen = torch.randn(8, 3, *model.config.image_size, generator=noise)
        found["ours int8"] = ours(model, "int8", seen)
    else:
        section.remark(f"int8: skipped, {reason}")
    for name, build in PEERS.items():
        try:
            for precision in ("fp32", "bf16"):
                found[f"{name} {precision}"] = build(model, precision)
        except peers.Absent as absent:
            section.remark(str(absent))
    return found


def add_answers(
    section: Section, shape: shapes.Shape, answers: dict[str, peers.Answer], images: Tensor
) -> None:
    """Refuse another function; say by how much bf16 rounds."""
    wanted = answers["ours fp32"](images)
    for name, run in answers.items():
        found = run(images)
        if name.endswith("fp32"):
            peers.check_same(name, found, wanted)
        elif len(images) == 8:
            error = peers.apart(found, wanted)
            section.remark(f"{shape.title}, {name}: logits apart from fp32 by {error:.1e}")


def add_rows(
    section: Section,
    what: str,
    shape: shapes.Shape,
    found: dict[str, list[float]],
    batch: int,
    cost: int,
) -> None:
    """Ours in bf16 beside timm in fp32 and all others in bf16; in fp32 and int8 beside fp32."""
    for precision in ("bf16", "fp32", "int8"):
        if f"ours {precision}" not in found:
            continue
        own = found[f"ours {precision}"]
        share = None  # int8 has no peak of torch's own to compare with
        if precision != "int8":
            share = 2 * cost * typical(own, batch) / machine.peak(precision)
        names = [
            name
            for name in found
            if not name.startswith("ours") and (name == "timm fp32" or name.endswith(precision))
        ]
        for name in names or [None]:
            first = name in ("timm fp32", None)
            row = compare(
                f"{what}, {precision}",
                "images/s",
                own,
                None if name is None else (name, found[name]),
                goal=GOALS.get((shape.title, precision)) if first else None,
                work=batch,
                share=share if first or name == names[0] else None,
            )
            section.add(row)
