"""How a model is laid out over the processes of a run, from outside: the model does not know.

Three things are done to its layers (the blocks of a ViT, the units of a ResNet), in this order:
their activations are checkpointed, they are compiled, and the model is wrapped by DDP or sharded
by FSDP. Names of parameters stay as they are.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from patchwords.distributed import World
from patchwords.model.encoder import Block
from patchwords.model.trunk import Unit


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Blocks and residual units, by depth; none is inside another."""
    return [module for module in model.modules() if isinstance(module, Block | Unit)]


def checkpoint_activations(model: nn.Module) -> None:
    """Let each layer keep its input alone, and compute the rest again in the backward pass.

    What is drawn the second time is what was drawn the first time: the generators' states are kept.
    """
    for layer in layers_of(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compile_layers(model: nn.Module) -> None:
    """Compile each layer: as they are alike, the work is done once or twice, not for each."""
    for layer in layers_of(model):
        layer.compile()


def plain(model: nn.Module) -> None:
    """Take back what was done to the layers."""
    for layer in layers_of(model):
        layer.__dict__.pop("forward", None)
        layer._compiled_call_impl = None


def wrap(model: nn.Module, here: World) -> nn.Module:
    """What a training step calls in place of the model: DDP's wrapper, in several processes.

    Its defaults are kept, the buckets of 25 MB among them: every weight that learns takes part in
    every step.
    """
    if here.size == 1:
        return model
    return DistributedDataParallel(model)


def is_replicated(forward: nn.Module) -> bool:
    """Whether every process has all weights, and gradients are exchanged by DDP."""
    return isinstance(forward, DistributedDataParallel)


def held_back(forward: nn.Module) -> AbstractContextManager[object]:
    """Inside, gradients are summed in this process only: DDP does not exchange them yet."""
    if isinstance(forward, DistributedDataParallel):
        return forward.no_sync()
    return nullcontext()
