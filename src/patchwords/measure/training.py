"""Images a second through the training step, with the recipe's own optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from patchwords.device import Device
from patchwords.measure.clock import Speed, Work, measure_batches
from patchwords.measure.inference import make_images
from patchwords.measure.subject import GIB, Subject, usable_memory
from patchwords.model.cost import forward_macs, training_flops
from patchwords.train.classify import Classify
from patchwords.train.job import build_state
from patchwords.train.plan import plan_of
from patchwords.train.start import Start
from patchwords.train.step import State, StepSettings, train_step
from patchwords.train.task import Classification, Objective


@dataclass(frozen=True)
class Trainee:
    """A model in training, as `patchwords finetune` sets it up."""

    state: State
    objective: Objective
    settings: StepSettings
    classes: int

    def on(self, device: Device) -> Trainee:
        """The same in another precision."""
        return replace(self, settings=replace(self.settings, device=device))

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One update by all of these images at once; a full GPU takes them in parts."""
        self.state.micro_batch = len(images)
        train_step(self.state, self.objective, images, labels, self.settings)


def make_trainee(subject: Subject) -> Trainee:
    """In the first of the precisions."""
    device, config = subject.devices[0], subject.training
    start = Start(subject.name, subject.create(), subject.preprocess, ())
    plan = plan_of(config, images=1)  # of which only the rate counts here
    state = build_state(config, plan, start, device, Classify())
    state.model.train()

    def forward(images: Tensor) -> Any:
        return state.model(subject.preprocess.normalise(images))

    return Trainee(
        state,
        Classification(forward, config.recipe.label_smoothing),
        StepSettings(device, config.seed, plan.rate, config.recipe.clip),
        subject.shape.num_classes,
    )


def measure_training(
    trainee: Trainee, subject: Subject, device: Device, peak: float, seconds: float
) -> list[Speed]:
    """A row for each number of images at a time that fits; `seconds` for each."""
    trainee = trainee.on(device)
    free = usable_memory(device)
    images = make_images(max(subject.training_batches), subject)
    labels = torch.arange(len(images)) % trainee.classes

    def once(batch: int) -> None:
        place = device.torch_device
        trainee.step(images[:batch].to(place), labels[:batch].to(place))

    def needs(batch: int) -> str | None:
        needed = subject.needs(batch, device.precision)
        if needed <= free:
            return None
        return f"takes about {needed / GIB:.1f} GiB, of {free / GIB:.1f} that may be taken"

    flops = training_flops(forward_macs(subject.shape), images=1)
    work = Work(device, flops, peak, once, needs)
    return measure_batches(work, subject.training_batches, seconds)
