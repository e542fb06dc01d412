"""A model fitted to another task: other classes (Sec. 3.2), another image size, other dropout.

Nothing is changed in silence: what was reset or resized comes back as lines for a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from patchwords.errors import ConfigError
from patchwords.model.config import ViTConfig
from patchwords.model.position import resize_positions
from patchwords.model.vit import ViT

# Settings that the weights themselves fix: another value needs other weights.
FIXED = ("patch_size", "width", "depth", "heads", "mlp_width", "channels", "classifier", "position")


def adapt(
    model: ViT,
    *,
    num_classes: int | None = None,
    image_size: tuple[int, int] | None = None,
    head_rows: Sequence[int] | None = None,
    **settings: Any,
) -> tuple[ViT, list[str]]:
    """A copy of the model for these classes and this image size; -> (model, what changed).

    Args:
        num_classes: another number replaces the head (and the pre-training head's tanh layer) by
            zeros, as Sec. 3.2 has it; None keeps it.
        image_size: (H, W); the position table is resized to its grid by the config's own method.
        head_rows: keep the head, and take these rows of it in this order (classes by name).
        settings: other fields of ViTConfig, such as dropout.
    """
    old = model.config
    for name in FIXED:
        if name in settings and settings[name] != getattr(old, name):
            raise ConfigError(
                f"{name} {settings[name]!r} was asked for, but the weights are of a model with "
                f"{name} {getattr(old, name)!r}: leave it out, or train from scratch"
            )
    changes: list[str] = []
    config = old.with_settings(**settings)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if head_rows is not None:
        rows = torch.as_tensor(head_rows)
        for name in ("head.linear.weight", "head.linear.bias"):
            weights[name] = weights[name][rows]
        config = config.with_settings(num_classes=len(rows))
    elif num_classes is not None:
        config = config.with_settings(
            num_classes=num_classes, representation_size=None, head_bias=0.0
        )
        weights = {name: value for name, value in weights.items() if not is_head(name)}
        features = weights["encoder.norm.weight"]
        weights["head.linear.weight"] = features.new_zeros(num_classes, config.width)
        weights["head.linear.bias"] = features.new_zeros(num_classes)
        changes.append(
            f"the head is new, for {num_classes} classes in place of {old.num_classes}: it starts "
            "from zero (Sec. 3.2)"
        )
    if image_size is not None and image_size != old.image_size:
        config = config.with_settings(image_size=image_size)
        changes += resize_table(weights, old, config)
    return load(config, weights), changes


def is_head(name: str) -> bool:
    """Whether the parameter is of the classifier or the tanh layer; pooling is of the encoder."""
    return name.startswith(("head.linear.", "head.representation."))


def resize_table(weights: dict[str, torch.Tensor], old: ViTConfig, new: ViTConfig) -> list[str]:
    """Resize the position table in `weights` from the old grid to the new one."""
    if old.grid == new.grid or "positions" not in weights:
        return []
    weights["positions"] = resize_positions(
        weights["positions"], old.grid, new.grid, old.prefix, old.resize
    )
    return [
        f"positions resized from {old.grid[0]}x{old.grid[1]} to {new.grid[0]}x{new.grid[1]} "
        f"patches ({old.resize})"
    ]


def load(config: ViTConfig, weights: dict[str, torch.Tensor]) -> ViT:
    """A model of this config that holds these very tensors; they must fit."""
    with torch.device("meta"):
        model = ViT(config)
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(True)
