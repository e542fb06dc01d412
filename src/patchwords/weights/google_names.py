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
from patchwords.weights.layouts import ArraySource, TensorLayout

ArrayNames = dict[str, ArraySource]

FLAX_ATTENTION = "MultiHeadDotProductAttention"
POSITIONS_KEY = "Transformer/posembed_input/pos_embedding"
PRE_LOGITS_KEY = "pre_logits"
MAP_HEAD_KEY = "MAPHead_0"
BIT_ROOT_KEY = "resnet/root_block/standardized_conv2d/kernel"


def list_array_names(config: ViTConfig | ResNetConfig) -> ArrayNames:
    """Our name -> where it lies, for every parameter of the model."""
    if isinstance(config, ViTConfig):
        return list_vit_names(config)
    if config.trunk.form == "pre":
        return list_bit_names(config.trunk)
    return list_trunk_names(config.trunk) | dense_names("head.linear", "head")


def list_vit_names(config: ViTConfig) -> ArrayNames:
    names = list_trunk_names(config.trunk) if config.trunk else {}
    names |= dense_names("embed", "embedding", "convolution")
    if config.prefix:
        names["class_token"] = ArraySource(("cls",), "as is")
    if config.position == "1d":
        names["positions.table"] = ArraySource((POSITIONS_KEY,), "as is")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"Transformer/encoderblock_{layer}"
        attention = f"{theirs}/{FLAX_ATTENTION}_1"
        names |= norm_names(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        names |= attention_names(f"{ours}.attention.qkv", attention, ("query", "key", "value"))
        names |= dense_names(f"{ours}.attention.out", f"{attention}/out", "from heads")
        names |= norm_names(f"{ours}.norm2", f"{theirs}/LayerNorm_2")
        names |= mlp_names(f"{ours}.mlp", f"{theirs}/MlpBlock_3")
    names |= norm_names("encoder.norm", "Transformer/encoder_norm")
    if config.classifier == "map":
        names |= list_map_head_names()
    if config.representation_size:
        names |= dense_names("head.representation", PRE_LOGITS_KEY)
    return names | dense_names("head.linear", "head")


def list_map_head_names() -> ArrayNames:
    """Attention pooling (big_vision)."""
    attention = f"{MAP_HEAD_KEY}/{FLAX_ATTENTION}_0"
    return {
        "head.pool.probe": ArraySource((f"{MAP_HEAD_KEY}/probe",), "as is"),
        **attention_names("head.pool.attention.query", attention, ("query",)),
        **attention_names("head.pool.attention.key_value", attention, ("key", "value")),
        **dense_names("head.pool.attention.out", f"{attention}/out", "from heads"),
        **norm_names("head.pool.norm", f"{MAP_HEAD_KEY}/LayerNorm_0"),
        **mlp_names("head.pool.mlp", f"{MAP_HEAD_KEY}/MlpBlock_0"),
    }


def list_trunk_names(trunk: TrunkConfig) -> ArrayNames:
    """The ResNet of a hybrid, or one by itself in the same form (big_vision's models/bit.py)."""
    names = {"trunk.root.conv.weight": ArraySource(("conv_root/kernel",), "convolution")}
    names |= norm_names("trunk.root.norm", "gn_root")
    for stage, count in enumerate(trunk.units):
        for unit in range(count):
            ours, theirs = f"trunk.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for i in (1, 2, 3):
                kernel = ArraySource((f"{theirs}/conv{i}/kernel",), "convolution")
                names[f"{ours}.conv{i}.weight"] = kernel
                names |= norm_names(f"{ours}.norm{i}", f"{theirs}/gn{i}")
            if unit == 0:
                kernel = ArraySource((f"{theirs}/conv_proj/kernel",), "convolution")
                names[f"{ours}.shortcut.weight"] = kernel
                names |= norm_names(f"{ours}.shortcut_norm", f"{theirs}/gn_proj")
    return names


def list_bit_names(trunk: TrunkConfig) -> ArrayNames:
    """A ResNet in BiT's form, as TensorFlow named it."""
    names = {"trunk.root.conv.weight": ArraySource((BIT_ROOT_KEY,), "convolution")}
    for stage, count in enumerate(trunk.units):
        for unit in range(count):
            ours = f"trunk.stages.{stage}.{unit}"
            theirs = f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for i, letter in enumerate("abc", 1):
                kernel = ArraySource(
                    (f"{theirs}/{letter}/standardized_conv2d/kernel",), "convolution"
                )
                names[f"{ours}.conv{i}.weight"] = kernel
                names |= norm_names(
                    f"{ours}.norm{i}", f"{theirs}/{letter}/group_norm", "gamma", "beta"
                )
            if unit == 0:
                kernel = ArraySource(
                    (f"{theirs}/a/proj/standardized_conv2d/kernel",), "convolution"
                )
                names[f"{ours}.shortcut.weight"] = kernel
    names |= norm_names("norm", "resnet/group_norm", "gamma", "beta")
    return names | dense_names("head.linear", "resnet/head/conv2d", "1x1 dense")


def dense_names(ours: str, theirs: str, layout: TensorLayout = "dense") -> ArrayNames:
    return {
        f"{ours}.weight": ArraySource((f"{theirs}/kernel",), layout),
        f"{ours}.bias": ArraySource((f"{theirs}/bias",), "as is"),
    }


def attention_names(ours: str, theirs: str, parts: tuple[str, ...]) -> ArrayNames:
    return {
        f"{ours}.weight": ArraySource(
            tuple(f"{theirs}/{part}/kernel" for part in parts), "to heads"
        ),
        f"{ours}.bias": ArraySource(
            tuple(f"{theirs}/{part}/bias" for part in parts), "heads' bias"
        ),
    }


def norm_names(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> ArrayNames:
    return {
        f"{ours}.weight": ArraySource((f"{theirs}/{scale}",), "as is"),
        f"{ours}.bias": ArraySource((f"{theirs}/{bias}",), "as is"),
    }


def mlp_names(ours: str, theirs: str) -> ArrayNames:
    return dense_names(f"{ours}.fc1", f"{theirs}/Dense_0") | dense_names(
        f"{ours}.fc2", f"{theirs}/Dense_1"
    )
