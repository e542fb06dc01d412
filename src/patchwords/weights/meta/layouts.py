"""State dicts of official repositories, brought to timm's names.

A trainer's checkpoint holds a backbone among other things: the container is unwrapped in
safe_load.py, here the prefix of the backbone is stripped and its tensors are renamed. What belongs to
another part of the training is left out by a list, and said; anything else is refused by name.
Sources: the repositories dino, dinov2, mae, moco-v3, deit; torchvision's
models/vision_transformer.py; CLIP's model.py, by its keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from patchwords.errors import WeightsError
from patchwords.weights.convert import NamePairs, rename_tensors

# torchvision's names -> timm's.
TORCHVISION_NAMES: NamePairs = (
    ("class_token", "cls_token"),
    ("encoder.pos_embedding", "pos_embed"),
    ("conv_proj", "patch_embed.proj"),
    ("encoder.layers.encoder_layer_{}.ln_1", "blocks.{}.norm1"),
    ("encoder.layers.encoder_layer_{}.self_attention.in_proj_weight", "blocks.{}.attn.qkv.weight"),
    ("encoder.layers.encoder_layer_{}.self_attention.in_proj_bias", "blocks.{}.attn.qkv.bias"),
    ("encoder.layers.encoder_layer_{}.self_attention.out_proj", "blocks.{}.attn.proj"),
    ("encoder.layers.encoder_layer_{}.ln_2", "blocks.{}.norm2"),
    ("encoder.layers.encoder_layer_{}.mlp.0", "blocks.{}.mlp.fc1"),
    ("encoder.layers.encoder_layer_{}.mlp.3", "blocks.{}.mlp.fc2"),
    ("encoder.layers.encoder_layer_{}.mlp.linear_1", "blocks.{}.mlp.fc1"),  # until 0.12
    ("encoder.layers.encoder_layer_{}.mlp.linear_2", "blocks.{}.mlp.fc2"),
    ("encoder.ln", "norm"),
    ("heads.pre_logits", "pre_logits.fc"),
    ("heads.head", "head"),
)
# The image tower of CLIP -> timm's.
CLIP_NAMES: NamePairs = (
    ("class_embedding", "cls_token"),
    ("positional_embedding", "pos_embed"),
    ("conv1", "patch_embed.proj"),
    ("ln_pre", "norm_pre"),
    ("transformer.resblocks.{}.ln_1", "blocks.{}.norm1"),
    ("transformer.resblocks.{}.attn.in_proj_weight", "blocks.{}.attn.qkv.weight"),
    ("transformer.resblocks.{}.attn.in_proj_bias", "blocks.{}.attn.qkv.bias"),
    ("transformer.resblocks.{}.attn.out_proj", "blocks.{}.attn.proj"),
    ("transformer.resblocks.{}.ln_2", "blocks.{}.norm2"),
    ("transformer.resblocks.{}.mlp.c_fc", "blocks.{}.mlp.fc1"),
    ("transformer.resblocks.{}.mlp.c_proj", "blocks.{}.mlp.fc2"),
    ("ln_post", "norm"),
)


@dataclass(frozen=True)
class Layout:
    """Names that one family of repositories gives its tensors."""

    name: str
    root: str  # the weight of the patch embedding, which every model of it has
    names: NamePairs | None  # -> timm's; None: they are timm's


LAYOUTS = (
    Layout("timm", "patch_embed.proj.weight", None),
    Layout("torchvision", "conv_proj.weight", TORCHVISION_NAMES),
    Layout("CLIP", "conv1.weight", CLIP_NAMES),
)
# Before the backbone's names, by preference: the teacher is the better half of DINO, and the
# encoder that learns is the one that MoCo publishes.
PREFIXES = (
    *("", "teacher.backbone.", "student.backbone.", "backbone.", "base_encoder."),
    *("visual.trunk.", "visual.", "image_encoder.", "encoder.", "vit.", "model."),
)
# What is left out, with what it is. After the prefix, and outside of it.
DROPPED_INSIDE = (
    (r"mask_token", "the mask token of pre-training"),
    (r"decoder_.*|decoder\..*", "the decoder"),
    (r"head\.(?:\d+|mlp|last_layer)\..*", "the projection head"),
    (r"proj", "the projection to the space of the text"),
)
DROPPED_OUTSIDE = (
    (r"(?:teacher\.|student\.)?(?:head|projector|dino_head|ibot_head)\..*", "the projection head"),
    (r"student\.backbone\..*", "the student"),
    (r"momentum_encoder\..*", "the momentum encoder"),
    (r"predictor\..*", "the predictor"),
    (r"decoder_.*|decoder\..*|mask_token", "the decoder"),
    (
        r"(?:transformer|token_embedding|ln_final|text|text_model)\..*"
        r"|positional_embedding|text_projection|logit_scale|logit_bias",
        "the text tower",
    ),
)


def to_timm_names(
    tensors: Mapping[str, Tensor], source: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Bring a state dict to timm's names; return it and notes on what was left out.

    One of another kind (a hybrid, a ResNet) comes back as it is. Raises WeightsError for a tensor
    that is of no known part.
    """
    place = find_backbone(tensors, source)
    if place is None:
        return dict(tensors), []
    prefix, layout = place
    dropped: dict[str, int] = {}
    inside: dict[str, Tensor] = {}
    for name, value in tensors.items():
        rules = DROPPED_INSIDE if name.startswith(prefix) else DROPPED_OUTSIDE
        short = name.removeprefix(prefix)
        what = next((what for pattern, what in rules if re.fullmatch(pattern, short)), None)
        if what is not None:
            dropped[what] = dropped.get(what, 0) + 1
        elif name.startswith(prefix):
            inside[short] = value
        else:
            raise WeightsError(
                f"{source}: {name[:80]} is neither of the backbone ({prefix}...) nor of a part that "
                "can be left out"
            )
    notes = [f"left out: {', '.join(f'{what} ({n})' for what, n in dropped.items())}"]
    return rename_layout(inside, layout, source), notes if dropped else []


def find_backbone(tensors: Mapping[str, Tensor], source: Path) -> tuple[str, Layout] | None:
    """Find the prefix and the layout of the backbone; None if it is of no layout here."""
    for prefix in PREFIXES:
        for layout in LAYOUTS:
            if prefix + layout.root in tensors:
                return prefix, layout
    for name in tensors:
        for layout in LAYOUTS:
            if name.endswith(f".{layout.root}"):
                prefix = name.removesuffix(layout.root)
                raise WeightsError(
                    f"{source}: its backbone lies under {prefix[:80]!r}, which is not known here; "
                    f"known are {', '.join(PREFIXES[1:])}"
                )
    return None


def rename_layout(tensors: Mapping[str, Tensor], layout: Layout, source: Path) -> dict[str, Tensor]:
    """Rename the tensors of a layout to timm's names, in timm's shapes."""
    if layout.names is None:
        return dict(tensors)
    renamed, unknown = rename_tensors(tensors, layout.names)
    if unknown:
        raise WeightsError(
            f"{source} cannot be read: {unknown[0][:80]} is no part of {layout.name}'s ViT"
        )
    for name, axes in (("cls_token", 3), ("pos_embed", 3)):  # [1, 1, D], [1, T, D]
        value = renamed.get(name)
        while value is not None and value.ndim < axes:
            value = renamed[name] = value[None]
    return renamed
