"""The models that are measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A ViT at an image size; `title` is how tables name it."""

    title: str
    name: str  # for create_model
    image_size: int


TI, S, B, L = (Shape(f"{size}/16", f"ViT-{size}/16", 224) for size in ("Ti", "S", "B", "L"))
TI_SMALL = Shape("Ti/4 at 32 px", "ViT-Ti/4", 32)
TINY = Shape("mu/16 at 32 px", "ViT-mu/16", 32)  # for a quick try
