"""Configs from the shapes of arrays: Google's files hold nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

from patchwords.errors import ConfigError, WeightsError
from patchwords.models.config import Classifier, ViTConfig
from patchwords.models.resnet.config import (
    BIT_TRUNK,
    HYBRID_TRUNK,
    ROOT_WIDTH,
    ResNetConfig,
    TrunkConfig,
)
from patchwords.models.zoo import resolve_model
from patchwords.weights.convert import DEFAULT_NUM_CLASSES
from patchwords.weights.google.names import (
    BIT_ROOT_KEY,
    FLAX_ATTENTION,
    MAP_HEAD_KEY,
    POSITIONS_KEY,
    PRE_LOGITS_KEY,
    ParameterTree,
    is_square,
)

DEFAULT_IMAGE_SIZE = (
    224  # pixels, where neither file nor name tell: that of all pre-training (App. B.1)
)


def config_from_google(tree: ParameterTree) -> ViTConfig | ResNetConfig:
    """Infer the config; raises WeightsError if the arrays are of no known model."""
    try:
        if "embedding/kernel" in tree:
            return vit_config_from_google(tree)
        return (
            bit_config_from_google(tree)
            if BIT_ROOT_KEY in tree
            else resnet_config_from_google(tree)
        )
    except ConfigError as error:
        raise WeightsError(f"{tree.stem}: the arrays make no model: {error}") from error


def vit_config_from_google(tree: ParameterTree) -> ViTConfig:
    """Infer a ViT or hybrid; numerics are those of the authors' code, the config's defaults."""
    rows, columns, channels, width = tree.shape("embedding/kernel", 4)
    if rows != columns:
        raise WeightsError(f"{tree.stem}: patches of {rows}x{columns} are not square")
    trunk = None
    if "conv_root/kernel" in tree:
        trunk, channels = hybrid_trunk_from_google(tree)
    block = "Transformer/encoderblock_0"
    depth = tree.numbers("Transformer/encoderblock_", first=0)
    heads = tree.shape(f"{block}/{FLAX_ATTENTION}_1/query/kernel", 3)[1]
    mlp_width = tree.shape(f"{block}/MlpBlock_3/Dense_0/kernel", 2)[1]
    config = ViTConfig(
        patch_size=rows,
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
        channels=channels,
        num_classes=infer_num_classes(tree, "head/kernel", 2),
        classifier=infer_classifier(tree),
        trunk=trunk,
        image_size=(rows, rows) if trunk is None else (rows * trunk.stride, rows * trunk.stride),
    )
    if f"{PRE_LOGITS_KEY}/kernel" in tree:
        size = tree.shape(f"{PRE_LOGITS_KEY}/kernel", 2)[1]
        config = replace(config, representation_size=size)
    if POSITIONS_KEY in tree:
        return config.with_settings(
            image_size=infer_grid_side(tree, config.num_prefix_tokens) * config.stride
        )
    tree.notes.append(
        "the file has no positions: they are taken for sines and cosines (sincos2d), as in "
        "big_vision's baselines"
    )
    size = infer_image_size(tree)
    size = max(round(size / config.stride), 1) * config.stride  # as `resolve_model` does
    return config.with_settings(position="sincos2d", image_size=size)


def resnet_config_from_google(tree: ParameterTree) -> ResNetConfig:
    """Infer a ResNet in the hybrids' form (big_vision's models/bit.py)."""
    trunk, channels = hybrid_trunk_from_google(tree)
    count = infer_num_classes(tree, "head/kernel", 2)
    return ResNetConfig(trunk, (infer_image_size(tree),) * 2, channels, count)


def bit_config_from_google(tree: ParameterTree) -> ResNetConfig:
    """Infer a ResNet in BiT's own form. big_vision pads the root's pooling by the lowest value,
    where big_transfer has zeros: the weights know what they were trained with.
    """
    channels, root = tree.shape(BIT_ROOT_KEY, 4)[2:]
    trunk = replace(
        BIT_TRUNK,
        units=infer_stage_units(tree, "resnet/"),
        width_factor=infer_width_factor(tree, root),
        pool_padding="zeros" if "standardized_conv2d" in tree.called[BIT_ROOT_KEY] else "lowest",
    )
    count = infer_num_classes(tree, "resnet/head/conv2d/kernel", 4)
    return ResNetConfig(trunk, (infer_image_size(tree),) * 2, channels, count)


def hybrid_trunk_from_google(tree: ParameterTree) -> tuple[TrunkConfig, int]:
    """Infer the trunk and the channels of the image."""
    channels, root = tree.shape("conv_root/kernel", 4)[2:]
    return replace(
        HYBRID_TRUNK, units=infer_stage_units(tree, ""), width_factor=infer_width_factor(tree, root)
    ), channels


def infer_stage_units(tree: ParameterTree, prefix: str) -> tuple[int, ...]:
    """Count the residual units of each stage."""
    stages = tree.numbers(f"{prefix}block", first=1)
    return tuple(
        tree.numbers(f"{prefix}block{stage}/unit", first=1) for stage in range(1, stages + 1)
    )


def infer_width_factor(tree: ParameterTree, root: int) -> int:
    if root % ROOT_WIDTH:
        raise WeightsError(
            f"{tree.stem}: the root has {root} channels, which is no multiple of {ROOT_WIDTH}"
        )
    return root // ROOT_WIDTH


def infer_classifier(tree: ParameterTree) -> Classifier:
    pooled = f"{MAP_HEAD_KEY}/probe" in tree
    if "cls" not in tree:
        return "map" if pooled else "gap"
    if pooled:
        raise WeightsError(f"{tree.stem} has a class token and attention pooling; a model has one")
    return "token"


def infer_grid_side(tree: ParameterTree, prefix: int) -> int:
    """Return the side of the square grid of patches."""
    rows = tree.shape(POSITIONS_KEY, 3)[1]
    patches = rows - prefix
    if patches < 1 or not is_square(patches):
        token = " and a class token" if prefix else ""
        raise WeightsError(
            f"{tree.stem}: {tree.called[POSITIONS_KEY]} has {rows} positions, which are no square grid"
            f"{token}"
        )
    return math.isqrt(patches)


def infer_num_classes(tree: ParameterTree, key: str, axes: int) -> int:
    return tree.shape(key, axes)[-1] if key in tree else DEFAULT_NUM_CLASSES


def infer_image_size(tree: ParameterTree) -> int:
    """Return the image size of a model without position table: from its name, or the usual."""
    try:
        size = resolve_model(tree.stem).config.image_size[0]
    except ConfigError:
        size = DEFAULT_IMAGE_SIZE
    tree.notes.append(f"the file does not tell the image size: {size} pixels are assumed")
    return size
