"""How alike the patch tokens are to the token that the classifier reads, layer by layer.

Cosine similarity of each patch to the class token, or, where there is none, to the mean of the
patches, in the outputs of the blocks (before the final LayerNorm). High everywhere in deep layers
means that tokens have grown alike.

Sizes: B batch, C channels, H W image, h w grid, T tokens, D width, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from patchwords.inspect.attention import MAX_ATTENTION_ELEMENTS, require_vit
from patchwords.model.family import Model


@torch.no_grad()
def token_similarity(model: Model, images: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, L, h, w], from -1 to 1; layer l is the output of block l.

    For every ViT, also for one whose mixer has no attention. Raises ConfigError for a ResNet.
    """
    vit = require_vit(model)
    config, grid = vit.config, vit.grid(images)
    tokens = grid[0] * grid[1] + config.prefix
    size = max(1, MAX_ATTENTION_ELEMENTS // (config.layers * tokens * config.width))
    parts = []
    for some in images.split(size):
        outputs = vit.forward_intermediates(some)
        maps = [
            patch_to_class_similarity(outputs[layer], config.prefix)
            for layer in range(config.layers)
        ]
        parts.append(torch.stack(maps, dim=1).unflatten(-1, grid))  # [b, L, h, w]
    return torch.cat(parts)


def patch_to_class_similarity(x: Tensor, prefix: int) -> Tensor:
    """[B, T, D] -> [B, N]"""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    patches = x[:, prefix:]
    read = x[:, :1] if prefix else patches.mean(dim=1, keepdim=True)  # [B, 1, D]
    return cosine_similarity(patches, read, dim=-1)
