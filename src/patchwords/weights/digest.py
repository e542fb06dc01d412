"""What sets weights apart from others, in a line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Of every tensor's name, type, shape and bytes."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
