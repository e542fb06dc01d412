"""Pre-training through the trainer: what is decided, exact resume, and what is learned."""

from __future__ import annotations

import math
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
from patchwords.models.init import init_weights
from patchwords.models.pretraining.masked import MaskedViT
from patchwords.models.vit import ViT
from patchwords.tasks.classification.losses import sigmoid_loss
from patchwords.tasks.classification.pretraining import (
    SupervisedPretraining,
    compute_uniform_head_bias,
)
from patchwords.training.config import (
    MachineSettings,
    ModelSettings,
    PretrainConfig,
    RecipeSettings,
)
from patchwords.training.engine.optimizer import iterate_named_parameters
from patchwords.training.engine.state import build_train_state
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.objective_settings import ObjectiveSettings
from patchwords.training.objectives import HeldOutExamples
from patchwords.training.training_run import TrainingRun
from patchwords.weights.pretrained import Pretrained

MASKED_VIT = VIT.with_settings(num_classes=1, patch_size=2)  # 16 patches


def masked_config(workers: int = 0, steps: int = 14, **learn: Any) -> PretrainConfig:
    """Everything random that there is, with an evaluation at 5, 10 and 14."""
    return PretrainConfig(
        data="digits",
        seed=3,
        augment=AugmentSettings(randaugment=(2, 9.0), color_jitter=0.2, erase=0.3),
        learn=ObjectiveSettings("masked", **learn),
        recipe=RecipeSettings(steps=steps, batch_size=11, lr=0.01, ema=0.9, layer_decay=0.9),
        machine=MachineSettings(
            device="cpu",
            precision="fp32",
            workers=workers,
            grad_accum=2,
            log_every=1,
            eval_every=5,
            save_every=4,
        ),
    )


def masked_job(folder: Path, config: PretrainConfig) -> TrainingRun:
    return assemble(folder, config, MASKED_VIT)


def weights_of(job: TrainingRun) -> dict[str, torch.Tensor]:
    return job.state.model.state_dict()


def rows_of(job: TrainingRun) -> list[dict[str, Any]]:
    names = ("kind", "step", "loss", "accuracy", "images")
    return [{n: row.get(n) for n in names} for row in read_metrics(job.folder.metrics)]


