"""The Vision Transformer: Eqs. 1-4 of "An Image is Worth 16x16 Words" (arXiv 2010.11929).

Sizes: B batch, C channels, H W image, P patch size, N = H/P * W/P patches, T tokens (N + prefix
tokens: class token, distillation token, registers), F leading tokens, R registers, D width, K heads,
L depth.

Dropout is where Appendix B.1 puts it: after every dense layer except the projections to q, k and
v, and after adding positions; attention weights are never dropped. Stochastic depth comes from
AugReg (arXiv 2106.10270, Sec. 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from patchwords.errors import ConfigError
from patchwords.models.attention import Attention
from patchwords.models.checks import (
    check_images,
    check_layer_boundary,
    check_layer_indices,
    check_patch_grid,
)
from patchwords.models.config import ViTConfig
from patchwords.models.conv_stem import ConvStem
from patchwords.models.heads import ClassifierHead, make_zero_classifier
from patchwords.models.layers import MLP, Dropout, StateNames, SwiGLU
from patchwords.models.mixers import get_mixer_class
from patchwords.models.mixers.mixer import Mixer
from patchwords.models.position import PositionEmbedding
from patchwords.models.resnet.config import ConvStemConfig
from patchwords.models.resnet.trunk import Trunk


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


class Block(StateNames):
    """One layer of the encoder: a mixer of tokens and an MLP, each on a residual branch."""

    state_names: ClassVar = {"mixer": "attention"}

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mixer: Mixer = get_mixer_class(config.mixer).build(config, layer)
        self.dropout = Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp: nn.Module = (
            SwiGLU(config.width, config.mlp_width, config.dropout)
            if config.swiglu
            else MLP(config.width, config.mlp_width, config.gelu, config.dropout)
        )
        # LayerScale (arXiv 2103.17239): a factor for each channel of both branches.
        self.layer_scale1: nn.Parameter | None = None
        self.layer_scale2: nn.Parameter | None = None
        if config.layer_scale is not None:
            self.layer_scale1, self.layer_scale2 = (
                nn.Parameter(torch.full((config.width,), config.layer_scale)) for _ in range(2)
            )
        self.drop_path = DropPath(config.drop_path * layer / max(config.layers - 1, 1))

    def forward(self, x: Tensor, grid: tuple[int, int], num_queries: int | None = None) -> Tensor:
        """Mix the tokens [B, T, D] and transform each; `grid` is (rows, columns) of the patches.

        With `num_queries` = F only the first F tokens are computed, from all: [B, F, D].
        """
        # Mixers without a class token take no such argument.
        only = () if num_queries is None else (num_queries,)
        y = self.dropout(self.mixer(self.norm1(x), grid, *only))
        if self.layer_scale1 is not None:
            y = y * self.layer_scale1
        x = x[:, :num_queries] + self.drop_path(y)  # Eq. 2
        y = self.mlp(self.norm2(x))
        if self.layer_scale2 is not None:
            y = y * self.layer_scale2
        return x + self.drop_path(y)  # Eq. 3

    def attention_weights(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Compute attention weights [B, K, T, T] of the input of the block, [B, T, D]."""
        return cast(Attention, self.mixer).weights(self.norm1(x), grid)


