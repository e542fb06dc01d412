"""Configs of timm's models, converted from and to ours.

The tensors tell most sizes; the name of the architecture tells the heads, which no shape shows,
and by its place in a table that the model computes what ours does (architectures.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.models.checks import to_height_width
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import ROOT_WIDTH, ConvStemConfig, ResNetConfig, TrunkConfig
from patchwords.weights.convert import refuse_unsupported
from patchwords.weights.timm.architectures import CLIP_NORM_EPS
from patchwords.weights.timm.defaults import IMAGENET_MEAN, IMAGENET_STD

# act_layer -> our gelu
GELU_BY_ACT_LAYER = {None: "erf", "gelu": "erf", "gelu_tanh": "tanh", "quick_gelu": "quick"}
LAYER_NORM_NAMES = (None, "layernorm", "LayerNorm")  # norm_layer; its epsilon is 1e-6
UNSUPPORTED_MODEL_ARGS = (
    "block_fn",
    "mlp_layer",
    "attn_layer",
    "embed_layer",
    "pool_include_prefix",
)
NORM_EPS = 1e-6  # of timm's own LayerNorm
SWIGLU_ACT_LAYER = "silu"
LAYER_SCALE = 1e-5  # initial value, where neither file nor name say it
STANDARDISE: Literal["var+1e-8"] = "var+1e-8"  # of its hybrids and of its BiT
GROUP_NORM_EPS = 1e-5


def check_model_args(args: Mapping[str, Any], swiglu: bool) -> None:
    """Refuse model_args that the tensors do not show and our models cannot follow."""
    known = (None, SWIGLU_ACT_LAYER) if swiglu else GELU_BY_ACT_LAYER
    refuse_unsupported(
        "patchwords",
        (
            (
                args.get("act_layer") not in known,
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
    """Infer the config of renamed tensors. Raises ConfigError or WeightsError."""
    hidden = weights["encoder.blocks.0.mlp.fc2.weight"].shape[1]  # M
    swiglu = len(weights["encoder.blocks.0.mlp.fc1.weight"]) == 2 * hidden
    check_model_args(args, swiglu)
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
    registers = weights.get("registers")  # [1, R, D]
    scaled = "encoder.blocks.0.layer_scale1" in weights
    config = ViTConfig(
        patch_size=kernel.shape[-1],
        width=len(kernel),
        depth=len(
            {parse_name_index(name, 2) for name in weights if name.startswith("encoder.blocks.")}
        ),
        heads=args.get("num_heads") or heads,
        mlp_width=hidden,
        image_size=image_size,
        channels=first.shape[1],
        num_classes=len(weights["head.linear.weight"]),
        classifier=infer_timm_classifier(weights, args),  # type: ignore[arg-type]
        representation_size=None if layer is None else len(layer),
        gelu="erf" if swiglu else GELU_BY_ACT_LAYER[args.get("act_layer")],  # type: ignore[arg-type]
        norm_eps=args.get("norm_eps") or NORM_EPS,
        dropout=args.get("proj_drop_rate") or 0.0,
        drop_path=args.get("drop_path_rate") or 0.0,
        position="1d" if "positions.table" in weights else "none",
        resize="bicubic-antialias",
        trunk=trunk,
        class_token="class_token" in weights,
        registers=0 if registers is None else registers.shape[1],
        distillation="distillation_token" in weights,
        layer_scale=(args.get("init_values") or LAYER_SCALE) if scaled else None,
        pool_norm="head.norm.weight" in weights,
        pre_norm="pre_norm.weight" in weights,
        patch_bias="embed.bias" in weights,
        qk_norm="encoder.blocks.0.attention.q_norm.weight" in weights,
        swiglu=swiglu,
    )
    table = weights.get("positions.table")  # [1, rows, D]
    if table is not None and table.shape[1] == config.patches:  # no_embed_class
        return replace(config, class_position=False)
    return config


def infer_timm_classifier(weights: Mapping[str, Tensor], args: Mapping[str, Any]) -> str:
    """Return our classifier. Raises WeightsError for a pooling that we lack."""
    pool = args.get("global_pool")
    with_token, with_map = "class_token" in weights, "head.pool.probe" in weights
    normed = "head.norm.weight" in weights
    pooling = "map" if with_map else "token" if with_token and not normed else "gap"
    means = {"avg": "gap"}.get(pool or pooling, pool or pooling)
    if means == "gap" and pooling == "token" and args.get("fc_norm") is False:
        return "gap"  # of patches that were normalised before, the class token left out
    if means == "token" and with_token and normed:
        return "token"
    refuse_unsupported(
        "patchwords",
        ((means != pooling, f"global_pool is {pool!r}, and the tensors are for {pooling!r}"),),
    )
    return pooling


def resnet_config_from_timm(
    weights: Mapping[str, Tensor], image_size: tuple[int, int]
) -> ResNetConfig:
    """Infer the config of a BiT's renamed tensors."""
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
    """Count the residual units of each stage."""
    units: dict[int, set[int]] = {}
    for name in weights:
        if name.startswith("trunk.stages."):
            units.setdefault(parse_name_index(name, 2), set()).add(parse_name_index(name, 3))
    return tuple(len(units[stage]) for stage in sorted(units))


