"""transformers' config.json of ViT and BiT, from and to our configs.

What a file leaves out is what transformers takes then (models/vit/configuration_vit.py and
models/bit/configuration_bit.py, version 5.23).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.errors import WeightsError
from patchwords.model.config import ViTConfig
from patchwords.model.resnet_config import ResNetConfig
from patchwords.model.trunk_config import (
    BOTTLENECK_EXPANSION,
    GROUP_NORM_GROUPS,
    ROOT_WIDTH,
    TrunkConfig,
)
from patchwords.weights.foreign import refuse_unsupported

# Their names of activations -> ours; the first of each is the one that we write.
GELU_BY_HIDDEN_ACT = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
}
VIT_CONFIG_FIELDS = {  # theirs -> ours
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp_width",
    "num_channels": "channels",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout",
}
VIT_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "num_channels": 3,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "pooler_act": "tanh",
    "image_size": 224,
    "patch_size": 16,
}
BIT_DEFAULTS: dict[str, Any] = {
    "num_channels": 3,
    "embedding_size": ROOT_WIDTH,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "embedding_dynamic_padding": False,
    "num_groups": GROUP_NORM_GROUPS,
    "width_factor": 1,
    "output_stride": 32,
}
BIT_NUMERICS = {"standardise": "var+1e-8", "group_norm_eps": 1e-5}  # in transformers' code


def vit_config_from_huggingface(
    table: Mapping[str, Any], classes: int, representation: int | None
) -> tuple[ViTConfig, list[str]]:
    """The config, and what a person should know. Raises ConfigError or WeightsError."""
    told = {**VIT_DEFAULTS, **table}
    patch_size = told["patch_size"]
    if isinstance(patch_size, list) and len(set(patch_size)) == 1:
        patch_size = patch_size[0]
    if told["hidden_act"] not in GELU_BY_HIDDEN_ACT:
        raise WeightsError(
            f"hidden_act {told['hidden_act']!r} is not offered here: it must be {', '.join(GELU_BY_HIDDEN_ACT)}"
        )
    if representation is not None and told["pooler_act"] != "tanh":
        raise WeightsError(
            f"pooler_act {told['pooler_act']!r} is not offered here: it must be tanh"
        )
    notes = []
    if told["attention_probs_dropout_prob"]:
        notes.append(
            f"dropout {told['attention_probs_dropout_prob']} of attention weights is left out: "
            "they are never dropped here (Appendix B.1)"
        )
    config = ViTConfig(
        patch_size=patch_size,
        image_size=told["image_size"],
        num_classes=classes,
        representation_size=representation,
        gelu=GELU_BY_HIDDEN_ACT[told["hidden_act"]],  # type: ignore[arg-type]
        resize="bicubic",
        **{ours: told[theirs] for theirs, ours in VIT_CONFIG_FIELDS.items()},
    )
    return config, notes


def vit_config_to_huggingface(config: ViTConfig) -> dict[str, Any]:
    """What config.json says of a ViT. Raises WeightsError where transformers' is another."""
    refuse_unsupported(
        "transformers' ViTForImageClassification",
        (
            (config.trunk is not None, "it has no hybrids"),
            (config.classifier != "token", f"it reads the class token, not {config.classifier!r}"),
            (
                (config.position, config.position_at) != ("1d", "stem"),
                f"positions are learned by index and added once, not {config.position!r} at "
                f"{config.position_at!r}",
            ),
            (
                config.mixer != "attention",
                f"tokens see one another by attention, not {config.mixer!r}",
            ),
            (
                config.representation_size is not None,
                "its classifier has no tanh layer below; fine-tuning drops it (Sec. 3.2)",
            ),
        ),
    )
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        **{theirs: getattr(config, ours) for theirs, ours in VIT_CONFIG_FIELDS.items()},
        "hidden_act": next(
            theirs for theirs, ours in GELU_BY_HIDDEN_ACT.items() if ours == config.gelu
        ),
        "attention_probs_dropout_prob": 0.0,
        "image_size": format_image_size(config.image_size),
        "patch_size": config.patch_size,
        "encoder_stride": config.patch_size,
        "qkv_bias": True,
        "initializer_range": 0.02,
    }


