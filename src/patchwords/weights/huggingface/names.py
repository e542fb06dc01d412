"""Tensor names of transformers' ViT and BiT.

The names are those of the published files, which every version of transformers reads and writes.
Version 5 has others in memory (modeling_vit.py; conversion_mapping.py turns them), and a state
dict may hold those: NEWER turns them into the published ones first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from patchwords.weights.convert import NamePairs

VIT_NAMES: NamePairs = (
    ("class_token", "embeddings.cls_token"),
    ("positions.table", "embeddings.position_embeddings"),
    ("embed", "embeddings.patch_embeddings.projection"),
    ("encoder.blocks.{}.norm1", "encoder.layer.{}.layernorm_before"),
    ("encoder.blocks.{}.attention.query", "encoder.layer.{}.attention.attention.query"),
    ("encoder.blocks.{}.attention.key", "encoder.layer.{}.attention.attention.key"),
    ("encoder.blocks.{}.attention.value", "encoder.layer.{}.attention.attention.value"),
    ("encoder.blocks.{}.attention.out", "encoder.layer.{}.attention.output.dense"),
    ("encoder.blocks.{}.norm2", "encoder.layer.{}.layernorm_after"),
    ("encoder.blocks.{}.mlp.fc1", "encoder.layer.{}.intermediate.dense"),
    ("encoder.blocks.{}.mlp.fc2", "encoder.layer.{}.output.dense"),
    ("encoder.norm", "layernorm"),
    ("head.representation", "pooler.dense"),
    ("head.linear", "classifier"),
)
NEWER_NAMES = (
    (r"^layers\.", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)

BIT_NAMES: NamePairs = (
    ("trunk.root.conv", "embedder.convolution"),
    ("trunk.root.norm", "embedder.norm"),
    *(
        (f"trunk.stages.{{}}.{{}}.{ours}", f"encoder.stages.{{}}.layers.{{}}.{theirs}")
        for ours, theirs in (
            *((f"conv{i}", f"conv{i}") for i in (1, 2, 3)),
            *((f"norm{i}", f"norm{i}") for i in (1, 2, 3)),
            ("shortcut", "downsample.conv"),
            ("shortcut_norm", "downsample.norm"),
        )
    ),
    ("norm", "norm"),
    ("head.linear", "classifier.1"),
)

# Of other tasks: the classifier's logits do not depend on them.
IGNORED_PREFIXES = ("embeddings.mask_token", "decoder.")

QKV = ("query", "key", "value")
JOINED_QKV_PATTERN = re.compile(r"(encoder\.blocks\.\d+\.attention\.)qkv(\.\w+)")
SPLIT_QKV_PATTERN = re.compile(r"(encoder\.blocks\.\d+\.attention\.)(query|key|value)(\.\w+)")


def restore_published_names(weights: Mapping[str, Tensor], model: str) -> dict[str, Tensor]:
    """Rename to the published names, without the prefix ("vit.") inside a classifier."""
    tensors = {}
    for name, tensor in weights.items():
        short = name.removeprefix(f"{model}.")
        for newer, older in NEWER_NAMES:
            short = re.sub(newer, older, short)
        tensors[short] = tensor
    return tensors


def join_qkv(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """Join query, key and value, [D, D] each -> [3D, D]; return whether their biases were absent.

    Their biases come out as zeros then: the same function.
    """
    result: dict[str, Tensor] = {}
    unbiased = False
    for name, tensor in weights.items():
        match = SPLIT_QKV_PATTERN.fullmatch(name)
        if match is None:
            result[name] = tensor
            continue
        start, part, parameter = match.groups()
        if part != QKV[0]:
            continue
        parts = [weights.get(f"{start}{part}{parameter}") for part in QKV]
        result[f"{start}qkv{parameter}"] = torch.cat([part for part in parts if part is not None])
        if f"{start}{QKV[0]}.bias" not in weights:
            result[f"{start}qkv.bias"] = tensor.new_zeros(3 * tensor.shape[0])
            unbiased = True
    return result, unbiased


def split_qkv(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split one projection into query, key and value: [3D, ...] -> [D, ...] each."""
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        match = JOINED_QKV_PATTERN.fullmatch(name)
        if match is None:
            result[name] = tensor
            continue
        start, parameter = match.groups()
        for part, rows in zip(QKV, tensor.chunk(3), strict=True):
            result[f"{start}{part}{parameter}"] = rows
    return result
