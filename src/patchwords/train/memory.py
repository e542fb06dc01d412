"""How many images of a batch go through the model at once.

The recipe's batch is what the weights see; into how many parts it is cut is the machine's
business. A GPU says when it is full (then `train_step` cuts again), but a process that takes too
much of the main memory is killed without a word, so there the parts are chosen beforehand.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from patchwords.device import Device
from patchwords.model.config import ViTConfig
from patchwords.model.cost import activation_bytes

SHARE_OF_FREE = 0.5  # of the memory that is free before training; the rest is for all else


def choose_micro_batch(config: ViTConfig, batch: int, device: Device, asked: str | int) -> int:
    """Images per part: the batch over `asked` parts, or what half of the free memory holds.

    The parts are equal but for the last, so that the number of parts says it all.
    """
    if asked != "auto":
        return -(-batch // min(int(asked), batch))
    bytes_per_value = 2 if device.bf16 else 4
    budget = SHARE_OF_FREE * free_memory(device.torch_device)
    micro = batch
    while micro > 1 and activation_bytes(config, micro, None, bytes_per_value) > budget:
        micro = (micro + 1) // 2
    return micro  # the batch over a power of 2, rounded up: the number of parts gives it back


def free_memory(device: torch.device) -> int:
    """Bytes that can be taken now, on the GPU or of the main memory (and of the container's)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _number(Path("/proc/meminfo"), "MemAvailable:") * 1024 or pages
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    used = _number(Path("/sys/fs/cgroup/memory.current"))
    cache = _number(Path("/sys/fs/cgroup/memory.stat"), "inactive_file")  # given up when needed
    return min(free, max(0, limit - used + cache)) if limit else free


def _number(path: Path, after: str = "") -> int:
    """The first number of a file, or that behind a word; 0 where there is none ("max")."""
    try:
        words = path.read_text().split()
        word = words[words.index(after) + 1] if after else words[0]
        return int(word)
    except (OSError, ValueError, IndexError):
        return 0  # not Linux, or no limit
