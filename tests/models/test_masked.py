"""Masked patch prediction: which embeddings are replaced, where, and by what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.models.build import build_model
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.pretraining.masked import (
    MaskedViT,
    PatchCorruption,
    check_maskable,
    corrupt_patches,
)
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model

IMAGES, OUTPUTS = 3, 13
VIT = ViTConfig(  # 3x5 patches of 4
    patch_size=4, width=14, depth=2, heads=2, mlp_width=22, image_size=(12, 20), num_classes=1
)


def learner(config: ViTConfig = VIT, seed: int = 0) -> MaskedViT:
    vit = ViT(config)
    init_weights(vit, 0)
    model = MaskedViT(vit, OUTPUTS, seed).double()
    torch.nn.init.normal_(
        model.prediction.weight, generator=torch.Generator().manual_seed(1)
    )  # else all predictions are zero
    return model.eval()


def corruption() -> PatchCorruption:
    """Of each image, patches 1, 4, 7 and 11: masked, patch 2's, masked, kept."""
    sources = torch.arange(15).repeat(IMAGES, 1)
    sources[:, 4] = 2
    masked = torch.zeros(IMAGES, 15, dtype=torch.bool)
    masked[:, [1, 7]] = True
    return PatchCorruption(torch.tensor([[1, 4, 7, 11]]).repeat(IMAGES, 1), sources, masked)


def pictures(seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(IMAGES, 3, 12, 20, generator=generator, dtype=torch.float64) * 2 - 1


def test_replaced_at_the_embedding_before_positions_by_hand() -> None:
    """The same in plain steps, patch by patch."""
    model, images = learner(), pictures()
    vit = model.vit
    x = vit.patch_embed(images)  # [B, D, 3, 5]
    tokens = torch.stack([x[:, :, i // 5, i % 5] for i in range(15)], dim=1)  # [B, N, D]
    given = tokens.clone()
    for place in (1, 7):
        given[:, place] = model.mask_token[0, 0]
    given[:, 4] = tokens[:, 2]
    whole = torch.cat([vit.class_token.expand(IMAGES, -1, -1), given], dim=1)
    whole = whole + vit.positions.table
    for block in vit.encoder.blocks:
        whole = block(whole, (3, 5))
    outputs = vit.encoder.norm(whole)[:, [2, 5, 8, 12]]  # behind the class token
    by_hand = outputs @ model.prediction.weight.T + model.prediction.bias
    assert model(images, corruption()).shape == (IMAGES, 4, OUTPUTS)
    # float64, and the same products in the same order
    torch.testing.assert_close(model(images, corruption()), by_hand, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"classifier": "gap"},
        {"classifier": "map"},
        {"position": "2d", "position_at": "every"},
        {"position_at": "shared"},
        {"position": "relative"},
        {"position": "sincos2d", "width": 16},
        {"position": "none"},
        {"mixer": "axial"},
        {"mixer": "local", "window": 3},
        {"mixer": "pooling"},
        {"mixer": "mlp"},
        {"channels": 1},
    ],
    ids=str,
)
def test_every_kind_of_vit_sees_nothing_of_a_masked_patch(settings: dict[str, object]) -> None:
    config = VIT.with_settings(**settings)
    model, images = learner(config), pictures()[:, : config.channels]
    outputs = model(images, corruption())
    other = images.clone()
    other[:, :, 0:4, 4:8] += 0.3  # patch 1, which is masked
    other[:, :, 4:8, 8:12] -= 0.3  # patch 7, too
    assert torch.equal(model(other, corruption()), outputs)
    other = images.clone()
    other[:, :, 8:12, 4:8] += 0.3  # patch 11 is kept, and so is seen
    assert not torch.allclose(model(other, corruption())[:, 3], outputs[:, 3])


def test_what_is_not_corrupted_passes_to_the_bit() -> None:
    patches = torch.randn(IMAGES, 15, 14)
    given = corrupt_patches(patches, corruption(), torch.ones(1, 1, 14))
    untouched = [place for place in range(15) if place not in (1, 4, 7)]
    assert torch.equal(given[:, untouched], patches[:, untouched])
    assert torch.equal(given[:, 4], patches[:, 2])
    assert given[:, [1, 7]].eq(1).all()


def test_nothing_corrupted_is_the_plain_vit() -> None:
    model, images = learner(), pictures()
    nothing = PatchCorruption(
        torch.arange(15).repeat(IMAGES, 1),
        torch.arange(15).repeat(IMAGES, 1),
        torch.zeros(IMAGES, 15, dtype=torch.bool),
    )
    plain = model.prediction(model.vit.forward_features(images)[:, 1:])
    torch.testing.assert_close(model(images, nothing), plain, atol=1e-12, rtol=0)


def test_a_slice_is_the_corruption_of_a_slice() -> None:
    model, images = learner(), pictures()
    parts = [model(images[part], corruption()[part]) for part in (slice(0, 2), slice(2, 5))]
    torch.testing.assert_close(torch.cat(parts), model(images, corruption()), atol=1e-12, rtol=0)
    assert len(corruption()[1:]) == 2


def test_initial_weights() -> None:
    """The encoder is as without masks; a prediction starts from equal scores for all classes."""
    vit = create_model("Ti/4", num_classes=1, image_size=8, seed=3)
    alone = create_model("Ti/4", num_classes=1, image_size=8, seed=3)
    assert isinstance(vit, ViT)
    model = MaskedViT(vit, OUTPUTS, seed=3)
    for name, value in alone.state_dict().items():
        assert torch.equal(model.state_dict()[f"vit.{name}"], value)
    assert model.prediction.weight.eq(0).all()
    assert model.prediction.bias.eq(0).all()
    # 192 draws of standard deviation 0.02: it is known to 5 %, 20 % are 4 deviations
    assert model.mask_token.std().item() == pytest.approx(0.02, rel=0.2)
    again = MaskedViT(ViT(vit.config), OUTPUTS, seed=3)
    assert torch.equal(again.mask_token, model.mask_token)
    assert not torch.equal(MaskedViT(ViT(vit.config), 7, seed=4).mask_token, model.mask_token)


def test_all_but_the_head_learns() -> None:
    model = learner(VIT.with_settings(classifier="map"))
    model(pictures(), corruption()).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("vit.head."), name
        assert parameter.requires_grad != name.startswith("vit.head."), name


REFUSED = {
    "a ResNet has none": ResNetConfig(trunk=replace(BIT_TRUNK, units=(1, 1)), image_size=(16, 16)),
    "would hide nothing from a hybrid": VIT.with_settings(
        trunk=replace(HYBRID_TRUNK, units=(1,)), patch_size=1, image_size=16
    ),
    "mixer 'identity' never looks at": VIT.with_settings(mixer="identity", position="none"),
    "an image of 12x12 is one patch of 12": VIT.with_settings(patch_size=12, image_size=12),
}


@pytest.mark.parametrize("line", REFUSED)
def test_models_that_cannot_learn_so_are_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        check_maskable(REFUSED[line])
    model = build_model(REFUSED[line])
    if isinstance(model, ViT):
        with pytest.raises(ConfigError, match=line):
            MaskedViT(model, OUTPUTS)
