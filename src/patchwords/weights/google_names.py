"""Our parameters and the keys of Google's files, for ViTs, hybrids and both forms of ResNet.

Sources: models_vit.py and models_resnet.py of vision_transformer, models/vit.py and models/bit.py
of big_vision, bit_pytorch/models.py of big_transfer. Blocks are numbered as in the released files,
by submodule (LayerNorm_0, MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3), before Flax
numbered them by kind; checkpoint.py of vision_transformer takes both.
"""

from __future__ import annotations

from patchwords.model.config import ViTConfig
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import TrunkConfig
from patchwords.weights.layouts import Layout, Source

Names = dict[str, Source]

ATTENTION = "MultiHeadDotProductAttention"
POSITIONS = "Transformer/posembed_input/pos_embedding"
PRE_LOGITS = "pre_logits"
MAP_HEAD = "MAPHead_0"
BIT_ROOT = "resnet/root_block/standardized_conv2d/kernel"


def names_of(config: ViTConfig | ResNetConfig) -> Names:
    """Our name -> where it lies, for every parameter of the model."""
    if isinstance(config, ViTConfig):
        return vit_names(config)
    if config.trunk.form == "pre":
        return bit_names(config.trunk)
    return trunk_names(config.trunk) | dense("head.linear", "head")


def vit_names(config: ViTConfig) -> Names:
    names = trunk_names(config.trunk) if config.trunk else {}
    names |= dense("embed", "embedding", "convolution")
    if config.prefix:
        names["class_token"] = Source(("cls",), "as is")
    if config.position == "1d":
        names["positions.table"] = Source((POSITIONS,), "as is")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"Transformer/encoderblock_{layer}"
        attention = f"{theirs}/{ATTENTION}_1"
        names |= norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        names |= heads(f"{ours}.attention.qkv", attention, ("query", "key", "value"))
        names |= dense(f"{ours}.attention.out", f"{attention}/out", "from heads")
        names |= norm(f"{ours}.norm2", f"{theirs}/LayerNorm_2")
        names |= mlp(f"{ours}.mlp", f"{theirs}/MlpBlock_3")
    names |= norm("encoder.norm", "Transformer/encoder_norm")
    if config.classifier == "map":
        names |= map_names()
    if config.representation_size:
        names |= dense("head.representation", PRE_LOGITS)
    return names | dense("head.linear", "head")


def map_names() -> Names:
    """Attention pooling (big_vision)."""
    attention = f"{MAP_HEAD}/{ATTENTION}_0"
    return {
        "head.pool.probe": Source((f"{MAP_HEAD}/probe",), "as is"),
        **heads("head.pool.attention.query", attention, ("query",)),
        **heads("head.pool.attention.key_value", attention, ("key", "value")),
        **dense("head.pool.attention.out", f"{attention}/out", "from heads"),
        **norm("head.pool.norm", f"{MAP_HEAD}/LayerNorm_0"),
        **mlp("head.pool.mlp", f"{MAP_HEAD}/MlpBlock_0"),
    }


def trunk_names(trunk: TrunkConfig) -> Names:
    """The ResNet of a hybrid, or one by itself in the same form (big_vision's models/bit.py)."""
    names = {"trunk.root.conv.weight": Source(("conv_root/kernel",), "convolution")}
    names |= norm("trunk.root.norm", "gn_root")
    for stage, count in enumerate(trunk.units):
        for unit in range(count):
            ours, theirs = f"trunk.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for i in (1, 2, 3):
                kernel = Source((f"{theirs}/conv{i}/kernel",), "convolution")
                names[f"{ours}.conv{i}.weight"] = kernel
                names |= norm(f"{ours}.norm{i}", f"{theirs}/gn{i}")
            if unit == 0:
                kernel = Source((f"{theirs}/conv_proj/kernel",), "convolution")
                names[f"{ours}.shortcut.weight"] = kernel
                names |= norm(f"{ours}.shortcut_norm", f"{theirs}/gn_proj")
    return names


def bit_names(trunk: TrunkConfig) -> Names:
    """A ResNet in BiT's form, as TensorFlow named it."""
    names = {"trunk.root.conv.weight": Source((BIT_ROOT,), "convolution")}
    for stage, count in enumerate(trunk.units):
        for unit in range(count):
            ours = f"trunk.stages.{stage}.{unit}"
            theirs = f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for i, letter in enumerate("abc", 1):
                kernel = Source((f"{theirs}/{letter}/standardized_conv2d/kernel",), "convolution")
                names[f"{ours}.conv{i}.weight"] = kernel
                names |= norm(f"{ours}.norm{i}", f"{theirs}/{letter}/group_norm", "gamma", "beta")
            if unit == 0:
                kernel = Source((f"{theirs}/a/proj/standardized_conv2d/kernel",), "convolution")
                names[f"{ours}.shortcut.weight"] = kernel
    names |= norm("norm", "resnet/group_norm", "gamma", "beta")
    return names | dense("head.linear", "resnet/head/conv2d", "1x1 dense")


def dense(ours: str, theirs: str, layout: Layout = "dense") -> Names:
    return {
        f"{ours}.weight": Source((f"{theirs}/kernel",), layout),
        f"{ours}.bias": Source((f"{theirs}/bias",), "as is"),
    }


def heads(ours: str, theirs: str, parts: tuple[str, ...]) -> Names:
    return {
        f"{ours}.weight": Source(tuple(f"{theirs}/{part}/kernel" for part in parts), "to heads"),
        f"{ours}.bias": Source(tuple(f"{theirs}/{part}/bias" for part in parts), "heads' bias"),
    }


def norm(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> Names:
    return {
        f"{ours}.weight": Source((f"{theirs}/{scale}",), "as is"),
        f"{ours}.bias": Source((f"{theirs}/{bias}",), "as is"),
    }


def mlp(ours: str, theirs: str) -> Names:
    return dense(f"{ours}.fc1", f"{theirs}/Dense_0") | dense(f"{ours}.fc2", f"{theirs}/Dense_1")