def parse_name_index(name: str, place: int) -> int:
    """Return the number at this position of a dotted name."""
    return int(name.split(".")[place])


def infer_timm_image_size(
    args: Mapping[str, Any], cfg: Mapping[str, Any], default: tuple[int, int]
) -> tuple[int, int]:
    """Return the (H, W) that the weights are for. Raises ConfigError."""
    if args.get("img_size"):
        return to_height_width(args["img_size"])
    return to_height_width(list(cfg["input_size"])[1:]) if cfg.get("input_size") else default


# Our models in timm: the name of an architecture, and its model_args.
#
# timm.create_model takes any size of a plain ViT, but only the ResNets that have a name there.


# What timm can build by name: units -> name.
HYBRID_ARCHITECTURES: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
RESNET_ARCHITECTURES: dict[tuple[tuple[int, ...], int], str] = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}
PLAIN_ARCHITECTURE = "vit_base_patch16_224"  # any size of a plain ViT, by model_args


def list_vit_obstacles(config: ViTConfig) -> tuple[tuple[bool, str], ...]:
    """List (whether a fault applies, why the model then cannot be written)."""
    trunk = config.trunk
    return (
        (
            config.position not in ("1d", "none") or config.position_at != "stem",
            f"positions are learned by index and added once, not {config.position!r} at "
            f"{config.position_at!r}",
        ),
        (
            config.mixer != "attention",
            f"tokens see one another by attention, not {config.mixer!r}",
        ),
        (
            config.representation_size is not None,
            "timm dropped the tanh layer under the classifier; so does fine-tuning (Sec. 3.2)",
        ),
        (
            config.norm_eps != NORM_EPS
            and (config.norm_eps != CLIP_NORM_EPS or config.swiglu or config.distillation),
            f"its LayerNorm has an epsilon of 1e-6, not {config.norm_eps}",
        ),
        (
            config.classifier == "token+gap",
            "it pools the class token or the patches, not both",
        ),
        (
            config.patch_bias == config.pre_norm,
            "its patch embedding has a bias exactly where no norm is before the blocks",
        ),
        (
            config.distillation and (config.registers > 0 or not config.class_position),
            "its models with a distillation token have no registers, and a position for each token",
        ),
        (
            config.registers > 0 and config.has_class_token and config.class_position,
            "with registers the class token has no position there",
        ),
        (
            trunk is not None and not is_timm_hybrid_trunk(trunk),
            "its hybrids standardise weights by var+1e-8, with a GroupNorm epsilon of 1e-5 and "
            f"padding 'same', and have units {', '.join(map(str, HYBRID_ARCHITECTURES))}, not {trunk}",
        ),
    )


