from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwords.errors import ConfigError
from patchwords.models.position import (
    concat_axis_embeddings,
    posemb_sincos_2d,
    resize_position_parameters,
    resize_positions,
)
from patchwords.models.relative import (
    RESIZE_METHODS,
    resize_position_grid,
    resize_position_line,
    resize_relative_table,
)
from patchwords.models.vit import ViT

Tiny = Callable[..., ViT]


def table(prefix: int, rows: int, columns: int, width: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (1, prefix + rows * columns, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# Those that resize rows and columns alike; DINO's moves positions where one side stays, too.
EVEN_METHODS = sorted(set(RESIZE_METHODS) - {"bicubic-offset"})


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_the_same_grid_is_the_identity(method: str) -> None:
    positions = table(1, 3, 7)
    assert torch.equal(resize_positions(positions, (3, 7), (3, 7), 1, method), positions)


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((14, 14), (7, 11)), ((3, 7), (5, 13))]
)
def test_bilinear_corners_is_the_authors_zoom(old: tuple[int, int], new: tuple[int, int]) -> None:
    """scipy.ndimage.zoom(order=1), as vit_jax/checkpoint.py calls it."""
    zoom = pytest.importorskip("scipy.ndimage", reason="scipy is not installed").zoom
    positions = table(1, *old)
    grid = positions[0, 1:].unflatten(0, old).numpy()
    expected = zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    resized = resize_positions(positions, old, new, 1)
    assert torch.equal(resized[:, :1], positions[:, :1])  # the class token's row is kept
    # Both are float64; the sample points are computed in another order.
    np.testing.assert_allclose(resized[0, 1:].unflatten(0, new).numpy(), expected, atol=1e-12)


def test_rows_and_columns_are_not_confused() -> None:
    rows = torch.arange(3.0).view(1, 3, 1, 1).expand(1, 3, 4, 1).flatten(1, 2)  # value = row
    resized = resize_positions(rows, (3, 4), (5, 2), prefix=0).view(5, 2)
    expected = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0])[:, None].expand(5, 2)
    torch.testing.assert_close(resized, expected)


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_a_constant_stays_constant(method: str) -> None:
    resized = resize_positions(torch.full((1, 12, 2), 0.7), (3, 4), (8, 3), 0, method)
    # The weights of each new point add to 1; float32 sums of up to 16 of them.
    torch.testing.assert_close(resized, torch.full((1, 24, 2), 0.7), atol=1e-6, rtol=0)


def test_bicubic_looks_at_all_patches_when_it_shrinks() -> None:
    """Antialiased: with 12 -> 3, every old patch has a say; bilinear-corners takes 3 of 12."""
    positions = torch.eye(12).view(1, 12, 12)  # 1 x 12 grid, one-hot
    seen = {
        method: (resize_positions(positions, (1, 12), (1, 3), 0, method).abs().sum(1) > 1e-6).sum()
        for method in RESIZE_METHODS
    }
    assert seen["bicubic-antialias"] == 12
    assert seen["bilinear-corners"] < 12


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_half_precision_is_resized_in_single(method: str) -> None:
    positions = table(1, 3, 4).bfloat16()
    resized = resize_positions(positions, (3, 4), (5, 7), 1, method)
    exact = resize_positions(positions.float(), (3, 4), (5, 7), 1, method)
    assert resized.dtype == torch.bfloat16
    assert torch.equal(resized, exact.bfloat16())


def test_a_table_of_another_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match="22 rows is not 1 \\+ 3x4"):
        resize_positions(table(1, 3, 7), (3, 4), (5, 5))
    with pytest.raises(ConfigError, match="did you mean 'bilinear-corners'"):
        resize_positions(table(1, 3, 7), (3, 7), (5, 5), method="bilinear")


# ---- the kinds of Table 8, and the sine table ----


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_two_tables_meet_at_each_patch(tiny: Tiny, classifier: str) -> None:
    model = tiny(position="2d", classifier=classifier)
    w = {name: value[0].numpy() for name, value in model.positions.state_dict().items()}
    assert (w["rows"].shape, w["columns"].shape) == ((4, 5), (5, 5))
    places = [np.concatenate([w["columns"][x], w["rows"][y]]) for y in range(4) for x in range(5)]
    if classifier == "token":
        places.insert(0, w["class_token"][0])
    found = model.positions((4, 5))
    assert found is not None
    assert np.array_equal(found[0].detach().numpy(), np.stack(places))


