"""The head on a trained encoder: another classifier, tanh layer or pooling than it came with.

The encoder serves every kind of head, so each can be put on weights that had another.
Sizes: n position tables, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from patchwords.model.config import ViTConfig
from patchwords.model.family import ModelConfig

POOLING_DESCRIPTIONS = {
    "token": "the class token",
    "gap": "the mean of all tokens",
    "map": "attention pooling",
}


def keep_classifier_rows(weights: dict[str, Tensor], rows: Sequence[int]) -> list[str]:
    """Leave these rows of the classifier, in this order; -> what a person should know."""
    for name in ("head.linear.weight", "head.linear.bias"):
        weights[name] = weights[name][torch.as_tensor(rows)]
    return ["the head is kept: the weights know the classes of the data"]


def drop_classifier(weights: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> list[str]:
    """Take out what will be new: the classifier, and a tanh layer of other width."""
    drop_parameters(weights, "head.linear.")
    # A single class stands for none: it is that of pre-training without labels.
    if new.num_classes == 1:
        said = "the head is left out, as there are no classes to train it for"
    else:
        replaced = old.num_classes if old.num_classes > 1 else "none"
        said = (
            f"the head is new, for {new.num_classes} classes in place of {replaced}: it starts "
            "from zero (Sec. 3.2)"
        )
    if new.head_bias:
        said += f", with a bias of {new.head_bias:.3g}"
    before, after = get_tanh_layer_width(old), get_tanh_layer_width(new)
    if before != after:
        drop_parameters(weights, "head.representation.")
    if after:
        origin = "that the weights have" if before == after else "with initial weights"
        said += f", on a tanh layer of {after} {origin}"
    elif before:
        said += f"; the tanh layer of {before} before it is left out, too"
    return [said]


def change_pooling(weights: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> list[str]:
    """Take out what another pooling has no use for, and make room for a class token's position."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig):
        return []
    if old.classifier == new.classifier:
        return []
    said = [
        f"the head reads {POOLING_DESCRIPTIONS[new.classifier]} in place of {POOLING_DESCRIPTIONS[old.classifier]}"
    ]
    table = weights.get("positions.table")  # [n, T, D]
    drop_parameters(weights, "head.pool.")
    if old.prefix and not new.prefix:
        for name in [name for name in weights if name.endswith("class_token")]:
            del weights[name]
        if table is not None:
            weights["positions.table"] = table[:, 1:].clone()
        said.append("the class token and its position are dropped")
    if new.prefix:
        if table is not None:
            row = table.new_zeros(table.shape[0], 1, table.shape[2])  # [n, 1, D]
            weights["positions.table"] = torch.cat([row, table], dim=1)
        said.append("the class token and its position start from zero")
    if new.classifier == "map":
        said.append("the pooling starts from initial weights")
    return ["; ".join(said)]


def get_tanh_layer_width(config: ModelConfig) -> int | None:
    """Its width, where the head has one."""
    return config.representation_size if isinstance(config, ViTConfig) else None


def drop_parameters(weights: dict[str, Tensor], prefix: str) -> None:
    for name in [name for name in weights if name.startswith(prefix)]:
        del weights[name]
