"""Later ViTs of transformers, converted from and to ours: DeiT, MAE, MSN, I-JEPA, DINOv2, SigLIP, CLIP.

What a config leaves out is what transformers takes then (its configuration files, version 5.23).
SigLIP and CLIP are the image towers of two; the tower for text is left out.

Sizes: T tokens, D width, M MLP width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from patchwords.errors import WeightsError
from patchwords.models.config import ViTConfig
from patchwords.weights.convert import NamePairs, refuse_unsupported
from patchwords.weights.huggingface.config import (
    GELU_BY_HIDDEN_ACT,
    VIT_CONFIG_FIELDS,
    VIT_DEFAULTS,
    format_image_size,
)
from patchwords.weights.huggingface.names import CLIP_NAMES, DINOV2_NAMES, SIGLIP_NAMES, VIT_NAMES

TOWER_FIELDS = {  # theirs -> ours
    **{theirs: ours for theirs, ours in VIT_CONFIG_FIELDS.items() if ours != "dropout"},
}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
TOWER_TASK_MODELS = ("SiglipForImageClassification", "CLIPForImageClassification")


@dataclass(frozen=True)
class Family:
    """A kind of model of transformers: how it differs from its ViT."""

    prefixes: tuple[str, ...]  # before the names of the backbone, inside a larger model
    names: NamePairs = VIT_NAMES
    fields: Mapping[str, str] = field(default_factory=lambda: VIT_CONFIG_FIELDS)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where they are not those of ViT
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of ours that are fixed
    processor: Mapping[str, Any] = field(default_factory=dict)  # where there is no file of it


CLIP_PROCESSOR = {"image_processor_type": "CLIPImageProcessor"}
SIGLIP_PROCESSOR = {"image_processor_type": "SiglipImageProcessor"}
DINOV2_PROCESSOR = {"image_processor_type": "BitImageProcessor", **IMAGENET}
_CLIP = Family(
    ("vision_model.",),
    CLIP_NAMES,
    TOWER_FIELDS,
    {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", "patch_size": 32},
    {"pre_norm": True, "patch_bias": False},
    CLIP_PROCESSOR,
)
_SIGLIP = Family(
    ("vision_model.",),
    SIGLIP_NAMES,
    TOWER_FIELDS,
    {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    {"classifier": "map"},
    SIGLIP_PROCESSOR,
)
FAMILIES: dict[str, Family] = {
    "deit": Family(
        ("deit.",),
        (
            *(pair for pair in VIT_NAMES if pair[0] != "head.linear"),
            ("distillation_token", "embeddings.distillation_token"),
            ("head.linear", "cls_classifier"),
            ("head.distillation", "distillation_classifier"),
        ),
        settings={"distillation": True},
        processor={"image_processor_type": "DeiTImageProcessor", **IMAGENET},
    ),
    "vit_mae": Family(("vit.",), processor=IMAGENET),
    "vit_msn": Family(("vit.",), defaults={"layer_norm_eps": 1e-6}, processor=IMAGENET),
    "ijepa": Family(("ijepa.",), settings={"classifier": "gap"}, processor=IMAGENET),
    "dinov2": Family(
        ("dinov2.",),
        DINOV2_NAMES,
        defaults={"layer_norm_eps": 1e-6, "patch_size": 14, "layerscale_value": 1.0},
        processor=DINOV2_PROCESSOR,
    ),
    "dinov2_with_registers": Family(
        ("dinov2_with_registers.",),
        DINOV2_NAMES,
        defaults={"layer_norm_eps": 1e-6, "layerscale_value": 1.0, "num_register_tokens": 4},
        settings={"resize": "bicubic-antialias"},
        processor=DINOV2_PROCESSOR,
    ),
    "siglip_vision_model": _SIGLIP,
    "siglip": _SIGLIP,
    "clip_vision_model": _CLIP,
    "clip": _CLIP,
}


def read_family_config(
    kind: str, table: Mapping[str, Any], weights: Mapping[str, Tensor], classes: int
) -> ViTConfig:
    """Convert the config of a family; `weights` have our names. Raises ConfigError or WeightsError."""
    family = FAMILIES[kind]
    table = table.get("vision_config") or table
    told = {**VIT_DEFAULTS, **family.defaults, **table}
    if told["hidden_act"] not in GELU_BY_HIDDEN_ACT:
        raise WeightsError(
            f"hidden_act {told['hidden_act']!r} is not offered here: it must be "
            f"{', '.join(GELU_BY_HIDDEN_ACT)}"
        )
    settings: dict[str, Any] = {
        "patch_size": told["patch_size"],
        "image_size": told["image_size"],
        "num_classes": classes,
        "gelu": GELU_BY_HIDDEN_ACT[told["hidden_act"]],
        "resize": "bicubic",
        **{ours: told[theirs] for theirs, ours in family.fields.items()},
        **family.settings,
    }
    patch_size = settings["patch_size"]
    if isinstance(patch_size, list) and len(set(patch_size)) == 1:
        settings["patch_size"] = patch_size[0]
    if kind.startswith("dinov2"):
        settings |= read_dinov2_settings(told, weights)
    return ViTConfig(**settings)


def read_dinov2_settings(told: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what DINOv2's config has beyond ViT's. Its MLP's width is in no field."""
    classifier = weights.get("head.linear.weight")  # [classes, D or 2D]
    both = classifier is not None and classifier.shape[1] == 2 * told["hidden_size"]
    return {
        "mlp_width": weights["encoder.blocks.0.mlp.fc2.weight"].shape[1],
        "swiglu": bool(told.get("use_swiglu_ffn", False)),
        "layer_scale": float(told["layerscale_value"]),
        "registers": told.get("num_register_tokens", 0),
        "drop_path": told.get("drop_path_rate") or 0.0,
        "classifier": "token+gap" if both else "token",
    }


