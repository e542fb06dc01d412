"""Segmenter's and SETR's decoders written out plainly, from weights by name: the oracle in float64.

In evaluation mode: batch norms by their running statistics, no dropout.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Over the last axis."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def batch_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    shape = (1, -1, 1, 1)
    scale = w[f"{name}.weight"] / (w[f"{name}.running_var"] + 1e-5).sqrt()
    shift = w[f"{name}.bias"] - w[f"{name}.running_mean"] * scale
    return x * scale.view(shape) + shift.view(shape)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A 'same' convolution as a sum over the offsets of the kernel."""
    size, (height, width) = weight.shape[-1], x.shape[2:]
    margin = size // 2
    padded = torch.zeros(*x.shape[:2], height + 2 * margin, width + 2 * margin, dtype=x.dtype)
    padded[:, :, margin : margin + height, margin : margin + width] = x
    y = torch.zeros(len(x), len(weight), height, width, dtype=x.dtype)
    for i in range(size):
        for j in range(size):
            part = padded[:, :, i : i + height, j : j + width]
            y += torch.einsum("bchw,oc->bohw", part, weight[:, :, i, j])
    return y if bias is None else y + bias.view(1, -1, 1, 1)


def enlarge(x: Tensor, size: tuple[int, int], corners: bool) -> Tensor:
    """Bilinear interpolation, one axis after the other."""
    for axis, length in ((2, size[0]), (3, size[1])):
        old = x.shape[axis]
        place = torch.arange(length, dtype=x.dtype)
        between = ((place + 0.5) * old / length - 0.5).clamp(min=0)
        place = place * (old - 1) / max(length - 1, 1) if corners else between
        low = place.floor().long().clamp(max=old - 1)
        high = (low + 1).clamp(max=old - 1)
        share = (place - low).view([-1 if a == axis else 1 for a in range(4)])
        x = x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share
    return x


def conv_norm_relu(x: Tensor, w: Weights, name: str) -> Tensor:
    return batch_norm(convolve(x, w[f"{name}.conv.weight"]), w, f"{name}.norm").clamp(min=0)


def norm_map(x: Tensor, w: Weights, name: str) -> Tensor:
    y = layer_norm(x.movedim(1, -1), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)
    return y.movedim(-1, 1)


def linear(maps: list[Tensor], w: Weights) -> Tensor:
    x = batch_norm(maps[-1], w, "norm")
    return convolve(x, w["classifier.weight"], w["classifier.bias"])


def pup(maps: list[Tensor], w: Weights) -> Tensor:
    x = norm_map(maps[-1], w, "norm")
    for stage in range(4):
        x = conv_norm_relu(x, w, f"stages.{stage}")
        x = enlarge(x, (2 * x.shape[2], 2 * x.shape[3]), corners=False)
    return convolve(x, w["classifier.weight"], w["classifier.bias"])


def mla(maps: list[Tensor], w: Weights) -> Tensor:
    height, width = maps[0].shape[2:]
    total, joined = 0, []
    for level in (3, 2, 1, 0):  # from the deepest
        x = norm_map(maps[level], w, f"norms.{level}.norm")
        total = total + conv_norm_relu(x, w, f"lateral.{level}")
        y = conv_norm_relu(total, w, f"smooth.{level}")
        for conv in range(2):
            y = conv_norm_relu(y, w, f"branches.{level}.{conv}")
        joined.append(enlarge(y, (4 * height, 4 * width), corners=True))
    return convolve(torch.cat(joined, 1), w["classifier.weight"], w["classifier.bias"])


def dense(x: Tensor, w: Weights, name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def attend(x: Tensor, w: Weights, name: str, heads: int) -> Tensor:
    width = x.shape[-1]
    each = width // heads
    q, k, v = dense(x, w, f"{name}.qkv").split(width, dim=-1)
    y = torch.empty_like(x)
    for head in range(heads):
        part = slice(head * each, (head + 1) * each)
        logits = q[..., part] @ k[..., part].mT / math.sqrt(each)
        y[..., part] = logits.softmax(-1) @ v[..., part]
    return dense(y, w, f"{name}.out")


def mask(maps: list[Tensor], w: Weights, heads: int) -> Tensor:
    batch, _, height, width = maps[-1].shape
    classes = w["class_tokens"].shape[1]
    x = dense(maps[-1].flatten(2).mT, w, "proj")
    x = torch.cat([x, w["class_tokens"].expand(batch, -1, -1)], 1)
    for block in range(2):
        name = f"blocks.{block}"
        y = layer_norm(x, w[f"{name}.norm1.weight"], w[f"{name}.norm1.bias"], 1e-5)
        x = x + attend(y, w, f"{name}.attention", heads)
        y = layer_norm(x, w[f"{name}.norm2.weight"], w[f"{name}.norm2.bias"], 1e-5)
        y = dense(y, w, f"{name}.mlp.fc1")
        y = 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))
        x = x + dense(y, w, f"{name}.mlp.fc2")
    x = layer_norm(x, w["norm.weight"], w["norm.bias"], 1e-5)
    patches = dense(x[:, :-classes], w, "proj_patch")
    tokens = dense(x[:, -classes:], w, "proj_classes")
    patches = patches / patches.square().sum(-1, keepdim=True).sqrt()
    tokens = tokens / tokens.square().sum(-1, keepdim=True).sqrt()
    masks = layer_norm(patches @ tokens.mT, w["norm2.weight"], w["norm2.bias"], 1e-5)
    return masks.mT.reshape(batch, classes, height, width)
