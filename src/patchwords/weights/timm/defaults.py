"""timm's preprocessing by name, for files without config.json.

Source: default_cfgs in vision_transformer.py, vision_transformer_hybrid.py, deit.py and resnetv2.py
of timm 1.0.31. A name without a tag has the preprocessing of its first tag there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
IMAGENET: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
CLIP: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
BICUBIC_BIT = {**HALF, "crop_pct": 0.875, "interpolation": "bicubic"}
BICUBIC_BIT_384 = {**BICUBIC_BIT, "crop_pct": 1.0, "input_size": (3, 384, 384)}
BIT_448 = {**HALF, "crop_pct": 1.0, "interpolation": "bilinear", "input_size": (3, 448, 448)}
BIT_480 = {**BIT_448, "input_size": (3, 480, 480)}
IMAGENET_09 = {**IMAGENET, "crop_pct": 0.9, "interpolation": "bicubic"}
HALF_095 = {**HALF, "crop_pct": 0.95, "interpolation": "bicubic"}
MIIL = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "crop_pct": 0.875, "interpolation": "bilinear"}

# What differs from `default_pretrained_cfg`'s rules: preprocessing, and the names that have it.
EXCEPTIONS: tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...] = (
    (
        IMAGENET_09,
        (
            "vit_small_patch8_224",
            "vit_small_patch8_224.dino",
            "vit_small_patch16_224.dino",
            "vit_base_patch8_224.dino",
            "vit_base_patch16_224.dino",
            "vit_base_patch16_224.mae",
            "vit_large_patch16_224.mae",
            "vit_huge_patch14_224.mae",
            "vit_huge_patch14_gap_224",
            "vit_huge_patch14_gap_224.in1k_ijepa",
            "vit_huge_patch14_gap_224.in22k_ijepa",
            "vit_giant_patch16_gap_224",
            "vit_giant_patch16_gap_224.in22k_ijepa",
        ),
    ),
    (
        {**IMAGENET_09, "crop_pct": 1.0},
        (
            "vit_huge_patch16_gap_448",
            "vit_huge_patch16_gap_448.in1k_ijepa",
            "deit3_small_patch16_224.fb_in22k_ft_in1k",
            "deit3_medium_patch16_224.fb_in22k_ft_in1k",
            "deit3_base_patch16_224.fb_in22k_ft_in1k",
            "deit3_large_patch16_224.fb_in22k_ft_in1k",
            "deit3_huge_patch14_224.fb_in22k_ft_in1k",
        ),
    ),
    (
        MIIL,
        (
            "vit_base_patch16_224_miil",
            "vit_base_patch16_224_miil.in21k",
            "vit_base_patch16_224_miil.in21k_ft_in1k",
        ),
    ),
    ({**CLIP, "crop_pct": 1.0, "interpolation": "bicubic"}, ("vit_base_patch16_224.bamboo",)),
    (
        HALF_095,
        (
            "vit_base_patch16_plus_240",
            "vit_base_patch32_plus_256",
            "vit_medium_patch16_gap_240",
            "vit_medium_patch16_gap_240.sw_in12k",
            "vit_medium_patch16_gap_256",
            "vit_medium_patch16_gap_256.sw_in12k_ft_in1k",
            "vit_betwixt_patch16_gap_256",
        ),
    ),
    (
        {**HALF_095, "crop_mode": "squash"},
        ("vit_medium_patch16_gap_384", "vit_medium_patch16_gap_384.sw_in12k_ft_in1k"),
    ),
    (
        BIT_448,
        (
            "resnetv2_50x1_bit.goog_in21k_ft_in1k",
            "resnetv2_50x3_bit",
            "resnetv2_50x3_bit.goog_in21k_ft_in1k",
            "resnetv2_101x1_bit",
            "resnetv2_101x1_bit.goog_in21k_ft_in1k",
            "resnetv2_101x3_bit",
            "resnetv2_101x3_bit.goog_in21k_ft_in1k",
            "resnetv2_152x2_bit.goog_in21k_ft_in1k",
        ),
    ),
    (BIT_480, ("resnetv2_152x4_bit", "resnetv2_152x4_bit.goog_in21k_ft_in1k")),
    (
        BICUBIC_BIT,
        (
            "resnetv2_50x1_bit",
            "resnetv2_50x1_bit.goog_distilled_in1k",
            "resnetv2_152x2_bit",
            "resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k",
        ),
    ),
    (BICUBIC_BIT_384, ("resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k_384",)),
)


def bicubic(statistics: Mapping[str, Any], crop_pct: float, mode: str = "center") -> dict[str, Any]:
    """Make a preprocessing with bicubic interpolation."""
    return {**statistics, "crop_pct": crop_pct, "interpolation": "bicubic", "crop_mode": mode}


# Families of names, tags included; the first that matches counts.
FAMILIES: tuple[tuple[Mapping[str, Any], str], ...] = (
    (
        bicubic(CLIP, 1.0, "squash"),
        r"vit_base_patch16_clip_384(\.(laion2b_ft_in12k_in1k|laion2b_ft_in1k|openai_ft_in1k))?"
        r"|vit_huge_patch14_clip_336.*|vit_huge_patch14_clip_378\.metaclip2_worldwide"
        r"|vit_gigantic_patch14_clip_378.*|vit_large_patch14_clip_336\.openai_ft_in12k_in1k",
    ),
    (bicubic(CLIP, 0.95, "squash"), r"vit_base_patch(16|32)_clip_384\.openai_ft_in12k_in1k"),
    (
        bicubic(HALF, 1.0, "squash"),
        r"vit_large_patch14_clip_336(\.laion2b.*)?"
        r"|vit_so400m_patch14_siglip_(gap_)?378\.webli_ft_in1k",
    ),
    (
        bicubic(HALF, 1.0),
        r"vit_large_patch14_clip_224(\.laion2b.*)?"
        r"|vit_so400m_patch14_siglip_gap_(384.*|448.*|896.*|378\.webli)",
    ),
    (
        bicubic(CLIP, 0.95),
        r"vit_base_patch16_clip_224(\.(laion2b|openai)_ft_in12k_in1k)?",
    ),
    (
        bicubic(CLIP, 0.9),
        r"vit_(xsmall|medium|betwixt)_patch\d+_clip_224.*"
        r"|vit_base_patch16_clip_(quickgelu_)?224\.openai(_ft_in12k|_ft_in1k)?"
        r"|vit_base_patch16_clip_224\.laion2b_ft_in12k"
        r"|vit_base_patch32_clip_(quickgelu_)?224(\.(laion|openai).*)?",
    ),
    (bicubic(CLIP, 1.0), r".*_clip_.*"),
    (bicubic(HALF, 0.9), r".*_siglip_.*"),
    (bicubic(IMAGENET, 1.0), r".*_dinov2.*"),
    (bicubic(HALF, 0.95), r"flexivit_.*|vit_(?!base)\w+_reg\d_gap_256.*"),
)
CFG_BY_NAME = {name: cfg for cfg, names in EXCEPTIONS for name in names}


def default_pretrained_cfg(name: str) -> dict[str, Any]:
    """Return timm's own preprocessing for a name, with or without a tag."""
    plain = name.rpartition("/")[2]
    if plain in CFG_BY_NAME:
        return dict(CFG_BY_NAME[plain])
    for cfg, pattern in FAMILIES:
        if re.fullmatch(pattern, plain):
            return dict(cfg)
    if plain.startswith("resnetv2"):
        return {**HALF, "crop_pct": 0.875, "interpolation": "bilinear"}
    statistics = IMAGENET if plain.startswith("deit") else HALF
    crop_pct = 1.0 if "_384" in plain else 0.9
    return {**statistics, "crop_pct": crop_pct, "interpolation": "bicubic"}
