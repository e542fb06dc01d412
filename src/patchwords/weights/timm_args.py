"""What builds our models in timm: the name of an architecture, and model_args for it.

timm.create_model takes any size of a plain ViT, but only the ResNets that have a name there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from patchwords.model.config import ViTConfig
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import TrunkConfig
from patchwords.weights.foreign import refuse_unsupported
from patchwords.weights.timm_config import GROUP_NORM_EPS, NORM_EPS, STANDARDISE

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


def make_vit_model_args(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """The architecture and model_args of a ViT or hybrid. Raises WeightsError."""
    trunk = config.trunk
    refuse_unsupported(
        "timm's VisionTransformer",
        (
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
                config.norm_eps != NORM_EPS,
                f"its LayerNorm has an epsilon of 1e-6, not {config.norm_eps}",
            ),
            (
                trunk is not None and not is_timm_hybrid_trunk(trunk),
                "its hybrids standardise weights by var+1e-8, with a GroupNorm epsilon of 1e-5 and "
                f"padding 'same', and have units {', '.join(map(str, HYBRID_ARCHITECTURES))}, not {trunk}",
            ),
        ),
    )
    args: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": compute_mlp_ratio(config.width, config.mlp_width),
        "class_token": config.classifier == "token",
        "global_pool": {"gap": "avg"}.get(config.classifier, config.classifier),
        "fc_norm": False,
        "act_layer": {"erf": "gelu", "tanh": "gelu_tanh"}[config.gelu],
    }
    if config.position == "none":
        args["pos_embed"] = "none"
    if config.dropout:
        args |= {"pos_drop_rate": config.dropout, "proj_drop_rate": config.dropout}
    if config.drop_path:
        args["drop_path_rate"] = config.drop_path
    return (HYBRID_ARCHITECTURES[trunk.units] if trunk else PLAIN_ARCHITECTURE), args


def is_timm_hybrid_trunk(trunk: TrunkConfig) -> bool:
    """Whether timm's hybrids have this trunk; both paddings of the pooling are one after a ReLU."""
    theirs = TrunkConfig(trunk.units, standardise=STANDARDISE, group_norm_eps=GROUP_NORM_EPS)
    return trunk.units in HYBRID_ARCHITECTURES and replace(trunk, pool_padding="lowest") == theirs


def make_resnet_model_args(config: ResNetConfig) -> tuple[str, dict[str, Any]]:
    """The architecture and model_args of a BiT. Raises WeightsError."""
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
    """The number that timm's int(width * ratio) makes the MLP's width of."""
    ratio = mlp_width / width
    return ratio if int(width * ratio) == mlp_width else math.nextafter(ratio, math.inf)
