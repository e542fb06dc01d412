"""A masked autoencoder (MAE, arXiv 2111.06377): an encoder of visible patches, a light decoder.

The encoder runs on the visible patches alone, which are a quarter of them by default: that is
where its speed comes from. The decoder gets their outputs at their places, a learned mask
embedding at the others, fixed positions, and predicts the pixels of the hidden patches.

Sizes: B batch, C channels, H W image, P patch size, N patches, S visible and R hidden patches
(S + R = N), F leading tokens, D width of the encoder, E width of the decoder, V = P * P * C.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchwords.errors import ConfigError
from patchwords.models.build import ModelConfig
from patchwords.models.config import ViTConfig
from patchwords.models.init import make_initial_values
from patchwords.models.position import posemb_sincos_2d
from patchwords.models.pretraining.masked import gather_patches
from patchwords.models.vit import Block, ViT

DECODER_HEAD_WIDTH = 32  # 16 heads of 512 in the paper
MLP_RATIO = 4
FIXED_POSITIONS = ("1d", "2d", "sincos2d", "none")  # those that come in before the first block


@dataclass(frozen=True)
class PatchMask:
    """Which patches of each image are visible and which are hidden; as many in every image."""

    visible: Tensor  # int64 [B, S]
    hidden: Tensor  # int64 [B, R]

    def __len__(self) -> int:
        return len(self.visible)

    def __getitem__(self, chosen: slice) -> PatchMask:
        return PatchMask(self.visible[chosen], self.hidden[chosen])

    def to(self, device: torch.device | str) -> PatchMask:
        return PatchMask(
            self.visible.to(device, non_blocking=True), self.hidden.to(device, non_blocking=True)
        )


class PatchDecoder(nn.Module):
    """A small ViT over all patches that predicts the pixels of the hidden ones."""

    def __init__(self, config: ViTConfig, encoder_width: int) -> None:
        """`config` is the decoder's; its positions are fixed and not of the config."""
        super().__init__()
        self.config = config
        self.embed = nn.Linear(encoder_width, config.width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.prediction = nn.Linear(config.width, config.channels * config.patch_size**2)

    def forward(self, tokens: Tensor, mask: PatchMask, grid: tuple[int, int]) -> Tensor:
        """Predict pixels [B, R, V] of tokens [B, F + S, D]: leading ones, then visible patches."""
        rows, columns = grid
        x = self.embed(tokens)  # [B, F + S, E]
        prefix, visible = x.tensor_split([x.shape[1] - mask.visible.shape[1]], dim=1)
        places = mask.visible[..., None].expand(-1, -1, x.shape[-1])  # [B, S, E]
        blank = self.mask_token.to(x.dtype).expand(len(x), rows * columns, -1)  # [B, N, E]
        patches = blank.scatter(1, places, visible)  # [B, N, E]
        table = posemb_sincos_2d(grid, x.shape[-1], self.mask_token, reaches_end=False)
        patches = patches + table
        x = torch.cat([prefix, patches], dim=1)  # [B, F + N, E]; the class token's position is 0
        for block in self.blocks:
            x = block(x, grid)
        hidden = gather_patches(x[:, prefix.shape[1] :], mask.hidden)  # [B, R, E]
        return self.prediction(self.norm(hidden))


class MaskedAutoencoder(nn.Module):
    """ViT as the encoder of visible patches, with a decoder that is left behind afterwards.

    The ViT's own head is not used and does not learn. Positions by index are the fixed sines of
    the paper: they are in the weights, do not learn here, and do in fine-tuning.
    """

    def __init__(
        self, vit: ViT, decoder: ViTConfig, seed: int = 0, *, new_positions: bool = True
    ) -> None:
        """With `new_positions` the encoder's table is set to the sines; else it is kept."""
        super().__init__()
        check_autoencoder(vit.config)
        like = vit.patch_embed.weight
        self.vit = vit
        self.vit.head.requires_grad_(False)
        self.decoder = PatchDecoder(decoder, vit.config.width).to(like.device, like.dtype)
        if vit.positions.table is not None:
            vit.positions.table.requires_grad_(False)
        if new_positions:
            set_sincos_table(vit)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if not name.startswith("vit."):
                    parameter.copy_(make_initial_values(name, parameter.shape, decoder, seed))

    def forward(self, images: Tensor, mask: PatchMask) -> Tensor:
        """Predict the pixels of hidden patches, [B, R, V], of images [B, C, H, W]."""
        return self.decoder(self.encode(images, mask), mask, self.vit.grid(images))

    def encode(self, images: Tensor, mask: PatchMask) -> Tensor:
        """Encode the visible patches: tokens [B, F + S, D] after the final LayerNorm."""
        vit = self.vit
        grid, prefix = vit.grid(images), vit.num_prefix_tokens
        x = vit.enter(vit.embed_patches(images), vit.positions(grid, images))  # [B, T, D]
        visible = gather_patches(x[:, prefix:], mask.visible)  # [B, S, D]
        return vit.encoder(torch.cat([x[:, :prefix], visible], dim=1), grid)


@torch.no_grad()
def set_sincos_table(vit: ViT) -> None:
    """Set positions by index to MAE's fixed sines, if the ViT has any; a class token's is zero."""
    table, prefix = vit.positions.table, vit.num_prefix_tokens
    if table is not None:
        table[:, :prefix] = 0
        table[:, prefix:] = posemb_sincos_2d(
            vit.config.grid, vit.config.width, table, reaches_end=False
        )


def make_decoder_config(encoder: ViTConfig, width: int, depth: int) -> ViTConfig:
    """Make the config of a decoder: of the encoder's numerics and patches, without dropout.

    It has as many heads as divide its width into 32 or more. Raises ConfigError.
    """
    if width % 4:
        raise ConfigError(
            f"--decoder-width {width}: sines of two axes need a width that 4 divides, such as "
            f"{max(4, width // 4 * 4)}"
        )
    most = max(1, width // DECODER_HEAD_WIDTH)
    return ViTConfig(
        patch_size=encoder.patch_size,
        width=width,
        depth=depth,
        heads=next(heads for heads in range(most, 0, -1) if width % heads == 0),
        mlp_width=MLP_RATIO * width,
        image_size=encoder.image_size,
        channels=encoder.channels,
        num_classes=1,
        classifier=encoder.classifier,
        gelu=encoder.gelu,
        norm_eps=encoder.norm_eps,
        position="none",
    )


def check_autoencoder(config: ModelConfig) -> None:
    """Raise ConfigError for a model that cannot run on some of its patches."""
    what = "--objective mae runs the encoder on the visible patches alone, which"
    otherwise = "choose a plain ViT, or --objective masked"
    if not isinstance(config, ViTConfig):
        raise ConfigError(f"{what} a ResNet cannot: choose a ViT, or --objective supervised")
    if config.trunk is not None:
        raise ConfigError(
            f"{what} a hybrid cannot: its convolutions need the whole image; choose a plain ViT, "
            "or --objective supervised"
        )
    if config.mixer != "attention":
        raise ConfigError(
            f"{what} mixer {config.mixer!r} cannot, as it needs the grid: {otherwise}"
        )
    if config.position not in FIXED_POSITIONS or config.position_at != "stem":
        place = f"position {config.position!r} at {config.position_at!r}"
        raise ConfigError(
            f"{what} {place} cannot, as later blocks need the grid: choose --position 1d, 2d, "
            "sincos2d or none at the stem, or --objective masked"
        )
    if config.patch_size == config.channels == 1:
        raise ConfigError(
            "--objective mae normalises the pixels of a patch, and a patch here is one pixel: "
            "choose a larger --patch-size"
        )
    if config.position == "1d" and config.width % 4:
        raise ConfigError(
            f"--objective mae has fixed sines for positions, which need a width that 4 divides, "
            f"and the model's is {config.width}: give --width, or --position 2d"
        )