def refuse_task_model(kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse models whose classifier reads other features than ours."""
    if kind == "deit" and "classifier.weight" in tensors:
        raise WeightsError(
            "its classifier reads the class token alone, and ours both tokens: read a "
            "DeiTForImageClassificationWithTeacher, or a DeiTModel and train a new head"
        )
    if FAMILIES[kind].fields is TOWER_FIELDS and "classifier.weight" in tensors:
        raise WeightsError(
            f"{', '.join(TOWER_TASK_MODELS)} classify the mean of the patches, past the pooling of "
            "the image tower: read the tower, and train a new head"
        )


# The tensors of image towers that have other shapes than ours.


def restore_tower_shapes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring class embedding, positions and the pooling's projection to the shapes of ours."""
    result: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name == "embeddings.class_embedding" and value.ndim == 1:
            result[name] = value[None, None]  # [1, 1, D]
        elif name == "embeddings.position_embedding.weight" and value.ndim == 2:
            result[name] = value[None]  # [1, T, D]
        elif name.startswith("head.attention.in_proj_"):
            parameter = name.rpartition("_")[2]
            width = len(value) // 3
            result[f"head.attention.query.{parameter}"] = value[:width]
            result[f"head.attention.key_value.{parameter}"] = value[width:]
        else:
            result[name] = value
    return result


def make_tower_shapes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring tensors to the shapes of an image tower: the inverse of `restore_tower_shapes`."""
    result: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name == "embeddings.class_embedding":
            result[name] = value[0, 0]
        elif name == "embeddings.position_embedding.weight":
            result[name] = value[0]
        elif name.startswith("head.attention.query."):
            rest = tensors[name.replace("query", "key_value")]
            parameter = name.rpartition(".")[2]
            result[f"head.attention.in_proj_{parameter}"] = torch.cat([value, rest])
        elif not name.startswith("head.attention.key_value."):
            result[name] = value
    return result


# Ours, written.


def choose_family(config: ViTConfig) -> str | None:
    """Choose the model type that can hold this model; None for a plain ViT."""
    if config.distillation:
        return "deit"
    if config.pre_norm:
        return "clip_vision_model"
    if config.classifier == "map":
        return "siglip_vision_model"
    if config.registers:
        return "dinov2_with_registers"
    if config.layer_scale is not None or config.swiglu or config.classifier == "token+gap":
        return "dinov2"
    return None


ARCHITECTURES = {  # model type -> its class with a classifier, and the one without
    "deit": ("DeiTForImageClassificationWithTeacher", None),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Model"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersModel",
    ),
    "clip_vision_model": (None, "CLIPVisionModel"),
    "siglip_vision_model": (None, "SiglipVisionModel"),
}


def make_family_config(kind: str, config: ViTConfig, headed: bool) -> dict[str, Any]:
    """Make the config.json of a family; `headed`: the classifier is trained.

    Raises WeightsError for a model that the family cannot express.
    """
    family = FAMILIES[kind]
    with_head, without = ARCHITECTURES[kind]
    reads_both = config.classifier == "token+gap"
    dinov2 = kind.startswith("dinov2")
    if dinov2:
        with_head = with_head if reads_both else None
    architecture = with_head if headed or without is None else (with_head or without)
    allowed = set(family.settings)
    if dinov2:
        allowed |= {"layer_scale", "swiglu", "registers"}
    extra = [part for part in config.later_parts if part not in allowed]
    lacking = [name for name, value in family.settings.items() if not _has(config, name, value)]
    refuse_unsupported(
        f"transformers' {without or with_head}",
        (
            (config.trunk is not None, "it has no hybrids"),
            (bool(extra), f"it has no {' and no '.join(extra)}"),
            (
                bool(lacking),
                f"its {', '.join(f'{name} is {family.settings[name]}' for name in lacking)}",
            ),
            (dinov2 and config.layer_scale is None, "it has LayerScale"),
            (
                (config.position, config.position_at) != ("1d", "stem"),
                f"positions are learned by index and added once, not {config.position!r} at "
                f"{config.position_at!r}",
            ),
            (
                config.mixer != "attention",
                f"tokens see one another by attention, not {config.mixer!r}",
            ),
            (config.representation_size is not None, "it has no tanh layer below a classifier"),
            (
                dinov2 and config.swiglu and config.mlp_width != compute_swiglu_width(config.width),
                f"its gated MLP has a width of {compute_swiglu_width(config.width)}",
            ),
            (
                dinov2 and not config.swiglu and config.mlp_width % config.width != 0,
                f"its MLP is a multiple of {config.width} wide, and this one {config.mlp_width}",
            ),
            (
                architecture is None,
                "it has no classifier, or one of the class token joined to the mean of the patches: "
                "write --to timm",
            ),
        ),
    )
    return {
        "model_type": kind,
        "architectures": [architecture],
        **{theirs: getattr(config, ours) for theirs, ours in family.fields.items()},
        "hidden_act": next(
            theirs for theirs, ours in GELU_BY_HIDDEN_ACT.items() if ours == config.gelu
        ),
        "image_size": format_image_size(config.image_size),
        "patch_size": config.patch_size,
        **(make_dinov2_fields(config) if dinov2 else {}),
    }


def _has(config: ViTConfig, name: str, value: Any) -> bool:
    return name == "resize" or getattr(config, name) == value


def make_dinov2_fields(config: ViTConfig) -> dict[str, Any]:
    """Make the fields of DINOv2's config that ViT's has not."""
    fields: dict[str, Any] = {
        "mlp_ratio": 4 if config.swiglu else config.mlp_width // config.width,
        "use_swiglu_ffn": config.swiglu,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
        "qkv_bias": True,
        "use_mask_token": False,
    }
    return fields | ({"num_register_tokens": config.registers} if config.registers else {})


def compute_swiglu_width(width: int) -> int:
    """Compute the width of DINOv2's gated MLP: two thirds of 4D, up to a multiple of 8."""
    return (int(4 * width * 2 / 3) + 7) // 8 * 8
