"""Decoders against their plain form in float64, and what they read of a backbone."""

from __future__ import annotations

import plain_decoders
import pytest
import torch
from torch import nn

from patchwords.models.zoo import create_model
from patchwords.tasks.segmentation.decoders import (
    DECODERS,
    WEIGHT_DECAY_RULES,
    choose_decoder_width,
    choose_layers,
    init_decoder,
)
from patchwords.tasks.segmentation.model import (
    build_segmentation_model,
    list_unused_parameters,
    list_window_starts,
)
from patchwords.training.engine.optimizer import has_weight_decay

WIDTH, CLASSES = 128, 5


def make_decoder(name: str) -> nn.Module:
    """A decoder with weights and statistics unlike the initial ones, in float64."""
    row = DECODERS[name]
    decoder = row.decoder([WIDTH] * row.layers, CLASSES).double().eval()
    generator = torch.Generator().manual_seed(3)
    init_decoder(decoder, generator)
    for key, values in decoder.state_dict().items():
        if values.is_floating_point():
            noise = torch.rand(values.shape, generator=generator, dtype=torch.float64)
            values.mul_(0.5).add_(noise if key.endswith("running_var") else 0.3 * (noise - 0.4))
    return decoder


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_its_plain_form(name: str) -> None:
    decoder = make_decoder(name)
    generator = torch.Generator().manual_seed(5)
    shape = (2, WIDTH, 3, 4)
    maps = [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for _ in range(DECODERS[name].layers)
    ]
    extra = (2,) if name == "mask" else ()  # heads of 64
    expected = getattr(plain_decoders, name)(maps, dict(decoder.state_dict()), *extra)
    actual = decoder(maps)
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() < 1e-10 * max(1.0, float(expected.abs().max()))
    assert expected.std() > 0.01  # not all alike


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((model, name) for model in ("ViT-mu/4", "CNN-4x1") for name in DECODERS),
        *(("C+ViT-Ti/4", "pup"), ("BiT-R14x1", "mla")),
    ],
)
def test_logits_of_every_pixel_on_every_backbone(model: str, name: str) -> None:
    size = (24, 32)
    shape = {"depth": 2} if "ViT" in model else {}
    backbone = create_model(model, num_classes=1, image_size=size, **shape)
    learner = build_segmentation_model(backbone, name, CLASSES, seed=1)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    logits = learner(images)
    assert logits.shape == (2, CLASSES, *size)
    logits.square().mean().backward()
    unused = {id(value) for value in list_unused_parameters(learner)}
    for key, value in learner.named_parameters():
        # Every parameter that is not frozen has a gradient: DDP waits for each.
        assert (value.grad is not None) == (id(value) not in unused) == value.requires_grad, key
        if key.startswith("decoder."):
            assert has_weight_decay(key, WEIGHT_DECAY_RULES) == (
                value.ndim > 1 and "class_tokens" not in key
            )


def test_the_layers_that_are_read() -> None:
    assert choose_layers(24, 4) == [5, 11, 17, 23]  # SETR-MLA's
    assert [choose_decoder_width(width) for width in (1024, 768, 128)] == [256, 256, 40]


def test_windows_reach_both_ends_of_a_side() -> None:
    for side in range(10, 60):
        starts = list_window_starts(side, 10)
        assert (starts[0], starts[-1]) == (0, side - 10)
        covered = {pixel for start in starts for pixel in range(start, start + 10)}
        assert covered == set(range(side))
