"""Throughput of inference, as `patchwords predict` runs it, and of training steps."""

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
    workload: BenchmarkWorkload, device: Device, peak: float, seconds: float
) -> list[ThroughputResult]:
    """Measure a row per batch size; `seconds` for each.

    Includes the copies: images come from the CPU, and scores go back to it.
    """
    source = Pretrained(workload.create().eval(), workload.preprocess, ()).for_inference(device)
    images = make_noise_images(max(workload.inference_batches), workload)

    def once(batch: int) -> np.ndarray:
        return source.scores(images[:batch], device)

    work = TimingSpec(device, FLOPS_PER_MAC * count_forward_macs(workload.shape), peak, once)
    return measure_batch_sizes(work, workload.inference_batches, seconds)


def make_noise_images(count: int, workload: BenchmarkWorkload) -> Tensor:
    """Make uint8 [B, C, H, W] of noise, with the memory layout of the loader."""
    preprocess = workload.preprocess
    shape = (count, *preprocess.image_size, preprocess.channels)  # [B, H, W, C]
    noise = torch.Generator().manual_seed(0)
    return torch.randint(256, shape, dtype=torch.uint8, generator=noise).permute(0, 3, 1, 2)


# Training steps with the recipe's optimizer.


@dataclass(frozen=True)
class BenchmarkTrainer:
    """A model in training, set up as `patchwords finetune` does."""

    state: TrainState
    objective: Objective
    settings: StepSettings
    classes: int

    def on(self, device: Device) -> BenchmarkTrainer:
        """Return the same trainer in another precision."""
        return replace(self, settings=replace(self.settings, device=device))

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Update once by all images; a full GPU takes them in micro-batches."""
        self.state.micro_batch = len(images)
        train_step(self.state, self.objective, ImageBatch.of(images, labels), self.settings)


def build_benchmark_trainer(workload: BenchmarkWorkload) -> BenchmarkTrainer:
    """Build a trainer in the first precision."""
    device, config = workload.devices[0], workload.training
    start = InitialModel(workload.name, workload.create(), workload.preprocess, ())
    plan = build_training_plan(config, images=1)  # only the learning rate matters here
    data = DatasetSplits("noise", "noise", tuple(map(str, range(workload.shape.num_classes))), {})
    objective = find_objective(config)(config, start.preprocess)
    state = build_train_state(config, plan, start, data, objective, device)
    state.model.train()
    settings = StepSettings(device, config.seed, plan.rate, config.recipe.clip)
    return BenchmarkTrainer(state, objective, settings, workload.shape.num_classes)


def measure_training_throughput(
    trainee: BenchmarkTrainer,
    workload: BenchmarkWorkload,
    device: Device,
    peak: float,
    seconds: float,
) -> list[ThroughputResult]:
    """Measure a row per batch size that fits; `seconds` for each."""
    trainee = trainee.on(device)
    free = get_usable_memory(device)
    images = make_noise_images(max(workload.training_batches), workload)
    labels = torch.arange(len(images)) % trainee.classes

    def once(batch: int) -> None:
        place = device.torch_device
        trainee.step(images[:batch].to(place), labels[:batch].to(place))

    def needs(batch: int) -> str | None:
        needed = workload.needs(batch, device.precision)
        if needed <= free:
            return None
        return f"takes about {needed / GIB:.1f} GiB, of {free / GIB:.1f} that may be taken"

    flops = compute_training_flops(count_forward_macs(workload.shape), images=1)
    work = TimingSpec(device, flops, peak, once, needs)
    return measure_batch_sizes(work, workload.training_batches, seconds)
