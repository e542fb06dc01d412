"""The models by name: Table 1 of the paper, its relatives in the authors' code, and every spelling.

Sizes: D width, L depth, M MLP width, K heads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from patchwords.errors import ConfigError, did_you_mean
from patchwords.model.config import ViTConfig

# Letter -> D, L, M, K. B L H: Table 1. Ti S: vit_jax/configs/models.py. mu M g G: big_vision
# models/vit.py. b: the paper's Figure 4, "all hidden dimensions halved" from B, where we keep the
# head width of 64 and so halve the heads too.
VARIANTS: dict[str, tuple[int, int, int, int]] = {
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

# What `list_models` shows. The published ones, and small patches for images of 32 pixels and so.
USUAL_PATCHES: dict[str, tuple[int, ...]] = {
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

# timm's and Hugging Face's words for the letters.
WORDS = {
    "tiny": "Ti",
    "small": "S",
    "base": "B",
    "large": "L",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
}

_LETTERS = "|".join(VARIANTS)
_WORDS = "|".join(WORDS)
# ViT-B/16  B/16  ViT-B_16  vit_b_16  ViT-B_16-224
OURS = re.compile(rf"(vit[-_])?({_LETTERS})[/_-]([1-9]\d*)(?:-(\d+))?", re.IGNORECASE)
# B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_224
AUGREG = re.compile(rf"({_LETTERS})_([1-9]\d*)-(?:i1k|i21k)-\d+ep-[\w.-]*?(?:-res_(\d+))?")
# vit_base_patch16_384.augreg_in21k_ft_in1k  timm/vit_tiny_patch16_224  vit_base_patch16_224_in21k
TIMM = re.compile(
    rf"(?:hf[-_]hub:)?(?:timm/)?vit_({_WORDS})_patch([1-9]\d*)_(\d+)(?:_in21k)?(?:\.\w+)?",
    re.IGNORECASE,
)
# google/vit-base-patch16-224-in21k
HUGGING_FACE = re.compile(
    rf"(?:[\w.-]+/)?vit-({_WORDS})-patch([1-9]\d*)-(\d+)(?:-[\w.-]+)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Variant:
    """A model that a name stands for."""

    name: str  # canonical: "ViT-B/16"
    config: ViTConfig


def resolve(name: str) -> Variant:
    """The model that a name in any usual spelling stands for.

    Upper and lower case matter twice: g and G are different models, and "ViT-b/32" so
    spelled is the small model of Figure 4, while "b/32", "vit-b/32" and "vit_b_32" are ViT-B/32.

    A name tells the architecture, and the image size where it has one; else that is 224 pixels or
    the multiple of P nearest to it. timm's and Hugging Face's names also imply their numerics
    (exact GELU; epsilon 1e-12 for Hugging Face). What a name says of the training (timm's tag,
    AugReg's dropout) and of the classes is not part of the architecture and is left aside.

    >>> resolve("google/vit-base-patch16-384").name
    'ViT-B/16'
    """
    text = name.strip()
    if match := OURS.fullmatch(text):
        prefix, letter, patch, size = match.groups()
        return _variant(_letter(letter, prefix), patch, size)
    if match := AUGREG.fullmatch(text):
        letter, patch, size = match.groups()
        return _variant(_letter(letter, None), patch, size)
    if match := TIMM.fullmatch(text):
        word, patch, size = match.groups()
        return _variant(WORDS[word.lower()], patch, size, gelu="erf")
    if match := HUGGING_FACE.fullmatch(text):
        word, patch, size = match.groups()
        return _variant(WORDS[word.lower()], patch, size, gelu="erf", norm_eps=1e-12)
    spelled = [f"vit_{word}_patch{p}_224" for word in WORDS for p in USUAL_PATCHES[WORDS[word]]]
    hub = ["google/" + timm.replace("_", "-") for timm in spelled]
    hint = did_you_mean(text, list_models() + spelled + hub)
    raise ConfigError(f"unknown model {name!r}{hint or '; `patchwords models` lists the names'}")


def list_models(pattern: str = "*") -> list[str]:
    """Canonical names, smallest model first; `pattern` is a glob, in any case if need be.

    Any other patch size works as well: "ViT-B/20".

    >>> list_models("*h/*")
    ['ViT-H/14']
    """
    names = [f"ViT-{letter}/{patch}" for letter in VARIANTS for patch in USUAL_PATCHES[letter]]
    exact = [name for name in names if fnmatchcase(name, pattern)]  # ViT-b is not ViT-B
    return exact or [name for name in names if fnmatchcase(name.lower(), pattern.lower())]


def _letter(text: str, prefix: str | None) -> str:
    """The key of VARIANTS that is meant; see `resolve` about case."""
    if text in VARIANTS and (text != "b" or prefix == "ViT-"):
        return text
    folded = {letter.lower(): letter for letter in VARIANTS if letter not in {"b", "g"}}
    return folded[text.lower()]


def _variant(letter: str, patch: str, size: str | None, **numerics: str | float) -> Variant:
    patch_size = int(patch)
    width, depth, mlp_width, heads = VARIANTS[letter]
    # max: patches larger than 224 pixels still make one
    pixels = int(size) if size else max(round(224 / patch_size), 1) * patch_size
    config = ViTConfig(
        patch_size=patch_size,
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
        image_size=(pixels, pixels),
    )
    return Variant(f"ViT-{letter}/{patch_size}", config.with_settings(**numerics))
