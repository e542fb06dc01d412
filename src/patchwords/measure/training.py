"""Images a second through the training step, with the recipe's own optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from patchwords.device import Device
from patchwords.measure.clock import ThroughputResult, TimingSpec, measure_batch_sizes
from patchwords.measure.inference import make_noise_images
from patchwords.measure.subject import GIB, BenchmarkWorkload, get_usable_memory
from patchwords.model.cost import compute_training_flops, count_forward_macs
from patchwords.train.classify import Classify
from patchwords.train.job import build_train_state
from patchwords.train.plan import build_training_plan
from patchwords.train.start import InitialModel
from patchwords.train.step import StepSettings, TrainState, train_step
from patchwords.train.task import ClassificationLoss, Objective


@dataclass(frozen=True)
class BenchmarkTrainer:
    """A model in training, as `patchwords finetune` sets it up."""

    state: TrainState
    objective: Objective
    settings: StepSettings
    classes: int

    def on(self, device: Device) -> BenchmarkTrainer:
        """The same in another precision."""
        return replace(self, settings=replace(self.settings, device=device))

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One update by all of these images at once; a full GPU takes them in parts."""
        self.state.micro_batch = len(images)
        train_step(self.state, self.objective, images, labels, self.settings)


def build_benchmark_trainer(subject: BenchmarkWorkload) -> BenchmarkTrainer:
    """In the first of the precisions."""
    device, config = subject.devices[0], subject.training
    start = InitialModel(subject.name, subject.create(), subject.preprocess, ())
    plan = build_training_plan(config, images=1)  # of which only the rate counts here
    state = build_train_state(config, plan, start, device, Classify())
    state.model.train()

    def forward(images: Tensor) -> Any:
        return state.model(subject.preprocess.normalise(images))

    return BenchmarkTrainer(
        state,
        ClassificationLoss(forward, config.recipe.label_smoothing),
        StepSettings(device, config.seed, plan.rate, config.recipe.clip),
        subject.shape.num_classes,
    )


def measure_training_throughput(
    trainee: BenchmarkTrainer,
    subject: BenchmarkWorkload,
    device: Device,
    peak: float,
    seconds: float,
) -> list[ThroughputResult]:
    """A row for each number of images at a time that fits; `seconds` for each."""
    trainee = trainee.on(device)
    free = get_usable_memory(device)
    images = make_noise_images(max(subject.training_batches), subject)
    labels = torch.arange(len(images)) % trainee.classes

    def once(batch: int) -> None:
        place = device.torch_device
        trainee.step(images[:batch].to(place), labels[:batch].to(place))

    def needs(batch: int) -> str | None:
        needed = subject.needs(batch, device.precision)
        if needed <= free:
            return None
        return f"takes about {needed / GIB:.1f} GiB, of {free / GIB:.1f} that may be taken"

    flops = compute_training_flops(count_forward_macs(subject.shape), images=1)
    work = TimingSpec(device, flops, peak, once, needs)
    return measure_batch_sizes(work, subject.training_batches, seconds)
