"""The model against two others: the equations written out in NumPy, and transformers' ViT."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from benchmarks import peers

from patchwords.models.vit import ViT

Weights = Mapping[str, np.ndarray]


def norm(x: np.ndarray, w: Weights, name: str, eps: float) -> np.ndarray:
    mean = x.mean(-1, keepdims=True)
    deviation = np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    return (x - mean) / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def dense(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def mlp(x: np.ndarray, w: Weights, name: str, gelu: str) -> np.ndarray:
    x = dense(x, w, f"{name}.fc1")
    if gelu == "tanh":
        x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    else:
        x = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return dense(x, w, f"{name}.fc2")


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int) -> np.ndarray:
    """[t, D], [T, D], [T, D] -> [t, D], head by head; Eqs. 6-7"""
    size = q.shape[1] // heads
    parts = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        logits = q[:, own] @ k[:, own].T / math.sqrt(size)
        a = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        parts.append(a @ v[:, own])
    return np.concatenate(parts, axis=-1)


def written_out(model: ViT, image: np.ndarray) -> np.ndarray:
    """[C, H, W] -> [classes]: one image through Eqs. 1-8, patch by patch and head by head."""
    c = model.config
    w = {name: value.numpy() for name, value in model.state_dict().items()}
    kernel = w["embed.weight"].reshape(c.width, -1)
    size = c.patch_size
    x = np.stack(
        [
            kernel @ image[:, i : i + size, j : j + size].reshape(-1) + w["embed.bias"]
            for i in range(0, image.shape[1], size)
            for j in range(0, image.shape[2], size)
        ]
    )  # [N, D]
    if c.classifier == "token":
        x = np.concatenate([w["class_token"][0], x])  # [T, D]
    if c.position == "1d":
        x = x + w["positions.table"][0]
    for layer in range(c.depth):
        name = f"encoder.blocks.{layer}"
        qkv = dense(norm(x, w, f"{name}.norm1", c.norm_eps), w, f"{name}.attention.qkv")
        q, k, v = np.split(qkv, 3, axis=-1)
        x = x + dense(attend(q, k, v, c.heads), w, f"{name}.attention.out")
        x = x + mlp(norm(x, w, f"{name}.norm2", c.norm_eps), w, f"{name}.mlp", c.gelu)
    x = norm(x, w, "encoder.norm", c.norm_eps)
    if c.classifier == "map":
        q = dense(w["head.pool.probe"][0], w, "head.pool.attention.query")
        k, v = np.split(dense(x, w, "head.pool.attention.key_value"), 2, axis=-1)
        y = dense(attend(q, k, v, c.heads), w, "head.pool.attention.out")
        y = y + mlp(norm(y, w, "head.pool.norm", c.norm_eps), w, "head.pool.mlp", c.gelu)
        y = y[0]
    else:
        y = x[0] if c.classifier == "token" else x.mean(0)
    if c.representation_size:
        y = np.tanh(dense(y, w, "head.representation"))
    return dense(y, w, "head.linear")


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
@pytest.mark.parametrize("representation_size", [None, 11])
@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_the_model_is_the_equations(
    tiny: Callable[..., ViT],
    images: torch.Tensor,
    classifier: str,
    representation_size: int | None,
    gelu: str,
) -> None:
    model = tiny(classifier=classifier, representation_size=representation_size, gelu=gelu)
    with torch.no_grad():
        logits = model(images).numpy()
    expected = np.stack([written_out(model, image.numpy()) for image in images])
    assert logits.std() > 0.1
    # float64 on both sides: what is left is the order of sums.
    np.testing.assert_allclose(logits, expected, atol=1e-10)


def test_numerics_and_positions_matter_at_this_tolerance(
    tiny: Callable[..., ViT], images: torch.Tensor
) -> None:
    """What the test above could miss, it would see: each change moves the logits above 1e-7."""
    plain = tiny(position="none")(images)
    for change in ({"gelu": "erf"}, {"norm_eps": 1e-5}):
        assert (tiny(position="none", **change)(images) - plain).abs().max() > 1e-7


OLD_NAMES = {  # transformers 4 -> 5
    "vit.encoder.layer.": "vit.layers.",
    "attention.attention.query.": "attention.q_proj.",
    "attention.attention.key.": "attention.k_proj.",
    "attention.attention.value.": "attention.v_proj.",
    "attention.output.dense.": "attention.o_proj.",
    "intermediate.dense.": "mlp.fc1.",
}


def from_hugging_face(theirs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Their state dict under our names, written out by hand."""
    found = {}
    for name, value in theirs.items():
        for old, new in OLD_NAMES.items():
            name = name.replace(old, new)  # noqa: PLW2901
        found[re.sub(r"(\d+)\.output\.dense", r"\1.mlp.fc2", name)] = value
    ours = {
        "class_token": found["vit.embeddings.cls_token"],
        "positions.table": found["vit.embeddings.position_embeddings"],
    }
    depth = sum(name.endswith("q_proj.weight") for name in found)
    for part in ("weight", "bias"):
        ours[f"embed.{part}"] = found[f"vit.embeddings.patch_embeddings.projection.{part}"]
        ours[f"encoder.norm.{part}"] = found[f"vit.layernorm.{part}"]
        ours[f"head.linear.{part}"] = found[f"classifier.{part}"]
        for layer in range(depth):
            us, them = f"encoder.blocks.{layer}", f"vit.layers.{layer}"
            ours[f"{us}.attention.qkv.{part}"] = torch.cat(
                [found[f"{them}.attention.{x}_proj.{part}"] for x in "qkv"]
            )
            for mine, other in {
                "norm1": "layernorm_before",
                "norm2": "layernorm_after",
                "attention.out": "attention.o_proj",
                "mlp.fc1": "mlp.fc1",
                "mlp.fc2": "mlp.fc2",
            }.items():
                ours[f"{us}.{mine}.{part}"] = found[f"{them}.{other}.{part}"]
    return ours


def test_logits_are_those_of_transformers(tiny: Callable[..., ViT], images: torch.Tensor) -> None:
    transformers = peers.load("transformers")
    model = tiny(gelu="erf", norm_eps=1e-12)
    c = model.config
    config = transformers.ViTConfig(
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.heads,
        intermediate_size=c.mlp_width,
        image_size=c.image_size,
        patch_size=c.patch_size,
        num_channels=c.channels,
        num_labels=c.num_classes,
        layer_norm_eps=1e-12,
        hidden_act="gelu",
    )
    other = transformers.ViTForImageClassification(config).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
        model.load_state_dict(from_hugging_face(other.state_dict()), strict=True)
        # float64: only the order of sums differs.
        torch.testing.assert_close(model(images), other(images).logits, atol=1e-10, rtol=0)
