"""Shuffled tiles: moved whole, by draws of their own, at grids that divide the image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from subjects import RESNET, VIT, batch_of, lively, pixels, still

from patchwords.evaluation.robustness.shuffling import (
    TILE_PERMUTATION,
    list_tile_grids,
    shuffle_tiles,
    shuffle_tiles_randomly,
)


def test_tiles_are_put_where_the_order_says() -> None:
    images = pixels(2, (12, 20))
    orders = torch.stack([torch.arange(16).flip(0), torch.arange(16).roll(5)])
    found = shuffle_tiles(images, orders).numpy()
    for b in range(2):
        for place in range(16):
            (row, column), (y, x) = divmod(place, 4), divmod(int(orders[b, place]), 4)
            wanted = images[b, :, 3 * y : 3 * y + 3, 5 * x : 5 * x + 5]
            tile = found[b, :, 3 * row : 3 * row + 3, 5 * column : 5 * column + 5]
            np.testing.assert_array_equal(tile, wanted)


def test_the_identity_and_the_inverse_give_the_image_back() -> None:
    images = pixels(3, (12, 20))
    order = torch.from_numpy(np.random.default_rng(0).permutation(16))[None].expand(3, -1)
    assert torch.equal(shuffle_tiles(images, torch.arange(16)[None].expand(3, -1)), images)
    there = shuffle_tiles(images, order)
    assert not torch.equal(there, images)
    assert torch.equal(shuffle_tiles(there, order.argsort(1)), images)


def test_a_vit_without_positions_does_not_see_its_own_patches_shuffled() -> None:
    """The claim of Sec. 3.3, exact where tiles are patches, and false where they are finer."""
    subject = lively(VIT.with_settings(image_size=16, position="none"))
    batch = batch_of(subject, 3)
    model = subject.model.double()

    def ask(images: torch.Tensor) -> torch.Tensor:
        return model(subject.preprocess.normalise(images, torch.float64))  # type: ignore[no-any-return]

    with torch.no_grad():
        clean = ask(batch.images)
        for side in (2, 4):
            torch.testing.assert_close(
                ask(shuffle_tiles_randomly(batch, side, 0)), clean, rtol=0, atol=1e-12
            )
        assert (ask(shuffle_tiles_randomly(batch, 8, 0)) - clean).abs().max() > 1e-3


def test_the_draw_depends_on_seed_grid_and_image_and_not_on_the_batch() -> None:
    subject = lively(VIT)
    whole = shuffle_tiles_randomly(batch_of(subject, 7), 4, 3)
    parts = [
        shuffle_tiles_randomly(batch_of(subject, count, first), 4, 3)
        for count, first in ((3, 0), (4, 3))
    ]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, shuffle_tiles_randomly(batch_of(subject, 7), 4, 2))
    assert torch.equal(
        shuffle_tiles_randomly(batch_of(subject, 4), 1, 0), batch_of(subject, 4).images
    )


def test_each_image_has_an_order_of_its_own() -> None:
    subject = lively(VIT)
    batch = batch_of(subject, 5)
    same = batch.images[:1].expand(5, -1, -1, -1)
    batch.images.copy_(same)
    found = shuffle_tiles_randomly(batch, 4, 0)
    assert len({image.numpy().tobytes() for image in found}) == 5


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (VIT.with_settings(image_size=224, patch_size=16), (2, 4, 7, 8, 14, 16, 28)),
        (VIT.with_settings(image_size=224, patch_size=32), (2, 4, 7, 8, 14, 16, 28)),
        (VIT.with_settings(image_size=384, patch_size=16), (2, 4, 8, 16, 24, 48)),
        (VIT.with_settings(image_size=32, patch_size=4), (2, 4, 8, 16)),
        (VIT.with_settings(image_size=15, patch_size=5), (3,)),
        (VIT.with_settings(image_size=(24, 16), patch_size=4), (2, 4, 8)),
        (RESNET.with_settings(image_size=32), (2, 4, 8, 16)),
    ],
)
def test_grids_divide_the_image_and_have_the_models_own(
    config: object, wanted: tuple[float, ...]
) -> None:
    assert list_tile_grids(still(config)) == wanted  # type: ignore[arg-type]
    assert TILE_PERMUTATION.levels_of(still(config)) == wanted  # type: ignore[arg-type]
    assert TILE_PERMUTATION.clean == 1
