"""From tokens to logits: Eq. 4 and its alternatives.

Sizes: B batch, T tokens, D width, K heads, M MLP width, R representation.

- token: the class token, as in the paper;
- gap: the mean of the patches (Appendix D.3), by default without a class token;
- map: attention pooling by a learned query, as in big_vision's models/vit.py;
- token+gap: the class token and the mean of the patches, one after the other (DINOv2).
With `pool_norm` what is pooled is normalised, and the tokens are not (MAE). A model with a
distillation token has a second classifier on it; the logits are the mean of both (DeiT).
The representation layer is the tanh layer of pre-training (Sec. 3.1).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from patchwords.models.config import ViTConfig
from patchwords.models.layers import MLP, StateNames


class CrossAttention(StateNames):
    """One learned query looks at all tokens."""

    state_names: ClassVar = {"proj": "out"}

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)  # rows: (k, v), then heads, then Dh
        self.proj = nn.Linear(width, width)

    def forward(self, probe: Tensor, x: Tensor) -> Tensor:
        """Attend from the probe [1, 1, D] to the tokens [B, T, D]: [B, 1, D]."""
        q = self.query(probe).expand(x.shape[0], -1, -1)  # [B, 1, D]
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, K, 1, Dh]
        k, v = (
            self.key_value(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )  # [B, K, T, Dh]
        y = scaled_dot_product_attention(q, k, v)  # [B, K, 1, Dh]
        return self.proj(y.transpose(1, 2).flatten(2))


class MapPool(nn.Module):
    """Multihead attention pooling; no dropout, as in its source."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = CrossAttention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config.width, config.mlp_width, config.gelu, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Pool patches [B, N, D] to [B, D]."""
        x = self.attention(self.probe, x)  # [B, 1, D]
        x = x + self.mlp(self.norm(x))
        return x[:, 0]


class ClassifierHead(nn.Module):
    """Pooling, its norm and the tanh layer if there are any, and the classifier."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.classifier = config.classifier
        self.prefix = config.num_prefix_tokens
        width, size = config.pooled_width, config.representation_size
        self.pool = MapPool(config) if config.classifier == "map" else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if config.pool_norm else None
        self.representation = nn.Linear(width, size) if size else None
        self.linear = nn.Linear(size or width, config.num_classes)
        self.distillation: nn.Linear | None = None
        if config.distillation:
            self.distillation = nn.Linear(size or width, config.num_classes)

    def forward(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits [B, classes] of tokens [B, T, D]; with `pre_logits` the features before."""
        return self.classify(self.pooled(features), pre_logits)

    def pooled(self, features: Tensor) -> Tensor:
        """Pool tokens [B, T, D] to [B, D], or [B, 2D] of "token+gap"; only "map" learns it.

        With a distillation token it is [B, 2, D], one for each classifier.
        """
        if self.distillation is not None:
            return features[:, :2]
        if self.classifier == "token":
            return features[:, 0]  # Eq. 4
        patches = features[:, self.prefix :] if self.prefix else features
        if self.pool is not None:
            return self.pool(patches)
        mean = patches.mean(dim=1)
        return mean if self.classifier == "gap" else torch.cat([features[:, 0], mean], dim=-1)

    def classify(self, y: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits [B, classes] of pooled features; with `pre_logits` [B, R or D]."""
        if self.norm is not None:
            y = self.norm(y)
        if self.representation is not None:
            y = self.representation(y).tanh()
        if self.distillation is None:
            return y if pre_logits else self.linear(y)
        if pre_logits:
            return y.mean(dim=1)
        return (self.linear(y[:, 0]) + self.distillation(y[:, 1])) / 2


def make_zero_classifier(old: nn.Linear, width: int, num_classes: int) -> nn.Linear:
    """Make a classifier of zeros on the device and in the precision of the old one."""
    new = nn.utils.skip_init(
        nn.Linear, width, num_classes, device=old.weight.device, dtype=old.weight.dtype
    )
    nn.init.zeros_(new.weight)
    nn.init.zeros_(new.bias)
    return new
