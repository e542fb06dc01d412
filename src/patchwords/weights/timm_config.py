"""From what a timm file says to our configs.

The tensors tell most sizes; the name of the architecture tells the heads, which no shape shows,
and by its place in a table that the model computes what ours does. Sources: the functions with
@register_model in vision_transformer.py, deit.py, vision_transformer_hybrid.py and resnetv2.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from patchwords.errors import ConfigError, WeightsError
from patchwords.model.checks import to_height_width
from patchwords.model.config import ViTConfig
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import ROOT_WIDTH, TrunkConfig
from patchwords.model.variants import resolve_model
from patchwords.weights.foreign import refuse_unsupported

# Architectures of the same arithmetic whose names are none of ours -> heads.
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
    "deit_tiny_patch16_224": 3,
    "deit_small_patch16_224": 6,
    "deit_base_patch16_224": 12,
    "deit_base_patch16_384": 12,
    "deit3_small_patch16_224": 6,
    "deit3_small_patch16_384": 6,
    "deit3_medium_patch16_224": 8,
    "deit3_base_patch16_224": 12,
    "deit3_base_patch16_384": 12,
    "deit3_large_patch16_224": 16,
    "deit3_large_patch16_384": 16,
    "deit3_huge_patch14_224": 16,
}
GELU_BY_ACT_LAYER = {None: "erf", "gelu": "erf", "gelu_tanh": "tanh"}  # act_layer -> our gelu
LAYER_NORM_NAMES = (None, "layernorm", "LayerNorm")  # norm_layer; its epsilon is 1e-6
UNSUPPORTED_MODEL_ARGS = (
    "block_fn",
    "mlp_layer",
    "attn_layer",
    "embed_layer",
    "pool_include_prefix",
)
NORM_EPS = 1e-6  # of timm's own LayerNorm
STANDARDISE: Literal["var+1e-8"] = "var+1e-8"  # of its hybrids and of its BiT
GROUP_NORM_EPS = 1e-5


def resolve_timm_architecture(architecture: str) -> tuple[int | None, tuple[int, int]]:
    """Heads (None: a ResNet) and image size of an architecture. Raises WeightsError."""
    plain = architecture.rpartition("/")[2].partition(".")[0]
    if plain in HEADS_BY_ARCHITECTURE:
        size = int(plain.removesuffix("_miil").rsplit("_", 1)[1])
        return HEADS_BY_ARCHITECTURE[plain], (size, size)
    try:
        config = resolve_model(architecture).config
    except ConfigError as error:
        raise WeightsError(
            f"timm's {architecture!r} is not known to compute what ours does ({error})"
        ) from error
    return (config.heads if isinstance(config, ViTConfig) else None), config.image_size


def check_model_args(args: Mapping[str, Any]) -> None:
    """Refuse model_args that the tensors do not show and that ours cannot follow."""
    refuse_unsupported(
        "patchwords",
        (
            (
                args.get("act_layer") not in GELU_BY_ACT_LAYER,
                f"act_layer is {args.get('act_layer')!r}",
            ),
            (
                args.get("norm_layer") not in LAYER_NORM_NAMES,
                f"norm_layer is {args.get('norm_layer')!r}",
            ),
            *(
                (bool(args.get(part)), f"{part} is {args.get(part)!r}")
                for part in UNSUPPORTED_MODEL_ARGS
            ),
        ),
    )


def vit_config_from_timm(
    weights: Mapping[str, Tensor],
    heads: int,
    image_size: tuple[int, int],
    args: Mapping[str, Any],
) -> ViTConfig:
    """The config of tensors under our names. Raises ConfigError or WeightsError."""
    check_model_args(args)
    kernel = weights["embed.weight"]  # [D, C, P, P]
    trunk = None
    if "trunk.root.conv.weight" in weights:
        trunk = TrunkConfig(
            units=count_timm_units(weights),
            width_factor=len(weights["trunk.root.conv.weight"]) // ROOT_WIDTH,
            standardise=STANDARDISE,
            group_norm_eps=GROUP_NORM_EPS,
        )
    first = weights["trunk.root.conv.weight" if trunk else "embed.weight"]
    layer = weights.get("head.representation.weight")  # [R, D]
    return ViTConfig(
        patch_size=kernel.shape[-1],
        width=len(kernel),
        depth=len(
            {parse_name_index(name, 2) for name in weights if name.startswith("encoder.blocks.")}
        ),
        heads=args.get("num_heads") or heads,
        mlp_width=len(weights["encoder.blocks.0.mlp.fc1.weight"]),
        image_size=image_size,
        channels=first.shape[1],
        num_classes=len(weights["head.linear.weight"]),
        classifier=infer_timm_classifier(weights, args.get("global_pool")),  # type: ignore[arg-type]
        representation_size=None if layer is None else len(layer),
        gelu=GELU_BY_ACT_LAYER[args.get("act_layer")],  # type: ignore[arg-type]
        norm_eps=NORM_EPS,
        dropout=args.get("proj_drop_rate") or 0.0,
        drop_path=args.get("drop_path_rate") or 0.0,
        position="1d" if "positions.table" in weights else "none",
        resize="bicubic-antialias",
        trunk=trunk,
    )


def infer_timm_classifier(weights: Mapping[str, Tensor], pool: str | None) -> str:
    """Our classifier. Raises WeightsError for a pooling that ours has not."""
    with_token, with_map = "class_token" in weights, "head.pool.probe" in weights
    found = "token" if with_token else "map" if with_map else "gap"
    means = {"avg": "gap"}.get(pool or found, pool or found)
    refuse_unsupported(
        "patchwords",
        (
            (with_token and with_map, "attention pooling leaves out a class token that is there"),
            (means != found, f"global_pool is {pool!r}, and the tensors are for {found!r}"),
        ),
    )
    return found


def resnet_config_from_timm(
    weights: Mapping[str, Tensor], image_size: tuple[int, int]
) -> ResNetConfig:
    """The config of a BiT's tensors under our names."""
    root = weights["trunk.root.conv.weight"]  # [64 x factor, C, 7, 7]
    trunk = TrunkConfig(
        units=count_timm_units(weights),
        width_factor=len(root) // ROOT_WIDTH,
        form="pre",
        standardise=STANDARDISE,
        group_norm_eps=GROUP_NORM_EPS,
        padding="symmetric",
        pool_padding="zeros",
    )
    return ResNetConfig(trunk, image_size, root.shape[1], len(weights["head.linear.weight"]))


def count_timm_units(weights: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Residual units of each stage."""
    found: dict[int, set[int]] = {}
    for name in weights:
        if name.startswith("trunk.stages."):
            found.setdefault(parse_name_index(name, 2), set()).add(parse_name_index(name, 3))
    return tuple(len(found[stage]) for stage in sorted(found))


def parse_name_index(name: str, place: int) -> int:
    """The number at this place of a dotted name."""
    return int(name.split(".")[place])


def infer_timm_image_size(
    args: Mapping[str, Any], cfg: Mapping[str, Any], default: tuple[int, int]
) -> tuple[int, int]:
    """(H, W) that the weights are for. Raises ConfigError."""
    if args.get("img_size"):
        return to_height_width(args["img_size"])
    return to_height_width(list(cfg["input_size"])[1:]) if cfg.get("input_size") else default