@pytest.fixture(scope="module")
def whole(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    job = masked_job(tmp_path_factory.mktemp("whole"), masked_config())
    return go(job)


@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_and_continued_with_other_workers_is_bit_equal(
    tmp_path: Path, whole: TrainingRun, workers: int
) -> None:
    config = masked_config(workers)
    job = masked_job(tmp_path, config)
    with pytest.raises(Killed):
        go(job, killed_at(2))
    on = go_on(tmp_path, config, MASKED_VIT)
    assert on.resumed_at == 8
    for name, value in weights_of(whole).items():
        assert torch.equal(weights_of(on)[name], value), name
    assert rows_of(on) == rows_of(whole)


def test_the_checkpoint_has_the_mask_and_the_prediction_the_model_has_not(
    whole: TrainingRun,
) -> None:
    assert {"mask_token", "prediction.weight", "prediction.bias"} < weights_of(whole).keys()
    assert isinstance(whole.start.model, ViT)
    assert not any("mask" in name for name in whole.start.model.state_dict())
    # and what was trained is what is saved
    trained = weights_of(whole)["vit.embed.weight"]
    assert trained.data_ptr() == whole.start.model.patch_embed.weight.data_ptr()


def test_the_head_does_not_move_and_all_else_does(whole: TrainingRun) -> None:
    fresh = ViT(MASKED_VIT)
    init_weights(fresh, 3)
    before = MaskedViT(fresh, 512, seed=3).state_dict()
    for name, value in weights_of(whole).items():
        assert torch.equal(value, before[name]) == name.startswith("vit.head."), name


def test_every_parameter_that_learns_is_in_the_optimizer_once_with_its_decay(
    whole: TrainingRun,
) -> None:
    groups = whole.state.optimizer.param_groups
    decay = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    scale = {id(p): g["scale"] for g in groups for p in g["params"]}
    assert sum(len(g["params"]) for g in groups) == len(decay)
    found = dict(iterate_named_parameters(whole.state.model))
    for name, parameter in found.items():
        if name.startswith("head."):
            assert id(parameter) not in decay
            continue
        kernel = name.endswith(".weight") and parameter.ndim > 1
        assert (decay[id(parameter)] > 0) == kernel, name
    assert scale[id(found["prediction.weight"])] == 1.0
    assert scale[id(found["mask_token"])] == scale[id(found["embed.weight"])]


@pytest.mark.parametrize("target", ["mean-colour", "small-patch", "pixels"])
def test_every_target_learns(target: str, tmp_path: Path) -> None:
    """In 60 steps the held-out loss falls by more than the 2 % that a shuffle would explain."""
    shape = MASKED_VIT.with_settings(patch_size=4) if target == "small-patch" else MASKED_VIT
    config = masked_config(steps=60, target=target)
    config = replace(config, augment=AugmentSettings(crop_area=(0.8, 1.0)))
    machine = replace(config.machine, eval_every=60, save_every=60)
    recipe = replace(config.recipe, ema=None, layer_decay=1.0)
    config = replace(config, machine=machine, recipe=recipe)
    job = assemble(tmp_path, config, shape)
    held_out = HeldOutExamples(digits().splits["validation"], job.objective.views(), job.device)

    def measured() -> dict[str, Any]:
        return job.objective.evaluate(job.state.model, held_out)

    before = measured()
    assert before == measured()  # the corruption of held-out images is fixed
    go(job)
    assert measured()["loss"] < 0.9 * before["loss"]
    assert measured()["loss"] == read_metrics(job.folder.metrics)[-1]["loss"]


def test_more_can_be_hidden(tmp_path: Path) -> None:
    job = masked_job(tmp_path, masked_config(steps=1, mask_ratio=0.75))
    assert job.objective.draw([(0, 0, 0)]).places.shape == (1, 12)


# ------------------------------------------------------------------------------------- supervised


def settled(**settings: Any) -> tuple[PretrainConfig, dict[str, object]]:
    config = PretrainConfig(data="digits", model="ViT-Ti/4", **settings)
    done, choices = SupervisedPretraining.resolve(config, digits(), None)
    assert isinstance(done, PretrainConfig)
    return done, {choice.name: choice.value for choice in choices}


def test_the_head_of_pretraining_has_a_tanh_layer_as_wide_as_the_model() -> None:
    config, shown = settled()
    assert config.model_settings.representation_size == 192
    assert config.model_settings.head_bias is None
    assert (config.learn.loss, config.learn.head) == ("softmax", "tanh")
    assert shown == {"objective": "supervised", "loss": "softmax", "head": "tanh"}
    wider, _ = settled(model_settings=ModelSettings(width=384))
    assert wider.model_settings.representation_size == 384
    asked, _ = settled(model_settings=ModelSettings(representation_size=7))
    assert asked.model_settings.representation_size == 7
    linear, _ = settled(learn=ObjectiveSettings(head="linear"))
    assert linear.model_settings.representation_size is None
    origin = Pretrained(ViT(VIT), Preprocess((8, 8)), ("a", "b"))
    onward, _ = SupervisedPretraining.resolve(PretrainConfig(weights="x"), digits(), origin)
    assert onward.model_settings.representation_size == VIT.width


def test_a_resnet_has_none() -> None:
    resnet = PretrainConfig(data="digits", model="BiT-R26x1")
    config, _ = SupervisedPretraining.resolve(resnet, digits(), None)
    assert config.model_settings.representation_size is None
    tanh = replace(resnet, learn=ObjectiveSettings(head="tanh"))
    with pytest.raises(ConfigError, match="--head tanh: a ResNet's head is linear"):
        SupervisedPretraining.resolve(tanh, digits(), None)


def test_the_bias_of_sigmoids_gives_every_class_its_share() -> None:
    config, shown = settled(learn=ObjectiveSettings(loss="sigmoid"))
    bias = config.model_settings.head_bias
    assert bias is not None
    assert 1 / (1 + math.exp(-bias)) == pytest.approx(0.1)
    assert shown["head_bias"] == bias
    # big_vision's configs: -6.9 for 1,000 classes, -10 for 21,843
    assert (
        round(compute_uniform_head_bias(1000), 1),
        round(compute_uniform_head_bias(21843), 1),
    ) == (-6.9, -10.0)
    asked, _ = settled(
        learn=ObjectiveSettings(loss="sigmoid"), model_settings=ModelSettings(head_bias=-3.0)
    )
    assert asked.model_settings.head_bias == -3.0


def test_sigmoids_train_and_are_measured_by_their_own_loss(tmp_path: Path) -> None:
    config = replace(masked_config(steps=2), learn=ObjectiveSettings("supervised", "sigmoid"))
    config = replace(config, augment=AugmentSettings())
    job = assemble(tmp_path, config, VIT)
    held_out = digits().splits["validation"]
    model, preprocess = job.start.model, job.start.preprocess
    torch.nn.init.normal_(model.head.linear.weight, generator=torch.Generator().manual_seed(1))
    examples = HeldOutExamples(held_out, job.objective.views(), job.device)
    found = job.objective.evaluate(model, examples)
    pixels = torch.stack([pixels_of(held_out.read(i), preprocess) for i in range(len(held_out))])
    model.eval()
    with torch.no_grad():
        logits = model(preprocess.normalise(pixels))
    labels = torch.from_numpy(held_out.labels)
    assert found["images"] == 23
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == labels).double().mean().item())
    assert found["loss"] == pytest.approx(sigmoid_loss(logits, labels).mean().item(), rel=1e-5)
    loss, _ = job.objective.loss(model, ImageBatch.of(pixels, labels), 0)
    assert torch.allclose(loss, sigmoid_loss(logits, labels).mean())


