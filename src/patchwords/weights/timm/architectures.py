"""timm's architectures: what a name says that the tensors do not show.

Sources: the functions with @register_model in vision_transformer.py, deit.py,
vision_transformer_hybrid.py and resnetv2.py of timm 1.0.31. A name that is not here is refused: its
model may compute something else from the same tensors.
"""

from __future__ import annotations

import re
from typing import Any

from patchwords.errors import ConfigError, WeightsError
from patchwords.models.config import ViTConfig
from patchwords.models.zoo import resolve_model

# Names that follow no rule -> heads.
HEADS_BY_ARCHITECTURE = {
    "vit_medium_patch16_gap_240": 8,
    "vit_medium_patch16_gap_256": 8,
    "vit_medium_patch16_gap_384": 8,
    "vit_betwixt_patch16_gap_256": 10,
    "vit_base_patch16_gap_224": 16,
    "vit_huge_patch14_gap_224": 16,
    "vit_huge_patch16_gap_448": 16,
    "vit_giant_patch16_gap_224": 16,
    "vit_base_patch16_224_miil": 12,
    "vit_base_patch32_plus_256": 14,
    "vit_base_patch16_plus_240": 14,
    "vit_base_patch16_plus_clip_240": 14,
    "vit_small_patch16_36x1_224": 6,
    "deit_tiny_patch16_224": 3,
    "deit_small_patch16_224": 6,
    "deit_base_patch16_224": 12,
    "deit_base_patch16_384": 12,
    "deit_tiny_distilled_patch16_224": 3,
    "deit_small_distilled_patch16_224": 6,
    "deit_base_distilled_patch16_224": 12,
    "deit_base_distilled_patch16_384": 12,
    "deit3_small_patch16_224": 6,
    "deit3_small_patch16_384": 6,
    "deit3_medium_patch16_224": 8,
    "deit3_base_patch16_224": 12,
    "deit3_base_patch16_384": 12,
    "deit3_large_patch16_224": 16,
    "deit3_large_patch16_384": 16,
    "deit3_huge_patch14_224": 16,
}
HEADS_BY_WORD = {
    "wee": 4,
    "little": 5,
    "xsmall": 4,
    "small": 6,
    "medium": 8,
    "mediumd": 8,
    "betwixt": 10,
    "base": 12,
    "large": 16,
    "so400m": 16,
    "huge": 16,
    "giant": 16,
    "giantopt": 16,
    "gigantic": 16,
}
DINOV2_GIANT_HEADS = 24
SIZE_BY_KIND = {"dinov2": 518, "flexivit": 240}  # pixels, where the name has none
CLIP_NORM_EPS = 1e-5
# Names whose heads are those of their word: registers, DINOv2, CLIP, SigLIP, FlexiViT.
WORD_PATTERNS = (
    r"vit_(?P<word>[a-z]+)_patch\d+_reg\d_gap_(?P<size>\d+)",
    r"vit_(?P<word>small|base|large|giant)_patch14_(?:reg4_)?(?P<kind>dinov2)",
    r"(?P<kind>flexivit)_(?P<word>small|base|large)",
    r"vit_(?P<word>[a-z]+)_patch\d+_clip_(?:quickgelu_)?(?P<size>\d+)",
    r"vit_(?P<word>[a-z]+|so400m)_patch\d+_siglip_(?:gap_)?(?P<size>\d+)",
)
# model_args that a name stands for, those of `ACT_LAYER_PATTERNS` and the epsilon of CLIP's norms.
ACT_LAYER_PATTERNS = (
    (r"vit_\w+_clip_quickgelu_\d+", "quick_gelu"),
    (
        r"vit_(?:base_patch32|so400m_patch16|giantopt_patch16)_siglip_(?:gap_)?\d+"
        r"|vit_large_patch16_siglip_(?:gap_)?512",
        "gelu_tanh",
    ),
)


def strip_tag(architecture: str) -> str:
    """Return the name without "timm/" before it and its tag.

    >>> strip_tag("timm/vit_small_patch14_dinov2.lvd142m")
    'vit_small_patch14_dinov2'
    """
    return architecture.rpartition("/")[2].partition(".")[0]


def resolve_timm_architecture(architecture: str) -> tuple[int | None, tuple[int, int]]:
    """Return heads (None: a ResNet) and image size of an architecture. Raises WeightsError."""
    plain = strip_tag(architecture)
    if plain in HEADS_BY_ARCHITECTURE:
        size = int(plain.removesuffix("_miil").rsplit("_", 1)[1])
        return HEADS_BY_ARCHITECTURE[plain], (size, size)
    for pattern in WORD_PATTERNS:
        match = re.fullmatch(pattern, plain)
        if match and match["word"] in HEADS_BY_WORD:
            parts = match.groupdict()
            word, kind = parts["word"], parts.get("kind", "")
            size = SIZE_BY_KIND[kind] if kind else int(parts["size"])
            giant = (word, kind) == ("giant", "dinov2")
            return DINOV2_GIANT_HEADS if giant else HEADS_BY_WORD[word], (size, size)
    try:
        config = resolve_model(architecture).config
    except ConfigError as error:
        raise WeightsError(
            f"timm's {architecture!r} is not known to compute what ours does ({error})"
        ) from error
    return (config.heads if isinstance(config, ViTConfig) else None), config.image_size


def get_architecture_args(architecture: str) -> dict[str, Any]:
    """Return what the name says of activation ("act_layer") and norms ("norm_eps")."""
    plain = strip_tag(architecture)
    args: dict[str, Any] = {}
    for pattern, layer in ACT_LAYER_PATTERNS:
        if re.fullmatch(pattern, plain):
            args["act_layer"] = layer
    if "_clip_" in plain:
        args["norm_eps"] = CLIP_NORM_EPS
    return args
