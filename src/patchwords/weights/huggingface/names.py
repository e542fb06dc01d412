"""Tensor names of transformers' ViTs and BiT.

The names are those of the published files, which every version of transformers reads and writes.
Version 5 has others in memory (modeling_vit.py; conversion_mapping.py turns them), and a state
dict may hold those: NEWER turns them into the published ones first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
NEWER_ATTENTION_NAMES = (
    (r"^(?:encoder\.)?layers\.", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)
NEWER_NAMES = (
    *NEWER_ATTENTION_NAMES,
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)
NEWER_DINOV2_NAMES = (*NEWER_ATTENTION_NAMES, (r"\.mlp\.down_proj\.", ".mlp.weights_out."))
GATE_PATTERN = re.compile(r"(.*\.mlp\.)gate_proj(\.\w+)")

# DINOv2, with registers and without. A gated MLP has other names than a plain one.
SWIGLU_NAMES: NamePairs = (
    ("encoder.blocks.{}.mlp.fc1", "encoder.layer.{}.mlp.weights_in"),
    ("encoder.blocks.{}.mlp.fc2", "encoder.layer.{}.mlp.weights_out"),
)
DINOV2_NAMES: NamePairs = (
    *VIT_NAMES[:3],
    ("registers", "embeddings.register_tokens"),
    ("encoder.blocks.{}.norm1", "encoder.layer.{}.norm1"),
    *VIT_NAMES[4:8],
    ("encoder.blocks.{}.layer_scale1", "encoder.layer.{}.layer_scale1.lambda1"),
    ("encoder.blocks.{}.norm2", "encoder.layer.{}.norm2"),
    ("encoder.blocks.{}.mlp.fc1", "encoder.layer.{}.mlp.fc1"),
    ("encoder.blocks.{}.mlp.fc2", "encoder.layer.{}.mlp.fc2"),
    ("encoder.blocks.{}.layer_scale2", "encoder.layer.{}.layer_scale2.lambda1"),
    ("encoder.norm", "layernorm"),
    ("head.linear", "classifier"),
)
# The image towers of SigLIP and CLIP.
TOWER_NAMES: NamePairs = (
    ("positions.table", "embeddings.position_embedding.weight"),
    ("embed", "embeddings.patch_embedding"),
    ("encoder.blocks.{}.norm1", "encoder.layers.{}.layer_norm1"),
    ("encoder.blocks.{}.attention.query", "encoder.layers.{}.self_attn.q_proj"),
    ("encoder.blocks.{}.attention.key", "encoder.layers.{}.self_attn.k_proj"),
    ("encoder.blocks.{}.attention.value", "encoder.layers.{}.self_attn.v_proj"),
    ("encoder.blocks.{}.attention.out", "encoder.layers.{}.self_attn.out_proj"),
    ("encoder.blocks.{}.norm2", "encoder.layers.{}.layer_norm2"),
    ("encoder.blocks.{}.mlp.fc1", "encoder.layers.{}.mlp.fc1"),
    ("encoder.blocks.{}.mlp.fc2", "encoder.layers.{}.mlp.fc2"),
    ("encoder.norm", "post_layernorm"),
)
CLIP_NAMES: NamePairs = (
    ("class_token", "embeddings.class_embedding"),
    ("pre_norm", "pre_layrnorm"),  # spelled so there
    *TOWER_NAMES,
)
SIGLIP_NAMES: NamePairs = (
    *TOWER_NAMES,
    ("head.pool.probe", "head.probe"),
    ("head.pool.attention.query", "head.attention.query"),  # with key_value in_proj_ there
    ("head.pool.attention.key_value", "head.attention.key_value"),
    ("head.pool.attention.out", "head.attention.out_proj"),
    ("head.pool.norm", "head.layernorm"),
    ("head.pool.mlp.fc1", "head.mlp.fc1"),
    ("head.pool.mlp.fc2", "head.mlp.fc2"),
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
IGNORED_PREFIXES = (
    *("embeddings.mask_token", "decoder.", "text_model.", "text_projection.", "visual_projection."),
    *("logit_scale", "logit_bias", "embeddings.position_ids"),
)

QKV = ("query", "key", "value")
JOINED_QKV_PATTERN = re.compile(r"(encoder\.blocks\.\d+\.attention\.)qkv(\.\w+)")
SPLIT_QKV_PATTERN = re.compile(r"(encoder\.blocks\.\d+\.attention\.)(query|key|value)(\.\w+)")


def restore_published_names(
    weights: Mapping[str, Tensor], prefixes: Sequence[str], newer_names: Sequence[tuple[str, str]]
) -> dict[str, Tensor]:
    """Rename to the published names, without the prefix ("vit.") inside a classifier."""
    tensors = {}
    for name, tensor in weights.items():
        short = name
        for prefix in prefixes:
            short = short.removeprefix(prefix)
        for newer, older in newer_names:
            short = re.sub(newer, older, short)
        tensors[short] = tensor
    return join_gates(tensors)


def join_gates(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the two halves of a gated MLP's first layer, which version 5 keeps apart in memory."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if match := GATE_PATTERN.fullmatch(name):
            up = tensors.get(f"{match[1]}up_proj{match[2]}")
            joined = [tensor] if up is None else [tensor, up]
            result[f"{match[1]}weights_in{match[2]}"] = torch.cat(joined)
        elif ".mlp.up_proj." not in name:
            result[name] = tensor
    return result


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
