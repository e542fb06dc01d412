"""Configs of transformers' ViT and BiT, converted from and to ours; later ViTs: families.py.

What a file leaves out is what transformers takes then (models/vit/configuration_vit.py and
models/bit/configuration_bit.py, version 5.23).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from patchwords.data.preprocess import Interpolation, Preprocess, ResizeMode
from patchwords.errors import WeightsError
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import (
    BOTTLENECK_EXPANSION,
    GROUP_NORM_GROUPS,
    ROOT_WIDTH,
    ResNetConfig,
    TrunkConfig,
)
from patchwords.weights.convert import refuse_unsupported

# Their names of activations -> ours; the first of each is the one that we write.
GELU_BY_HIDDEN_ACT = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "quick_gelu": "quick",
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
    """Convert the config, with notes for the user. Raises ConfigError or WeightsError."""
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
    """Make the config.json of a ViT. Raises WeightsError if transformers' is another."""
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
            (bool(config.later_parts), f"it has no {' and no '.join(config.later_parts)}"),
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
    """Convert a BiT's config, which has no image size itself. Raises ConfigError or WeightsError."""
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
            (told["layer_type"] == "bottleneck" and padding == "symmetric", PADDED_BEFORE_NORM),
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
# BitEmbeddings pads by zeros, then come GroupNorm and ReLU, then the pooling: with "bottleneck" the
# border is no zero any more, and the zeros count in the statistics. "same" pads in the pooling.
PADDED_BEFORE_NORM = (
    "transformers pads the root of a bottleneck with symmetric padding before its GroupNorm and "
    "ReLU, and ours at the pooling"
)


def bit_config_to_huggingface(config: ResNetConfig) -> dict[str, Any]:
    """Make the config.json of a ResNet. Raises WeightsError if transformers' is another."""
    trunk = config.trunk
    refuse_unsupported(
        "transformers' BitForImageClassification",
        (
            (trunk.form == "plain", "it has bottlenecks, and a plain CNN has none"),
            (trunk.spatial != "convolution", "it has no axial attention"),
            (
                trunk.standardise != BIT_NUMERICS["standardise"],
                f"it standardises weights by var+1e-8, not {trunk.standardise}",
            ),
            (
                trunk.group_norm_eps != BIT_NUMERICS["group_norm_eps"],
                f"its GroupNorm has an epsilon of 1e-5, not {trunk.group_norm_eps}",
            ),
            (trunk.form == "post" and trunk.padding == "symmetric", PADDED_BEFORE_NORM),
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
    """Format a square as its side, which every version of transformers reads."""
    return sides[0] if sides[0] == sides[1] else list(sides)


# transformers' image processors: preprocessor_config.json from and to `Preprocess`.
#
# ViTImageProcessor squashes the image to a size; BitImageProcessor resizes the short side and cuts
# the centre out. Pixels are rescaled, then normalised: (x * factor - mean) / std.
# Source: image_processing_backends.py and models/{vit,bit,deit,clip,siglip}/image_processing_*.py,
# version 5.23.


PROCESSOR_FILE = "preprocessor_config.json"
INTERPOLATION_BY_RESAMPLE: dict[int, Interpolation] = {
    2: "bilinear",
    3: "bicubic",
}  # Pillow's numbers
HALF_RGB = [0.5, 0.5, 0.5]
CLIP_STATISTICS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
# What each class does where its file is silent.
PROCESSOR_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2, "image_mean": HALF_RGB, "image_std": HALF_RGB},
    "DeiT": {
        "size": 256,
        "crop_size": 224,
        "do_center_crop": True,
        "resample": 3,
        "image_mean": HALF_RGB,
        "image_std": HALF_RGB,
    },
    "Bit": {
        "size": {"shortest_edge": 224},
        "crop_size": 224,
        "do_center_crop": True,
        "resample": 3,
        **CLIP_STATISTICS,
    },
    "CLIP": {
        "size": {"shortest_edge": 224},
        "crop_size": 224,
        "do_center_crop": True,
        "resample": 3,
        **CLIP_STATISTICS,
    },
    "Siglip": {"size": 224, "resample": 3, "image_mean": HALF_RGB, "image_std": HALF_RGB},
}


