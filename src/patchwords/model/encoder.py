"""The Transformer encoder: Eqs. 2-3, LayerNorm before each branch and after the last block.

Sizes: B batch, T tokens, D width, M MLP width, L depth.

Dropout stands where Appendix B.1 puts it: after every dense layer except the projections to q, k
and v (and after adding positions, in vit.py); attention weights are never dropped. Stochastic
depth is not of the paper but of its sequel (AugReg, arXiv 2106.10270, Sec. 3).
"""

from __future__ import annotations

from torch import Tensor, nn

from patchwords.model.attention import Attention
from patchwords.model.config import ViTConfig
from patchwords.model.dropout import Dropout

GELU = {"erf": "none", "tanh": "tanh"}  # our name -> torch's


class MLP(nn.Module):
    """Two dense layers with a GELU between them."""

    def __init__(self, width: int, mlp_width: int, gelu: str, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_width)
        self.gelu = nn.GELU(GELU[gelu])
        self.dropout1 = Dropout(dropout)
        self.fc2 = nn.Linear(mlp_width, width)
        self.dropout2 = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x = self.dropout1(self.gelu(self.fc1(x)))  # [B, T, M]
        return self.dropout2(self.fc2(x))


class DropPath(nn.Module):
    """Stochastic depth: in training, a sample's whole branch is zero with probability `rate`.

    What is kept is scaled by 1 / (1 - rate), so the expectation is that of evaluation.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class Block(nn.Module):
    """One layer of the encoder."""

    def __init__(self, config: ViTConfig, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config.width, config.heads)
        self.dropout = Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config.width, config.mlp_width, config.gelu, config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x = x + self.drop_path(self.dropout(self.attention(self.norm1(x))))  # Eq. 2
        return x + self.drop_path(self.mlp(self.norm2(x)))  # Eq. 3

    def attention_weights(self, x: Tensor) -> Tensor:
        """[B, T, D], the input of the block -> [B, K, T, T]"""
        return self.attention.weights(self.norm1(x))


class Encoder(nn.Module):
    """L blocks and the final LayerNorm.

    Eq. 4 normalises the class token only; normalising every token gives it the same value.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(
            Block(config, drop_path=config.drop_path * layer / last)
            for layer in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
