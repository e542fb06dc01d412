"""Shifts: exact where they must be, and otherwise as numpy has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from subjects import RESNET, VIT, examples_of, lively, pixels

from patchwords.errors import ConfigError, DataError
from patchwords.evaluation import equivariance as translation
from patchwords.evaluation.equivariance import (
    SHIFT_AXES,
    ImageShift,
    LayerOutput,
    compute_layer_outputs,
    compute_squared_error,
    measure_shift_equivariance,
    roll_interpolated,
)
from patchwords.evaluation.robustness.perturbation import NamedProgress
from patchwords.models.resnet.config import HYBRID_TRUNK

N = 11
EXACT = 1e-5  # float32: a few units in the last place of numbers near 1
# A root has a place for every 4 pixels; 2 to either side see its padding.
BIG_RESNET = RESNET.with_settings(image_size=(64, 48))
HYBRID = VIT.with_settings(trunk=replace(HYBRID_TRUNK, units=()), patch_size=1, image_size=(32, 48))


def quiet(what: str, done: int, total: int) -> None:
    pass


def errors(rows: list[dict[str, Any]], place: str) -> dict[tuple[str, int], float]:
    return {(row["axis"], row["pixels"]): row["error"] for row in rows if row["place"] == place}


def test_a_vits_stem_commutes_with_whole_patches_and_not_between() -> None:
    found = errors(measure_shift_equivariance([lively(VIT)], examples_of(N), range(1, 13)), "stem")
    for (_, shift), error in found.items():
        if shift % 4 == 0:
            assert error < EXACT
        else:
            assert error > 0.1


def test_a_roots_stem_commutes_with_its_stride_away_from_the_border() -> None:
    found = errors(
        measure_shift_equivariance([lively(BIG_RESNET)], examples_of(N), range(1, 13)), "stem"
    )
    for (_, shift), error in found.items():
        if shift % 4 == 0:
            assert error < EXACT
        else:
            assert error > 0.02


def test_the_border_of_a_root_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why two places are left out: one would not do."""
    monkeypatch.setattr(translation, "STEM_MARGIN", 1)
    found = errors(measure_shift_equivariance([lively(BIG_RESNET)], examples_of(N), (4, 8)), "stem")
    assert min(found.values()) > 100 * EXACT


def test_a_vit_without_positions_commutes_as_a_whole_with_whole_patches() -> None:
    subject = lively(VIT.with_settings(position="none"))
    rows = measure_shift_equivariance([subject], examples_of(N), (3, 4, 8))
    for place in ("features", "logits"):
        for (_, shift), error in errors(rows, place).items():
            assert error < 10 * EXACT if shift % 4 == 0 else error > 0.05  # through two blocks
    assert {row["same_answer"] for row in rows if row["pixels"] in (4, 8)} == {1.0}
    positioned = measure_shift_equivariance([lively(VIT)], examples_of(N), (4,))
    assert min(errors(positioned, "features").values()) > 0.05


def test_errors_are_those_of_numpy() -> None:
    """Shifts of 1 and 6 pixels, of a stem with 4 pixels to a place: 0.25 and 1.5 places."""
    subject, examples = lively(VIT), examples_of(N)
    rows = measure_shift_equivariance([subject], examples, (1, 6))
    [batch] = translation.load_eval_batches(examples, subject.preprocess, N)
    x = subject.preprocess.normalise(batch.images)
    model = subject.model
    with torch.no_grad():
        f = model.patch_embed(x).numpy().astype(float)  # type: ignore[operator]
        logits = model(x).numpy().astype(float)
        spread = ((f - f.mean((0, 2, 3), keepdims=True)) ** 2).sum(1).mean()
        spread_of_logits = ((logits - logits.mean(0)) ** 2).sum(1).mean()
        for axis, dim in (("rows", 2), ("columns", 3)):
            for pixels_, parts in ((1, {0: 0.75, 1: 0.25}), (6, {1: 0.5, 2: 0.5})):
                moved = torch.roll(x, pixels_, dim)
                wanted = sum(part * np.roll(f, whole, dim) for whole, part in parts.items())
                apart = ((model.patch_embed(moved).numpy() - wanted) ** 2).sum(1).mean()  # type: ignore[operator]
                error = errors(rows, "stem")[axis, pixels_]
                assert error == pytest.approx((apart / spread) ** 0.5, rel=1e-5)
                after = model(moved).numpy()
                apart = ((after - logits) ** 2).sum(1).mean()
                error = errors(rows, "logits")[axis, pixels_]
                assert error == pytest.approx((apart / spread_of_logits) ** 0.5, rel=1e-4)
                [same] = {
                    r["same_answer"] for r in rows if (r["axis"], r["pixels"]) == (axis, pixels_)
                }
                assert same == (after.argmax(1) == logits.argmax(1)).mean()


