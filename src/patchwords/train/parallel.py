"""How a model is laid out over the processes of a run, from outside: the model does not know.

Three things are done to its layers (the blocks of a ViT, the units of a ResNet), in this order:
their activations are checkpointed, they are compiled, and the model is wrapped by DDP or sharded
by FSDP. Names of parameters stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from patchwords.distributed import World
from patchwords.model.encoder import Block
from patchwords.model.trunk import Bottleneck

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
