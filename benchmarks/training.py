"""Training steps a second: forward, backward, AdamW, on images that are there already."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import machine, peers, shapes
from benchmarks.asked import Asked
from benchmarks.table import Section, compare, typical
from benchmarks.timing import interleave
from patchwords.data.dataset import DatasetSplits
from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.device import choose_device
from patchwords.models.cost import compute_training_flops, count_forward_macs
from patchwords.models.vit import ViT
from patchwords.tasks.classification import Classification
from patchwords.training.config import FinetuneConfig
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.optimizer import build_optimizer
from patchwords.training.engine.parallel import compile_layers
from patchwords.training.engine.state import TrainState
from patchwords.training.engine.step import train_step
from patchwords.training.model_setup import InitialModel
from patchwords.training.plan import TrainingPlan

MODELS = ((shapes.TI, 32), (shapes.S, 32), (shapes.TI_SMALL, 128))
GOALS = {"timm fp32": 1.9, "timm bf16": 1.3}  # how many times that, for ours in bf16
RATE, DECAY = 1e-4, 0.05

Step = Callable[[], Tensor]  # one update; -> [] mean loss before it, still on the device
Builders = dict[str, Callable[[ViT], nn.Module]]
PEERS: Builders = {"timm": peers.timm_model, "transformers": peers.transformers_model}


@dataclass(frozen=True)
class Batch:
    """uint8 [B, C, H, W] as the loader gives them, and [B] labels."""

    images: Tensor
    labels: Tensor


def draw(shape: shapes.Shape, count: int, classes: int, device: str = "cpu") -> Batch:
    noise = torch.Generator().manual_seed(2)
    size = (count, 3, shape.image_size, shape.image_size)
    images = torch.randint(0, 256, size, generator=noise, dtype=torch.uint8)
    labels = torch.randint(0, classes, (count,), generator=noise)
    return Batch(images.to(device), labels.to(device))


def our_step(
    model: ViT, batch: Batch, precision: str, device: str = "cpu", compiled: bool = False
) -> Step:
    """The trainer's own step, with all that it does: clipping, and counting what was right."""
    chosen = choose_device(device, precision)  # type: ignore[arg-type]
    model.to(chosen.torch_device).train()
    if compiled:
        compile_layers(model)
    preprocess = Preprocess(model.config.image_size)
    count, decoded = len(batch.labels), ImageBatch.of(batch.images, batch.labels)
    optimizer = build_optimizer(model, plan(count), model.config)
    state = TrainState(model, optimizer, average=None, micro_batch=count)
    names = tuple(map(str, range(model.config.num_classes)))
    objective = Classification(FinetuneConfig(), preprocess)
    objective.build(
        InitialModel("ours", model, preprocess, ()), DatasetSplits("noise", "noise", names, {})
    )
    settings = StepSettings(chosen, seed=0, rate=lambda step: RATE, clip=1.0)

    def step() -> Tensor:
        measured = train_step(state, objective, decoded, settings)
        assert measured is not None
        return measured.sums["loss"] / measured.images

    return step


def plan(batch: int) -> TrainingPlan:
    """Of AdamW; how long and when is nothing to a single step."""
    return TrainingPlan(
        images=batch,
        steps=10**6,
        batch_size=batch,
        optimizer="adamw",
        lr=RATE,
        schedule="constant",
        warmup_steps=0,
        weight_decay=DECAY,
        log_every=10**6,
        eval_every=10**6,
        save_every=10**6,
    )


def peer_step(model: nn.Module, batch: Batch, precision: str, device: str = "cpu") -> Step:
    """As in a plain script: images normalised beforehand, no clipping, fused AdamW."""
    model.to(device).train()
    size = (batch.images.shape[-2], batch.images.shape[-1])
    images = Preprocess(size).normalise(batch.images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)

    def step() -> Tensor:
        with peers.autocast(precision, device):
            loss = F.cross_entropy(peers.logits(model(images)).float(), batch.labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(asked: Asked) -> Section:
    section = Section("training")
    section.remark(
        "same weights, images and threads; AdamW everywhere fused, bf16 everywhere by autocast; "
        "ours is the trainer's step, which also clips the gradient and normalises the images"
    )
    for shape, count in ((shapes.TINY, 3),) if asked.quick else MODELS:
        add_model(section, shape, count, asked)
    return section


def add_model(section: Section, shape: shapes.Shape, count: int, asked: Asked) -> None:
    model = peers.random_model(shape.name, shape.image_size)
    batch = draw(shape, count, model.config.num_classes)
    steps = contenders(model, batch, section)
    check_losses(steps)
    found = interleave(steps, asked.rounds_or(7), asked.seconds)
    flops = compute_training_flops(count_forward_macs(model.config), images=count)
    for precision in ("bf16", "fp32"):
        own = found[f"ours {precision}"]
        names = [
            name
            for name in found
            if not name.startswith("ours") and (name == "timm fp32" or name.endswith(precision))
        ]
        for name in names or [None]:
            row = compare(
                f"{shape.title}, batch {count}, {precision}",
                "images/s",
                own,
                None if name is None else (name, found[name]),
                goal=GOALS.get(name or "timm fp32") if precision == "bf16" else None,
                work=count,
                share=flops / count * typical(own, count) / machine.peak(precision),
            )
            section.add(row)


def contenders(model: ViT, batch: Batch, section: Section) -> dict[str, Step]:
    found: dict[str, Step] = {}
    for name, build in PEERS.items():
        try:
            for precision in ("fp32", "bf16"):
                found[f"{name} {precision}"] = peer_step(build(model), batch, precision)
        except peers.Absent as absent:
            section.remark(str(absent))
    own = {
        f"ours {precision}": our_step(copy.deepcopy(model), batch, precision)
        for precision in ("fp32", "bf16")
    }
    return own | found


def check_losses(steps: dict[str, Step]) -> None:
    """The first losses in float32 must be the same; raises Different.

    Later ones are not, since only ours clips the gradient.
    """
    losses = {name: step().reshape(1) for name, step in steps.items() if name.endswith("fp32")}
    for name, found in losses.items():
        peers.check_same(f"a training step of {name}", found, losses["ours fp32"])