def bit_config_from_huggingface(
    table: Mapping[str, Any], classes: int, image_size: tuple[int, int]
) -> tuple[ResNetConfig, list[str]]:
    """The config of a BiT, which tells no image size itself. Raises ConfigError or WeightsError."""
    told = {**BIT_DEFAULTS, **table}
    units = told["depths"]
    factor = told["embedding_size"] // ROOT_WIDTH
    channels = [
        BOTTLENECK_EXPANSION * ROOT_WIDTH * factor * 2**stage for stage in range(len(units))
    ]
    padding = str(told["global_padding"] or "symmetric").lower()
    refuse_unsupported(
        "patchwords",
        (
            (told["hidden_act"] != "relu", f"hidden_act is {told['hidden_act']!r}, not relu"),
            (
                told["num_groups"] != GROUP_NORM_GROUPS,
                f"num_groups is {told['num_groups']}, not {GROUP_NORM_GROUPS}",
            ),
            (told["output_stride"] != 32, f"output_stride is {told['output_stride']}, not 32"),
            (padding not in ("symmetric", "same"), f"global_padding is {padding!r}"),
            (
                bool(told["embedding_dynamic_padding"]) != (padding == "same"),
                "embedding_dynamic_padding and global_padding pad in two ways",
            ),
            (
                told["layer_type"] not in FORM_BY_LAYER_TYPE,
                f"layer_type is {told['layer_type']!r}, none of {', '.join(FORM_BY_LAYER_TYPE)}",
            ),
            (
                [told["width_factor"] * size for size in told["hidden_sizes"]] != channels,
                f"hidden_sizes are {told['hidden_sizes']}, not {channels}",
            ),
        ),
    )
    trunk = TrunkConfig(
        units=tuple(units),
        width_factor=factor,
        form=FORM_BY_LAYER_TYPE[told["layer_type"]],  # type: ignore[arg-type]
        padding=padding,  # type: ignore[arg-type]
        pool_padding="zeros",
        **BIT_NUMERICS,  # type: ignore[arg-type]
    )
    config = ResNetConfig(trunk, image_size, told["num_channels"], classes)
    return config, []


FORM_BY_LAYER_TYPE = {"preactivation": "pre", "bottleneck": "post"}


def bit_config_to_huggingface(config: ResNetConfig) -> dict[str, Any]:
    """What config.json says of a ResNet. Raises WeightsError where transformers' is another."""
    trunk = config.trunk
    refuse_unsupported(
        "transformers' BitForImageClassification",
        (
            (trunk.spatial != "convolution", "it has no axial attention"),
            (
                trunk.standardise != BIT_NUMERICS["standardise"],
                f"it standardises weights by var+1e-8, not {trunk.standardise}",
            ),
            (
                trunk.group_norm_eps != BIT_NUMERICS["group_norm_eps"],
                f"its GroupNorm has an epsilon of 1e-5, not {trunk.group_norm_eps}",
            ),
            (
                # After the ReLU of form "post" nothing is below 0, so that both paddings are one.
                trunk.form == "pre" and trunk.pool_padding != "zeros",
                f"it pads the max-pooling by zeros, not {trunk.pool_padding!r}",
            ),
        ),
    )
    same = trunk.padding == "same"
    return {
        "model_type": "bit",
        "architectures": ["BitForImageClassification"],
        "num_channels": config.channels,
        "embedding_size": trunk.root_channels,
        "hidden_sizes": [
            BOTTLENECK_EXPANSION * trunk.root_channels * 2**stage
            for stage in range(len(trunk.units))
        ],
        "depths": list(trunk.units),
        "layer_type": next(
            theirs for theirs, ours in FORM_BY_LAYER_TYPE.items() if ours == trunk.form
        ),
        "hidden_act": "relu",
        "global_padding": "SAME" if same else None,
        "embedding_dynamic_padding": same,
        "num_groups": GROUP_NORM_GROUPS,
        "width_factor": 1,
        "output_stride": 32,
        "drop_path_rate": 0.0,
    }


def format_image_size(sides: Sequence[int]) -> int | list[int]:
    """A square by its side, which is how every version of transformers reads it."""
    return sides[0] if sides[0] == sides[1] else list(sides)
