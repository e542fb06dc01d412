"""Files of tensors alone: official checkpoints by their file names, and timm's by architecture.

Such a file does not say how many heads its model has, how images are made, or how positions are
resized: `ORIGINS` tells it by the name under which the authors publish the file, and timm's tables
by the name of an architecture. Sources: README.md and the model code of dino, dinov2, mae,
moco-v3 and deit; models/vision_transformer.py of torchvision 0.28.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from patchwords.errors import ConfigError, WeightsError
from patchwords.models.config import PositionResize, ViTConfig
from patchwords.weights.convert import PARSE_ERRORS, LoadedWeights, read_tensors
from patchwords.weights.meta.layouts import to_timm_names
from patchwords.weights.safe_load import format_first_line
from patchwords.weights.timm import read_timm_state_dict

WORDS = {"s": "small", "b": "base", "l": "large", "g": "giant", "h": "huge"}
CENTRE_224 = {"crop_pct": 0.875}  # of an image whose short side has 256 pixels
TORCHVISION = {
    "interpolation": "bilinear",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}
MOCO = {**CENTRE_224, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
SWAG = {**TORCHVISION, "interpolation": "bicubic", "crop_pct": 1.0}


@dataclass(frozen=True)
class Origin:
    """Files that one project publishes: their names, and what the tensors do not show."""

    pattern: str  # of the file's name, without its suffix
    architecture: str  # timm's name for the same model, with the groups of the pattern
    resize: PositionResize  # of positions, as its code does it
    cfg: Mapping[str, Any] = field(default_factory=dict)  # preprocessing, where it is not timm's
    args: Mapping[str, Any] = field(default_factory=dict)  # model_args, where they are not timm's


_DEIT = r"deit_(?P<word>tiny|small|base)_(?P<kind>distilled_)?patch16_(?P<size>224|384)"
_TV = r"vit_(?P<word>[blh])_(?P<patch>16|32|14)"
ORIGINS = (
    Origin(
        r"dino_(?:deit|vit)(?P<word>small|base)(?P<patch>8|16)_(?:pretrain|full_checkpoint)\w*",
        "vit_{word}_patch{patch}_224.dino",
        "bicubic-offset",
        CENTRE_224,
    ),
    Origin(
        r"dinov2_vit(?P<word>[sblg])14_pretrain",
        "vit_{word}_patch14_dinov2.lvd142m",
        "bicubic-offset",
        CENTRE_224,
    ),
    Origin(
        r"dinov2_vit(?P<word>[sblg])14_reg4_pretrain",
        "vit_{word}_patch14_reg4_dinov2.lvd142m",
        "bicubic-antialias",
        CENTRE_224,
    ),
    Origin(
        r"mae_(?:pretrain|visualize|finetuned)_vit_(?P<word>base|large)\w*",
        "vit_{word}_patch16_224.mae",
        "bicubic",
        CENTRE_224,
    ),
    Origin(
        r"mae_(?:pretrain|finetuned)_vit_huge\w*", "vit_huge_patch14_224.mae", "bicubic", CENTRE_224
    ),
    # MoCo v3's ViT-S has 12 heads of width 32.
    Origin(r"vit-s-\d+ep(?:\.pth)?", "vit_small_patch16_224", "bicubic", MOCO, {"num_heads": 12}),
    Origin(r"vit-b-\d+ep(?:\.pth)?", "vit_base_patch16_224", "bicubic", MOCO),
    Origin(_DEIT + r"-[0-9a-f]{8}", "deit_{word}_{kind}patch16_{size}.fb_in1k", "bicubic"),
    Origin(
        r"deit_3_(?P<word>small|medium|base|large)_(?P<size>224|384)_1k(?:_v1)?",
        "deit3_{word}_patch16_{size}.fb_in1k",
        "bicubic",
    ),
    Origin(
        r"deit_3_(?P<word>small|medium|base|large)_(?P<size>224|384)_21k(?:_v1)?",
        "deit3_{word}_patch16_{size}.fb_in22k_ft_in1k",
        "bicubic",
    ),
    Origin(r"deit_3_huge_224_1k(?:_v1)?", "deit3_huge_patch14_224.fb_in1k", "bicubic"),
    Origin(r"deit_3_huge_224_21k(?:_v1)?", "deit3_huge_patch14_224.fb_in22k_ft_in1k", "bicubic"),
    Origin(
        r"vit_l_16-[0-9a-f]{8}",
        "vit_large_patch16_224",
        "bicubic",
        {**TORCHVISION, "crop_pct": 224 / 242},
    ),
    Origin(
        _TV + r"-[0-9a-f]{8}",
        "vit_{word}_patch{patch}_224",
        "bicubic",
        {**TORCHVISION, **CENTRE_224},
    ),
    Origin(_TV + r"_(?:lc_)?swag-[0-9a-f]{8}", "vit_{word}_patch{patch}_224", "bicubic", SWAG),
)


def read_state_dict(path: Path, name: str, architecture: str | None = None) -> LoadedWeights:
    """Read a file of tensors alone, by its official name or an architecture of timm.

    Raises WeightsError in one line.
    """
    origin, known = find_origin(name)
    if origin is None:
        origin, known = find_origin(architecture or name)
    architecture = known
    tensors, notes = to_timm_names(read_tensors(path), path)
    args = dict(origin.args) if origin else {}
    cfg = dict(origin.cfg) if origin else {}
    if origin and (side := infer_image_side(tensors, architecture)) is not None:
        args["img_size"] = side
    table = {"model_args": args, "pretrained_cfg": cfg} if origin else {}
    try:
        loaded = read_timm_state_dict(tensors, architecture, table, path)
    except ConfigError as error:
        raise WeightsError(f"{path}: {error}") from error
    except PARSE_ERRORS as error:
        raise WeightsError(
            f"{path} does not fit {architecture}: {format_first_line(error)}"
        ) from error
    config = loaded.config
    if origin and isinstance(config, ViTConfig):
        config = config.with_settings(resize=origin.resize)
    return replace(loaded, config=config, notes=(*notes, *loaded.notes))


def find_origin(name: str) -> tuple[Origin | None, str]:
    """Find the origin of a file by its name, and timm's name for the model; else the name itself.

    >>> find_origin("dinov2_vits14_reg4_pretrain")[1]
    'vit_small_patch14_reg4_dinov2.lvd142m'
    """
    for origin in ORIGINS:
        if match := re.fullmatch(origin.pattern, name):
            groups = {key: value or "" for key, value in match.groupdict().items()}
            groups["word"] = WORDS.get(groups.get("word", ""), groups.get("word", ""))
            return origin, origin.architecture.format(**groups)
    return None, name


def infer_image_side(tensors: Mapping[str, Any], architecture: str) -> int | None:
    """Infer the side of the image from the rows of the position table, a square and its prefix."""
    table, kernel = tensors.get("pos_embed"), tensors.get("patch_embed.proj.weight")
    if table is None or kernel is None or table.ndim != 3 or kernel.ndim != 4:
        return None
    for prefix in (1, 2, 0):
        side = round(max(table.shape[1] - prefix, 0) ** 0.5)
        if side and side**2 == table.shape[1] - prefix:
            return side * kernel.shape[-1]
    return None
