"""Dropped patches: which, how many, in what order, and where a model says that it looks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from subjects import RESNET, SIZE, VIT, batch_of, lively, pixels

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.evaluation.robustness.occlusion import (
    OCCLUSION_LEVELS,
    build_occlusions,
    choose_occlusion_grid,
    compute_saliency,
    drop_patches,
    fit_to_model_input,
    gradient_times_input,
    order_by_saliency,
    order_randomly,
)
from patchwords.evaluation.robustness.perturbation import (
    PerturbationBatch,
    grid_cells,
    mean_per_cell,
    square_cells,
)

RANDOM, SALIENT, NON_SALIENT = build_occlusions(grid=4)


def black(images: torch.Tensor) -> torch.Tensor:
    """[B, C, H, W] -> bool [B, H, W]; no pixel of `pixels` is 0 by itself."""
    gone = (images == 0).all(1)
    assert torch.equal(gone, (images == 0).any(1))
    return gone


def changed(
    disturbance: object, batch: PerturbationBatch, level: float, seed: int = 0
) -> torch.Tensor:
    return disturbance.change(batch, level, seed)  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(("size", "grid"), [((12, 20), 4), ((13, 7), 5), ((5, 11), 5)])
def test_cells_of_a_grid_are_numbered_by_row_and_differ_by_a_pixel(
    size: tuple[int, int], grid: int
) -> None:
    found = grid_cells(size, grid).numpy()
    wanted = [
        [(y * grid // size[0]) * grid + x * grid // size[1] for x in range(size[1])]
        for y in range(size[0])
    ]
    assert found.tolist() == wanted
    for cell in range(grid * grid):
        rows, columns = np.nonzero(found == cell)
        for places, length in ((rows, size[0]), (columns, size[1])):
            assert np.ptp(places) + 1 in {length // grid, -(-length // grid)}


def test_squares_have_so_many_pixels_and_the_last_are_cut_off() -> None:
    found = square_cells((5, 7), 3)
    assert found.tolist() == [[0, 0, 0, 1, 1, 1, 2]] * 3 + [[3, 3, 3, 4, 4, 4, 5]] * 2


def test_means_are_those_of_each_cell() -> None:
    values = torch.rand(2, 7, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cells = grid_cells((7, 11), 3)
    found = mean_per_cell(values, 3)
    for cell in range(9):
        torch.testing.assert_close(found[:, cell], values[:, cells == cell].mean(1))


def test_an_image_of_224_has_the_papers_grid_and_small_ones_patches_of_4_pixels() -> None:
    sizes = {(224, 224): 14, (384, 384): 14, (112, 140): 14, (111, 224): 27, (32, 32): 8, (3, 9): 1}
    assert {size: choose_occlusion_grid(size) for size in sizes} == sizes


@pytest.mark.parametrize("level", [0, 5, 50, 99, 100])
def test_so_many_whole_patches_are_black_and_the_rest_untouched(level: float) -> None:
    batch = batch_of(lively(VIT))
    found = changed(RANDOM, batch, level)
    gone = black(found)
    share = mean_per_cell(gone.double(), 4).round(decimals=9)
    assert set(share.unique().tolist()) <= {0.0, 1.0}
    assert share.sum(1).tolist() == [16 * level // 100] * 5
    kept = ~gone[:, None].expand_as(found)
    assert torch.equal(found[kept], batch.images[kept])
    assert found.dtype == torch.uint8


@pytest.mark.parametrize("disturbance", build_occlusions(grid=4), ids=lambda d: d.name)
def test_what_is_dropped_at_one_level_is_dropped_at_every_higher_one(disturbance: object) -> None:
    batch = batch_of(lively(VIT))
    gone = [black(changed(disturbance, batch, level)) for level in (0, *OCCLUSION_LEVELS)]
    assert all(bool((more | ~fewer).all()) for fewer, more in pairwise(gone))
    assert not gone[0].any()
    assert gone[-1].all()


def test_the_draw_depends_on_seed_and_image_and_not_on_the_batch() -> None:
    subject = lively(VIT)
    whole = changed(RANDOM, batch_of(subject, 7), 50, seed=3)
    parts = [changed(RANDOM, batch_of(subject, n, k), 50, seed=3) for n, k in ((2, 0), (5, 2))]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, changed(RANDOM, batch_of(subject, 7), 50, seed=4))
    orders = order_randomly(batch_of(subject, 7), 4, 3)
    assert len({tuple(order) for order in orders.tolist()}) == 7
    assert all(sorted(order) == list(range(16)) for order in orders.tolist())


def test_draws_leave_no_patch_out() -> None:
    """Over 400 images each of 9 patches is first 44 times, give or take 4 deviations (6.3)."""
    batch = PerturbationBatch(pixels(1), torch.zeros(1), list(range(400)), lively(VIT))
    first = order_randomly(batch, 3, 0)[:, 0]
    assert (torch.bincount(first, minlength=9) - 400 / 9).abs().max() < 25


def test_salient_and_non_salient_are_one_order_from_both_ends() -> None:
    batch = batch_of(lively(VIT))
    some, others = (black(changed(kind, batch, 50)) for kind in (SALIENT, NON_SALIENT))
    assert torch.equal(some, ~others)
    assert not torch.equal(some, black(changed(RANDOM, batch, 50)))


def test_the_first_to_go_is_where_the_class_token_looks() -> None:
    subject = lively(VIT)
    batch = batch_of(subject)
    given = subject.preprocess.normalise(batch.images)
    maps = dict(subject.model.attention(given))[1].mean(1)[:, 0, 1:]  # [B, 24], of 6x4 patches
    order = order_by_saliency(batch, 2, subject)
    quarters = maps.unflatten(1, (2, 3, 2, 2)).mean((2, 4)).flatten(1)  # [B, 4]
    assert order.tolist() == quarters.argsort(1, descending=True).tolist()


def test_without_a_class_token_it_is_what_a_patch_receives() -> None:
    subject = lively(VIT.with_settings(classifier="gap"))
    images = pixels(3)
    given = subject.preprocess.normalise(images)
    weights = dict(subject.model.attention(given))[1].detach()  # [B, K, 24, 24]
    wanted = weights.mean((1, 2)).unflatten(1, (6, 4))
    found = compute_saliency(images, subject).detach()
    torch.testing.assert_close(found[:, ::4, ::4], wanted)
    torch.testing.assert_close(found[:, 3::4, 1::4], wanted)


@pytest.mark.parametrize(
    "config", [RESNET, VIT.with_settings(mixer="pooling")], ids=["ResNet", "pooling"]
)
def test_without_attention_it_is_the_gradient_times_the_pixels(config: object) -> None:
    subject = lively(config)  # type: ignore[arg-type]
    subject.model.double()
    images = pixels(2).double()

    def logit(changed: torch.Tensor) -> torch.Tensor:
        given = subject.preprocess.normalise(changed, torch.float64)
        return subject.model(given)  # type: ignore[no-any-return]

    with torch.no_grad():
        best = logit(images).argmax(1)
        normalise = subject.preprocess.normalise
        exact = replace_normalise(subject, lambda x: normalise(x, torch.float64))
        found = gradient_times_input(images, exact)
        for y, x in ((0, 0), (11, 7), (23, 15)):
            wanted = torch.zeros(2, dtype=torch.float64)
            step = 1e-4  # of 255: the curvature's part is of its square
            for channel in range(3):
                up, down = images.clone(), images.clone()
                up[:, channel, y, x] += step
                down[:, channel, y, x] -= step
                slope = (logit(up) - logit(down))[range(2), best] / (2 * step)
                wanted += slope * images[:, channel, y, x]
            torch.testing.assert_close(found[:, y, x], wanted, rtol=1e-4, atol=1e-9)


def test_a_patch_that_speaks_against_the_answer_is_salient_as_well() -> None:
    subject = lively(RESNET)
    batch = batch_of(subject)
    means = mean_per_cell(compute_saliency(batch.images, subject), 4)
    assert means.min() < 0 < means.max()
    wanted = means.abs().argsort(dim=1, descending=True)
    assert order_by_saliency(batch, 4, subject).tolist() == wanted.tolist()


def replace_normalise(subject: object, normalise: object) -> object:
    """The subject, with pixels normalised in float64."""

    class Exact(Preprocess):
        def normalise(self, images, dtype=None):  # type: ignore[no-untyped-def]
            return normalise(images)  # type: ignore[operator]

    exact = Exact(**vars(subject.preprocess))  # type: ignore[attr-defined]
    return replace(subject, source=replace(subject.source, preprocess=exact))  # type: ignore[type-var,attr-defined]


def test_parameters_get_no_gradient_and_gradients_may_be_off() -> None:
    subject = lively(RESNET)
    with torch.no_grad():
        changed(SALIENT, batch_of(subject), 50)
    assert all(parameter.grad is None for parameter in subject.model.parameters())
    assert all(parameter.requires_grad for parameter in subject.model.parameters())


def test_another_model_can_say_what_is_salient() -> None:
    """It sees the images in its own size and colours; its order is that of all models."""
    judge = lively(VIT.with_settings(image_size=(8, 12), channels=1), "judge")
    _, salient, _ = build_occlusions(grid=4, source=judge)
    vit, resnet = (batch_of(lively(config)) for config in (VIT, RESNET))
    assert torch.equal(changed(salient, vit, 50), changed(salient, resnet, 50))
    assert not torch.equal(changed(salient, vit, 50), changed(SALIENT, vit, 50))
    assert "judge" in salient.title


def test_images_are_brought_to_the_judges_size_and_colours() -> None:
    judge = lively(VIT.with_settings(image_size=(8, 12), channels=1))
    found = fit_to_model_input(torch.full((2, 3, 24, 16), 100.0), judge)
    assert found.shape == (2, 1, 8, 12)
    torch.testing.assert_close(found, torch.full((2, 1, 8, 12), 100.0))
    red = torch.zeros(1, 3, 8, 12)
    red[:, 0] = 200
    assert fit_to_model_input(red, judge).mean() == pytest.approx(200 * 0.299, rel=1e-6)
    assert fit_to_model_input(red[:, :1], lively(VIT)).shape == (1, 3, *SIZE)


def test_saliency_is_found_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(images: torch.Tensor, subject: object) -> torch.Tensor:
        calls.append(1)
        return images.float().mean(1)

    monkeypatch.setattr("patchwords.evaluation.robustness.occlusion.compute_saliency", count)
    batch = batch_of(lively(VIT))
    for level in OCCLUSION_LEVELS:
        changed(SALIENT, batch, level)
        changed(NON_SALIENT, batch, level)
    assert len(calls) == 1


def test_more_patches_than_pixels_are_refused() -> None:
    random, _, _ = build_occlusions(grid=17)
    with pytest.raises(ConfigError, match=r"--grid 17: images of 16x24 .* give 16 or less"):
        changed(random, batch_of(lively(VIT)), 50)


def test_drop_takes_the_order_at_its_word() -> None:
    images = torch.ones(1, 1, 2, 2)
    assert drop_patches(images, torch.tensor([[2, 1, 3, 0]]), 50).flatten().tolist() == [1, 0, 0, 1]
