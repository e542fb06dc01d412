"""The multilayer perceptron of a block: two dense layers with a GELU between them (Sec. 3.1).

Sizes: B batch, T tokens, D width, M MLP width.
"""

from __future__ import annotations

from torch import Tensor, nn

from patchwords.model.dropout import Dropout

GELU_APPROXIMATE = {"erf": "none", "tanh": "tanh"}  # our name -> torch's


class MLP(nn.Module):
    """Acts on each token by itself."""

    def __init__(self, width: int, mlp_width: int, gelu: str, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_width)
        self.gelu = nn.GELU(GELU_APPROXIMATE[gelu])
        self.dropout1 = Dropout(dropout)
        self.fc2 = nn.Linear(mlp_width, width)
        self.dropout2 = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x = self.dropout1(self.gelu(self.fc1(x)))  # [B, T, M]
        return self.dropout2(self.fc2(x))
