"""Parameters and multiplications, counted on the real module.

The model is built on the meta device, where tensors have shapes and no values, and torch's
FlopCounterMode watches a forward pass of one image. It counts matrix products and convolutions;
norms, softmax, GELU, pooling and sums are left out, as is usual: they are below 1 %.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from patchwords.models.build import Model, ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.conv_stem import ConvStem
from patchwords.models.cost import COUNTS_FILE, ModelCount, PartCount
from patchwords.models.mixers import get_mixer_class
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.resnet.trunk import StdConv, Trunk
from patchwords.models.vit import Block, ViT
from patchwords.models.zoo import list_models, resolve_model


@dataclass(frozen=True)
class PartModules:
    """The modules of a part, and parameters that are in no module of their own."""

    name: str
    modules: tuple[nn.Module, ...]
    loose: tuple[Tensor, ...] = ()

    def count_parameters(self) -> int:
        """Numbers to learn."""
        inside = (value for module in self.modules for value in module.parameters())
        return sum(value.numel() for value in (*inside, *self.loose))

    def count_standardised(self) -> int:
        """Weights of standardised convolutions."""
        inside = (child for module in self.modules for child in module.modules())
        return sum(child.weight.numel() for child in inside if isinstance(child, StdConv))


def count_model(config: ModelConfig) -> ModelCount:
    """Count a model part by part, at the image size of its config."""
    with torch.device("meta"):
        model = build_model(config).eval()
        images = torch.zeros(1, config.channels, *config.image_size)
    parts = list(list_part_modules(model))
    macs, total = count_module_macs(model, images, parts)
    counts = tuple(
        PartCount(
            part.name,
            part.count_parameters(),
            part.count_standardised(),
            sum(macs[module] for module in part.modules),
        )
        for part in parts
    )
    expected = sum(value.numel() for value in model.parameters()), total
    counted = sum(part.parameters for part in counts), sum(part.macs for part in counts)
    if counted != expected:
        raise AssertionError(f"the parts have {counted} parameters and MACs, the model {expected}")
    return ModelCount(counts, total - count_unread_macs(model, macs))


def count_unread_macs(model: Model, macs: Mapping[nn.Module, int]) -> int:
    """MACs of the last block for tokens that the head does not read."""
    if not isinstance(model, ViT) or model.config.num_read_tokens is None:
        return 0
    block = model.encoder.blocks[-1]
    x = torch.empty(1, model.config.tokens, model.config.width, device="meta")
    with count_flops() as counter:
        block(x, model.config.grid, model.config.num_read_tokens)
    whole = sum(macs.get(module, 0) for module in block.children())
    return whole - counter.get_total_flops() // 2


@contextmanager
def count_flops() -> Iterator[FlopCounterMode]:
    """A counter that sees attention as the two matrix products of its plain form."""
    kernel = sdpa_kernel(SDPBackend.MATH)
    with FlopCounterMode(display=False) as counter, kernel, torch.no_grad():
        yield counter


def count_module_macs(
    model: Model, images: Tensor, parts: list[PartModules]
) -> tuple[dict[nn.Module, int], int]:
    """MACs of each module of the parts, of all tokens; and of the whole model."""
    macs = dict.fromkeys((module for part in parts for module in part.modules), 0)
    entered: dict[nn.Module, int] = {}
    with count_flops() as counter:

        def enter(module: nn.Module, inputs: Any) -> None:
            entered[module] = counter.get_total_flops()

        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            macs[module] += (counter.get_total_flops() - entered[module]) // 2

        hooks = [module.register_forward_pre_hook(enter) for module in macs]
        hooks += [module.register_forward_hook(leave) for module in macs]
        model.forward_head(model.forward_features(images))
    for hook in hooks:
        hook.remove()
    return macs, counter.get_total_flops() // 2


def list_part_modules(model: Model) -> Iterator[PartModules]:
    """The modules of each part; parts are named as the rows of `patchwords models NAME`."""
    if isinstance(model.trunk, ConvStem):
        for conv in model.trunk.layers:
            yield PartModules("stem", (conv,))
    elif isinstance(model.trunk, Trunk):
        yield PartModules("root", (model.trunk.root,))
        for stage, units in enumerate(model.trunk.stages):
            for unit in cast(nn.Sequential, units):
                yield PartModules(f"stage {stage + 1}", (unit,))
    if isinstance(model, ResNet):
        norm = () if model.norm is None else (model.norm,)
        yield PartModules("head", (*norm, model.head))
        return
    tokens = (model.class_token, model.distillation_token, model.registers)
    pre_norm = () if model.pre_norm is None else (model.pre_norm,)
    yield PartModules("embedding", (model.patch_embed, *pre_norm), drop_absent(tokens))
    yield PartModules("positions", (model.positions,))
    for block in cast(list[Block], model.encoder.blocks):
        scales = (drop_absent((scale,)) for scale in (block.layer_scale1, block.layer_scale2))
        label = model.config.mixer_traits.label
        yield PartModules(label, (block.norm1, block.mixer), next(scales))
        yield PartModules("MLP", (block.norm2, block.mlp), next(scales))
    yield PartModules("last norm", (model.encoder.norm,))
    head = model.head
    if head.pool is not None:
        yield PartModules("attention pooling", (head.pool,))
    parts = (head.norm, head.representation, head.linear, head.distillation)
    yield PartModules("head", tuple(part for part in parts if part is not None))


def drop_absent(values: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
    """Keep the values that are there."""
    return tuple(value for value in values if value is not None)


def count_saved_values(config: ViTConfig, layer: int) -> int:
    """Values of one image that the mixer of a block keeps for the backward pass."""
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(id(tensor.untyped_storage()), tensor)
        return tensor

    with torch.device("meta"), torch.enable_grad():
        mixer: nn.Module = get_mixer_class(config.mixer).build(config, layer)
        x = torch.zeros(1, config.tokens, config.width, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = mixer(x, config.grid)
    weights = {id(value.untyped_storage()) for value in mixer.parameters()}
    del output
    return sum(tensor.numel() for key, tensor in saved.items() if key not in weights)


def write_packaged_counts() -> None:
    """Write counts.json: for each model its kinds of parts, and their order by index."""
    table = {}
    for name in list_models():
        count = count_model(resolve_model(name).config)
        rows = [[part.name, part.parameters, part.standardised, part.macs] for part in count.parts]
        kinds = [row for index, row in enumerate(rows) if row not in rows[:index]]
        table[name] = {
            "forward_macs": count.forward_macs,
            "kinds": kinds,
            "parts": [kinds.index(row) for row in rows],
        }
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    COUNTS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_packaged_counts()
