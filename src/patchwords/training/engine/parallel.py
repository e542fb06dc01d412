"""How a model is laid out over the processes of a run, from outside: the model does not know.

Three things are done to its layers (the blocks of a ViT, the units of a ResNet), in this order:
their activations are checkpointed, they are compiled, and the model is wrapped by DDP or sharded
by FSDP. Names of parameters stay as they are.
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

GRAPHS_PER_LAYER = 8  # of a layer's graph: training and evaluation, whole batches and smaller ones


def list_layers(model: nn.Module) -> list[nn.Module]:
    """Blocks and residual units, by depth; none is inside another."""
    return [module for module in model.modules() if isinstance(module, Block | Bottleneck)]


def checkpoint_activations(model: nn.Module) -> None:
    """Let each layer keep its input alone, and compute the rest again in the backward pass.

    What is drawn the second time is what was drawn the first time: the generators' states are kept.
    """
    for layer in list_layers(model):
        layer.forward = checkpoint_forward(layer.forward)


def checkpoint_forward(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of its own and not a partial one, into which the compiler would not look."""

    def twice(*inputs: Any) -> Tensor:
        result: Tensor = checkpoint(forward, *inputs, use_reentrant=False)
        return result

    return twice


def compile_layers(model: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each layer; where they are alike, that is done once, and not for each.

    Stochastic depth makes them differ; the compiler's limit would then leave all but the first
    eight as they are.
    """
    import torch._dynamo

    layers = list_layers(model)
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, GRAPHS_PER_LAYER * len(layers))
    for layer in layers:
        layer.compile(backend=backend)


def restore_plain_layers(model: nn.Module) -> None:
    """Take back what was done to the layers."""
    for layer in list_layers(model):
        layer.__dict__.pop("forward", None)
        layer._compiled_call_impl = None


def wrap_ddp(model: nn.Module, here: World) -> nn.Module:
    """What a training step calls in place of the model: DDP's wrapper, in several processes.

    Its defaults are kept, the buckets of 25 MB among them: every weight that learns takes part in
    every step.
    """
    if here.size == 1:
        return model
    return DistributedDataParallel(model)


def is_ddp(forward: nn.Module) -> bool:
    """Whether every process has all weights, and gradients are exchanged by DDP."""
    return isinstance(forward, DistributedDataParallel)


def no_gradient_sync(forward: nn.Module) -> AbstractContextManager[object]:
    """Inside, gradients are summed in this process only: DDP does not exchange them yet."""
    if isinstance(forward, DistributedDataParallel):
        return forward.no_sync()
    return nullcontext()


# FSDP: every process holds its share of every weight, and a layer is gathered when it works.
#
# In float32 a layer (parallel.py) is gathered as a whole. In bfloat16 its mixer and its MLP are, each
# in bfloat16, as autocast would round them for its products; the rest (LayerNorms, embedding,
# positions, head) and the units of a ResNet, whose weights are standardised, are gathered in float32.
# So what is computed is what DDP computes. Gradients are summed in float32, and shares are float32.
#
# torch's FSDP takes a second to import, so that is left to those who use it: elsewhere its modules
# and tensors are known by the methods that they alone have.


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
            for part in (layer.mixer, layer.mlp):
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
