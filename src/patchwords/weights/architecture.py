"""The canonical name of a model, from its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.models.build import ModelConfig
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import (
    CONV_STEM_SETTINGS,
    ConvStemConfig,
    ResNetConfig,
    TrunkConfig,
)
from patchwords.models.zoo import (
    CNN_UNITS,
    MIXER_FAMILIES,
    RESNET_UNITS,
    STEM_LAYERS,
    VIT_VARIANTS,
    ModelFamily,
    ModelName,
    make_conv_stem,
)

VIT_SHAPE_FIELDS = (  # what makes other weights, the classes, the channels and the image size aside
    *("patch_size", "depth", "width", "heads", "mlp_width"),
    *("mixer", "window", "position", "position_at"),
)
TRUNK_SHAPE_FIELDS = ("units", "width_factor", "form", "spatial")


def has_same_shape(config: ModelConfig, other: ModelConfig, settings: Mapping[str, Any]) -> bool:
    """Return whether weights of one model suit another, apart from `settings`."""
    if type(config) is not type(other) or type(config.trunk) is not type(other.trunk):
        return False
    fields = VIT_SHAPE_FIELDS if isinstance(config, ViTConfig) else ()
    shapes = {TrunkConfig: TRUNK_SHAPE_FIELDS, ConvStemConfig: CONV_STEM_SETTINGS}
    trunk = shapes[type(config.trunk)] if config.trunk else ()
    return all(
        getattr(config, name) == settings.get(name, getattr(other, name)) for name in fields
    ) and all(getattr(config.trunk, name) == getattr(other.trunk, name) for name in trunk)


def find_architecture_name(config: ModelConfig) -> str | None:
    """Return the canonical name for these sizes, or None.

    Head, image size, numerics and training settings are left out: no name tells them. Of
    ViT-b/32 and ViT-S/32, which are the same, it is S.
    """
    if isinstance(config, ResNetConfig):
        return _resnet(config.trunk)
    sizes = (config.width, config.depth, config.mlp_width, config.heads)
    letter = next((one for one, of in VIT_VARIANTS.items() if of == sizes and one != "b"), None)
    if letter is None or config.mixer not in MIXER_FAMILIES:
        return None
    trunk = config.trunk
    if trunk is None:
        return str(ModelName(MIXER_FAMILIES[config.mixer], letter, config.patch_size))
    if isinstance(trunk, TrunkConfig):
        return _hybrid(trunk, letter, config.patch_size)
    name = ModelName("C+ViT", letter, trunk.stride)
    usual = trunk.stride in STEM_LAYERS and trunk == make_conv_stem(name, config.width)
    return str(name) if usual and config.patch_size == 1 else None


def _resnet(trunk: TrunkConfig) -> str | None:
    if trunk.form == "plain":
        depth = next((depth for depth, units in CNN_UNITS.items() if units == trunk.units), None)
        return str(ModelName("CNN", resnet=depth, factor=trunk.width_factor)) if depth else None
    depth, axial = _depth(trunk), trunk.spatial == "axial"
    if depth is None or len(trunk.units) < 4 or (trunk.form == "post") != axial:
        return None
    family: ModelFamily = "AxialResNet" if axial else "BiT"
    return str(ModelName(family, resnet=depth, factor=trunk.width_factor))


def _hybrid(trunk: TrunkConfig, letter: str, patch_size: int) -> str | None:
    depth = _depth(trunk)
    usual_patch = 1 if trunk.units else 8
    if patch_size != usual_patch or (trunk.units and depth is None):
        return None
    # The number is how much the ResNet divides; of the root alone timm and Google say 16.
    stride = trunk.stride if trunk.units else 16
    return str(ModelName("hybrid", letter, stride, depth, trunk.width_factor))


def _depth(trunk: TrunkConfig) -> int | None:
    """Return the 50 of R50, also if the last stage's units are in the one before (Sec. 4.1)."""
    for depth, (first, second, third, fourth) in RESNET_UNITS.items():
        if trunk.units in ((first, second, third, fourth), (first, second, third + fourth)):
            return depth
    return None
