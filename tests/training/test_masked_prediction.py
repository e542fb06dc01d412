"""Masked patch prediction: corruption, targets and loss against a plain account of App. B.1.2."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from tiny_run import digits

from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.init import init_weights
from patchwords.models.pretraining.masked import MaskedViT, PatchCorruption
from patchwords.models.vit import ViT
from patchwords.rng import numpy_generator
from patchwords.training.config import PretrainConfig
from patchwords.training.model_setup import InitialModel
from patchwords.training.objective_settings import MaskedTargetName, ObjectiveSettings
from patchwords.training.objectives.masked import (
    MaskedPatchPrediction,
    MaskSampler,
    build_patch_target,
    compute_colour_classes,
    count_corrupted_patches,
    draw_corruption,
    patchify,
    unpatchify,
)

TARGETS: tuple[MaskedTargetName, ...] = ("mean-colour", "small-patch", "pixels")
SIZE, IMAGES = (14, 21), 5  # 2x3 patches of 7, which 4 does not divide
VIT = ViTConfig(
    patch_size=7, width=12, depth=2, heads=2, mlp_width=18, image_size=SIZE, num_classes=1
)
PREPROCESS = Preprocess(SIZE, mean=(0.4, 0.5, 0.3), std=(0.5, 0.25, 0.3))


def pictures(channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(256, (IMAGES, channels, *SIZE), generator=generator, dtype=torch.uint8)
    images[0], images[1, :, :7, :7] = 255, 0  # the ends of the scale
    images[2, :, 7:, 14:] = 32  # just above the first edge, 31.875
    return images


# ------------------------------------------------------------------------------------ corruption


def drawn(patches: int, ratio: float, images: int, seed: int = 1) -> PatchCorruption:
    return MaskSampler(patches, ratio, seed)([(0, image, 0) for image in range(images)])


@pytest.mark.parametrize(("patches", "ratio"), [(49, 0.5), (197, 0.15), (16, 0.75), (7, 1.0)])
def test_exactly_the_ratio_is_corrupted_and_the_rest_is_not(patches: int, ratio: float) -> None:
    made = drawn(patches, ratio, 41)
    count = round(ratio * patches)
    assert made.places.shape == (41, count)
    for places, sources, masked in zip(made.places, made.sources, made.masked, strict=True):
        assert len(set(places.tolist())) == count
        assert places.tolist() == sorted(places.tolist())
        untouched = sorted(set(range(patches)) - set(places.tolist()))
        assert sources[untouched].tolist() == untouched
        assert not masked[untouched].any()


def test_eighty_ten_ten_and_another_patch_is_another() -> None:
    patches, images = 53, 400
    made = drawn(patches, 0.5, images)
    n = images * round(0.5 * patches)
    moved = made.sources != torch.arange(patches)
    fates = {0.8: int(made.masked.sum()), 0.1: int(moved.sum())}
    assert not (moved & made.masked).any()
    fates_kept = n - sum(fates.values())
    for share, found in [*fates.items(), (0.1, fates_kept)]:
        # 4 standard deviations of a binomial count: chance fails it once in 15,000 seeds
        assert abs(found - share * n) < 4 * math.sqrt(n * share * (1 - share))
    # Every other patch is as likely: 1,040 moves over 52 distances, 20 of each.
    steps = (made.sources - torch.arange(patches))[moved] % patches
    counts = np.bincount(steps.numpy(), minlength=patches)
    assert counts[1:].min() > 0
    expected = moved.sum().item() / (patches - 1)
    chi2 = ((counts[1:] - expected) ** 2 / expected).sum()
    assert chi2 < 51 + 4 * math.sqrt(2 * 51)  # 51 degrees of freedom, 4 deviations


def test_the_other_of_two_patches_is_the_other() -> None:
    images = 2000
    made = drawn(2, 1.0, images)
    moved = int((made.sources != torch.arange(2)).sum())
    share = 0.1 * 2 * images  # half of it, if a patch could stand for itself
    assert abs(moved - share) < 4 * math.sqrt(share * 0.9)


def test_every_patch_is_as_likely() -> None:
    patches, images = 29, 1000
    counts = np.bincount(drawn(patches, 0.5, images).places.flatten().numpy(), minlength=patches)
    share = round(0.5 * patches) / patches
    assert np.abs(counts - images * share).max() < 4.5 * math.sqrt(images * share * (1 - share))


def test_a_function_of_seed_and_place_alone() -> None:
    draw = MaskSampler(49, 0.5, 7)
    places = [(2, 11, 0), (2, 5, 0), (3, 11, 0), (2, 11, 1)]
    together = draw(places)
    for row, place in enumerate(places):
        alone = draw([place])
        for name in ("places", "sources", "masked"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[row])
    for other in range(1, 4):  # another sample, another epoch, a repeat
        assert not torch.equal(together.places[0], together.places[other])
    assert not torch.equal(MaskSampler(49, 0.5, 8)(places).places, together.places)
    assert len(draw([])) == 0


def test_the_draw_does_not_depend_on_what_becomes_of_other_patches() -> None:
    """With more corrupted patches the permutation is the same: a ratio is a prefix of a larger."""
    few = draw_corruption(numpy_generator(3, "mask", 0), 31, 5)[0]
    many = draw_corruption(numpy_generator(3, "mask", 0), 31, 17)[0]
    assert set(few) < set(many)


def test_a_ratio_that_corrupts_nothing_is_refused() -> None:
    assert count_corrupted_patches(16, 0.04) == 1
    with pytest.raises(ConfigError, match=r"--mask-ratio 0.01 of 16 patches is none: 0.062 would"):
        count_corrupted_patches(16, 0.01)


# --------------------------------------------------------------------------------------- targets


def plain_patch(images: np.ndarray, image: int, place: int) -> np.ndarray:
    """[C, 7, 7]"""
    row, column = divmod(place, 3)
    return images[image, :, 7 * row : 7 * row + 7, 7 * column : 7 * column + 7]


def plain_class(cell: np.ndarray) -> int:
    """The class of a mean colour, by fractions of [0, 1]; red counts 64, green 8, blue 1."""
    number = 0
    for channel in cell:
        level = next(
            k for k in range(8) if k == 7 or channel.astype(int).mean() / 255 < (k + 1) / 8
        )
        number = 8 * number + level
    return number


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("cells", [1, 4])
def test_colour_classes_by_hand(channels: int, cells: int) -> None:
    images = pictures(channels)
    found = compute_colour_classes(patchify(images, 7), cells)  # [B, N, S]
    edges = [(0, 7)] if cells == 1 else [(0, 2), (1, 4), (3, 6), (5, 7)]  # 7 pixels into 4 cells
    for image in range(IMAGES):
        for place in range(6):
            patch = plain_patch(images.numpy(), image, place)
            by_hand = [
                plain_class(patch[:, top:bottom, left:right])
                for top, bottom in edges
                for left, right in edges
            ]
            assert found[image, place].tolist() == by_hand
    assert found[0].eq(8**channels - 1).all()  # white
    assert found[1, 0].eq(0).all()  # black
    assert found[2, 5].eq(sum(8**c for c in range(channels))).all()  # 32 is of the second level


def test_patches_are_cut_in_rows_and_joined_again() -> None:
    images = pictures()
    patches = patchify(images, 7)
    assert patches.shape == (IMAGES, 6, 3, 7, 7)
    for place in range(6):
        expected = plain_patch(images.numpy(), 3, place)
        assert np.array_equal(patches[3, place].numpy(), expected)
    assert torch.equal(unpatchify(patches, rows=2), images)


@pytest.mark.parametrize(("name", "outputs"), [("mean-colour", 8), ("small-patch", 128)])
def test_grey_images_have_eight_colours(name: str, outputs: int) -> None:
    grey = Preprocess(SIZE, channels=1)
    assert build_patch_target(name, VIT.with_settings(channels=1), grey).outputs == outputs


def test_a_small_patch_of_a_smaller_one_is_refused() -> None:
    small = VIT.with_settings(patch_size=2, image_size=8)
    with pytest.raises(ConfigError, match="the patches of this model are 2x2: choose --target"):
        build_patch_target("small-patch", small, PREPROCESS)


# ------------------------------------------------------------------------------ loss and accuracy


def config_of(target: MaskedTargetName, ratio: float = 0.5) -> PretrainConfig:
    return PretrainConfig(
        data="digits", learn=ObjectiveSettings("masked", target=target, mask_ratio=ratio)
    )


def objective_of(target: MaskedTargetName) -> MaskedPatchPrediction:
    objective = MaskedPatchPrediction(config_of(target), PREPROCESS)
    objective.build(InitialModel("tiny", ViT(VIT), PREPROCESS, ()), digits())
    return objective


def parts_of(images: torch.Tensor, corruption: PatchCorruption, *edges: int) -> list[ImageBatch]:
    batch = ImageBatch.of(images, corruption)
    return [batch[start:end] for start, end in itertools.pairwise(edges)]


def plain_loss(target: str, scores: np.ndarray, patch: np.ndarray) -> tuple[float, float]:
    """(loss, share right) of one patch: scores [V] in float64, patch [C, 7, 7]."""
    if target == "pixels":
        mean, std = (np.array(v)[:, None, None] for v in (PREPROCESS.mean, PREPROCESS.std))
        wanted = (patch / 255 - mean) / std
        guess = scores.reshape(3, 7, 7)
        colour = (guess * std + mean).mean((1, 2)) * 8  # in levels
        levels = np.clip(np.floor(colour), 0, 7).astype(int)
        right = levels @ [64, 8, 1] == plain_class(patch)
        return float(((guess - wanted) ** 2).mean()), float(right)
    edges = [(0, 7)] if target == "mean-colour" else [(0, 2), (1, 4), (3, 6), (5, 7)]
    cells = [patch[:, a:b, c:d] for a, b in edges for c, d in edges]
    losses, right = [], []
    for row, cell in zip(scores.reshape(len(cells), 512), cells, strict=True):
        wanted = plain_class(cell)
        losses.append(np.log(np.exp(row).sum()) - row[wanted])
        right.append(row.argmax() == wanted)
    return float(np.mean(losses)), float(np.mean(right))


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_is_the_mean_over_corrupted_patches_by_hand(target: MaskedTargetName) -> None:
    images, corruption = pictures(), drawn(6, 0.5, IMAGES)
    outputs = {"mean-colour": 512, "small-patch": 16 * 512, "pixels": 147}[target]
    random = np.random.default_rng(4)
    scores = random.normal(size=(IMAGES, 3, outputs))
    if target != "pixels":
        scores.reshape(-1, 512)[:, 511] += 9  # white, which is right for the first image
    objective = objective_of(target)
    answers = torch.from_numpy(scores)
    found = [
        objective.loss(lambda images, hidden, row=i: answers[row : row + 1], part, 0)
        for i, part in enumerate(parts_of(images, corruption, *range(IMAGES + 1)))
    ]
    losses = torch.stack([loss for loss, _ in found])
    right = torch.stack([metrics["accuracy"] for _, metrics in found]).sum()
    by_hand = [
        [
            plain_loss(target, scores[image, i], plain_patch(images.numpy(), image, int(place)))
            for i, place in enumerate(corruption.places[image])
        ]
        for image in range(IMAGES)
    ]
    expected = np.array(by_hand).mean(1)  # [B, 2]
    assert losses.dtype == torch.float32
    # Losses below 20 in float32, from sums of 512 terms.
    torch.testing.assert_close(losses.numpy(), expected[:, 0].astype(np.float32), atol=1e-5, rtol=0)
    assert right.item() == pytest.approx(expected[:, 1].sum(), abs=1e-5)
    assert target == "pixels" or expected[0, 1] == 1


def learner(target: MaskedTargetName) -> MaskedViT:
    vit = ViT(VIT)
    init_weights(vit, 0)
    outputs = build_patch_target(target, VIT, PREPROCESS).outputs
    model = MaskedViT(vit, outputs).eval()
    torch.nn.init.normal_(model.prediction.weight, generator=torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_asks_for_nothing_but_the_corrupted_patches(target: MaskedTargetName) -> None:
    """Where patches that are not corrupted look otherwise, the wanted colours are the same."""
    images, corruption = pictures(), drawn(6, 0.5, IMAGES)
    model = learner(target)
    fixed = model(PREPROCESS.normalise(images), corruption)
    objective = objective_of(target)

    def loss(images: torch.Tensor) -> torch.Tensor:
        batch = ImageBatch.of(images, corruption)
        return objective.loss(lambda images, hidden: fixed, batch, 0)[0]

    before = loss(images)
    patches = patchify(images, 7).clone()
    hidden = torch.zeros(IMAGES, 6, dtype=torch.bool).scatter(1, corruption.places, True)
    patches[~hidden] = 255 - patches[~hidden]
    assert torch.equal(loss(unpatchify(patches, 2)), before)
    patches[hidden] = 255 - patches[hidden]
    assert not torch.allclose(loss(unpatchify(patches, 2)), before)


def test_mean_colour_starts_from_the_entropy_of_512_classes() -> None:
    vit = ViT(VIT)
    init_weights(vit, 0)
    model = MaskedViT(vit, 512)
    batch = ImageBatch.of(pictures(), drawn(6, 0.5, IMAGES))
    loss, _ = objective_of("mean-colour").loss(model, batch, 0)
    assert loss.item() == pytest.approx(math.log(512), abs=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_the_objective_of_a_part_is_the_part_of_the_objective(target: MaskedTargetName) -> None:
    images, corruption = pictures(), drawn(6, 0.5, IMAGES)
    objective, model = objective_of(target), learner(target)
    whole, metrics = objective.loss(model, ImageBatch.of(images, corruption), 0)
    parts = parts_of(images, corruption, 0, 2, 5)
    found = [(len(part), *objective.loss(model, part, 0)) for part in parts]
    # The encoder sums in another order for another batch.
    mean = sum(n * float(loss) for n, loss, _ in found) / IMAGES
    assert mean == pytest.approx(whole.item(), abs=1e-4, rel=1e-5)
    right = sum(n * float(of_part["accuracy"]) for n, _, of_part in found)
    assert right == pytest.approx(IMAGES * metrics["accuracy"].item(), abs=1e-4)


def test_predictions_are_painted_where_the_levels_have_their_middle() -> None:
    scores = torch.zeros(1, 1, 512)
    scores[..., 3 * 64 + 7 * 8] = 1  # red level 3, green 7, blue 0
    target = build_patch_target("mean-colour", VIT, PREPROCESS)
    painted = target.paint(scores)
    assert painted.shape == (1, 1, 3, 7, 7)
    assert painted[0, 0, :, 2, 5].tolist() == [112, 239, 16]  # 3.5, 7.5, 0.5 eighths of 255
    small = build_patch_target("small-patch", VIT, PREPROCESS)
    scores = torch.zeros(1, 1, 16, 512)
    scores[0, 0, 6, 511] = 1  # second row, third column of the cells
    assert (small.paint(scores.flatten(2))[0, 0, 0] == 239).nonzero()[:, 0].unique().tolist() == [
        *range(2, 4)
    ]
    pixels = build_patch_target("pixels", VIT, PREPROCESS)
    patches = patchify(pictures(), 7)[:, :1]
    normal = PREPROCESS.normalise(patches.flatten(0, 1)).view(IMAGES, 1, -1)
    assert torch.equal(pixels.paint(normal), patches)  # back and forth
