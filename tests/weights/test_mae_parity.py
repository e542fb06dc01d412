"""The masked autoencoder against transformers' ViTMAE, and what its encoder sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from benchmarks import peers
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.position import posemb_sincos_2d
from patchwords.models.pretraining.mae import (
    MaskedAutoencoder,
    PatchMask,
    check_autoencoder,
    make_decoder_config,
)
from patchwords.models.pretraining.masked import gather_patches
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig
from patchwords.models.vit import ViT
from patchwords.training.objectives.mae import flatten_patches, normalise_patches
from patchwords.weights.convert import rename_tensors, reverse_pairs
from patchwords.weights.huggingface.names import (
    NEWER_NAMES,
    VIT_NAMES,
    join_qkv,
    restore_published_names,
)

transformers = peers.load("transformers")

VIT = ViTConfig(  # 3x3 patches of 4
    patch_size=4,
    width=16,
    depth=2,
    heads=2,
    mlp_width=24,
    image_size=(12, 12),
    num_classes=1,
    gelu="erf",
)
IMAGES, PATCHES, VISIBLE = 5, 9, 3
DECODER_PARTS = {  # transformers' names -> ours
    "decoder.mask_token": "decoder.mask_token",
    "decoder.decoder_embed": "decoder.embed",
    "decoder.decoder_norm": "decoder.norm",
    "decoder.decoder_pred": "decoder.prediction",
}


def autoencoder(config: ViTConfig = VIT, width: int = 64, depth: int = 2) -> MaskedAutoencoder:
    vit = ViT(config)
    init_weights(vit, 0)
    return MaskedAutoencoder(vit, make_decoder_config(config, width, depth), 1).double().eval()


def pictures(side: tuple[int, int] = (12, 12)) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.rand(IMAGES, 3, *side, generator=generator, dtype=torch.float64) * 2 - 1


def masks(noise: Tensor, visible: int = VISIBLE) -> PatchMask:
    order = noise.argsort(dim=1)
    return PatchMask(order[:, :visible], order[:, visible:])


def noise(patches: int = PATCHES) -> Tensor:
    return torch.rand(IMAGES, patches, generator=torch.Generator().manual_seed(2))


def loss_of(model: MaskedAutoencoder, images: Tensor, mask: PatchMask) -> Tensor:
    pixels = gather_patches(flatten_patches(images, 4), mask.hidden)
    return (model(images, mask) - normalise_patches(pixels)[0]).square().mean()


def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of transformers' ViTMAEForPreTraining under our names."""
    pairs = reverse_pairs(VIT_NAMES)
    encoder = {k: v for k, v in tensors.items() if k.startswith("vit.")}
    ours, unknown = rename_tensors(restore_published_names(encoder, ("vit.",), NEWER_NAMES), pairs)
    assert not unknown
    result = {f"vit.{name}": value for name, value in join_qkv(ours)[0].items()}
    blocks = {
        name.removeprefix("decoder.decoder_"): value
        for name, value in tensors.items()
        if name.startswith("decoder.decoder_layers.")
    }
    ours, unknown = rename_tensors(restore_published_names(blocks, ("vit.",), NEWER_NAMES), pairs)
    assert not unknown
    for name, value in join_qkv(ours)[0].items():
        result[name.replace("encoder.", "decoder.")] = value
    for name, value in tensors.items():
        for theirs, part in DECODER_PARTS.items():
            if name.startswith(theirs):
                result[name.replace(theirs, part)] = value
    return result


def build_theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        layer_norm_eps=1e-6,
        image_size=12,
        patch_size=4,
        decoder_hidden_size=64,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=256,
        mask_ratio=2 / 3,
        norm_pix_loss=True,
    )
    model = transformers.ViTMAEForPreTraining(config)
    model.decoder.initialize_weights(PATCHES)  # 5.23 leaves its positions zero otherwise
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms, too
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def test_loss_and_gradients_are_those_of_transformers() -> None:
    theirs, ours = build_theirs(), autoencoder()
    weights = renamed(theirs.state_dict())
    lacking, unknown = ours.load_state_dict(weights, strict=False)
    assert not unknown
    assert set(lacking) == {"vit.head.linear.weight", "vit.head.linear.bias"}
    images, drawn = pictures(), noise()
    # Theirs are in float32: compared here, and below in float64.
    table = posemb_sincos_2d((3, 3), 64, torch.empty(0).double(), reaches_end=False)
    positions = theirs.decoder.decoder_pos_embed.data
    torch.testing.assert_close(table, positions[:, 1:], rtol=0, atol=1e-6)
    positions[:, 1:] = table
    expected = theirs(images, noise=drawn).loss
    loss = loss_of(ours, images, masks(drawn))
    # float64: attention sums in another order
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    expected.backward()
    loss.backward()
    wanted = renamed({n: p.grad for n, p in theirs.named_parameters() if p.grad is not None})
    found = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-14)


