"""Where the time of a training step goes, by kind of operation: torch's profiler, summed up."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from patchwords.device import Device
from patchwords.measure.inference import make_noise_images
from patchwords.measure.subject import BenchmarkWorkload
from patchwords.measure.training import BenchmarkTrainer

# Kind -> the operators of it; the first that matches. Softmax is attention's: that of the loss is
# a log-softmax, and small. An operator's time is its own, without those that it calls.
OPERATION_PATTERNS = {
    "attention": r"bmm|baddbmm|softmax|attention",
    "linear": r"^(aten::)?(mm|addmm|linear|matmul)|linear",
    "convolution": r"conv",
    "norm": r"layer_norm|group_norm",
    "gelu": r"gelu",
    "optimizer and clipping": r"_fused_(adam|sgd)|_foreach_|vector_norm|^Optimizer\.",
    "copies and casts": r"copy|clone|contiguous|fill_|zero_|^(aten::)?cat$",
}
OTHER_OPERATIONS = "rest"
LOSS_OPERATION = "_log_softmax"
NUM_PROFILED_STEPS = 2  # that are looked at, after one that is not


def profile_operations(
    trainee: BenchmarkTrainer, subject: BenchmarkWorkload, device: Device, batch: int
) -> dict[str, float]:
    """Share of a step's time by kind, largest first; they sum to 1.

    On a GPU it is the time of its kernels, not of the CPU that starts them.
    """
    place, cuda = device.torch_device, device.type == "cuda"
    trainee = trainee.on(device)
    images = make_noise_images(batch, subject).to(place)
    labels = torch.arange(batch, device=place) % trainee.classes
    trainee.step(images, labels)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes of itself to stderr
    with profile(activities=activities) as found:
        for _ in range(NUM_PROFILED_STEPS):
            trainee.step(images, labels)
    rows = [
        (event.key, event.self_device_time_total if cuda else event.self_cpu_time_total)
        for event in found.key_averages()
        if event.device_type == DeviceType.CPU  # a kernel's time stands at its operator, too
    ]
    return compute_time_shares(rows)


def compute_time_shares(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    """(operator, time) -> share of the time by kind, largest first.

    >>> compute_time_shares([("aten::addmm", 3.0), ("aten::mul", 1.0)])
    {'linear': 0.75, 'rest': 0.25}
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for name, time in rows:
        sums[classify_operation(name)] += time
    total = sum(sums.values()) or 1.0
    largest_first = sorted(sums.items(), key=lambda item: -item[1])
    return {kind: time / total for kind, time in largest_first if time > 0}


def classify_operation(operator: str) -> str:
    """The kind of an operator, by its name in torch.

    >>> classify_operation("aten::native_layer_norm_backward"), classify_operation("aten::add_")
    ('norm', 'rest')
    """
    if LOSS_OPERATION in operator or operator.startswith("autograd::"):
        return OTHER_OPERATIONS
    for kind, pattern in OPERATION_PATTERNS.items():
        if re.search(pattern, operator):
            return kind
    return OTHER_OPERATIONS
