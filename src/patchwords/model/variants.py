"""The models by name: Table 1 of the paper, its ResNets and hybrids, and their relatives.

Sizes: D width, L depth, M MLP width, K heads. Spellings are in names.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from patchwords.errors import ConfigError, did_you_mean
from patchwords.model.config import ViTConfig
from patchwords.model.names import ModelName, list_alternative_names, parse_model_name
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import BIT_TRUNK, HYBRID_TRUNK, TrunkConfig

# Letter -> D, L, M, K. B L H: Table 1. Ti S: vit_jax/configs/models.py. mu M g G: big_vision
# models/vit.py. b: the paper's Figure 4, "all hidden dimensions halved" from B, where we keep the
# head width of 64 and so halve the heads too.
VIT_VARIANTS: dict[str, tuple[int, int, int, int]] = {
    "mu": (32, 1, 128, 2),
    "Ti": (192, 12, 768, 3),
    "b": (384, 12, 1536, 6),
    "S": (384, 12, 1536, 6),
    "M": (512, 12, 2048, 8),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
}

# The 50 of R50 -> residual units of each stage (big_vision models/bit_paper.py). Three layers each,
# with the first convolution and the classifier, make the number. 14 is the least that has them all,
# for small images.
RESNET_UNITS: dict[int, tuple[int, ...]] = {
    14: (1, 1, 1, 1),
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}

# What `list_models` shows: the published ones, and small patches for images of 32 pixels and so.
LISTED_PATCH_SIZES: dict[str, tuple[int, ...]] = {
    "mu": (4, 16),
    "Ti": (2, 4, 8, 16),
    "b": (32,),
    "S": (4, 8, 16, 32),
    "M": (16, 32),
    "B": (4, 8, 16, 32),
    "L": (16, 32),
    "H": (14,),
    "g": (14,),
    "G": (14,),
}
# ResNet (none: the root alone), letter, down-sampling. R50: Table 6; the others are of
# vit_jax/configs/models.py.
LISTED_HYBRIDS: tuple[tuple[int | None, str, int], ...] = (
    (None, "Ti", 16),
    (26, "S", 32),
    (26, "B", 32),
    (50, "B", 32),
    (50, "B", 16),
    (50, "L", 32),
    (50, "L", 16),
)
# ResNet, width factor. R26 for small data; the others are Table 6 or released by big_transfer.
LISTED_RESNETS: tuple[tuple[int, int], ...] = (
    (26, 1),
    (50, 1),
    (50, 2),
    (50, 3),
    (101, 1),
    (101, 3),
    (152, 1),
    (152, 2),
    (152, 4),
    (200, 3),
)
# B: Figure 13. The others for small images and small data.
LISTED_AXIAL_VITS: tuple[tuple[str, int], ...] = (
    ("Ti", 4),
    ("Ti", 16),
    ("S", 16),
    ("B", 32),
    ("B", 16),
)
LISTED_AXIAL_RESNETS = (50,)  # Figure 13


@dataclass(frozen=True)
class ModelVariant:
    """A model that a name stands for."""

    name: str  # canonical: "ViT-B/16", "R50+ViT-B/16", "BiT-R50x1", "Axial-ViT-B/16"
    config: ViTConfig | ResNetConfig


def resolve_model(name: str) -> ModelVariant:
    """The model that a name in any usual spelling stands for. Raises ConfigError.

    A name tells the architecture, and the image size where it has one; else that is 224 pixels or
    the multiple of P nearest to it. timm's and Hugging Face's names also imply their numerics
    (GELU, epsilons, how weights are standardised). What a name says of the training (timm's tag,
    AugReg's dropout) and of the classes is not part of the architecture and is left aside.

    >>> resolve_model("google/make_vit_config-base-patch16-384").name
    'ViT-B/16'
    """
    found = parse_model_name(name.strip())
    if found is None:
        known = [parse_model_name(one) for one in list_models()]
        others = [
            spelling for one in known if one is not None for spelling in list_alternative_names(one)
        ]
        hint = did_you_mean(name.strip(), list_models() + others)
        raise ConfigError(
            f"unknown model {name!r}{hint or '; `patchwords models` lists the names'}"
        )
    config = make_resnet_config(found) if found.letter is None else make_vit_config(found)
    size = {"image_size": found.size} if found.size else {}
    return ModelVariant(str(found), config.with_settings(**size, **found.numerics))


def list_models(pattern: str = "*") -> list[str]:
    """Canonical names, by family and then by size; `pattern` is a glob, in any case if need be.

    Others work as well: any patch size ("ViT-B/20"), ResNet, width factor ("BiT-R101x2") and pair
    of a hybrid ("R101+ViT-H/32").

    >>> list_models("*h/*")
    ['ViT-H/14']
    """
    names = [
        *(
            ModelName("ViT", letter, patch)
            for letter in VIT_VARIANTS
            for patch in LISTED_PATCH_SIZES[letter]
        ),
        *(ModelName("hybrid", letter, stride, depth) for depth, letter, stride in LISTED_HYBRIDS),
        *(ModelName("BiT", resnet=depth, factor=factor) for depth, factor in LISTED_RESNETS),
        *(ModelName("Axial-ViT", letter, patch) for letter, patch in LISTED_AXIAL_VITS),
        *(ModelName("AxialResNet", resnet=depth) for depth in LISTED_AXIAL_RESNETS),
    ]
    texts = [str(name) for name in names]
    exact = [text for text in texts if fnmatchcase(text, pattern)]  # ViT-b is not ViT-B
    return exact or [text for text in texts if fnmatchcase(text.lower(), pattern.lower())]


def make_vit_config(name: ModelName) -> ViTConfig:
    """A ViT, a hybrid (Sec. 3.1) or an Axial-ViT (Appendix D.6) of Table 1's sizes."""
    assert name.letter is not None
    assert name.patch is not None
    width, depth, mlp_width, heads = VIT_VARIANTS[name.letter]
    shape = ViTConfig(width=width, depth=depth, mlp_width=mlp_width, heads=heads)
    if name.family == "hybrid":
        trunk = make_hybrid_trunk(name)
        # The root alone has patches of 8 (vit_jax/configs/models.py): that makes 32 pixels, not 16.
        return shape.with_settings(patch_size=1 if trunk.units else 8, trunk=trunk)
    # max: patches larger than 224 pixels still make one
    pixels = max(round(224 / name.patch), 1) * name.patch
    mixer = "axial" if name.family == "Axial-ViT" else "attention"
    return shape.with_settings(patch_size=name.patch, image_size=pixels, mixer=mixer)


def make_hybrid_trunk(name: ModelName) -> TrunkConfig:
    """The ResNet in front of a ViT; the number in the name is its down-sampling (Sec. 3.1).

    For 16, the units of the last stage stand in the one before. Raises ConfigError.
    """
    there_is = (16, 32) if name.resnet else (16,)
    if name.patch not in there_is:
        would_do = " and ".join(str(replace(name, patch=stride)) for stride in there_is)
        why = (
            "the number is by how much the ResNet divides the image's sides; the setting "
            "patch_size cuts larger patches from its features"
        )
        raise ConfigError(
            f"there is no {name}, but {would_do}" + (f": {why}" if name.resnet else "")
        )
    if name.resnet is None:
        return TrunkConfig(units=(), width_factor=name.factor)
    first, second, third, fourth = get_stage_units(name)
    units = (first, second, third, fourth) if name.patch == 32 else (first, second, third + fourth)
    return TrunkConfig(units=units, width_factor=name.factor)


def make_resnet_config(name: ModelName) -> ResNetConfig:
    """A BiT (Sec. 4.1), or an AxialResNet (Appendix D.6), which has the hybrids' form."""
    axial = name.family == "AxialResNet"
    config = ResNetConfig(trunk=replace(HYBRID_TRUNK, spatial="axial") if axial else BIT_TRUNK)
    return config.with_settings(units=get_stage_units(name), width_factor=name.factor)


def get_stage_units(name: ModelName) -> tuple[int, ...]:
    """Units of each stage. Raises ConfigError for a depth that no ResNet of the paper has."""
    if name.resnet not in RESNET_UNITS:
        there_is = ", ".join(f"R{depth}" for depth in RESNET_UNITS)
        raise ConfigError(f"{name}: there is no R{name.resnet or ''}; choose from {there_is}")
    return RESNET_UNITS[name.resnet]
