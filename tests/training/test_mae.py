"""Masked autoencoding through the trainer: masks, loss, settings, exact resume, learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import VIT, Killed, assemble, digits, go, go_on, killed_at

from patchwords.data.augment import AugmentSettings
from patchwords.data.loader import ImageBatch
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.pretraining.mae import PatchMask
from patchwords.models.vit import ViT
from patchwords.training.config import MachineSettings, PretrainConfig, RecipeSettings
from patchwords.training.engine.optimizer import iterate_named_parameters
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.model_setup import InitialModel
from patchwords.training.objective_settings import ObjectiveSettings
from patchwords.training.objectives import HeldOutExamples
from patchwords.training.objectives.mae import (
    MaskedAutoencoding,
    VisibleSampler,
    count_visible_patches,
)
from patchwords.training.recipes import fill_recipe_settings
from patchwords.training.training_run import TrainingRun
from patchwords.weights.pretrained import Pretrained

MAE_VIT = VIT.with_settings(num_classes=1, patch_size=2, width=16)  # 16 patches
PREPROCESS = Preprocess((8, 8), mean=(0.4, 0.5, 0.3), std=(0.5, 0.25, 0.3))


def mae_config(steps: int = 14, accumulate: int = 2, **learn: Any) -> PretrainConfig:
    """Everything random that there is, with an evaluation at 5, 10 and 14."""
    learn = {"decoder_width": 16, "decoder_depth": 1, **learn}
    return PretrainConfig(
        data="digits",
        seed=3,
        augment=AugmentSettings(randaugment=(2, 9.0), color_jitter=0.2, erase=0.3),
        learn=ObjectiveSettings("mae", **learn),
        recipe=RecipeSettings(steps=steps, batch_size=11, lr=0.01, ema=0.9, layer_decay=0.9),
        machine=MachineSettings(
            device="cpu",
            precision="fp32",
            workers=0,
            grad_accum=accumulate,
            log_every=1,
            eval_every=5,
            save_every=4,
        ),
    )


def mae_job(folder: Path, config: PretrainConfig, shape: ViTConfig = MAE_VIT) -> TrainingRun:
    return assemble(folder, config, shape)


def weights_of(job: TrainingRun) -> dict[str, torch.Tensor]:
    return job.state.model.state_dict()


def rows_of(job: TrainingRun) -> list[dict[str, Any]]:
    names = ("kind", "step", "loss", "images")
    return [{n: row.get(n) for n in names} for row in read_metrics(job.folder.metrics)]


@pytest.fixture(scope="module")
def whole(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return go(mae_job(tmp_path_factory.mktemp("whole"), mae_config()))


# ------------------------------------------------------------------------------------------ masks


def test_a_quarter_is_visible_and_every_patch_is_on_one_side() -> None:
    mask = VisibleSampler(49, 0.75, 1)([(0, image, 0) for image in range(41)])
    assert (mask.visible.shape, mask.hidden.shape) == ((41, 12), (41, 37))
    together = torch.cat([mask.visible, mask.hidden], 1).sort(1).values
    assert torch.equal(together, torch.arange(49).expand(41, -1))


def test_masks_are_a_function_of_seed_and_place() -> None:
    draw = VisibleSampler(49, 0.75, 7)
    places = [(2, 11, 0), (2, 5, 0), (3, 11, 0), (2, 11, 1)]
    together = draw(places)
    for row, place in enumerate(places):
        assert torch.equal(draw([place]).hidden[0], together.hidden[row])
    for other in range(1, 4):  # another sample, another epoch, a repeat
        assert not torch.equal(together.hidden[0], together.hidden[other])
    assert not torch.equal(VisibleSampler(49, 0.75, 8)(places).hidden, together.hidden)
    assert len(draw([])) == 0


@pytest.mark.parametrize(
    ("patches", "ratio", "count"),
    [(196, 0.75, 49), (10, 0.9, 1), (256, 0.85, 38), (16, 1e-9, 15), (2, 0.5, 1)],
)
def test_visible_patches_are_counted_as_officially(patches: int, ratio: float, count: int) -> None:
    assert count_visible_patches(patches, ratio) == count


@pytest.mark.parametrize(
    ("patches", "ratio", "line"),
    [
        (16, 0.95, "--mask-ratio 0.95 leaves none of 16 patches to see: choose 0.93 or less"),
        (16, 1.0, "--mask-ratio 1 leaves none of 16"),
        (1, 0.75, "leaves none of 1 patches to see: choose smaller patches"),
    ],
)
def test_a_ratio_that_leaves_no_patch_is_refused(patches: int, ratio: float, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        count_visible_patches(patches, ratio)
    assert count_visible_patches(16, 0.93) == 1


# ------------------------------------------------------------------------------------------- loss


def objective_of(config: PretrainConfig | None = None) -> MaskedAutoencoding:
    config = config or mae_config()
    config = replace(config, learn=replace(config.learn, mask_ratio=0.75))
    objective = MaskedAutoencoding(config, PREPROCESS)
    objective.build(InitialModel("tiny", ViT(MAE_VIT), PREPROCESS, ()), digits())
    return objective


def test_the_loss_by_hand() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(3, 3, 8, 8), dtype=np.uint8)
    images[0, :, :2, :2] = 90  # a patch without contrast
    hidden = np.array([[0, 5, 9], [1, 2, 3], [13, 14, 15]])
    visible = np.array([[p for p in range(16) if p not in row] for row in hidden])
    predictions = generator.normal(size=(3, 3, 12))
    errors = []
    for image, row in enumerate(hidden):
        for number, place in enumerate(row):
            top, left = 2 * (place // 4), 2 * (place % 4)
            patch = images[image, :, top : top + 2, left : left + 2].astype(float) / 255
            pixels = [  # row, column, channel
                (patch[c, y, x] - PREPROCESS.mean[c]) / PREPROCESS.std[c]
                for y in range(2)
                for x in range(2)
                for c in range(3)
            ]
            wanted = (pixels - np.mean(pixels)) / np.sqrt(np.var(pixels, ddof=1) + 1e-6)
            errors.append(np.mean((predictions[image, number] - wanted) ** 2))
    mask = PatchMask(torch.from_numpy(visible), torch.from_numpy(hidden))
    batch = ImageBatch.of(torch.from_numpy(images), mask)
    loss, metrics = objective_of().loss(lambda x, mask: torch.from_numpy(predictions), batch, 0)
    assert loss.item() == pytest.approx(np.mean(errors), rel=1e-5)  # float32
    assert metrics == {}


def test_predictions_are_painted_in_the_colours_of_the_patch() -> None:
    """A prediction of the normalised pixels themselves gives the image back."""
    from patchwords.training.objectives.mae import normalise_patches
    from patchwords.training.objectives.masked import patchify

    images = torch.randint(256, (3, 3, 8, 8), generator=torch.Generator().manual_seed(1))
    objective = objective_of()
    mask = VisibleSampler(16, 0.75, 0)([(0, i) for i in range(3)])
    batch = ImageBatch.of(images.to(torch.uint8), mask)
    right, _, _ = normalise_patches(objective.hidden_pixels(batch))
    painted = objective.paint(lambda images, mask: right, batch)
    rows = torch.arange(3)[:, None]
    assert torch.equal(painted, patchify(batch.images, 2)[rows, mask.hidden])


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    shape = MAE_VIT.with_settings(dropout=0.0, drop_path=0.0)
    parts = [go(mae_job(tmp_path / str(n), mae_config(2, n), shape)) for n in (1, 3)]
    one, three = (weights_of(job) for job in parts)
    for name, value in one.items():
        # Adam divides by the size of the gradient: rounding shows where that is small.
        torch.testing.assert_close(three[name], value, rtol=0, atol=2e-3, msg=name)
    losses = [[row["loss"] for row in rows_of(job) if row["kind"] == "train"] for job in parts]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_bfloat16_is_close(tmp_path: Path, whole: TrainingRun) -> None:
    config = mae_config()
    config = replace(config, machine=replace(config.machine, precision="bf16"))
    job = go(mae_job(tmp_path, config))
    for row, exact in zip(rows_of(job), rows_of(whole), strict=True):
        assert row["loss"] == pytest.approx(exact["loss"], rel=0.05)


# --------------------------------------------------------------------------------------- training


def test_stopped_and_continued_is_bit_equal(tmp_path: Path, whole: TrainingRun) -> None:
    job = mae_job(tmp_path, mae_config())
    with pytest.raises(Killed):
        go(job, killed_at(2))
    on = go_on(tmp_path, mae_config(), MAE_VIT)
    assert on.resumed_at == 8
    for name, value in weights_of(whole).items():
        assert torch.equal(weights_of(on)[name], value), name
    assert rows_of(on) == rows_of(whole)


def test_all_learns_but_the_head_and_the_fixed_positions(whole: TrainingRun) -> None:
    before = mae_job(whole.folder.path.parent / "fresh", mae_config()).state.model.state_dict()
    fixed = {name for name, value in weights_of(whole).items() if torch.equal(value, before[name])}
    assert fixed == {"vit.head.linear.weight", "vit.head.linear.bias", "vit.positions.table"}
    assert not any("decoder" in name for name in whole.start.model.state_dict())


def test_decay_falls_on_kernels_and_beta2_is_the_paper_s(whole: TrainingRun) -> None:
    groups = whole.state.optimizer.param_groups
    assert {group["betas"] for group in groups} == {(0.9, 0.95)}
    decay = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    scale = {id(p): g["scale"] for g in groups for p in g["params"]}
    for name, parameter in iterate_named_parameters(whole.state.model):
        if not parameter.requires_grad:
            assert id(parameter) not in decay
            continue
        kernel = name.endswith(".weight") and parameter.ndim > 1
        assert (decay[id(parameter)] > 0) == kernel, name
        assert scale[id(parameter)] == 1.0 or not name.startswith("decoder."), name


def test_it_learns(tmp_path: Path) -> None:
    """Held-out loss falls well below 1, what a decoder of nothing costs."""
    config = mae_config(steps=60)
    config = replace(
        config,
        augment=AugmentSettings(crop_area=(0.8, 1.0)),
        machine=replace(config.machine, eval_every=60, save_every=60),
        recipe=replace(config.recipe, ema=None, layer_decay=1.0),
    )
    job = mae_job(tmp_path, config)
    held_out = HeldOutExamples(digits().splits["validation"], job.objective.views(), job.device)
    before = job.objective.evaluate(job.state.model, held_out)
    assert before == job.objective.evaluate(job.state.model, held_out)  # masks are fixed
    go(job)
    after = job.objective.evaluate(job.state.model, held_out)
    assert after["loss"] < 0.9 < before["loss"]
    assert after["loss"] == read_metrics(job.folder.metrics)[-1]["loss"]


# --------------------------------------------------------------------------------------- settings


def settled(model: str, **learn: Any) -> ObjectiveSettings:
    config = PretrainConfig(data="digits", model=model, learn=ObjectiveSettings("mae", **learn))
    done, _ = MaskedAutoencoding.resolve(config, digits(), None)
    assert isinstance(done, PretrainConfig)
    return done.learn


def test_the_decoder_is_the_paper_s_from_vit_b_on_and_lighter_below() -> None:
    def decoder(model: str, **learn: Any) -> tuple[Any, ...]:
        learned = settled(model, **learn)
        return learned.decoder_width, learned.decoder_depth, learned.mask_ratio

    assert decoder("ViT-B/16") == decoder("ViT-L/16") == (512, 8, 0.75)
    assert decoder("ViT-Ti/4") == (96, 2, 0.75)
    assert decoder("ViT-S/16", decoder_depth=1, mask_ratio=0.5) == (192, 1, 0.5)
    origin = Pretrained(ViT(MAE_VIT), PREPROCESS, ())
    config = PretrainConfig(weights="x", learn=ObjectiveSettings("mae"))
    done, _ = MaskedAutoencoding.resolve(config, digits(), origin)
    assert isinstance(done, PretrainConfig)
    assert done.learn.decoder_width == 16


@pytest.mark.parametrize(
    ("learn", "line"),
    [
        (
            ObjectiveSettings("masked", decoder_width=64),
            "--decoder-width 64 has a meaning with --objective mae only",
        ),
        (
            ObjectiveSettings(decoder_depth=1),
            "--decoder-depth 1 has a meaning with --objective mae",
        ),
        (ObjectiveSettings(mask_ratio=0.5), "with --objective masked or mae only"),
        (ObjectiveSettings("mae", target="pixels"), "--target pixels has a meaning with"),
        (ObjectiveSettings("mae", decoder_depth=0), "--decoder-depth 0 must be greater than 0"),
        (ObjectiveSettings("mae", loss="softmax"), "--loss softmax has a meaning with"),
    ],
)
def test_settings_of_other_objectives_are_refused(learn: ObjectiveSettings, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        PretrainConfig(data="x", learn=learn).check()


def test_a_run_without_a_recipe_takes_the_paper_s_fitted_to_the_data() -> None:
    config = PretrainConfig(data="x", learn=ObjectiveSettings("mae"))
    filled, choices = fill_recipe_settings(
        config, images=4_500, from_weights=False, model="ViT-Ti/4", objective="mae"
    )
    recipe = filled.recipe
    assert (recipe.optimizer, recipe.schedule, recipe.weight_decay) == ("adamw", "cosine", 0.05)
    assert filled.model_settings.dropout == 0
    assert recipe.batch_size == 32
    assert recipe.lr is not None
    assert recipe.lr >= 2e-4  # by the linear rule it would be 1.9e-5, with which nothing is learned
    assert {"lr", "steps"} <= {choice.name for choice in choices}
