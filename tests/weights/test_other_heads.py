"""Every head on an encoder that came with another one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.models.build import build_model
from patchwords.models.init import init_weights
from patchwords.models.vit import ViT
from patchwords.weights.adapt import adapt_model

Build = Callable[..., ViT]
POSITIONS = (
    *({"position": p, "position_at": "stem"} for p in ("1d", "2d", "relative", "sincos2d", "none")),
    {"position": "1d", "position_at": "every"},
    {"position": "2d", "position_at": "every"},
)
READS = {"token": "the class token", "gap": "the mean of all tokens", "map": "attention pooling"}
DROPPED = "; the class token and its position are dropped"
FROM_ZERO = "; the class token and its position start from zero"
FROM_INITIAL = "; the pooling starts from initial weights"


def encoder(model: ViT) -> dict[str, Tensor]:
    """What no head has a part in."""
    own = ("head.", "class_token", "positions.")
    state = model.state_dict().items()
    return {k: v for k, v in state if not k.startswith(own) and not k.endswith("class_token")}


@pytest.mark.parametrize("place", POSITIONS, ids=str)
@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(READS, 2)))
def test_pooling_changes_and_the_encoder_stays(
    tiny: Build, images: Tensor, old: str, new: str, place: dict[str, Any]
) -> None:
    model = tiny(classifier=old, width=12, **place)
    other, changes = adapt_model(model, classifier=new)
    said = f"the head reads {READS[new]} in place of {READS[old]}"
    said += DROPPED if old == "token" else ""
    said += FROM_ZERO if new == "token" else ""
    said += FROM_INITIAL if new == "map" else ""
    assert changes == [said]
    assert other.config == model.config.with_settings(classifier=new)
    assert encoder(other).keys() == encoder(model).keys()
    assert all(torch.equal(value, encoder(model)[name]) for name, value in encoder(other).items())
    assert torch.equal(other.head.linear.weight, model.head.linear.weight)  # it still fits
    # Each patch enters as it did, and a new class token as zero.
    patches = model.tokens(images)[:, model.config.num_prefix_tokens :]
    assert torch.equal(other.tokens(images)[:, other.config.num_prefix_tokens :], patches)
    assert not other.tokens(images)[:, : other.config.num_prefix_tokens].any()
    assert other(images).isfinite().all()


@pytest.mark.parametrize("place", POSITIONS, ids=str)
def test_a_class_token_put_on_and_taken_off_leaves_the_same_model(
    tiny: Build, images: Tensor, place: dict[str, Any]
) -> None:
    model = tiny(classifier="gap", width=12, **place)
    with_token, _ = adapt_model(model, classifier="token")
    back, _ = adapt_model(with_token, classifier="gap")
    assert torch.equal(back(images), model(images))


def test_new_parts_are_drawn_by_seed_and_name(tiny: Build) -> None:
    wanted = build_model(tiny(classifier="map", representation_size=11).config)
    init_weights(wanted, 5)
    other, changes = adapt_model(
        tiny(), classifier="map", representation_size=11, num_classes=7, seed=5
    )
    assert len(changes) == 2
    for name, value in wanted.state_dict().items():
        if name.startswith("head."):
            assert torch.equal(other.state_dict()[name], value), name
    elsewhere, _ = adapt_model(tiny(), classifier="map", seed=6)
    assert not torch.equal(elsewhere.head.pool.probe, other.head.pool.probe)


def test_the_precision_of_the_weights_is_that_of_the_new_parts(tiny: Build) -> None:
    other, _ = adapt_model(tiny().double(), classifier="map", representation_size=11)
    assert {value.dtype for value in other.state_dict().values()} == {torch.float64}


@pytest.mark.parametrize(
    ("had", "asked", "said"),
    [
        (None, 11, ", on a tanh layer of 11 with initial weights"),
        (13, 11, ", on a tanh layer of 11 with initial weights"),
        (11, 11, ", on a tanh layer of 11 that the weights have"),  # Sec. 3.2's other variant
        (11, None, "; the tanh layer of 11 before it is left out, too"),
    ],
)
def test_a_tanh_layer_with_new_classes(
    tiny: Build, had: int | None, asked: int | None, said: str
) -> None:
    model = tiny(representation_size=had)
    new, changes = adapt_model(model, num_classes=3, representation_size=asked)
    head = "the head is new, for 3 classes in place of 7: it starts from zero (Sec. 3.2)"
    assert changes == [head + said]
    assert new.config.representation_size == asked
    assert not new.head.linear.weight.any()
    assert new.head.linear.weight.shape == (3, asked or 10)
    if had == asked:
        assert torch.equal(new.head.representation.weight, model.head.representation.weight)


@pytest.mark.parametrize(("had", "asked"), [(None, 11), (11, None), (11, 10), (10, None)])
def test_a_classifier_does_not_outlive_its_tanh_layer(
    tiny: Build, images: Tensor, had: int | None, asked: int | None
) -> None:
    """Even where its shape would fit (10 is the width): it was made for other inputs."""
    model = tiny(representation_size=had, head_bias=-4.0)
    for arguments in ({}, {"head_rows": [6, 0, 3]}):
        new, changes = adapt_model(model, representation_size=asked, **arguments)
        assert changes[0].startswith("the head is new")
        assert not new(images).any()
        assert new.config.head_bias == 0


def test_a_mixer_without_a_class_token_gets_none(tiny: Build) -> None:
    with pytest.raises(ConfigError, match="where a class token has no place"):
        adapt_model(tiny(mixer="pooling"), classifier="token")
