"""The config of a model from the shapes of its arrays: Google's files hold nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

from patchwords.errors import ConfigError, WeightsError
from patchwords.model.config import Classifier, ViTConfig
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import BIT, OFFICIAL, ROOT_WIDTH, TrunkConfig
from patchwords.model.variants import resolve
from patchwords.weights.foreign import DEFAULT_CLASSES
from patchwords.weights.google_names import ATTENTION, BIT_ROOT, MAP_HEAD, POSITIONS, PRE_LOGITS
from patchwords.weights.google_tree import Tree, is_square

USUAL_SIZE = 224  # pixels, where neither file nor name tell: that of all pre-training (App. B.1)


def config_of(tree: Tree) -> ViTConfig | ResNetConfig:
    """Raises WeightsError where the arrays are of no model."""
    try:
        if "embedding/kernel" in tree:
            return vit_config(tree)
        return bit_config(tree) if BIT_ROOT in tree else resnet_config(tree)
    except ConfigError as error:
        raise WeightsError(f"{tree.stem}: the arrays make no model: {error}") from error


def vit_config(tree: Tree) -> ViTConfig:
    """A ViT or hybrid; numerics are those of the authors' code, which are the config's defaults."""
    rows, columns, channels, width = tree.shape("embedding/kernel", 4)
    if rows != columns:
        raise WeightsError(f"{tree.stem}: patches of {rows}x{columns} are not square")
    trunk = None
    if "conv_root/kernel" in tree:
        trunk, channels = official_trunk(tree)
    block = "Transformer/encoderblock_0"
    depth = tree.numbers("Transformer/encoderblock_", first=0)
    heads = tree.shape(f"{block}/{ATTENTION}_1/query/kernel", 3)[1]
    mlp_width = tree.shape(f"{block}/MlpBlock_3/Dense_0/kernel", 2)[1]
    config = ViTConfig(
        patch_size=rows,
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
        channels=channels,
        num_classes=classes(tree, "head/kernel", 2),
        classifier=pooling(tree),
        trunk=trunk,
        image_size=(rows, rows) if trunk is None else (rows * trunk.stride, rows * trunk.stride),
    )
    if f"{PRE_LOGITS}/kernel" in tree:
        size = tree.shape(f"{PRE_LOGITS}/kernel", 2)[1]
        config = replace(config, representation_size=size)
    if POSITIONS in tree:
        return config.with_settings(image_size=grid(tree, config.prefix) * config.stride)
    tree.notes.append(
        "the file has no positions: they are taken for sines and cosines (sincos2d), as in "
        "big_vision's baselines"
    )
    size = image_size(tree)
    size = max(round(size / config.stride), 1) * config.stride  # as `resolve` does
    return config.with_settings(position="sincos2d", image_size=size)


def resnet_config(tree: Tree) -> ResNetConfig:
    """In the hybrids' form (big_vision's models/bit.py)."""
    trunk, channels = official_trunk(tree)
    count = classes(tree, "head/kernel", 2)
    return ResNetConfig(trunk, (image_size(tree),) * 2, channels, count)


def bit_config(tree: Tree) -> ResNetConfig:
    """In BiT's own form. big_vision pads the root's pooling by the lowest value, where
    big_transfer has zeros: the weights know what they were trained with."""
    channels, root = tree.shape(BIT_ROOT, 4)[2:]
    trunk = replace(
        BIT,
        units=units(tree, "resnet/"),
        width_factor=width_factor(tree, root),
        pool_padding="zeros" if "standardized_conv2d" in tree.called[BIT_ROOT] else "lowest",
    )
    count = classes(tree, "resnet/head/conv2d/kernel", 4)
    return ResNetConfig(trunk, (image_size(tree),) * 2, channels, count)


def official_trunk(tree: Tree) -> tuple[TrunkConfig, int]:
    """(the trunk, channels of the image)"""
    channels, root = tree.shape("conv_root/kernel", 4)[2:]
    return replace(OFFICIAL, units=units(tree, ""), width_factor=width_factor(tree, root)), channels


def units(tree: Tree, prefix: str) -> tuple[int, ...]:
    """Residual units of each stage."""
    stages = tree.numbers(f"{prefix}block", first=1)
    return tuple(
        tree.numbers(f"{prefix}block{stage}/unit", first=1) for stage in range(1, stages + 1)
    )


def width_factor(tree: Tree, root: int) -> int:
    if root % ROOT_WIDTH:
        raise WeightsError(
            f"{tree.stem}: the root has {root} channels, which is no multiple of {ROOT_WIDTH}"
        )
    return root // ROOT_WIDTH


def pooling(tree: Tree) -> Classifier:
    pooled = f"{MAP_HEAD}/probe" in tree
    if "cls" not in tree:
        return "map" if pooled else "gap"
    if pooled:
        raise WeightsError(f"{tree.stem} has a class token and attention pooling; a model has one")
    return "token"


def grid(tree: Tree, prefix: int) -> int:
    """The side of the square grid of patches."""
    rows = tree.shape(POSITIONS, 3)[1]
    patches = rows - prefix
    if patches < 1 or not is_square(patches):
        token = " and a class token" if prefix else ""
        raise WeightsError(
            f"{tree.stem}: {tree.called[POSITIONS]} has {rows} positions, which are no square grid"
            f"{token}"
        )
    return math.isqrt(patches)


def classes(tree: Tree, key: str, axes: int) -> int:
    return tree.shape(key, axes)[-1] if key in tree else DEFAULT_CLASSES


def image_size(tree: Tree) -> int:
    """Of a model without a table of positions: what its name tells, or the usual."""
    try:
        size = resolve(tree.stem).config.image_size[0]
    except ConfigError:
        size = USUAL_SIZE
    tree.notes.append(f"the file does not tell the image size: {size} pixels are assumed")
    return size
