"""Settings of what a pre-training run learns.

Nothing here imports torch: help must be quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

MaskedTargetName = Literal["mean-colour", "small-patch", "pixels"]


@dataclass(frozen=True)
class ObjectiveSettings:
    """What to learn: classes, or what hidden patches show."""

    section: ClassVar[str] = "Objective"

    objective: str = "supervised"
    """what to learn: classes (supervised); the colours of masked patches (masked; App. B.1.2) or
    the pixels of hidden ones (mae), or what a --teacher says (distill), which need no labels; or
    package.module:Name of your own"""
    loss: Literal["softmax", "sigmoid"] | None = None
    """classification loss, with --objective supervised; default: softmax"""
    head: Literal["tanh", "linear"] | None = None
    """classification head, with --objective supervised: tanh layer before the classifier (Sec.
    3.1), or linear; default: tanh"""
    target: MaskedTargetName | None = None
    """what to predict for a masked patch, with --objective masked; default: mean-colour"""
    mask_ratio: float | None = None
    """share of the patches that are hidden; default: 0.5 with --objective masked, 0.75 with mae"""
    decoder_width: int | None = None
    """token width of the decoder, with --objective mae; default: 512 from ViT-B on, else half of
    the model's"""
    decoder_depth: int | None = None
    """blocks of the decoder, with --objective mae; default: 8 from ViT-B on, else 2"""