def preprocess_from_huggingface(
    table: Mapping[str, Any], image_size: tuple[int, int], channels: int
) -> tuple[Preprocess, list[str]]:
    """Convert the preprocessing for images of (H, W), with notes on what is not the same.

    Raises WeightsError, or ConfigError for values that no image can have.
    """
    kind = str(table.get("image_processor_type") or table.get("feature_extractor_type") or "ViT")
    kind = re.sub(r"(ImageProcessor\w*|FeatureExtractor)$", "", kind)
    notes = []
    if kind not in PROCESSOR_DEFAULTS:
        notes.append(f"preprocessing by {kind} is read as if it were that of ViT")
    told = {**PROCESSOR_DEFAULTS.get(kind, PROCESSOR_DEFAULTS["ViT"]), **table}
    if kind in ("Bit", "CLIP") and isinstance(
        told["size"], int
    ):  # a single number of old was the short side
        told["size"] = {"shortest_edge": told["size"]}
    mean, std = read_mean_std(told, channels)
    resample = told["resample"]
    if resample not in INTERPOLATION_BY_RESAMPLE:
        notes.append(f"resample {resample} (Pillow's number) is not offered here: bicubic is taken")
    resize, fraction, more = read_resize_and_crop(told, image_size)
    preprocess = Preprocess(
        image_size=image_size,
        resize=resize,
        crop_fraction=fraction,
        interpolation=INTERPOLATION_BY_RESAMPLE.get(cast(int, resample), "bicubic"),
        mean=mean,
        std=std,
        channels=channels,  # type: ignore[arg-type]
    )
    return preprocess, notes + more


def read_mean_std(
    told: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of pixels in [0, 1], whatever their rescaling."""
    rescale = float(told.get("rescale_factor", 1 / 255)) if told.get("do_rescale", True) else 1.0
    factor = 255 * rescale  # 1, if pixels come into [0, 1] as they do here
    if abs(factor - 1) < 1e-6:
        factor = 1.0
    if not told.get("do_normalize", True):
        return (0.0,) * channels, (1 / factor,) * channels
    values = []
    for name in ("image_mean", "image_std"):
        value = told[name]
        each = [value] * channels if isinstance(value, int | float) else list(value)
        if channels == 1 and len(set(each)) == 1:
            each = each[:1]
        values.append(tuple(float(one) / factor for one in each))
    return values[0], values[1]


def read_resize_and_crop(
    told: Mapping[str, Any], image_size: tuple[int, int]
) -> tuple[ResizeMode, float, list[str]]:
    """Return `resize` and `crop_fraction` of `Preprocess`, with notes on what is not the same."""
    size = parse_processor_size(told["size"])
    crop = (
        parse_processor_size(told.get("crop_size") or told["size"])
        if told.get("do_center_crop")
        else None
    )
    notes = []
    final = crop or size
    if "height" in final and (final["height"], final["width"]) != image_size:
        notes.append(
            f"the processor makes images of {final['height']}x{final['width']}, the model takes "
            f"{image_size[0]}x{image_size[1]}: they are made of that size"
        )
    if not told.get("do_resize", True):
        return (
            "squash",
            1.0,
            [*notes, "the processor does not resize images: here it squashes them"],
        )
    if "height" in size and crop in (None, size):
        return "squash", 1.0, notes
    if "height" in size:
        notes.append(
            f"the processor squashes images to {size['height']}x{size['width']} and cuts the "
            "centre out: here their aspect ratio is kept"
        )
    elif crop is None or len(set(crop.values())) > 1:
        notes.append("the processor fits the short side of images: here they fill the whole size")
    cut, whole = (one.get("shortest_edge") or one["height"] for one in (final, size))
    return "crop", min(cut / whole, 1.0), notes


def parse_processor_size(size: Any) -> dict[str, int]:
    """Normalise a size to {"height", "width"} or {"shortest_edge"}, from any older form."""
    if isinstance(size, int):
        return {"height": size, "width": size}
    if isinstance(size, list) and len(size) == 2:
        return {"height": size[0], "width": size[1]}
    if isinstance(size, dict):
        for keys in (("height", "width"), ("shortest_edge",)):
            if all(isinstance(size.get(key), int) and size[key] > 0 for key in keys):
                return {key: size[key] for key in keys}
    raise WeightsError(
        f"{PROCESSOR_FILE}: size {size!r} is neither height and width nor shortest_edge"
    )


def preprocess_to_huggingface(preprocess: Preprocess) -> dict[str, Any]:
    """Make the processor that does the same. Raises WeightsError for a crop that it lacks."""
    height, width = preprocess.image_size
    table: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": next(
            k for k, name in INTERPOLATION_BY_RESAMPLE.items() if name == preprocess.interpolation
        ),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
        "do_convert_rgb": preprocess.channels == 3,
    }
    if preprocess.resize == "squash":
        return table
    if height != width:
        raise WeightsError(
            f"transformers has no processor that cuts {height}x{width} out of the centre: use "
            "square images, or preprocessing with resize 'squash'"
        )
    return table | {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": preprocess.covered[0]},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
    }
