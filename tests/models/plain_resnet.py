"""The formulas of the official ResNets in plain numpy, to compare with: NCHW, weights OIHW.

Sources: vit_jax/models_resnet.py ("post"), big_vision/models/bit_paper.py ("pre").
"""

from __future__ import annotations

import numpy as np
from torch import nn

from patchwords.models.resnet.config import TrunkConfig

Array = np.ndarray
Weights = dict[str, Array]


def weights_of(module: nn.Module) -> Weights:
    return {name: value.detach().numpy() for name, value in module.named_parameters()}


def standardise(w: Array, form: str) -> Array:
    w = w - w.mean((1, 2, 3), keepdims=True)
    variance = (w**2).mean((1, 2, 3), keepdims=True)
    if form == "std+1e-5":
        return w / (np.sqrt(variance) + 1e-5)
    return w / np.sqrt(variance + {"var+1e-8": 1e-8, "var+1e-10": 1e-10}[form])


def pad(x: Array, size: int, stride: int, padding: str, value: float) -> Array:
    ends = []
    for n in x.shape[2:]:
        total = max((int(np.ceil(n / stride)) - 1) * stride + size - n, 0)
        same = (total // 2, (total + 1) // 2)
        ends.append(same if padding == "same" else (size // 2, size // 2))
    return np.pad(x, ((0, 0), (0, 0), *ends), constant_values=value)


def windows(x: Array, size: int, stride: int) -> Array:
    """[B, C, H, W] -> [B, C, h, w, size, size]"""
    found = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return found[:, :, ::stride, ::stride]


def conv(x: Array, w: Array, stride: int, config: TrunkConfig) -> Array:
    size = w.shape[-1]
    patches = windows(pad(x, size, stride, config.padding, 0.0), size, stride)
    found = np.tensordot(patches, standardise(w, config.standardise), ((1, 4, 5), (1, 2, 3)))
    return found.transpose(0, 3, 1, 2)


def group_norm(x: Array, weights: Weights, name: str, config: TrunkConfig) -> Array:
    b, c, h, w = x.shape
    groups = x.reshape(b, 32, c // 32 * h * w)
    mean, variance = groups.mean(2, keepdims=True), groups.var(2, keepdims=True)
    y = ((groups - mean) / np.sqrt(variance + config.group_norm_eps)).reshape(x.shape)
    scale, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return y * scale[:, None, None] + bias[:, None, None]


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def root(x: Array, weights: Weights, config: TrunkConfig) -> Array:
    x = conv(x, weights["root.conv.weight"], 2, config)
    if config.form == "post":
        x = relu(group_norm(x, weights, "root.norm", config))
    border = -np.inf if config.pool_padding == "lowest" else 0.0
    return windows(pad(x, 3, 2, config.padding, border), 3, 2).max((4, 5))


def post_unit(x: Array, weights: Weights, name: str, stride: int, config: TrunkConfig) -> Array:
    residual = x
    if f"{name}.shortcut.weight" in weights:
        residual = conv(x, weights[f"{name}.shortcut.weight"], stride, config)
        residual = group_norm(residual, weights, f"{name}.shortcut_norm", config)
    y = conv(x, weights[f"{name}.conv1.weight"], 1, config)
    y = relu(group_norm(y, weights, f"{name}.norm1", config))
    y = conv(y, weights[f"{name}.conv2.weight"], stride, config)
    y = relu(group_norm(y, weights, f"{name}.norm2", config))
    y = conv(y, weights[f"{name}.conv3.weight"], 1, config)
    return relu(residual + group_norm(y, weights, f"{name}.norm3", config))


def pre_unit(x: Array, weights: Weights, name: str, stride: int, config: TrunkConfig) -> Array:
    residual = x
    y = relu(group_norm(x, weights, f"{name}.norm1", config))
    if f"{name}.shortcut.weight" in weights:
        residual = conv(y, weights[f"{name}.shortcut.weight"], stride, config)
    y = conv(y, weights[f"{name}.conv1.weight"], 1, config)
    y = relu(group_norm(y, weights, f"{name}.norm2", config))
    y = conv(y, weights[f"{name}.conv2.weight"], stride, config)
    y = relu(group_norm(y, weights, f"{name}.norm3", config))
    return conv(y, weights[f"{name}.conv3.weight"], 1, config) + residual


def trunk(x: Array, weights: Weights, config: TrunkConfig) -> Array:
    x = root(x, weights, config)
    unit = post_unit if config.form == "post" else pre_unit
    for stage, count in enumerate(config.units):
        for index in range(count):
            stride = 2 if stage and not index else 1
            x = unit(x, weights, f"stages.{stage}.{index}", stride, config)
    return x