@pytest.mark.parametrize("method", EVEN_METHODS)
@pytest.mark.parametrize("new", [(7, 6), (3, 11), (4, 9)])
def test_resizing_two_tables_is_resizing_the_grid(new: tuple[int, int], method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    columns = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    apart = concat_axis_embeddings(
        resize_position_line(rows, new[0], method), resize_position_line(columns, new[1], method)
    )
    whole = resize_positions(concat_axis_embeddings(rows, columns), (4, 5), new, 0, method)
    torch.testing.assert_close(apart, whole, atol=1e-12, rtol=0)


def test_the_sine_table_is_that_of_big_vision() -> None:
    """posemb_sincos_2d, step by step in NumPy; 3 x 7 patches, D = 20."""
    y, x = np.mgrid[:3, :7]
    omega = 1 / 10_000 ** (np.arange(5) / 4)
    y, x = y.reshape(-1, 1) * omega, x.reshape(-1, 1) * omega
    expected = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    found = posemb_sincos_2d((3, 7), 20, torch.empty(0, dtype=torch.float64))
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-15)
    assert posemb_sincos_2d((2, 2), 4, torch.empty(0)).isfinite().all()  # a single frequency
    half = posemb_sincos_2d((3, 7), 20, torch.empty(0, dtype=torch.bfloat16))
    assert torch.equal(half, found.float().bfloat16())


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_the_sine_table_has_no_parameters_and_is_made_for_the_grid_at_hand(
    tiny: Tiny, classifier: str
) -> None:
    model = tiny(position="sincos2d", width=12, classifier=classifier)
    assert not list(model.positions.parameters())
    images = torch.zeros(1, 2, 6, 21, dtype=torch.float64)
    found = model.positions((2, 7), images)
    assert found is not None
    prefix = int(classifier == "token")
    assert found.dtype == torch.float64
    assert torch.equal(found[:, prefix:], posemb_sincos_2d((2, 7), 12, images))
    assert not found[:, :prefix].any()
    assert torch.equal(model.tokens(images), tokens_alone(model, images) + found)


def tokens_alone(model: ViT, images: torch.Tensor) -> torch.Tensor:
    """Tokens before positions."""
    x = model.patch_embed(images).flatten(2).transpose(1, 2)
    if model.class_token is None:
        return x
    return torch.cat([model.class_token.expand(len(x), -1, -1), x], dim=1)


@pytest.mark.parametrize("position", ["none", "relative"])
def test_nothing_is_added(tiny: Tiny, images: torch.Tensor, position: str) -> None:
    model = tiny(position=position)
    assert model.positions((4, 5)) is None
    assert torch.equal(model.tokens(images), tokens_alone(model, images))


# ---- at every layer ----


@pytest.mark.parametrize("position", ["1d", "2d"])
def test_equal_tables_at_every_layer_are_one_shared(
    tiny: Tiny, images: torch.Tensor, position: str
) -> None:
    shared = tiny(position=position, position_at="shared")
    every = tiny(position=position, position_at="every")
    weights = shared.state_dict()
    for name, value in weights.items():
        if name.startswith("positions."):
            weights[name] = value.repeat(3, 1, 1)
    every.load_state_dict(weights)
    assert torch.equal(every(images), shared(images))
    stem = tiny(position=position)
    stem.load_state_dict(shared.state_dict())
    assert (stem(images) - shared(images)).abs().max() > 1e-3


@pytest.mark.parametrize("position", ["1d", "2d"])
def test_each_layer_gets_its_own_table(tiny: Tiny, images: torch.Tensor, position: str) -> None:
    model = tiny(position=position, position_at="every")
    before = model.forward_intermediates(images)
    with torch.no_grad():
        for table in model.positions.parameters():
            table[1] += 1
    after = model.forward_intermediates(images)
    assert torch.equal(before[0], after[0])
    assert (before[1] - after[1]).abs().max() > 1e-3
    x = before[0] + model.positions((4, 5))[1]  # type: ignore[index]
    assert torch.equal(after[1], model.encoder.blocks[1](x, (4, 5)))


# ---- weights for another grid ----

KINDS: list[dict[str, Any]] = [
    {},
    {"position_at": "every", "resize": "bicubic-antialias"},
    {"position": "2d"},
    {"position": "2d", "position_at": "every", "resize": "bicubic-antialias"},
    {"position": "sincos2d", "width": 12},
    {"position": "relative"},
    {"position": "relative", "classifier": "gap", "resize": "bicubic-antialias"},
    {"position": "relative", "mixer": "axial"},
    {"position": "relative", "mixer": "local", "window": 3, "width": 12},
]


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("size", [(21, 18), (9, 30)])
def test_resized_weights_are_the_model_that_resized_at_every_call(
    tiny: Tiny, settings: dict[str, Any], size: tuple[int, int]
) -> None:
    model = tiny(**settings)
    config = model.config.with_settings(image_size=size)
    other = ViT(config).double().eval()
    other.load_state_dict(resize_position_parameters(model.state_dict(), model.config, config))
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 2, *size, generator=generator, dtype=torch.float64)
    logits = model(images)
    assert logits.std() > 0.1
    torch.testing.assert_close(other(images), logits, atol=1e-12, rtol=0)


