"""Images a second through the call by which `patchwords predict` asks a model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from patchwords.device import Device
from patchwords.measure.clock import ThroughputResult, TimingSpec, measure_batch_sizes
from patchwords.measure.subject import BenchmarkWorkload
from patchwords.model.cost import count_forward_macs
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
