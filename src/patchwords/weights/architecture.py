"""The canonical name of a model, from its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.model.config import ViTConfig
from patchwords.model.family import Config
from patchwords.model.names import Family, Name
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import TrunkConfig
from patchwords.model.variants import UNITS, VARIANTS

SHAPE = (  # what makes other weights, the classes, the channels and the image size aside
    *("patch_size", "depth", "width", "heads", "mlp_width"),
    *("mixer", "window", "position", "position_at"),
)
TRUNK_SHAPE = ("units", "width_factor", "form", "spatial")


def same_shape(found: Config, asked: Config, settings: Mapping[str, Any]) -> bool:
    """Whether weights of the one suit the other, `settings` of whose shape are made otherwise."""
    if type(found) is not type(asked) or (found.trunk is None) != (asked.trunk is None):
        return False
    own = SHAPE if isinstance(found, ViTConfig) else ()
    trunk = TRUNK_SHAPE if found.trunk else ()
    return all(
        getattr(found, name) == settings.get(name, getattr(asked, name)) for name in own
    ) and all(getattr(found.trunk, name) == getattr(asked.trunk, name) for name in trunk)


def architecture_of(config: Config) -> str | None:
    """The name that `resolve` knows these sizes by, or None.

    Head, image size, numerics and training settings are left aside: no name tells them. Of
    ViT-b/32 and ViT-S/32, which are the same, it is S.
    """
    if isinstance(config, ResNetConfig):
        depth = _depth(config.trunk)
        axial = config.trunk.spatial == "axial"
        if depth is None or len(config.trunk.units) < 4 or (config.trunk.form == "post") != axial:
            return None
        family: Family = "AxialResNet" if axial else "BiT"
        return str(Name(family, resnet=depth, factor=config.trunk.width_factor))
    sizes = (config.width, config.depth, config.mlp_width, config.heads)
    letter = next((one for one, of in VARIANTS.items() if of == sizes and one != "b"), None)
    if letter is None or config.mixer not in ("attention", "axial"):
        return None
    trunk = config.trunk
    if trunk is None:
        kind: Family = "Axial-ViT" if config.mixer == "axial" else "ViT"
        return str(Name(kind, letter, config.patch_size))
    depth = _depth(trunk)
    usual_patch = 1 if trunk.units else 8
    if config.patch_size != usual_patch or (trunk.units and depth is None):
        return None
    # The number is how much the ResNet divides; of the root alone timm and Google say 16.
    stride = trunk.stride if trunk.units else 16
    return str(Name("hybrid", letter, stride, depth, trunk.width_factor))


def _depth(trunk: TrunkConfig) -> int | None:
    """The 50 of R50, also where the last stage's units stand in the one before (Sec. 4.1)."""
    for depth, (first, second, third, fourth) in UNITS.items():
        if trunk.units in ((first, second, third, fourth), (first, second, third + fourth)):
            return depth
    return None
