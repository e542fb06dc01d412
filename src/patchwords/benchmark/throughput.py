"""Images a second through the call by which `patchwords predict` asks a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from patchwords.benchmark.clock import ThroughputResult, TimingSpec, measure_batch_sizes
from patchwords.benchmark.workload import BenchmarkWorkload, get_usable_memory
from patchwords.data.dataset import DatasetSplits
from patchwords.data.loader import ImageBatch
from patchwords.device import Device
from patchwords.files import GIB
from patchwords.models.cost import compute_training_flops, count_forward_macs
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.state import TrainState, build_train_state
from patchwords.training.engine.step import train_step
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import Objective, find_objective
from patchwords.training.plan import build_training_plan
from patchwords.weights.pretrained import Pretrained

FLOPS_PER_MAC = 2


def measure_inference_throughput(
    subject: BenchmarkWorkload, device: Device, peak: float, seconds: float
) -> list[ThroughputResult]:
    """A row for each number of images at a time; `seconds` for each. The copies are counted, too:
    images come from the CPU, and scores go back to it."""
    source = Pretrained(subject.create().eval(), subject.preprocess, ()).for_inference(device)
    images = make_noise_images(max(subject.inference_batches), subject)

    def once(batch: int) -> np.ndarray:
        return source.scores(images[:batch], device)

    work = TimingSpec(device, FLOPS_PER_MAC * count_forward_macs(subject.shape), peak, once)
    return measure_batch_sizes(work, subject.inference_batches, seconds)


def make_noise_images(count: int, subject: BenchmarkWorkload) -> Tensor:
    """uint8 [B, C, H, W] of noise, laid out in memory as the loader gives them."""
    preprocess = subject.preprocess
    shape = (count, *preprocess.image_size, preprocess.channels)  # [B, H, W, C]
    noise = torch.Generator().manual_seed(0)
    return torch.randint(256, shape, dtype=torch.uint8, generator=noise).permute(0, 3, 1, 2)


# Images a second through the training step, with the recipe's own optimizer.


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
        train_step(self.state, self.objective, ImageBatch.of(images, labels), self.settings)


def build_benchmark_trainer(subject: BenchmarkWorkload) -> BenchmarkTrainer:
    """In the first of the precisions."""
    device, config = subject.devices[0], subject.training
    start = InitialModel(subject.name, subject.create(), subject.preprocess, ())
    plan = build_training_plan(config, images=1)  # of which only the rate counts here
    data = DatasetSplits("noise", "noise", tuple(map(str, range(subject.shape.num_classes))), {})
    objective = find_objective(config)(config, start.preprocess)
    state = build_train_state(config, plan, start, data, objective, device)
    state.model.train()
    settings = StepSettings(device, config.seed, plan.rate, config.recipe.clip)
    return BenchmarkTrainer(state, objective, settings, subject.shape.num_classes)


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
