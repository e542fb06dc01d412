"""The most memory that training steps take, each contender in a process of its own.

What a step of a tiny model has taken before is taken off: that is the libraries', not the step's.
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks import child, peers, shapes, training
from benchmarks.asked import Asked
from benchmarks.table import Section, compare
from patchwords.device import peak_memory
from patchwords.models.zoo import resolve_model
from patchwords.weights.timm.config import make_vit_model_args

GOAL = 1.0  # not above timm
STEPS = 3  # the optimizer's state is there from the first on
MIB = 2**20


def measure(asked: Asked) -> Section:
    section = Section("memory")
    section.remark(
        f"most that the process held during {STEPS} steps, above what one of a tiny model has "
        "taken before; timm: fused AdamW, autocast for bf16"
    )
    models = ((shapes.TINY, 3),) if asked.quick else training.MODELS
    for shape, count in models:
        for precision in ("bf16", "fp32"):
            add_step(section, shape, count, precision, asked.rounds_or(3))
    return section


def add_step(
    section: Section, shape: shapes.Shape, count: int, precision: str, rounds: int
) -> None:
    found: dict[str, list[float]] = {"patchwords": [], "timm": []}
    for _ in range(rounds):
        for who, values in found.items():
            words = (who, shape.name, shape.image_size, count, precision)
            answer = child.ask("memory", words)
            if "absent" in answer:
                section.remark(answer["absent"])
            else:
                values.append(answer["bytes"] / MIB)
    section.add(
        compare(
            f"training step of {shape.title}, batch {count}, {precision}",
            "MiB",
            found["patchwords"],
            (f"timm {precision}", found["timm"]) if found["timm"] else None,
            goal=GOAL,
        )
    )


def main() -> None:
    """One contender, in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=("patchwords", "timm"))
    parser.add_argument("model")
    parser.add_argument("size", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("precision", choices=("fp32", "bf16"))
    args = parser.parse_args()
    try:
        answer = {"bytes": peak_of_steps(args)}
    except peers.Absent as absent:
        answer = {"absent": str(absent)}
    print(json.dumps(answer))


def peak_of_steps(args: argparse.Namespace) -> int:
    """Bytes above what a step of a tiny model has already taken: that is what libraries take."""
    shape = shapes.Shape(args.model, args.model, args.size)
    cpu = torch.device("cpu")
    make_step(args.who, shapes.TINY, 2, args.precision)()
    before = peak_memory(cpu)
    step = make_step(args.who, shape, args.batch, args.precision)
    for _ in range(STEPS):
        step()
    return peak_memory(cpu) - before


def make_step(who: str, shape: shapes.Shape, count: int, precision: str) -> training.Step:
    config = resolve_model(shape.name).config.with_settings(image_size=shape.image_size, gelu="erf")
    batch = training.draw(shape, count, config.num_classes)
    if who == "patchwords":
        model = peers.random_model(shape.name, shape.image_size)
        return training.our_step(model, batch, precision)
    timm = peers.load("timm")
    name, settings = make_vit_model_args(config)
    theirs = timm.create_model(name, num_classes=config.num_classes, **settings)
    return training.peer_step(theirs, batch, precision)


if __name__ == "__main__":
    main()
