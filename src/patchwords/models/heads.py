"""From tokens to logits: Eq. 4 and its alternatives.

Sizes: B batch, T tokens, D width, K heads, M MLP width, R representation.

- token: the class token, as in the paper;
- gap: the mean of all tokens (Appendix D.3); there is no class token then;
- map: attention pooling by a learned query, as in big_vision's models/vit.py.
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
        """Pool tokens [B, T, D] to [B, D]."""
        x = self.attention(self.probe, x)  # [B, 1, D]
        x = x + self.mlp(self.norm(x))
        return x[:, 0]


class ClassifierHead(nn.Module):
    """Pooling, the tanh layer if there is one, and the classifier."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.classifier = config.classifier
        self.pool = MapPool(config) if config.classifier == "map" else None
        size = config.representation_size
        self.representation = nn.Linear(config.width, size) if size else None
        self.linear = nn.Linear(size or config.width, config.num_classes)

    def forward(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits [B, classes] of tokens [B, T, D]; with `pre_logits` the features before."""
        return self.classify(self.pooled(features), pre_logits)

    def pooled(self, features: Tensor) -> Tensor:
        """Pool tokens [B, T, D] to [B, D]; only "map" has parameters for it."""
        if self.pool is not None:
            return self.pool(features)
        return features.mean(dim=1) if self.classifier == "gap" else features[:, 0]  # Eq. 4

    def classify(self, y: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits [B, classes] of pooled features; with `pre_logits` [B, R or D]."""
        if self.representation is not None:
            y = self.representation(y).tanh()
        return y if pre_logits else self.linear(y)


def make_zero_classifier(old: nn.Linear, width: int, num_classes: int) -> nn.Linear:
    """Make a classifier of zeros on the device and in the precision of the old one."""
    new = nn.utils.skip_init(
        nn.Linear, width, num_classes, device=old.weight.device, dtype=old.weight.dtype
    )
    nn.init.zeros_(new.weight)
    nn.init.zeros_(new.bias)
    return new