class Encoder(nn.Module):
    """L blocks and the final LayerNorm; 2L where blocks come in pairs (Appendix D.6).

    Eq. 4 normalises the class token only; normalising every token gives it the same value.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.at_every_layer = config.position_at != "stem"
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        # With `pool_norm` the head normalises what it pools, and the tokens stay as they are.
        self.norm: nn.Module = (
            nn.Identity() if config.pool_norm else nn.LayerNorm(config.width, eps=config.norm_eps)
        )

    def forward(
        self,
        x: Tensor,
        grid: tuple[int, int],
        tables: Tensor | None = None,
        start: int = 0,
        num_queries: int | None = None,
    ) -> Tensor:
        """Run the blocks from `start` on its input [B, T, D], then the final LayerNorm.

        `tables` are positions [1 or layers, T, D]. With `num_queries` = F the last block
        computes the first F tokens only: [B, F, D].
        """
        last = len(self.blocks) - 1
        for layer, block in enumerate(self.blocks[start:], start):
            x = self.add_positions(layer, x, tables)
            x = block(x, grid, num_queries if layer == last else None)
        return self.norm(x)

    def add_positions(self, layer: int, x: Tensor, tables: Tensor | None) -> Tensor:
        """Add the positions of a layer to its input, if every layer gets them (App. D.4).

        Those of the first layer came in with the tokens (Eq. 1).
        """
        if tables is None or layer == 0 or not self.at_every_layer:
            return x
        return x + tables[layer % tables.shape[0]]


class ViT(StateNames):
    """Vision Transformer: images in [-1, 1] to logits. `create_model` builds one with weights."""

    state_names: ClassVar = {"patch_embed": "embed"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        size, width, trunk = config.patch_size, config.width, config.trunk
        self.trunk: Trunk | ConvStem | None = None
        if isinstance(trunk, ConvStemConfig):
            self.trunk = ConvStem(trunk, config.channels)
        elif trunk:
            self.trunk = Trunk(trunk, config.channels, config.image_size)
        channels = trunk.channels if trunk else config.channels
        self.patch_embed = nn.Conv2d(  # E of Eq. 1
            channels, width, size, stride=size, bias=config.patch_bias
        )
        self.class_token = make_tokens(int(config.has_class_token), width)
        self.distillation_token = make_tokens(int(config.distillation), width)
        self.registers = make_tokens(config.registers, width)
        self.positions = PositionEmbedding(config)
        self.dropout = Dropout(config.dropout)
        self.pre_norm = nn.LayerNorm(width, eps=config.norm_eps) if config.pre_norm else None
        self.encoder = Encoder(config)
        self.head = ClassifierHead(config)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes] of images [B, C, H, W]."""
        # Where the head reads the class token only, the last block computes no other token: that
        # saves a twelfth of a base model.
        return self.forward_head(self.encode(images, self.config.num_read_tokens))

    def tokens(self, images: Tensor) -> Tensor:
        """Compute the input of the encoder, [B, T, D], of images [B, C, H, W] (Eq. 1)."""
        grid = self.grid(images)
        return self.enter(self.embed_patches(images), self.positions(grid, images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Compute tokens [B, T, D] after the final LayerNorm, prefix tokens first."""
        return self.encode(images)

    def encode(self, images: Tensor, num_queries: int | None = None) -> Tensor:
        """Compute `forward_features`, or only its first F tokens, [B, F, D]."""
        grid = self.grid(images)
        # On another grid the tables are resized at every call, and never kept: that takes 0.02 to
        # 0.2 % of the forward pass of one image, and a kept copy would be stale after a fused
        # optimizer's step, which torch does not count as a write.
        tables = self.positions(grid, images)  # [1 or layers, T, D], or None
        x = self.enter(self.embed_patches(images), tables)
        return self.encoder(x, grid, tables, num_queries=num_queries)

    def represent(self, images: Tensor) -> Tensor:
        """Compute the features that the classifier sees, [B, R or D], of images [B, C, H, W]."""
        return self.forward_head(self.encode(images, self.config.num_read_tokens), pre_logits=True)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits [B, classes] of tokens [B, T, D]; with `pre_logits` the features before."""
        return self.head(features, pre_logits)

    def forward_intermediates(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """Compute outputs of blocks by layer, each [B, T, D], before the final LayerNorm.

        Layers count from 0, or from the end if negative, and are the keys as given; default: all.
        Nothing is computed after the deepest one.
        """
        count = self.config.layers
        keys = range(count) if layers is None else layers
        indices = set(check_layer_indices(list(keys), count))
        grid = self.grid(images)
        tables = self.positions(grid, images)
        x = self.enter(self.embed_patches(images), tables)
        outputs: dict[int, Tensor] = {}
        for layer in range(max(indices, default=-1) + 1):
            x = self.encoder.blocks[layer](self.encoder.add_positions(layer, x, tables), grid)
            if layer in indices:
                outputs[layer] = x
        return {layer: outputs[layer % count] for layer in keys}

    def forward_dense(self, images: Tensor, layers: Sequence[int] = (-1,)) -> Tensor:
        """Compute a map of patch features, [B, D, h, w], of images; h, w = H/P, W/P.

        Outputs of several layers, each through the final LayerNorm, are joined along the channels:
        [B, len(layers) * D, h, w]. Layers count from 0, or from the end if negative.
        """
        rows, columns = self.grid(images)
        outputs = self.forward_intermediates(images, layers)
        patches = [
            self.encoder.norm(outputs[layer])[:, self.num_prefix_tokens :] for layer in layers
        ]
        return torch.cat(patches, dim=-1).transpose(1, 2).unflatten(2, (rows, columns))

    def forward_until(self, images: Tensor, layer: int) -> Tensor:
        """Compute the input of block `layer`, [B, T, D]; `layers`: the output of the last block."""
        if check_layer_boundary(layer, self.config.layers) == 0:
            return self.tokens(images)
        return self.forward_intermediates(images, [layer - 1])[layer - 1]

    def forward_from(self, x: Tensor, layer: int, grid: tuple[int, int] | None = None) -> Tensor:
        """Compute logits [B, classes] of the input of block `layer`, [B, T, D].

        `grid` is (rows, columns) of the patches, by default that of the config's image size.
        """
        grid = grid or self.config.grid
        start = check_layer_boundary(layer, self.config.layers)
        return self.forward_head(
            self.encoder(x, grid, self.positions(grid, x), start, self.config.num_read_tokens)
        )

    def attention(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, attention weights [B, K, T, T]) by depth; default: of all layers.

        Rows are queries and sum to 1; layers count from 0. One layer is in memory at a time, if
        the caller keeps none and has gradients off. Raises ConfigError for a mixer without heads.
        """
        count = self.config.layers
        if not self.config.mixer_traits.has_heads:
            raise ConfigError(f"mixer {self.config.mixer!r} has no attention to look at")
        indices = set(check_layer_indices(list(range(count) if layers is None else layers), count))
        deepest = max(indices, default=-1)
        grid = self.grid(images)
        tables = self.positions(grid, images)
        x = self.enter(self.embed_patches(images), tables)

        def stream(x: Tensor) -> Iterator[tuple[int, Tensor]]:
            for layer in range(deepest + 1):
                block = cast(Block, self.encoder.blocks[layer])
                x = self.encoder.add_positions(layer, x, tables)
                if layer in indices:
                    yield layer, block.attention_weights(x, grid)
                if layer < deepest:
                    x = block(x, grid)

        return stream(x)

    @property
    def num_features(self) -> int:
        """D, channels of the features; the classifier may see fewer: `representation_size`."""
        return self.config.width

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before those of the patches."""
        return self.config.num_prefix_tokens

    def get_classifier(self) -> nn.Linear:
        """Return the layer that computes the logits."""
        return self.head.linear

    def reset_head(self, num_classes: int, *, keep_representation: bool = False) -> None:
        """Replace the classifier by zeros and drop the tanh layer (Sec. 3.2, Appendix D.3)."""
        size = self.config.representation_size if keep_representation else None
        self.config = self.config.with_settings(
            num_classes=num_classes, representation_size=size, head_bias=0.0
        )
        if size is None:
            self.head.representation = None
        inputs = size or self.config.pooled_width
        self.head.linear = make_zero_classifier(self.head.linear, inputs, num_classes)
        if self.head.distillation is not None:
            self.head.distillation = make_zero_classifier(
                self.head.distillation, inputs, num_classes
            )

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Return (rows, columns) of patches; raise ConfigError if the images do not fit the model."""
        config = self.config
        size = check_images(images, config.channels)
        check_patch_grid(size, config.patch_size, config.trunk.stride if config.trunk else 1)
        return config.grid_of(size)

    def embed_patches(self, images: Tensor) -> Tensor:
        """Project the patches of images, row by row, to [B, N, D] (Eq. 1: times E)."""
        features = images if self.trunk is None else self.trunk(images)
        return self.patch_embed(features).flatten(2).transpose(1, 2)

    def enter(self, patches: Tensor, tables: Tensor | None) -> Tensor:
        """Put prefix tokens before the patches [B, N, D] and add positions (Eq. 1): [B, T, D]."""
        tokens = (self.class_token, self.distillation_token, self.registers)
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens if token is not None]
        x = torch.cat([*prefix, patches], dim=1) if prefix else patches  # [B, T, D]
        x = self.dropout(x if tables is None else x + tables[0])
        return x if self.pre_norm is None else self.pre_norm(x)


def make_tokens(count: int, width: int) -> nn.Parameter | None:
    """Make learned tokens [1, count, D]; None for none."""
    return nn.Parameter(torch.zeros(1, count, width)) if count else None