def pixels_of(data: bytes, preprocess: Preprocess) -> torch.Tensor:
    """uint8 [C, H, W]"""
    from patchwords.data.decode import decode_image

    return torch.from_numpy(
        preprocess.resize_and_crop(np.array(decode_image(data))).copy()
    ).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"learn": ObjectiveSettings(target="pixels")}, "--target pixels has a meaning with"),
        ({"learn": ObjectiveSettings(mask_ratio=0.5)}, "--mask-ratio 0.5 has a meaning with"),
        ({"learn": ObjectiveSettings("masked", mask_ratio=0.0)}, "--mask-ratio 0 is not a share"),
        ({"learn": ObjectiveSettings("masked", mask_ratio=1.1)}, "--mask-ratio 1.1 is not"),
        ({"learn": ObjectiveSettings("masked", loss="softmax")}, "--loss softmax has a meaning"),
        ({"learn": ObjectiveSettings("masked", head="linear")}, "--head linear has a meaning"),
        (
            {"learn": ObjectiveSettings("masked"), "augment": AugmentSettings(cutmix=1.0)},
            "--cutmix 1.0 has a meaning with --objective supervised or distill only",
        ),
        (
            {"learn": ObjectiveSettings("masked"), "recipe": RecipeSettings(balance="loss")},
            "--balance loss has a meaning with --objective supervised only",
        ),
        (
            {"learn": ObjectiveSettings("masked"), "recipe": RecipeSettings(label_smoothing=0.1)},
            "--label-smoothing 0.1 has a meaning",
        ),
        (
            {
                "learn": ObjectiveSettings(head="linear"),
                "model_settings": ModelSettings(representation_size=5),
            },
            "--head linear has no layer before the classifier",
        ),
    ],
)
def test_settings_that_contradict_one_another_are_refused(
    settings: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError, match=line):
        PretrainConfig(data="digits", **settings).check()


def test_a_frozen_weight_stays_frozen(tmp_path: Path) -> None:
    job = masked_job(tmp_path, masked_config())
    again = build_train_state(job.config, job.plan, job.start, job.data, job.objective, job.device)
    frozen = [n for n, p in iterate_named_parameters(again.model) if not p.requires_grad]
    assert frozen == ["head.linear.weight", "head.linear.bias"]
