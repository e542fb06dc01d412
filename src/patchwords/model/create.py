"""From a name to a model with initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from patchwords.model.family import Model, build_model
from patchwords.model.initialise import init_weights
from patchwords.model.variants import resolve_model


def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    image_size: int | Sequence[int] | None = None,
    channels: int = 3,
    seed: int = 0,
    **config: Any,
) -> Model:
    """A ViT by name ("ViT-B/16"; see `variants.resolve`), with the authors' initial weights.

    `image_size` is one number or (height, width), and that of the name if it is not given.
    `config` are fields of ViTConfig; they win over what the name implies.

    >>> create_model("ViT-Ti/16", num_classes=10, classifier="gap").config.tokens
    196
    """
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
