"""A stand-in for the Hugging Face hub: a small ViT in the layout of the hub's cache."""

from __future__ import annotations

import json
from pathlib import Path

import patchwords as pw
from drawn import drawn
from patchwords.data.preprocess import Preprocess
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT

TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
SMALL = "vit_small_patch16_224.augreg_in21k_ft_in1k"
REVISION = "5" * 40
SHAPE = ViTConfig(
    patch_size=16,
    width=24,
    depth=2,
    heads=3,
    mlp_width=48,
    image_size=(32, 32),
    num_classes=5,
    norm_eps=1e-6,
    gelu="erf",
)


def put_into_hub_cache(cache: Path, name: str = TINY) -> Path:
    """Write a published name with another, small model; -> its folder."""
    repository = cache / f"models--timm--{name}"
    folder = repository / "snapshots" / REVISION
    labels = tuple(f"thing {number}" for number in range(SHAPE.num_classes))
    pw.save_pretrained(
        drawn(ViT(SHAPE)),
        folder,
        labels=labels,
        preprocess=Preprocess(image_size=SHAPE.image_size, interpolation="bicubic"),
        format="timm",
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["model_args"]["depth"] == SHAPE.depth
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    return folder


def cut_in_half(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
