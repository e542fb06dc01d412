"""The spellings of model names, and what each says of the model.

Sources: the paper's tables; configs/models.py of google-research/vision_transformer and the files
of AugReg; big_transfer (BiT); vision_transformer_hybrid.py and resnetv2.py of timm; the hub ids of
Hugging Face; modeling_resnet.py of jeonsworld/ViT-pytorch ("R50-ViT-B_16").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SIZE_LETTERS = ("mu", "Ti", "b", "S", "M", "B", "L", "H", "g", "G")

# timm's and Hugging Face's words for the letters.
SIZE_WORDS = {
    "tiny": "Ti",
    "small": "S",
    "base": "B",
    "large": "L",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
}

ModelFamily = Literal["ViT", "hybrid", "BiT", "Axial-ViT", "AxialResNet"]
Numerics = Mapping[str, str | float]  # fields of a config that the place of a name implies

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

# Each is matched against the whole name, in any case.
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


@dataclass(frozen=True)
class ModelName:
    """What a name says, whatever its spelling."""

    family: ModelFamily
    letter: str | None = None  # of the ViT; a key of variants.VARIANTS
    patch: int | None = None  # in a hybrid, the stride of its ResNet
    resnet: int | None = None  # the 50 of R50; None where there is a root alone ("R+ViT-Ti/16")
    factor: int = 1  # the x of R50x1
    size: int | None = None  # pixels
    numerics: Numerics = field(default_factory=dict)

    def __str__(self) -> str:
        """The canonical name."""
        depth = self.resnet or ""
        if self.family == "BiT":
            return f"BiT-R{depth}x{self.factor}"
        wide = f"x{self.factor}" if self.factor > 1 else ""
        if self.family == "AxialResNet":
            return f"AxialResNet-{depth}{wide}"
        trunk = f"R{depth}{wide}+ViT" if self.family == "hybrid" else self.family
        return f"{trunk}-{self.letter}/{self.patch}"


def parse_model_name(text: str) -> ModelName | None:
    """The name in one of SPELLINGS, or None.

    Upper and lower case matter twice: g and G are different models, and "ViT-b/32" so
    spelled is the small model of Figure 4, while "b/32", "vit-b/32" and "vit_b_32" are ViT-B/32.
    """
    for family, pattern, numerics in NAME_PATTERNS:
        if match := pattern.fullmatch(text):
            found = match.groupdict()
            return ModelName(
                family=family,
                letter=_letter(found),
                patch=_number(found, "patch") or (16 if "word" in found else None),
                resnet=_number(found, "resnet"),
                factor=_number(found, "factor") or 1,
                size=_number(found, "size"),
                numerics=numerics,
            )
    return None


def list_alternative_names(name: ModelName) -> list[str]:
    """How timm and Hugging Face would write it, for "did you mean"."""
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


def _number(found: Mapping[str, str | None], group: str) -> int | None:
    return int(found.get(group) or 0) or None


def _letter(found: Mapping[str, str | None]) -> str | None:
    """The one of LETTERS that is meant; see `parse_model_name` about case."""
    if word := found.get("word"):
        return SIZE_WORDS[word.lower()]
    letter = found.get("letter")
    if letter is None or (letter in SIZE_LETTERS and (letter != "b" or found.get("vit") == "ViT-")):
        return letter
    return {one.lower(): one for one in SIZE_LETTERS if one not in {"b", "g"}}[letter.lower()]
