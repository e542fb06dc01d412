"""The Vision Transformer: Eqs. 1-4 of "An Image is Worth 16x16 Words" (arXiv 2010.11929).

Sizes: B batch, C channels, H W image, P patch size, N = H/P * W/P patches, T tokens (N + 1 with
the class token, else N), D width, K heads, L depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from patchwords.errors import ConfigError
from patchwords.model.config import ViTConfig, check_divides
from patchwords.model.dropout import Dropout
from patchwords.model.encoder import Block, Encoder
from patchwords.model.heads import Head
from patchwords.model.position import resize_positions


class ViT(nn.Module):
    """Images in [-1, 1] to logits. `create_model` gives one with initial weights."""

    positions: nn.Parameter | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        size, width = config.patch_size, config.width
        self.embed = nn.Conv2d(config.channels, width, size, stride=size)  # E of Eq. 1
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if config.prefix else None
        has_table = config.position == "1d"
        self.positions = nn.Parameter(torch.zeros(1, config.tokens, width)) if has_table else None
        self.dropout = Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.head = Head(config)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]"""
        return self.forward_head(self.forward_features(images))

    def tokens(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, T, D], what enters the encoder; Eq. 1"""
        grid = self._check(images)
        x = self.embed(images).flatten(2).transpose(1, 2)  # [B, N, D], rows of the image in turn
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)  # [B, T, D]
        if self.positions is not None:
            # On another grid the table is resized at every call, and never kept: that takes 0.02 to
            # 0.2 % of the forward pass of one image, and a kept copy would be stale after a fused
            # optimizer's step, which torch does not count as a write.
            config = self.config
            x = x + resize_positions(
                self.positions, config.grid, grid, config.prefix, config.resize
            )
        return self.dropout(x)

    def forward_features(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, T, D], after the final LayerNorm; the class token first"""
        return self.encoder(self.tokens(images))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """[B, T, D] -> [B, classes], or with `pre_logits` what the classifier sees, [B, R or D]"""
        return self.head(features, pre_logits)

    def forward_intermediates(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """[B, C, H, W] -> {layer: [B, T, D]}, outputs of blocks, before the final LayerNorm.

        Layers count from 0, or from the end if negative, and are keys as they were asked for
        (all of them by default). Nothing is computed after the deepest one.
        """
        asked = range(self.config.depth) if layers is None else layers
        wanted = set(self._layers(asked))
        outputs: dict[int, Tensor] = {}
        x = self.tokens(images)
        for layer in range(max(wanted, default=-1) + 1):
            x = self.encoder.blocks[layer](x)
            if layer in wanted:
                outputs[layer] = x
        return {layer: outputs[layer % self.config.depth] for layer in asked}

    def attention(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """[B, C, H, W] -> (layer, [B, K, T, T]) of the layers asked for, or of all, by depth.

        Rows are queries and sum to 1; layers count from 0. One layer is in memory at a time, if
        the caller keeps none and has gradients off.
        """
        wanted = set(self._layers(range(self.config.depth) if layers is None else layers))
        deepest = max(wanted, default=-1)
        x = self.tokens(images)

        def stream(x: Tensor) -> Iterator[tuple[int, Tensor]]:
            for layer in range(deepest + 1):
                block = cast(Block, self.encoder.blocks[layer])
                if layer in wanted:
                    yield layer, block.attention_weights(x)
                if layer < deepest:
                    x = block(x)

        return stream(x)

    def reset_head(self, num_classes: int, *, keep_representation: bool = False) -> None:
        """A new classifier, all zero; the tanh layer goes too, as in Sec. 3.2 and Appendix D.3."""
        size = self.config.representation_size if keep_representation else None
        self.config = self.config.with_settings(
            num_classes=num_classes, representation_size=size, head_bias=0.0
        )
        if size is None:
            self.head.representation = None
        old = self.head.linear.weight
        self.head.linear = nn.utils.skip_init(
            nn.Linear, size or self.config.width, num_classes, device=old.device, dtype=old.dtype
        )
        nn.init.zeros_(self.head.linear.weight)
        nn.init.zeros_(self.head.linear.bias)

    def _check(self, images: Tensor) -> tuple[int, int]:
        """The grid of these images, if the model can take them."""
        channels, size = self.config.channels, self.config.patch_size
        if images.ndim != 4:
            raise ConfigError(
                f"images of shape {list(images.shape)} are not [B, C, H, W]"
                + ("; images[None] adds a batch axis" if images.ndim == 3 else "")
            )
        if images.shape[1] != channels:
            raise ConfigError(
                f"images of shape {list(images.shape)} have {images.shape[1]} channels (axis 1), "
                f"the model takes {channels}: create it with channels={images.shape[1]}"
            )
        if not images.is_floating_point():
            raise ConfigError(
                f"images are {str(images.dtype).removeprefix('torch.')}, the model takes floats "
                "in [-1, 1]: images.float() / 127.5 - 1"
            )
        height, width = images.shape[-2:]
        if min(height, width) < 1:
            raise ConfigError(f"images of shape {list(images.shape)} have no pixels")
        check_divides((height, width), size)
        return height // size, width // size

    def _layers(self, layers: Sequence[int]) -> list[int]:
        """Layers counted from 0; a layer that is not there is an error."""
        depth = self.config.depth
        for layer in layers:
            if not -depth <= layer < depth:
                raise ConfigError(
                    f"layer {layer} does not exist: this model has {depth}, 0 to {depth - 1}"
                )
        return [layer % depth for layer in layers]
