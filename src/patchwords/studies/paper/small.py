"""A ViT that learns CIFAR-10 within minutes on a core: what small studies train."""

from __future__ import annotations

from typing import Any

# 208 thousand parameters, 64 patches: 24 of them train within half an hour on two cores.
# Optimizer and crop are usual for small images; none of it was tuned for any cell.
SMALL_VIT_SETTINGS: dict[str, Any] = {
    "model": "ViT-Ti/4",
    "image_size": (32,),
    "width": 64,
    "depth": 4,
    "heads": 2,
    "mlp_width": 256,
    "dropout": 0.0,
    "optimizer": "adamw",
    "schedule": "cosine",
    "weight_decay": 0.05,
    "crop_area": (0.4, 1.0),
    "batch_size": 64,
    "steps": 1500,  # 1.9 passes over the 50,000 images
    "warmup_steps": 150,
    "split_seed": 0,  # every seed has the same images held out
}
SHAPE_SETTING_NAMES = ("model", "width", "depth", "heads", "mlp_width", "dropout")
# What models of any shape have in common: all are trained alike, and nothing is tuned for any.
SMALL_VIT_TRAINING = {
    name: value for name, value in SMALL_VIT_SETTINGS.items() if name not in SHAPE_SETTING_NAMES
}
