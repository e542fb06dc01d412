"""Models by name: tables of variants, a resolver of spellings, the list, `create_model`.

Sources: Table 1 of the paper and its ResNets and hybrids; configs/models.py of
google-research/vision_transformer and the files of AugReg; big_transfer (BiT);
vision_transformer_hybrid.py and resnetv2.py of timm; the hub ids of Hugging Face;
modeling_resnet.py of jeonsworld/ViT-pytorch ("R50-ViT-B_16").

Sizes: D width, L depth, M MLP width, K heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from patchwords.errors import ConfigError, did_you_mean
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import (
    BIT_TRUNK,
    HYBRID_TRUNK,
    PLAIN_TRUNK,
    ConvStemConfig,
    ResNetConfig,
    TrunkConfig,
)

if TYPE_CHECKING:  # names are resolved without torch
    from patchwords.models.build import Model


# Tables: the variants, and which of them are listed

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

# What `list_models` shows: published models, and small patches for images of about 32 pixels.
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
# ResNet (None: the root alone), letter, down-sampling. R50: Table 6; the others are of
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
# Down-sampling by a convolutional stem -> its layers.
STEM_LAYERS = {4: 2, 8: 3, 16: 4}
USUAL_STEMS: tuple[tuple[str, int], ...] = (("Ti", 4), ("S", 8))
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
LISTED_CNNS: tuple[tuple[int, int], ...] = ((4, 1), (4, 2), (8, 2))  # layers, width factor: ours
# Convolutions -> units of each stage after the first layer. With 8, the last two of four layers
# have a residual unit of two convolutions after them.
CNN_UNITS: dict[int, tuple[int, ...]] = {
    2: (1,),
    3: (1, 1),
    4: (1, 1, 1),
    5: (1, 1, 1, 1),
    8: (1, 2, 2),
}


# Spellings: the official ones, timm's, Hugging Face's, AugReg's

SIZE_LETTERS = ("mu", "Ti", "b", "S", "M", "B", "L", "H", "g", "G")

# Sizes in the names of timm and Hugging Face -> letters.
SIZE_WORDS = {
    "tiny": "Ti",
    "small": "S",
    "base": "B",
    "large": "L",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
}

ModelFamily = Literal["ViT", "hybrid", "C+ViT", "BiT", "Axial-ViT", "AxialResNet", "CNN"]
MIXER_FAMILIES: dict[str, ModelFamily] = {"attention": "ViT", "axial": "Axial-ViT"}
Numerics = Mapping[str, str | float]  # config fields that a spelling implies

OFFICIAL_NUMERICS: Numerics = {}
TIMM_NUMERICS: Numerics = {"gelu": "erf"}
TIMM_HYBRID_NUMERICS: Numerics = {"gelu": "erf", "standardise": "var+1e-8", "group_norm_eps": 1e-5}
TIMM_RESNET_NUMERICS: Numerics = {"standardise": "var+1e-8"}
HUGGING_FACE_NUMERICS: Numerics = {"gelu": "erf", "norm_eps": 1e-12}

_LETTER = rf"(?P<letter>{'|'.join(SIZE_LETTERS)})"
_WORD = rf"(?P<word>{'|'.join(SIZE_WORDS)})"
_PATCH = r"(?P<patch>[1-9]\d*)"
_SIZE = r"(?P<size>[1-9]\d*)"
_RESNET = r"R(?P<resnet>\d*)(?:x(?P<factor>[1-9]\d*))?"
_AUGREG = rf"{_LETTER}_{_PATCH}-(?:i1k|i21k)-\d+ep-[\w.-]*?(?:-res_{_SIZE})?"
_TIMM = r"(?:hf[-_]hub:)?(?:timm/)?"
_TAG = r"(?:_in21k)?(?:\.\w+)?"

# Matched against the whole name, in upper or lower case.
NAME_SPELLINGS: tuple[tuple[ModelFamily, str, Numerics], ...] = (
    # ViT-B/16  B/16  ViT-B_16  vit_b_16  ViT-B_16-224
    ("ViT", rf"(?P<vit>vit[-_])?{_LETTER}[/_-]{_PATCH}(?:-{_SIZE})?", OFFICIAL_NUMERICS),
    # B_16-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_224
    ("ViT", _AUGREG, OFFICIAL_NUMERICS),
    # vit_base_patch16_384.augreg_in21k_ft_in1k  timm/vit_tiny_patch16_224
    # vit_base_patch16_224_in21k
    ("ViT", rf"{_TIMM}vit_{_WORD}_patch{_PATCH}_{_SIZE}{_TAG}", TIMM_NUMERICS),
    # google/vit-base-patch16-224-in21k
    ("ViT", rf"(?:[\w.-]+/)?vit-{_WORD}-patch{_PATCH}-{_SIZE}(?:-[\w.-]+)?", HUGGING_FACE_NUMERICS),
    # R50+ViT-B/16  R50x2+ViT-B/32  R+ViT-Ti/16  R50-ViT-B_16
    (
        "hybrid",
        rf"{_RESNET}[+_-](?P<vit>vit[-_])?{_LETTER}[/_-]{_PATCH}(?:-{_SIZE})?",
        OFFICIAL_NUMERICS,
    ),
    # R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1  R_Ti_16-i1k-...
    ("hybrid", rf"{_RESNET}_{_AUGREG}", OFFICIAL_NUMERICS),
    # vit_base_r50_s16_224.orig_in21k  vit_tiny_r_s16_p8_224
    (
        "hybrid",
        rf"{_TIMM}vit_{_WORD}_{_RESNET}_s{_PATCH}(?:_p8)?_{_SIZE}{_TAG}",
        TIMM_HYBRID_NUMERICS,
    ),
    # vit_base_resnet50_384: timm's older name of vit_base_r50_s16_384, and of that alone
    (
        "hybrid",
        rf"{_TIMM}vit_(?P<word>base)_resnet(?P<resnet>50)_{_SIZE}{_TAG}",
        TIMM_HYBRID_NUMERICS,
    ),
    # C+ViT-Ti/4  C+Ti/4  c_vit_ti_4: a convolutional stem, ours
    ("C+ViT", rf"C[+_-](?P<vit>vit[-_])?{_LETTER}[/_-]{_PATCH}(?:-{_SIZE})?", OFFICIAL_NUMERICS),
    # BiT-R50x1  R50x1  BiT-M-R50x1  BiT-S-R101x3-ILSVRC2012
    ("BiT", r"R(?P<resnet>\d+)x(?P<factor>[1-9]\d*)", OFFICIAL_NUMERICS),
    ("BiT", r"BiT[-_]R(?P<resnet>\d+)(?:x(?P<factor>[1-9]\d*))?", OFFICIAL_NUMERICS),
    ("BiT", r"BiT-[SML]-R(?P<resnet>\d+)x(?P<factor>[1-9]\d*)(?:-[\w.-]+)?", OFFICIAL_NUMERICS),
    # resnetv2_50x1_bit.goog_in21k_ft_in1k  resnetv2_50x1_bitm_in21k
    # resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k_384
    (
        "BiT",
        rf"{_TIMM}resnetv2_(?P<resnet>\d+)x(?P<factor>[1-9]\d*)_bitm?"
        rf"(?:_in21k|_distilled|_teacher)?(?:\.\w+?)?(?:_{_SIZE})?",
        TIMM_RESNET_NUMERICS,
    ),
    # google/bit-50
    ("BiT", r"(?:google/)?bit-(?P<resnet>50)", TIMM_RESNET_NUMERICS),
    # CNN-4x1: four layers, without residuals; CNN-8x2: with two residual units; ours
    ("CNN", r"CNN[-_](?P<resnet>[23458])x(?P<factor>[1-9]\d*)", OFFICIAL_NUMERICS),
    # Axial-ViT-B/16  AxialViT-B/16  axial_vit_b_16
    (
        "Axial-ViT",
        rf"axial[-_]?(?P<vit>vit[-_]){_LETTER}[/_-]{_PATCH}(?:-{_SIZE})?",
        OFFICIAL_NUMERICS,
    ),
    # AxialResNet-50  AxialResNet50  axial_resnet_50
    (
        "AxialResNet",
        r"axial[-_]?resnet[-_]?(?P<resnet>\d+)(?:x(?P<factor>[1-9]\d*))?",
        OFFICIAL_NUMERICS,
    ),
)
NAME_PATTERNS = tuple(
    (family, re.compile(pattern, re.IGNORECASE), numerics)
    for family, pattern, numerics in NAME_SPELLINGS
)


# Resolver: a name -> a config


@dataclass(frozen=True)
class ModelVariant:
    """A canonical name and its config."""

    name: str  # canonical: "ViT-B/16", "R50+ViT-B/16", "BiT-R50x1", "Axial-ViT-B/16"
    config: ViTConfig | ResNetConfig


def resolve_model(name: str) -> ModelVariant:
    """Find the config of a model name in any usual spelling. Raises ConfigError.

    A name tells the architecture, and the image size where it has one; else that is 224 pixels or
    the multiple of P nearest to it. timm's and Hugging Face's names also imply their numerics
    (GELU, epsilons, how weights are standardised). What a name says of the training (timm's tag,
    AugReg's dropout) and of the classes is not part of the architecture and is ignored.

    >>> resolve_model("google/vit-base-patch16-384").name
    'ViT-B/16'
    """
    parsed = parse_model_name(name.strip())
    if parsed is None:
        listed = filter(None, map(parse_model_name, list_models()))
        others = [spelling for known in listed for spelling in list_alternative_names(known)]
        hint = did_you_mean(name.strip(), list_models() + others)
        raise ConfigError(
            f"unknown model {name!r}{hint or '; `patchwords models` lists the names'}"
        )
    config = make_resnet_config(parsed) if parsed.letter is None else make_vit_config(parsed)
    size = {"image_size": parsed.size} if parsed.size else {}
    return ModelVariant(str(parsed), config.with_settings(**size, **parsed.numerics))


@dataclass(frozen=True)
class ModelName:
    """The parts of a model name, independent of its spelling."""

    family: ModelFamily
    letter: str | None = None  # a key of VIT_VARIANTS
    patch: int | None = None  # in a hybrid, the stride before its patches
    resnet: int | None = None  # the 50 of R50; None: the root alone ("R+ViT-Ti/16")
    factor: int = 1  # the x of R50x1
    size: int | None = None  # pixels
    numerics: Numerics = field(default_factory=dict)

    def __str__(self) -> str:
        """The canonical name."""
        depth = self.resnet or ""
        if self.family == "BiT":
            return f"BiT-R{depth}x{self.factor}"
        if self.family == "CNN":
            return f"CNN-{depth}x{self.factor}"
        wide = f"x{self.factor}" if self.factor > 1 else ""
        if self.family == "AxialResNet":
            return f"AxialResNet-{depth}{wide}"
        trunk = f"R{depth}{wide}+ViT" if self.family == "hybrid" else self.family
        return f"{trunk}-{self.letter}/{self.patch}"


def parse_model_name(text: str) -> ModelName | None:
    """Parse a name by NAME_SPELLINGS; None for any other text.

    Case matters twice: g and G are different models, and "ViT-b/32" spelled exactly so is the
    small model of Figure 4, while "b/32", "vit-b/32" and "vit_b_32" are ViT-B/32.
    """
    for family, pattern, numerics in NAME_PATTERNS:
        if match := pattern.fullmatch(text):
            groups = match.groupdict()
            return ModelName(
                family=family,
                letter=_letter(groups),
                patch=_number(groups, "patch") or (16 if "word" in groups else None),
                resnet=_number(groups, "resnet"),
                factor=_number(groups, "factor") or 1,
                size=_number(groups, "size"),
                numerics=numerics,
            )
    return None


def _number(groups: Mapping[str, str | None], group: str) -> int | None:
    return int(groups.get(group) or 0) or None


def _letter(groups: Mapping[str, str | None]) -> str | None:
    """The letter of SIZE_LETTERS; `parse_model_name` explains the case."""
    if word := groups.get("word"):
        return SIZE_WORDS[word.lower()]
    letter = groups.get("letter")
    if letter is None or (
        letter in SIZE_LETTERS and (letter != "b" or groups.get("vit") == "ViT-")
    ):
        return letter
    return {known.lower(): known for known in SIZE_LETTERS if known not in {"b", "g"}}[
        letter.lower()
    ]


def list_alternative_names(name: ModelName) -> list[str]:
    """Spellings of timm and Hugging Face, for "did you mean"."""
    depth, patch = name.resnet or "", name.patch
    if name.family == "BiT":
        return [f"resnetv2_{depth}x{name.factor}_bit"]
    word = next((word for word, letter in SIZE_WORDS.items() if letter == name.letter), None)
    if word is None:
        return []
    if name.family == "hybrid":
        return [f"vit_{word}_r{depth}_s{patch}{'' if depth else '_p8'}_224"]
    if name.family == "ViT":
        return [f"vit_{word}_patch{patch}_224", f"google/vit-{word}-patch{patch}-224"]
    return []


def make_vit_config(name: ModelName) -> ViTConfig:
    """Make a ViT, a hybrid (Sec. 3.1) or an Axial-ViT (Appendix D.6) of Table 1's sizes."""
    assert name.letter is not None
    assert name.patch is not None
    width, depth, mlp_width, heads = VIT_VARIANTS[name.letter]
    shape = ViTConfig(width=width, depth=depth, mlp_width=mlp_width, heads=heads)
    if name.family == "hybrid":
        trunk = make_hybrid_trunk(name)
        # The root alone has patches of 8 (vit_jax/configs/models.py): that makes 32 pixels, not 16.
        return shape.with_settings(patch_size=1 if trunk.units else 8, trunk=trunk)
    if name.family == "C+ViT":
        return shape.with_settings(patch_size=1, trunk=make_conv_stem(name, width))
    # max: patches larger than 224 pixels still make one
    pixels = max(round(224 / name.patch), 1) * name.patch
    mixer = next(mixer for mixer, family in MIXER_FAMILIES.items() if family == name.family)
    return shape.with_settings(patch_size=name.patch, image_size=pixels, mixer=mixer)


def make_hybrid_trunk(name: ModelName) -> TrunkConfig:
    """Make the ResNet before a ViT; the number in the name is its down-sampling (Sec. 3.1).

    For 16, the units of the last stage are in the one before. Raises ConfigError.
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


def make_conv_stem(name: ModelName, width: int) -> ConvStemConfig:
    """Make a convolutional stem: channels double from 64 (CCT), up to the width.

    Raises ConfigError for a down-sampling that is not in STEM_LAYERS.
    """
    if name.patch not in STEM_LAYERS:
        would_do = ", ".join(str(replace(name, patch=stride)) for stride in STEM_LAYERS)
        raise ConfigError(f"there is no {name}, but {would_do}: each layer of the stem halves")
    layers = range(STEM_LAYERS[name.patch])
    return ConvStemConfig(tuple(min(64 * 2**layer, width) for layer in layers))


def make_resnet_config(name: ModelName) -> ResNetConfig:
    """Make a BiT (Sec. 4.1), a CNN, or an AxialResNet (App. D.6), which has the hybrids' form."""
    if name.family == "CNN":
        plain = replace(PLAIN_TRUNK, units=CNN_UNITS[name.resnet or 4])
        return ResNetConfig(trunk=replace(plain, width_factor=name.factor))
    axial = name.family == "AxialResNet"
    config = ResNetConfig(trunk=replace(HYBRID_TRUNK, spatial="axial") if axial else BIT_TRUNK)
    return config.with_settings(units=get_stage_units(name), width_factor=name.factor)


def get_stage_units(name: ModelName) -> tuple[int, ...]:
    """Units of each stage. Raises ConfigError for a depth that no ResNet of the paper has."""
    if name.resnet not in RESNET_UNITS:
        there_is = ", ".join(f"R{depth}" for depth in RESNET_UNITS)
        raise ConfigError(f"{name}: there is no R{name.resnet or ''}; choose from {there_is}")
    return RESNET_UNITS[name.resnet]


# List, and a model with initial weights


def list_models(pattern: str = "*") -> list[str]:
    """List canonical names that match a glob, by family and then by size.

    Upper and lower case count if that gives a match. Other names work as well: any patch size
    ("ViT-B/20"), ResNet, width factor ("BiT-R101x2") and pair of a hybrid ("R101+ViT-H/32").

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
        *(ModelName("C+ViT", letter, stride) for letter, stride in USUAL_STEMS),
        *(ModelName("BiT", resnet=depth, factor=factor) for depth, factor in LISTED_RESNETS),
        *(ModelName("Axial-ViT", letter, patch) for letter, patch in LISTED_AXIAL_VITS),
        *(ModelName("AxialResNet", resnet=depth) for depth in LISTED_AXIAL_RESNETS),
        *(ModelName("CNN", resnet=depth, factor=factor) for depth, factor in LISTED_CNNS),
    ]
    texts = [str(name) for name in names]
    exact = [text for text in texts if fnmatchcase(text, pattern)]  # ViT-b is not ViT-B
    return exact or [text for text in texts if fnmatchcase(text.lower(), pattern.lower())]


def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    image_size: int | Sequence[int] | None = None,
    channels: int = 3,
    seed: int = 0,
    **config: Any,
) -> Model:
    """Create a model by name ("ViT-B/16") with the authors' initial weights.

    `image_size` is one number or (height, width); default: that of the name. `config` are fields
    of ViTConfig and override what the name implies. A `mixer` may be `package.module:Class`.

    >>> create_model("ViT-Ti/16", num_classes=10, classifier="gap").config.tokens
    196
    """
    import torch

    from patchwords.models.build import build_model
    from patchwords.models.init import init_weights

    if image_size is not None:
        config["image_size"] = image_size
    settings = resolve_model(name).config.with_settings(
        num_classes=num_classes, channels=channels, **config
    )
    device = torch.get_default_device()
    with torch.device("meta"):  # torch's own initial weights are neither needed nor drawn
        model = build_model(settings)
    if device.type != "meta":
        model = model.to_empty(device=device)
        init_weights(model, seed)
    return model
