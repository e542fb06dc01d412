"""The Transformer encoder: Eqs. 2-3, LayerNorm before each branch and after the last block.

Sizes: B batch, T tokens, D width, L depth.

Dropout stands where Appendix B.1 puts it: after every dense layer except the projections to q, k
and v (and after adding positions, in vit.py); attention weights are never dropped. Stochastic
depth is not of the paper but of its sequel (AugReg, arXiv 2106.10270, Sec. 3).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from patchwords.model.attention import Attention
from patchwords.model.config import ViTConfig
from patchwords.model.dropout import Dropout
from patchwords.model.mixers import build_mixer
from patchwords.model.mlp import MLP


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
    """One layer of the encoder. `attention` may be another mixer of tokens: see mixers.py."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = build_mixer(config, layer)
        self.dropout = Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config.width, config.mlp_width, config.gelu, config.dropout)
        self.drop_path = DropPath(config.drop_path * layer / max(config.layers - 1, 1))

    def forward(self, x: Tensor, grid: tuple[int, int], first: int | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]; `grid` is (rows, columns) of the patches among the tokens.

        With `first` = F the others are seen but not computed any further: [B, F, D].
        """
        only = () if first is None else (first,)  # other mixers than attention have no such part
        y = self.attention(self.norm1(x), grid, *only)
        x = x[:, :first] + self.drop_path(self.dropout(y))  # Eq. 2
        return x + self.drop_path(self.mlp(self.norm2(x)))  # Eq. 3

    def attention_weights(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, T, D], the input of the block -> [B, K, T, T]"""
        attention = cast(Attention, self.attention)
        return attention.weights(self.norm1(x), grid)


class Encoder(nn.Module):
    """L blocks and the final LayerNorm; 2L where blocks come in pairs (Appendix D.6).

    Eq. 4 normalises the class token only; normalising every token gives it the same value.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.at_every_layer = config.position_at != "stem"
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(
        self,
        x: Tensor,
        grid: tuple[int, int],
        tables: Tensor | None = None,
        start: int = 0,
        first: int | None = None,
    ) -> Tensor:
        """[B, T, D], what enters block `start`, and positions [1 or layers, T, D] -> [B, T, D]

        With `first` = F the last block ends with the first F tokens, if that is all that is asked
        for: [B, F, D].
        """
        last = len(self.blocks) - 1
        for layer, block in enumerate(self.blocks[start:], start):
            x = self.add_positions(layer, x, tables)
            x = block(x, grid, first if layer == last else None)
        return self.norm(x)

    def add_positions(self, layer: int, x: Tensor, tables: Tensor | None) -> Tensor:
        """What enters a layer: positions again, if each has its own or all share one (App. D.4).

        The first layer's came in with the tokens (Eq. 1).
        """
        if tables is None or layer == 0 or not self.at_every_layer:
            return x
        return x + tables[layer % tables.shape[0]]