def test_what_has_nothing_to_do_with_what_was_before_has_an_error_of_the_root_of_2() -> None:
    own = torch.Generator().manual_seed(0)
    f, other = (torch.randn(64, 5, 6, 4, generator=own) + 3 for _ in range(2))
    apart, count = compute_squared_error(
        LayerOutput(f), LayerOutput(other), ImageShift("rows", 4), 24
    )
    variance = 5.0
    assert (float(apart) / count / variance) ** 0.5 == pytest.approx(2**0.5, rel=0.02)
    assert count == 64 * 24


@pytest.mark.parametrize("amount", [0, 1, 2.5, 4.75, 7])
def test_rolling_by_parts_is_numpys_interpolation(amount: float) -> None:
    values = torch.rand(3, 5, 7, dtype=torch.float64)
    for axis in (-1, -2):
        along = values.numpy().swapaxes(axis, -1)
        length = along.shape[-1]
        xs = (np.arange(length) - amount) % length
        wanted = [
            np.interp(xs, np.arange(length + 1), [*row, row[0]])
            for row in along.reshape(-1, length)
        ]
        found = roll_interpolated(values, amount, axis).numpy().swapaxes(axis, -1)
        np.testing.assert_allclose(found.reshape(-1, length), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("config", "stem", "features"),
    [
        (VIT, (14, 6, 4), (14, 6, 4)),
        (VIT.with_settings(classifier="gap"), (14, 6, 4), (14, 6, 4)),
        (HYBRID, (64, 8, 12), (14, 8, 12)),
        (BIG_RESNET, (64, 16, 12), (256, 16, 12)),
    ],
    ids=["ViT", "gap", "hybrid", "ResNet"],
)
def test_every_family_has_a_stem_features_and_logits(
    config: Any, stem: tuple[int, ...], features: tuple[int, ...]
) -> None:
    subject = lively(config)
    images = subject.preprocess.normalise(pixels(2, config.image_size))
    found = compute_layer_outputs(subject.model, images)
    assert [*found] == ["stem", "features", "logits"]
    assert found["stem"].values.shape == (2, *stem)
    assert found["features"].values.shape == (2, *features)
    torch.testing.assert_close(found["logits"].values, subject.model(images))
    assert found["stem"].margin == (
        0 if config in (VIT, VIT.with_settings(classifier="gap")) else 2
    )


def test_batches_and_processes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, examples = lively(VIT), examples_of(N, broken=(3,))

    def sums() -> dict[str, torch.Tensor]:
        wanted = [ImageShift(axis, 3) for axis in SHIFT_AXES]
        return translation.accumulate_shift_sums(subject, examples, wanted, 0.5, quiet)

    alone = sums()
    monkeypatch.setattr(translation, "BATCH_SIZE", 4)
    again = sums()
    parts = []
    for share in (range(0, N, 2), range(1, N, 2), range(0)):
        monkeypatch.setattr(translation, "get_process_indices", lambda _, share=share: share)
        parts.append(sums())
    for name, numbers in alone.items():
        for found in (again[name], sum(part[name] for part in parts)):
            # float64 sums of float32 features, which other batches round differently
            torch.testing.assert_close(found, numbers, rtol=1e-5, atol=1e-4)
    assert int(alone["logits"][-1]) == N - 1
    assert alone["stem"].shape == parts[2]["stem"].shape


def test_where_there_is_nothing_to_compare_there_is_no_error() -> None:
    """A root of 6 x 4 places has two rows in its middle, which a shift by two takes away."""
    rows = measure_shift_equivariance([lively(RESNET)], examples_of(3), (8,))
    assert {row["error"] for row in rows if row["place"] == "stem"} == {None}
    assert all(row["error"] is not None for row in rows if row["place"] == "features")
    constant = lively(VIT)
    with torch.no_grad():
        constant.model.head.linear.weight.zero_()
    rows = measure_shift_equivariance([constant], examples_of(3), (4,))
    assert {row["error"] for row in rows if row["place"] == "logits"} == {None}


def test_labels_do_not_matter_and_progress_is_told() -> None:
    told: list[Any] = []
    progress: NamedProgress = lambda *words: told.append(words)  # noqa: E731
    examples = replace(examples_of(N, broken=(0,)), labels=np.full(N, -1))
    rows = measure_shift_equivariance([lively(VIT)], examples, (1,), 0.5, progress)
    assert {row["images"] for row in rows} == {N - 1}
    assert told == [("model", N, N)]


@pytest.mark.parametrize("shift", [0, 16, -1])
def test_shifts_stay_within_the_image(shift: int) -> None:
    with pytest.raises(ConfigError, match=f"a shift by {shift} pixels: .* give 1 to 15"):
        measure_shift_equivariance([lively(VIT)], examples_of(3), (shift,))


def test_images_that_cannot_be_read_are_few() -> None:
    with pytest.raises(DataError, match="1 of 3 images cannot be read"):
        measure_shift_equivariance([lively(VIT)], examples_of(3, broken=(1,)), (1,))
    with pytest.raises(DataError, match="none of the images can be read"):
        measure_shift_equivariance([lively(VIT)], examples_of(1, broken=(0,)), (1,), max_bad=1)