def test_fixed_positions_are_the_official_ones() -> None:
    ours = autoencoder()
    of_mae = transformers.models.vit_mae.modeling_vit_mae
    table = of_mae.build_2d_sinusoidal_position_embedding(3, 3, 16, cls_token=True).double()
    table = torch.cat([table[:, 8:], table[:, :8]], 1)[None]  # the released weights: columns first
    torch.testing.assert_close(ours.vit.positions.table.double(), table, rtol=0, atol=1e-7)
    assert not ours.vit.positions.table.requires_grad
    x = 2 / 10_000 ** (1 / 4)  # column 2, the second of D/4 = 4 frequencies
    assert ours.vit.positions.table[0, 3, 1].item() == pytest.approx(torch.tensor(x).sin().item())


def test_the_encoder_runs_on_the_visible_patches_alone() -> None:
    model, images, mask = autoencoder(), pictures(), masks(noise())
    lengths = []
    for block in model.vit.encoder.blocks:
        block.register_forward_hook(lambda module, given, result: lengths.append(result.shape))
    before = model(images, mask)
    assert lengths == [(IMAGES, 1 + VISIBLE, 16)] * 2
    patches = flatten_patches(images, 4)
    hidden = torch.zeros(IMAGES, PATCHES, dtype=torch.bool).scatter(1, mask.hidden, True)
    other = images.clone()
    for image, place in hidden.nonzero().tolist():
        row, column = divmod(place, 3)
        other[image, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] *= -1
    assert not torch.equal(flatten_patches(other, 4), patches)
    assert torch.equal(model(other, mask), before)


@pytest.mark.parametrize(
    "settings",
    [
        {"classifier": "gap"},
        {"classifier": "map"},
        {"position": "2d"},
        {"position": "sincos2d"},
        {"position": "none"},
        {"image_size": (8, 20)},
    ],
    ids=str,
)
def test_other_vits_predict_every_hidden_patch(settings: dict[str, Any]) -> None:
    config = VIT.with_settings(**settings)
    model, mask = autoencoder(config), masks(noise(config.patches))
    count = config.patches - VISIBLE
    assert model(pictures(config.image_size), mask).shape == (IMAGES, count, 48)


def test_weights_that_have_positions_keep_them() -> None:
    vit = ViT(VIT)
    init_weights(vit, 0)
    before = vit.positions.table.clone()
    MaskedAutoencoder(vit, make_decoder_config(VIT, 16, 1), new_positions=False)
    assert torch.equal(vit.positions.table, before)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (ResNetConfig(BIT_TRUNK), "a ResNet cannot"),
        (VIT.with_settings(trunk=HYBRID_TRUNK, patch_size=1, image_size=32), "a hybrid cannot"),
        (VIT.with_settings(mixer="pooling"), "mixer 'pooling' cannot"),
        (VIT.with_settings(position="relative"), "position 'relative' at 'stem' cannot"),
        (VIT.with_settings(position_at="every"), "position '1d' at 'every' cannot"),
        (VIT.with_settings(width=18), "need a width that 4 divides"),
        (VIT.with_settings(patch_size=1, channels=1), "a patch here is one pixel"),
    ],
)
def test_models_that_need_the_whole_grid_are_refused(config: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        check_autoencoder(config)


def test_the_decoder_has_heads_of_32_or_more() -> None:
    heads = {width: make_decoder_config(VIT, width, 1).heads for width in (16, 96, 512, 100)}
    assert heads == {16: 1, 96: 3, 512: 16, 100: 2}
    with pytest.raises(ConfigError, match=r"--decoder-width 18: .* such as 16"):
        make_decoder_config(VIT, 18, 1)
