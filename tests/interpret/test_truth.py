"""Deletion and insertion: against a loop, and that a true map is told from chance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import ttest_1samp

from patchwords.errors import ConfigError
from patchwords.interpret.faithfulness import (
    FaithfulnessCurves,
    blur_images,
    compare_with_random_maps,
    compute_faithfulness_curves,
    fill_mean_colour,
    make_random_maps,
    mean_and_standard_error,
    rank_patches,
)
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model

Build = Callable[..., ViT]


@torch.no_grad()
def by_loops(
    model: ViT, image: torch.Tensor, order: list[int], steps: int
) -> tuple[list[float], list[float]]:
    """Patch after patch of 3 x 3 pixels on a grid of 2 x 3, one image"""
    answer = int(model(image[None])[0].argmax())
    empty = torch.stack([torch.full((6, 9), float(channel.mean())) for channel in image])
    deletion, insertion = [], []
    for step in range(steps + 1):
        taken, put = image.clone(), empty.double().clone()
        for patch in order[: round(step * 6 / steps)]:
            y, x = 3 * (patch // 3), 3 * (patch % 3)
            taken[:, y : y + 3, x : x + 3] = empty[:, y : y + 3, x : x + 3]
            put[:, y : y + 3, x : x + 3] = image[:, y : y + 3, x : x + 3]
        for curve, shown in ((deletion, taken), (insertion, put)):
            curve.append(float(model(shown[None])[0].softmax(0)[answer]))
    return deletion, insertion


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_parity_with_a_loop(tiny: Build, images: torch.Tensor, steps: int) -> None:
    model = tiny()
    maps = torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(5))
    found = compute_faithfulness_curves(model, images, {"some": maps}, steps=steps)["some"]
    assert found.deletion.shape == (5, steps + 1)
    for i, image in enumerate(images):
        order = maps[i].flatten().argsort(descending=True).tolist()
        deletion, insertion = by_loops(model, image, order, steps)
        # the loop's mean colours went through float32
        np.testing.assert_allclose(found.deletion[i], deletion, atol=1e-5)
        np.testing.assert_allclose(found.insertion[i], insertion, atol=1e-5)


def test_areas_are_mean_probabilities() -> None:
    falling = np.array([[1.0, 0.5, 0.0, 0.0], [0.2, 0.2, 0.2, 0.2]])
    truth = FaithfulnessCurves(falling, falling[:, ::-1])
    # trapezoids of a third each: 0.75, 0.25 and 0
    np.testing.assert_allclose(truth.areas, [[1 / 3, 1 / 3], [0.2, 0.2]])
    np.testing.assert_allclose(
        FaithfulnessCurves(falling, 1 - falling).score, [2 / 3 - 1 / 3, 0.8 - 0.2]
    )


def test_the_true_map_is_told_from_chance_and_its_reverse_too(tiny: Build) -> None:
    """Without mixing, each patch adds its own share to the logits: that share is the true map."""
    model = tiny(mixer="identity", classifier="gap", image_size=(12, 15), norm_eps=1e6)
    images = torch.randn(
        11, 2, 12, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(7)
    )
    with torch.no_grad():
        answers = model(images).argmax(-1)
        shares = model.head.linear(model.forward_features(images))  # [B, N, classes]
        lost = model.head.linear(model.forward_features(fill_mean_colour(images)))
    true = (shares - lost).gather(2, answers[:, None, None].expand(-1, 20, 1))[..., 0]
    maps = {"true": true.view(11, 4, 5), "false": -true.view(11, 4, 5)}
    maps["random"] = make_random_maps(11, (4, 5))
    curves = compute_faithfulness_curves(model, images, maps, steps=20)
    assert compare_with_random_maps(curves["true"], curves["random"])["truer"] is True
    worse = compare_with_random_maps(curves["false"], curves["random"])
    assert worse["truer"] is False
    assert worse["high"] < 0
    same = compare_with_random_maps(curves["random"], curves["random"])
    assert (same["mean"], same["truer"]) == (0, False)


def test_all_maps_begin_and_end_alike(tiny: Build, images: torch.Tensor) -> None:
    model = tiny()
    a, b = compute_faithfulness_curves(
        model, images, {"a": images[:, 0, ::3, ::3], "b": images[:, 1, ::3, ::3]}
    ).values()
    for curve in ("deletion", "insertion"):
        np.testing.assert_array_equal(getattr(a, curve)[:, [0, -1]], getattr(b, curve)[:, [0, -1]])
    np.testing.assert_array_equal(a.deletion[:, 0], a.insertion[:, -1])
    whole = model(images).softmax(-1).amax(-1).detach().numpy()
    np.testing.assert_allclose(a.deletion[:, 0], whole, atol=1e-12)


def test_a_blurred_baseline(tiny: Build, images: torch.Tensor) -> None:
    model = tiny()
    found = compute_faithfulness_curves(
        model, images, {"a": images[:, 0, ::3, ::3]}, baseline="blur"
    )["a"]
    expected = model(blur_images(images, 3.0)).softmax(-1)
    answers = model(images).argmax(-1)
    expected = expected.gather(1, answers[:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(found.deletion[:, -1], expected, atol=1e-12)
    by_scipy = gaussian_filter(images.numpy(), (0, 0, 2.0, 2.0), mode="nearest", truncate=3.0)
    np.testing.assert_allclose(blur_images(images, 2.0).numpy(), by_scipy, atol=1e-12)
    assert fill_mean_colour(images)[3, 1, 4, 7].item() == pytest.approx(images[3, 1].mean().item())


def test_ties_are_broken_by_chance_and_the_same_again() -> None:
    rank = rank_patches(torch.tensor([[[3.0, 1.0], [2.0, 5.0]]]))
    assert rank.tolist() == [[[1, 3], [2, 0]]]
    flat = rank_patches(torch.zeros(1, 8, 8)).flatten()
    assert sorted(flat.tolist()) == list(range(64))
    assert flat.tolist() != list(range(64))
    assert torch.equal(flat, rank_patches(torch.zeros(1, 8, 8)).flatten())


def test_random_maps_depend_on_the_place_alone() -> None:
    assert torch.equal(make_random_maps(5, (2, 3))[3], make_random_maps(9, (2, 3))[3])
    assert len({float(m[0, 0]) for m in make_random_maps(9, (2, 3))}) == 9


def test_a_hybrid_deletes_the_pixels_below_a_patch() -> None:
    model = create_model("R+ViT-Ti/16", num_classes=3, image_size=64, depth=1).eval()
    torch.nn.init.normal_(model.head.linear.weight)
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    side = 64 // model.config.stride
    mask = torch.zeros(1, side, side)
    mask[0, 0, side - 1] = 1
    found = compute_faithfulness_curves(model, image, {"corner": mask}, steps=side**2)["corner"]
    changed = fill_mean_colour(image).clone()
    stride = model.config.stride
    changed[:, :, :stride, -stride:] = image[:, :, :stride, -stride:]
    answer = model(image).argmax()
    assert found.insertion[0, 1] == pytest.approx(
        model(changed).softmax(-1)[0, answer].item(), abs=1e-6
    )


def test_intervals_are_student_s() -> None:
    generator = np.random.default_rng(3)
    a, b = (
        FaithfulnessCurves(generator.random((13, 5)), generator.random((13, 5))) for _ in range(2)
    )
    found = compare_with_random_maps(a, b)
    expected = ttest_1samp(a.score - b.score, 0).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert found["standard_error"] == pytest.approx(np.std(a.score - b.score, ddof=1) / 13**0.5)
    one = FaithfulnessCurves(a.deletion[:1], a.insertion[:1])
    alone = compare_with_random_maps(one, one)
    assert (alone["low"], alone["high"], alone["truer"]) == (None, None, None)
    assert mean_and_standard_error(np.array([0.5])) == {"mean": 0.5, "standard_error": None}


def test_refused(tiny: Build, images: torch.Tensor, resnet: ResNet) -> None:
    with pytest.raises(ConfigError, match=r"map 'a' of shape \[5, 3, 2\] is not \[5, 2, 3\]"):
        compute_faithfulness_curves(tiny(), images, {"a": torch.zeros(5, 3, 2)})
    with pytest.raises(ConfigError, match="unknown baseline 'black'"):
        compute_faithfulness_curves(tiny(), images, {}, baseline="black")
    with pytest.raises(ConfigError, match="steps must be a whole number from 1 up"):
        compute_faithfulness_curves(tiny(), images, {}, steps=0)
    with pytest.raises(ConfigError, match="a ResNet has no patches"):
        compute_faithfulness_curves(resnet, torch.randn(1, 3, 32, 32), {})