def make_vit_model_args(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Make architecture and model_args of a ViT or hybrid. Raises WeightsError."""
    trunk = config.trunk
    refuse_unsupported("timm's VisionTransformer", list_vit_obstacles(config))
    args: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": compute_mlp_ratio(config.width, config.mlp_width),
        "class_token": config.has_class_token,
        "global_pool": {"gap": "avg"}.get(config.classifier, config.classifier),
        "fc_norm": config.pool_norm,
        "act_layer": {"erf": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}[config.gelu],
    }
    args |= make_later_part_args(config)
    if config.position == "none":
        args["pos_embed"] = "none"
    if config.dropout:
        args |= {"pos_drop_rate": config.dropout, "proj_drop_rate": config.dropout}
    if config.drop_path:
        args["drop_path_rate"] = config.drop_path
    if isinstance(trunk, TrunkConfig):
        return HYBRID_ARCHITECTURES[trunk.units], args
    return choose_architecture(config), args


def make_later_part_args(config: ViTConfig) -> dict[str, Any]:
    """Make the model_args of parts that are off in timm by default."""
    args: dict[str, Any] = {}
    if config.layer_scale is not None or config.swiglu:
        args["init_values"] = config.layer_scale
    if config.registers or not config.class_position:
        args |= {"reg_tokens": config.registers, "no_embed_class": True}
    if config.pre_norm or config.norm_eps == CLIP_NORM_EPS:
        args["pre_norm"] = config.pre_norm
    if config.qk_norm:
        args["qk_norm"] = True
    if config.swiglu:  # both halves of fc1
        args["mlp_ratio"] = compute_mlp_ratio(config.width, 2 * config.mlp_width)
        args["act_layer"] = SWIGLU_ACT_LAYER
    return args


def choose_architecture(config: ViTConfig) -> str:
    """Choose the name of an architecture that model_args can make this model of."""
    if config.distillation:
        return "deit_base_distilled_patch16_224"
    if config.swiglu:
        return "vit_giant_patch14_dinov2"
    if config.norm_eps == CLIP_NORM_EPS:
        return "vit_base_patch16_clip_224"
    return PLAIN_ARCHITECTURE


def is_timm_hybrid_trunk(trunk: TrunkConfig | ConvStemConfig) -> bool:
    """Return whether timm's hybrids have this trunk; both paddings are one after a ReLU."""
    if isinstance(trunk, ConvStemConfig):
        return False
    theirs = TrunkConfig(trunk.units, standardise=STANDARDISE, group_norm_eps=GROUP_NORM_EPS)
    return trunk.units in HYBRID_ARCHITECTURES and replace(trunk, pool_padding="lowest") == theirs


def make_resnet_model_args(config: ResNetConfig) -> tuple[str, dict[str, Any]]:
    """Make architecture and model_args of a BiT. Raises WeightsError."""
    trunk = config.trunk
    refuse_unsupported(
        "timm's ResNetV2",
        (
            ((trunk.form, trunk.spatial) != ("pre", "convolution"), "BiT's form is 'pre'"),
            (
                (trunk.standardise, trunk.group_norm_eps) != (STANDARDISE, GROUP_NORM_EPS),
                f"it standardises weights by var+1e-8 with a GroupNorm epsilon of 1e-5, not by "
                f"{trunk.standardise} with {trunk.group_norm_eps}",
            ),
            (
                (trunk.padding, trunk.pool_padding) != ("symmetric", "zeros"),
                "it pads convolutions alike at both ends and the pooling by zeros",
            ),
            (
                (trunk.units, trunk.width_factor) not in RESNET_ARCHITECTURES,
                f"it has {', '.join(RESNET_ARCHITECTURES.values())}, not units {trunk.units} times "
                f"{trunk.width_factor}",
            ),
        ),
    )
    return RESNET_ARCHITECTURES[trunk.units, trunk.width_factor], {"in_chans": config.channels}


def compute_mlp_ratio(width: int, mlp_width: int) -> float:
    """Find the ratio whose int(width * ratio) is the MLP's width."""
    ratio = mlp_width / width
    return ratio if int(width * ratio) == mlp_width else math.nextafter(ratio, math.inf)


# timm's pretrained_cfg: how images are cut and scaled, from and to `Preprocess`.
#
# Source: transforms_imagenet_eval in data/transforms_factory.py of timm 1.0. Its crop resizes the
# image to floor(size / crop_pct) at the short side and takes the centre out of that: `crop_rule`.


def preprocess_from_timm(
    cfg: Mapping[str, Any], image_size: tuple[int, int], channels: int
) -> tuple[Preprocess, list[str]]:
    """Convert the preprocessing for images of (H, W), with notes. Raises ConfigError."""
    percent = float(cfg.get("crop_pct") or 0.875)
    mode = cfg.get("crop_mode") or "center"
    interpolation = cfg.get("interpolation") or "bicubic"
    notes = []
    if interpolation not in ("bilinear", "bicubic"):
        notes.append(f"interpolation {interpolation!r} is not offered here: bicubic is taken")
        interpolation = "bicubic"
    if mode == "border" or (mode == "squash" and percent < 1):
        notes.append(f"crop_mode {mode!r} with crop_pct {percent} is read as a centre crop")
        mode = "center"
    preprocess = Preprocess(
        image_size=image_size,
        resize="squash" if mode == "squash" else "crop",
        crop_fraction=min(percent, 1.0),
        crop_rule="timm",
        interpolation=interpolation,  # type: ignore[arg-type]
        mean=expand_to_channels(cfg.get("mean") or IMAGENET_MEAN, channels),
        std=expand_to_channels(cfg.get("std") or IMAGENET_STD, channels),
        channels=channels,  # type: ignore[arg-type]
    )
    return preprocess, notes


def expand_to_channels(values: Any, channels: int) -> tuple[float, ...]:
    """Return one value per channel; of grey images, the mean of those of RGB."""
    numbers = tuple(float(value) for value in values)
    if channels == 1 and len(numbers) > 1:
        return (sum(numbers) / len(numbers),)
    return numbers * channels if len(numbers) == 1 else numbers


def preprocess_to_timm(preprocess: Preprocess) -> dict[str, Any]:
    """Make the fields from which timm.data.resolve_data_config reads the preprocessing."""
    height, width = preprocess.image_size
    squash = preprocess.resize == "squash"
    return {
        "input_size": [preprocess.channels, height, width],
        "fixed_input_size": True,
        "interpolation": preprocess.interpolation,
        "crop_pct": 1.0 if squash else compute_crop_pct(preprocess),
        "crop_mode": "squash" if squash else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def has_half_pixel_margin(preprocess: Preprocess) -> bool:
    """Return whether the corner of the centre crop lies between pixels, where timm rounds up."""
    if preprocess.resize == "squash":
        return False
    margins = (
        whole - side for whole, side in zip(preprocess.covered, preprocess.image_size, strict=True)
    )
    return any(margin % 4 == 3 for margin in margins)  # a half is rounded to the even number


def compute_crop_pct(preprocess: Preprocess) -> float:
    """Find the crop_pct whose floor gives the size that our rounding gives."""
    if preprocess.crop_rule == "timm":
        return preprocess.crop_fraction
    side, whole = preprocess.image_size[0], preprocess.covered[0]
    percent = side / whole
    # One step of a float can be what floor falls over.
    return percent if math.floor(side / percent) == whole else math.nextafter(percent, 0.0)
