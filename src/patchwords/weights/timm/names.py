"""Tensor names of timm's VisionTransformer, its hybrids, and ResNetV2 (BiT).

Sources: vision_transformer.py, vision_transformer_hybrid.py, resnetv2.py and
layers/attention_pool.py of timm 1.0.
"""

from __future__ import annotations

from patchwords.weights.convert import NamePairs

VIT_NAMES: NamePairs = (
    ("class_token", "cls_token"),
    ("distillation_token", "dist_token"),
    ("registers", "reg_token"),
    ("positions.table", "pos_embed"),
    ("embed", "patch_embed.proj"),
    ("pre_norm", "norm_pre"),
    ("encoder.blocks.{}.norm1", "blocks.{}.norm1"),
    ("encoder.blocks.{}.attention.qkv", "blocks.{}.attn.qkv"),
    ("encoder.blocks.{}.attention.q_norm", "blocks.{}.attn.q_norm"),
    ("encoder.blocks.{}.attention.k_norm", "blocks.{}.attn.k_norm"),
    ("encoder.blocks.{}.attention.out", "blocks.{}.attn.proj"),
    ("encoder.blocks.{}.layer_scale1", "blocks.{}.ls1.gamma"),
    ("encoder.blocks.{}.norm2", "blocks.{}.norm2"),
    ("encoder.blocks.{}.mlp.fc1", "blocks.{}.mlp.fc1"),
    ("encoder.blocks.{}.mlp.fc2", "blocks.{}.mlp.fc2"),
    ("encoder.blocks.{}.layer_scale2", "blocks.{}.ls2.gamma"),
    ("encoder.norm", "norm"),
    ("head.pool.probe", "attn_pool.latent"),
    ("head.pool.attention.query", "attn_pool.q"),
    ("head.pool.attention.key_value", "attn_pool.kv"),
    ("head.pool.attention.out", "attn_pool.proj"),
    ("head.pool.norm", "attn_pool.norm"),
    ("head.pool.mlp.fc1", "attn_pool.mlp.fc1"),
    ("head.pool.mlp.fc2", "attn_pool.mlp.fc2"),
    ("head.representation", "pre_logits.fc"),  # until timm 0.6
    ("head.norm", "fc_norm"),
    ("head.linear", "head"),
    ("head.distillation", "head_dist"),
)
# Other names of the same tensors: LayerScale until timm 0.6 and in DeiT III, DINOv2's own.
OLDER_NAMES: NamePairs = (
    ("encoder.blocks.{}.layer_scale1", "blocks.{}.gamma_1"),
    ("encoder.blocks.{}.layer_scale2", "blocks.{}.gamma_2"),
    ("encoder.blocks.{}.mlp.fc1", "blocks.{}.mlp.w12"),
    ("encoder.blocks.{}.mlp.fc2", "blocks.{}.mlp.w3"),
    ("registers", "register_tokens"),
)


def list_unit_names(stages: str) -> NamePairs:
    """List the residual units of the stages with these names."""
    parts = (
        *((f"conv{i}", f"conv{i}") for i in (1, 2, 3)),
        *((f"norm{i}", f"norm{i}") for i in (1, 2, 3)),
        ("shortcut", "downsample.conv"),
        ("shortcut_norm", "downsample.norm"),
    )
    return tuple(
        (f"trunk.stages.{{}}.{{}}.{ours}", f"{stages}.{{}}.blocks.{{}}.{theirs}")
        for ours, theirs in parts
    )


HYBRID_NAMES: NamePairs = (
    *VIT_NAMES,
    ("trunk.root.conv", "patch_embed.backbone.stem.conv"),
    ("trunk.root.norm", "patch_embed.backbone.stem.norm"),
    *list_unit_names("patch_embed.backbone.stages"),
)
ROOT_ONLY_NAMES: NamePairs = (
    *VIT_NAMES,
    ("trunk.root.conv", "patch_embed.backbone.conv"),
    ("trunk.root.norm", "patch_embed.backbone.norm"),
)
RESNET_NAMES: NamePairs = (
    ("trunk.root.conv", "stem.conv"),
    *list_unit_names("stages"),
    ("norm", "norm"),
    ("head.linear", "head.fc"),
)

# The first convolution, which timm adapts to other channels.
FIRST_CONVS = (
    "patch_embed.backbone.stem.conv",
    "patch_embed.backbone.conv",
    "stem.conv",
    "patch_embed.proj",
)

# Parts of other models: what a name in the file means, by a piece of it.
UNSUPPORTED_PARTS = (
    ("patch_embed.norm", "a LayerNorm of patches"),
    (".attn.norm", "a LayerNorm inside attention"),
    (".mlp.norm", "a LayerNorm inside the MLP"),
    (".attn.gate", "gated attention"),
    (".fc1_g", "a gated MLP (SwiGLU) in three layers"),
    ("rope", "rotary positions"),
    ("relative_position", "a bias of relative positions"),
)


def describe_unsupported_part(name: str) -> str:
    """Name what an unknown tensor is for, as far as is known."""
    return next(
        (what for piece, what in UNSUPPORTED_PARTS if piece in name), "a part that ours has not"
    )
