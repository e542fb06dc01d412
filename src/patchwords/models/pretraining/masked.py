"""A ViT that learns from patches it does not see: masked patch prediction (Sec. 4.6, App. B.1.2).

The embeddings of some patches are replaced, the encoder runs as always, and one linear layer
predicts what was there from the output of each replaced patch. The appendix speaks of corrupted
"patch embeddings", so they are replaced before the class token and the positions come in: a
replaced patch still says where it stands, as BERT's masked words do.

Sizes: B batch, C channels, H W image, N patches, T tokens, D width, R replaced patches of an
image, V values predicted for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchwords.errors import ConfigError
from patchwords.models.build import ModelConfig
from patchwords.models.config import ViTConfig
from patchwords.models.init import make_initial_values
from patchwords.models.vit import ViT


@dataclass(frozen=True)
class PatchCorruption:
    """Which patches of each image are corrupted, and what stands in their place.

    As many in every image. A slice of it is that of the same slice of the images.
    """

    places: Tensor  # int64 [B, R], the corrupted patches: those to be predicted; rising
    sources: Tensor  # int64 [B, N], the patch whose embedding stands here: by default its own
    masked: Tensor  # bool [B, N], True: the mask embedding stands here

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, chosen: slice) -> PatchCorruption:
        return PatchCorruption(self.places[chosen], self.sources[chosen], self.masked[chosen])

    def to(self, device: torch.device | str) -> PatchCorruption:
        return PatchCorruption(
            self.places.to(device, non_blocking=True),
            self.sources.to(device, non_blocking=True),
            self.masked.to(device, non_blocking=True),
        )


class MaskedViT(nn.Module):
    """ViT with a mask embedding and a layer that predicts the corrupted patches.

    The ViT's own head is not used and does not learn.
    """

    def __init__(self, vit: ViT, outputs: int, seed: int = 0) -> None:
        """`outputs` is V. The initial values are a function of the seed and the names."""
        super().__init__()
        check_maskable(vit.config)
        self.vit = vit
        self.vit.head.requires_grad_(False)
        width, like = vit.config.width, vit.patch_embed.weight
        self.mask_token = nn.Parameter(like.new_empty(1, 1, width))
        self.prediction = nn.Linear(width, outputs, device=like.device, dtype=like.dtype)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if not name.startswith("vit."):
                    parameter.copy_(make_initial_values(name, parameter.shape, vit.config, seed))

    def forward(self, images: Tensor, corruption: PatchCorruption) -> Tensor:
        """Compute predictions [B, R, V] for the corrupted patches of images [B, C, H, W]."""
        vit = self.vit
        grid = vit.grid(images)
        tables = vit.positions(grid, images)
        patches = corrupt_patches(
            vit.embed_patches(images), corruption, self.mask_token
        )  # [B, N, D]
        features = vit.encoder(vit.enter(patches, tables), grid, tables)  # [B, T, D]
        return self.prediction(
            gather_patches(features[:, vit.config.num_prefix_tokens :], corruption.places)
        )


def corrupt_patches(patches: Tensor, corruption: PatchCorruption, mask_token: Tensor) -> Tensor:
    """Corrupt patch embeddings [B, N, D]; `mask_token` is [1, 1, D]."""
    moved = gather_patches(patches, corruption.sources)
    return torch.where(corruption.masked[..., None], mask_token.to(moved.dtype), moved)


def gather_patches(values: Tensor, places: Tensor) -> Tensor:
    """Gather [B, R, D] from [B, N, D] at int64 places [B, R]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


def check_maskable(config: ModelConfig) -> None:
    """Raise ConfigError for a model whose patches cannot be hidden, or not be inferred."""
    if not isinstance(config, ViTConfig):
        raise ConfigError(
            "masked patch prediction corrupts patch embeddings, and a ResNet has none: choose a "
            "ViT, or --objective supervised"
        )
    if config.trunk is not None:
        raise ConfigError(
            "masked patch prediction would hide nothing from a hybrid: its convolutions spread "
            "the pixels of a patch over those around it; choose a ViT, or --objective supervised"
        )
    if not config.mixer_traits.sees_others:
        raise ConfigError(
            "masked patch prediction infers a patch from the others, which mixer "
            f"{config.mixer!r} never looks at: choose another mixer"
        )
    if config.patches < 2:
        raise ConfigError(
            f"masked patch prediction needs several patches, and an image of "
            f"{config.image_size[0]}x{config.image_size[1]} is one patch of {config.patch_size}: "
            "choose smaller patches"
        )
