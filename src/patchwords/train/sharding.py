"""FSDP: every process holds its share of every weight, and a layer is gathered when it works.

In float32 a layer (parallel.py) is gathered as a whole. In bfloat16 its mixer and its MLP are, each
in bfloat16, as autocast would round them for its products; the rest (LayerNorms, embedding,
positions, head) and the units of a ResNet, whose weights are standardised, are gathered in float32.
So what is computed is what DDP computes. Gradients are summed in float32, and shares are float32.

torch's FSDP takes a second to import, so that is left to those who use it: elsewhere its modules
and tensors are known by the methods that they alone have.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from patchwords.device import Device
from patchwords.distributed import World
from patchwords.model.encoder import Block
from patchwords.train.parallel import list_layers


def shard_model(model: nn.Module, device: Device, here: World) -> None:
    """Divide the weights among all processes, in place; names and optimizer rules stay."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (here.size,))
    exact = MixedPrecisionPolicy(cast_forward_inputs=False)
    rounded = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in list_layers(model):
        if device.bf16 and isinstance(layer, Block):
            for part in (layer.attention, layer.mlp):
                fully_shard(part, mesh=mesh, mp_policy=rounded, reshard_after_forward=True)
        else:
            fully_shard(layer, mesh=mesh, mp_policy=exact, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=exact, reshard_after_forward=False)
    # What a layer gives may be a view, but the model changes none in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "unshard")


@contextmanager
def gather_full_weights(model: nn.Module) -> Iterator[None]:
    """Inside, all weights are in every process, so that each may call the model as often as it is
    due: evaluation need not keep step."""
    modules: list[Any] = [module for module in model.modules() if is_sharded(module)]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            # As `shard_model` has it: the root stays gathered from the forward to the backward pass.
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


def is_dtensor(tensor: Any) -> bool:
    return hasattr(tensor, "to_local")


def to_local_tensor(tensor: Any) -> Tensor:
    """What this process holds of it, a view; a tensor that is not divided is held whole."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def to_full_tensor(tensor: Any) -> Tensor:
    """All of it, in every process."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def shard_like(tensor: Tensor, like: Any) -> Tensor:
    """A tensor that every process has whole, as the shares that `like` is in."""
    if not is_dtensor(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    full = tensor.to(like.device)
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
