"""The maps of a photo that are compared with one another: one number for each patch.

Sizes: B batch, C channels, H W image, h w grid.
"""

from __future__ import annotations

from torch import Tensor

from patchwords.inspect.attention import attention_maps, extract_query_map, require_attention
from patchwords.inspect.gradient_rollout import gradient_rollout
from patchwords.inspect.rollout import attention_rollout
from patchwords.model.family import Model


def compute_saliency_maps(
    model: Model, images: Tensor, classes: Tensor | None = None
) -> dict[str, Tensor]:
    """[B, C, H, W] -> [B, h, w] by name, from the class token, or the mean over patches without it.

    "last layer" is the mean of its heads. "gradient rollout" is there if `classes` says, for each
    image, for which one. Raises ConfigError where there is no attention.
    """
    vit = require_attention(model)
    grid, prefix = vit.grid(images), vit.config.prefix
    maps = {
        "last layer": attention_maps(vit, images, [-1])[:, 0].mean(dim=1),
        "rollout": extract_query_map(attention_rollout(vit, images), grid, prefix),
    }
    if classes is not None:
        weighed = gradient_rollout(vit, images, classes)
        maps["gradient rollout"] = extract_query_map(weighed, grid, prefix)
    return maps
