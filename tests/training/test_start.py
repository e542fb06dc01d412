"""Where a run starts: the name, the model and the preprocessing of weights or of a new model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_run import VIT, digits, quiet

from patchwords.data.dataset import DatasetSplits
from patchwords.data.preprocess import Preprocess
from patchwords.device import choose_device
from patchwords.errors import WeightsError
from patchwords.models.init import init_weights
from patchwords.models.vit import ViT
from patchwords.training.config import (
    FinetuneConfig,
    MachineSettings,
    ModelSettings,
    RecipeSettings,
    read_config_yaml,
    unflatten_config,
)
from patchwords.training.model_setup import (
    InitialModel,
    build_initial_model,
    choose_model_name,
    load_starting_weights,
    map_head_rows,
)
from patchwords.training.plan import ResolvedSetting
from patchwords.training.run import prepare_training_run
from patchwords.weights.store import save_pretrained

NEW = FinetuneConfig(data="digits", model="ViT-mu/4", model_settings=ModelSettings((8,)))


def start_of(
    config: FinetuneConfig, data: DatasetSplits
) -> tuple[InitialModel, list[ResolvedSetting]]:
    return build_initial_model(config, data, load_starting_weights(config))


def name_of(config: FinetuneConfig) -> str:
    return choose_model_name(config, load_starting_weights(config))


def weights_in(
    folder: Path, labels: tuple[str, ...] | None = None, name: str | None = None
) -> FinetuneConfig:
    model = ViT(VIT)
    init_weights(model, 0)
    torch.nn.init.normal_(model.head.linear.weight)
    preprocess = Preprocess((8, 8), "squash", 0.5)
    save_pretrained(model, folder, labels=labels, preprocess=preprocess, architecture=name)
    return FinetuneConfig(data="digits", weights=str(folder))


def test_from_scratch() -> None:
    start, _ = start_of(NEW, digits())
    assert (start.name, start.changes) == ("ViT-mu/4", ())
    assert start.model.config.num_classes == 10
    # Images that are not larger than the model's input are not cropped.
    assert start.preprocess == Preprocess((8, 8), crop_fraction=1.0)
    small, _ = start_of(replace(NEW, model_settings=ModelSettings((4,))), digits())
    assert small.preprocess.crop_fraction == 0.875


def test_every_model_setting_reaches_the_model() -> None:
    asked = ModelSettings(
        image_size=(12, 15),
        patch_size=3,
        depth=2,
        width=10,
        heads=5,
        mlp_width=7,
        mixer="local",
        window=3,
        classifier="map",
        representation_size=13,
        head_bias=-1.5,
        position="2d",
        position_at="shared",
        gelu="erf",
        dropout=0.2,
        drop_path=0.3,
    )
    start, _ = start_of(replace(NEW, model_settings=asked), digits())
    built = {name: getattr(start.model.config, name) for name in vars(asked)}
    assert built == vars(asked)
    assert None not in built.values()  # a new setting is to be tried here too


def test_from_weights_of_the_same_classes_by_name(tmp_path: Path) -> None:
    names = tuple(reversed(digits().classes))
    config = weights_in(tmp_path, names)
    start, choices = start_of(config, digits())
    assert start.changes == ("the head is kept: the weights know the classes of the data",)
    assert start.model.head.linear.weight.abs().min() > 0
    assert start.preprocess == Preprocess((8, 8), "squash", 0.5)
    assert choices[0].why == "that of the weights"
    asked, choices = start_of(replace(config, resize="crop", crop_fraction=1.0), digits())
    assert asked.preprocess == Preprocess((8, 8), "crop", 1.0)
    assert choices[0].why == "asked for"


def test_from_weights_of_other_classes_and_another_size(tmp_path: Path) -> None:
    config = weights_in(tmp_path, tuple("abcdefghij"))
    config = replace(config, model_settings=ModelSettings((12, 8), dropout=0.4))
    start, _ = start_of(config, digits())
    assert len(start.changes) == 2
    assert start.model.head.linear.weight.abs().max() == 0
    assert start.preprocess.image_size == start.model.config.image_size == (12, 8)
    assert start.model.config.dropout == 0.4


def test_the_head_is_kept_by_name_or_by_number() -> None:
    assert map_head_rows(("b", "a", "c"), ("a", "b", "c")) == ([1, 0, 2], None)
    assert map_head_rows(("2", "0", "1"), ("0", "1", "2")) == ([1, 2, 0], None)  # by name
    for labels in (("0", "1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2")):
        rows, said = map_head_rows(labels, ("a", "b", "c"))
        assert rows == [0, 1, 2]
        assert said is not None
        assert "so 0 is taken for a" in said
    for labels in (("0", "1"), ("1", "2", "3"), ("1", "0", "2"), ("a", "b", "x"), ("a", "b")):
        assert map_head_rows(labels, ("a", "b", "c")) == (None, None)


def test_names(tmp_path: Path) -> None:
    assert name_of(FinetuneConfig()) == "ViT-B/16"
    assert name_of(replace(NEW, model="vit_small_patch16_224")) == "ViT-S/16"
    known = weights_in(tmp_path / "known", name="ViT-Ti/4")
    assert name_of(known) == "ViT-Ti/4"
    start_of(replace(known, model="Ti/4"), digits())  # another spelling of the same
    with pytest.raises(WeightsError, match="weights of ViT-Ti/4, but S/4 was asked for"):
        start_of(replace(known, model="S/4"), digits())


def test_a_model_asked_for_beside_its_own_weights(tmp_path: Path) -> None:
    """As the run was started that left them, or by any other name and settings of that shape."""
    shape = {name: getattr(VIT, name) for name in ("width", "depth", "heads", "mlp_width")}
    named = weights_in(tmp_path, name="ViT-Ti/4 with depth 1, width 16")
    for model, settings in (
        ("ViT-Ti/4", shape),
        ("ViT-Ti/16", {**shape, "patch_size": VIT.patch_size}),
    ):
        asked = replace(named, model=model, model_settings=ModelSettings((8,), **settings))
        start, _ = start_of(asked, digits())
        assert start.name == "ViT-Ti/4 with depth 1, width 16"
    for name, other in (("depth", VIT.depth + 1), ("patch_size", 8), ("position", "2d")):
        settings = {**shape, name: other}
        asked = replace(named, model="ViT-Ti/4", model_settings=ModelSettings((8,), **settings))
        with pytest.raises(WeightsError, match="with depth 1, width 16, but ViT-Ti/4 was asked"):
            load_starting_weights(asked)
    for model in ("ViT-Ti/4", "BiT-R50x1", "R50+ViT-B/16"):
        with pytest.raises(WeightsError, match="leave that out"):
            load_starting_weights(replace(named, model=model))


@pytest.mark.parametrize("kind", ["a name of timm's", "weights without a name"])
def test_the_config_of_a_run_builds_the_same_model(tmp_path: Path, kind: str) -> None:
    """timm's names imply an exact GELU; weights saved from Python may have no name at all."""
    config = replace(NEW, model="vit_tiny_patch4_8")
    if kind == "weights without a name":
        config = weights_in(tmp_path / "weights")
    machine = MachineSettings(device="cpu", precision="fp32")
    config = replace(
        config, output=str(tmp_path / "run"), recipe=RecipeSettings(steps=1), machine=machine
    )
    job = prepare_training_run(config, quiet())
    stored = unflatten_config(FinetuneConfig(), read_config_yaml(job.folder.config))
    start, _ = start_of(stored, job.data)
    assert start.model.config == job.start.model.config
    assert choose_device(stored.machine.device, stored.machine.precision) == job.device
    resumed = prepare_training_run(replace(stored, output=config.output, resume=True), quiet())
    assert resumed.config == replace(job.config, resume=True)
