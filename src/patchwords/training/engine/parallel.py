"""Activation checkpointing, compilation, DDP and FSDP, applied to a model from outside.

They are applied to the layers (the blocks of a ViT, the units of a ResNet) in this order:
activation checkpointing, compilation, then DDP or FSDP around the model. Parameter names stay.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from patchwords.device import Device
from patchwords.distributed import World
from patchwords.models.resnet.trunk import Bottleneck
from patchwords.models.vit import Block

GRAPHS_PER_LAYER = 8  # for training and evaluation, whole batches and smaller ones


def list_layers(model: nn.Module) -> list[nn.Module]:
    """List blocks and residual units by depth; none contains another."""
    return [module for module in model.modules() if isinstance(module, Block | Bottleneck)]


def checkpoint_activations(model: nn.Module) -> None:
    """Make each layer keep only its input and recompute the rest in the backward pass.

    Random draws are the same both times: the states of the generators are kept.
    """
    for layer in list_layers(model):
        layer.forward = checkpoint_forward(layer.forward)


def checkpoint_forward(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a layer's forward; a closure, as the compiler does not look into a partial."""

    def recomputed(*inputs: Any) -> Tensor:
        result: Tensor = checkpoint(forward, *inputs, use_reentrant=False)
        return result

    return recomputed


def compile_layers(model: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each layer; equal layers share one compilation.

    Stochastic depth makes layers differ; the compiler's limit would then leave all layers after
    the eighth uncompiled.
    """
    import torch._dynamo

    layers = list_layers(model)
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, GRAPHS_PER_LAYER * len(layers))
    for layer in layers:
        layer.compile(backend=backend)


def restore_plain_layers(model: nn.Module) -> None:
    """Undo activation checkpointing and compilation of the layers."""
    for layer in list_layers(model):
        layer.__dict__.pop("forward", None)
        layer._compiled_call_impl = None


def wrap_ddp(model: nn.Module, here: World) -> nn.Module:
    """Wrap the model in DDP if there are several processes.

    DDP's defaults hold (buckets of 25 MB): every trained weight takes part in every step.
    """
    if here.size == 1:
        return model
    return DistributedDataParallel(model)


def is_ddp(forward: nn.Module) -> bool:
    """Return whether DDP exchanges the gradients, and every process has all weights."""
    return isinstance(forward, DistributedDataParallel)


def no_gradient_sync(forward: nn.Module) -> AbstractContextManager[object]:
    """Inside, gradients add up in this process and DDP does not exchange them."""
    if isinstance(forward, DistributedDataParallel):
        return forward.no_sync()
    return nullcontext()


# FSDP: every process holds a shard of every weight, and a layer is gathered when it is used.
#
# In float32 a layer is gathered as a whole. In bfloat16 its mixer and its MLP are gathered in
# bfloat16 each, as autocast would round them for its products; the rest (LayerNorms, embedding,
# positions, head) and the units of a ResNet, whose weights are standardised, are gathered in
# float32. So the results are those of DDP. Gradients are summed in float32, and shards are float32.
#
# torch's FSDP takes a second to import, so only the functions that need it import it: elsewhere its
# modules and tensors are recognised by methods that only they have.


def shard_model(model: nn.Module, device: Device, here: World) -> None:
    """Shard the weights over all processes, in place; parameter names stay."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (here.size,))
    exact = MixedPrecisionPolicy(cast_forward_inputs=False)
    rounded = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in list_layers(model):
        if device.bf16 and isinstance(layer, Block):
            for part in (layer.mixer, layer.mlp):
                fully_shard(part, mesh=mesh, mp_policy=rounded, reshard_after_forward=True)
        else:
            fully_shard(layer, mesh=mesh, mp_policy=exact, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=exact, reshard_after_forward=False)
    # The output of a layer may be a view, but the model changes none in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP has sharded the module."""
    return hasattr(model, "unshard")


@contextmanager
def gather_full_weights(model: nn.Module) -> Iterator[None]:
    """Inside, every process has all weights and may call the model as often as it needs to.

    Evaluation has another number of batches in each process.
    """
    modules: list[Any] = [module for module in model.modules() if is_sharded(module)]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            # As in `shard_model`: the root stays gathered from the forward to the backward pass.
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


def is_dtensor(tensor: Any) -> bool:
    """Return whether a tensor is sharded over processes."""
    return hasattr(tensor, "to_local")


def to_local_tensor(tensor: Any) -> Tensor:
    """Return this process's shard as a view, or a plain tensor itself."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def to_full_tensor(tensor: Any) -> Tensor:
    """Gather a sharded tensor in every process."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def shard_like(tensor: Tensor, like: Any) -> Tensor:
    """Shard a tensor that every process has whole like another tensor of its shape."""
    if not is_dtensor(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    full = tensor.to(like.device)
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