@pytest.mark.parametrize("settings", [*KINDS, {"mixer": "mlp"}], ids=str)
def test_an_equal_grid_leaves_all_weights_alone(tiny: Tiny, settings: dict[str, Any]) -> None:
    model = tiny(**settings)
    weights = model.state_dict()
    same = resize_position_parameters(weights, model.config, model.config)
    assert list(same) == list(weights)
    assert all(torch.equal(same[name], weights[name]) for name in weights)


def test_the_token_mlp_cannot_be_resized(tiny: Tiny) -> None:
    model = tiny(mixer="mlp")
    other = model.config.with_settings(image_size=(15, 12))  # as many patches, in another grid
    with pytest.raises(ConfigError, match=r"4x5 patches .* 5x4: image size 12x15") as e:
        resize_position_parameters(model.state_dict(), model.config, other)
    assert "\n" not in str(e.value)


# ---- properties of resizing, for any grid ----

SIDES = st.integers(1, 9)
GRIDS = st.tuples(SIDES, SIDES)
# torch resizes lines of one patch in its own way: 1 x n is not the transpose of n x 1 (bicubic with
# antialiasing), and the only corner of a side of 1 is the first.
WIDE_GRIDS = st.tuples(st.integers(2, 9), st.integers(2, 9))
METHODS = st.sampled_from(EVEN_METHODS)
PROPERTIES = settings(deadline=None, max_examples=40)


@PROPERTIES
@given(GRIDS, GRIDS, METHODS, st.integers(0, 2))
def test_resizing_keeps_prefix_rows_and_constants(
    old: tuple[int, int], new: tuple[int, int], method: str, prefix: int
) -> None:
    patches = torch.full((1, old[0] * old[1], 3), 0.7, dtype=torch.float64)
    rows = torch.randn(1, prefix, 3, dtype=torch.float64)
    resized = resize_positions(torch.cat([rows, patches], 1), old, new, prefix, method)
    assert resized.shape == (1, prefix + new[0] * new[1], 3)
    assert torch.equal(resized[:, :prefix], rows)
    torch.testing.assert_close(
        resized[:, prefix:], torch.full_like(resized[:, prefix:], 0.7), atol=1e-12, rtol=0
    )


@PROPERTIES
@given(WIDE_GRIDS, WIDE_GRIDS, METHODS)
def test_resizing_does_not_mix_up_rows_and_columns(
    old: tuple[int, int], new: tuple[int, int], method: str
) -> None:
    """A transposed grid gives the transposed result."""
    table = torch.randn(1, *old, 2, dtype=torch.float64)
    resized = resize_position_grid(table, new, method)
    turned = resize_position_grid(table.transpose(1, 2), (new[1], new[0]), method)
    torch.testing.assert_close(turned.transpose(1, 2), resized, atol=1e-12, rtol=0)


@PROPERTIES
@given(GRIDS, GRIDS)
def test_corners_stay_in_place(old: tuple[int, int], new: tuple[int, int]) -> None:
    table = torch.randn(1, *old, 2, dtype=torch.float64)
    resized = resize_position_grid(table, new, "bilinear-corners")
    corner = table[0, -1 if new[0] > 1 else 0, -1 if new[1] > 1 else 0]
    torch.testing.assert_close(resized[0, 0, 0], table[0, 0, 0], atol=1e-12, rtol=0)
    torch.testing.assert_close(resized[0, -1, -1], corner, atol=1e-12, rtol=0)


@PROPERTIES
@given(WIDE_GRIDS, WIDE_GRIDS, METHODS)
def test_relative_tables_keep_constants_and_mirror_symmetry(
    old: tuple[int, int], new: tuple[int, int], method: str
) -> None:
    """Turning the offsets round before or after resizing is the same."""
    table = torch.randn(2 * old[0] * old[1] - 1, 2, dtype=torch.float64)
    resized = resize_relative_table(table, old, new, method)
    assert resized.shape == (2 * new[0] * new[1] - 1, 2)
    mirrored = resize_relative_table(table.flip(0), old, new, method).flip(0)
    torch.testing.assert_close(mirrored, resized, atol=1e-10, rtol=0)
    constant = resize_relative_table(torch.ones_like(table), old, new, method)
    torch.testing.assert_close(constant, torch.ones_like(constant), atol=1e-10, rtol=0)
