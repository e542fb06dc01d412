"""Settings as a table and as YAML; which of them are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchwords.data.augment import AugmentSettings
from patchwords.errors import ConfigError
from patchwords.training.config import (
    UNSAVED_SETTINGS,
    DataSettings,
    FinetuneConfig,
    MachineSettings,
    ModelSettings,
    RecipeSettings,
    config_to_yaml,
    flatten_config,
    read_config_yaml,
    unflatten_config,
)
from patchwords.training.recipes import fill_recipe_settings

# Every field has a value that is not its default; words that YAML would take for something else.
ALL_SET = FinetuneConfig(
    data="off",
    model="ViT-S/8",
    weights="1e3",
    budget="15m",
    offline=True,
    explain=True,
    task="my_package.tasks:Mine",
    decoder="mask",
    output="runs/x",
    resume=True,
    overwrite=True,
    seed=2**40 + 1,
    data_settings=DataSettings(
        image_column="no",
        label_column="0x10",
        classes=("yes", "2", "ä: b", "null"),
        test=0.3,
        validation=0.05,
        most_validation=None,
        split_seed=3,
        train_images=1_009,
        join_validation=True,
        unseen_classes=True,
        max_bad=0.02,
        exclude="list.csv",
        shuffle_shards=3,
        cache_size=1.5,
    ),
    augment=AugmentSettings(
        crop_area=(0.1, 0.9),
        crop_ratio=(0.5, 1.5),
        random_crop=0.8,
        scale_range=(0.75, 1.5),
        flip=False,
        randaugment=(2, 9.5),
        mixup=0.2,
        cutmix=1.0,
        color_jitter=0.4,
        erase=0.25,
        views=3,
    ),
    resize="squash",
    crop_fraction=0.9,
    model_settings=ModelSettings(
        image_size=(96, 64),
        depth=2,
        width=10,
        heads=5,
        mlp_width=7,
        patch_size=3,
        mixer="local",
        window=5,
        classifier="gap",
        representation_size=13,
        head_bias=-1.5,
        position="2d",
        position_at="every",
        gelu="erf",
        dropout=0.0,
        drop_path=0.1,
    ),
    recipe=RecipeSettings(
        teacher="runs/teacher",
        distillation="hard",
        temperature=2.0,
        teacher_weight=0.5,
        recipe="bit-imagenet",
        scale=0.5,
        epochs=1e-5,
        steps=7,
        examples=1_000_003,
        batch_size=11,
        optimizer="adamw",
        lr=3e-10,
        schedule="linear",
        drops=(0.25, 0.5),
        warmup_steps=0,
        weight_decay=1e22,
        clip=2.0,
        layer_decay=0.75,
        label_smoothing=0.1,
        ema=0.9999,
        train="last:2",
        balance="loss",
        early_stop=3,
    ),
    machine=MachineSettings(
        device="cpu",
        precision="bf16",
        frozen="compute",
        compile="yes",
        parallel="fsdp",
        checkpoint_activations=True,
        workers=0,
        grad_accum=4,
        log_every=5,
        eval_every=6,
        save_every=8,
        fewshot_every=9,
        fewshot_shots=3,
    ),
)


def test_the_example_leaves_nothing_at_its_default() -> None:
    default, example = flatten_config(FinetuneConfig()), flatten_config(ALL_SET)
    assert [name for name in default if example[name] == default[name]] == []


def test_no_two_groups_share_a_name() -> None:
    groups = (
        FinetuneConfig,
        DataSettings,
        AugmentSettings,
        ModelSettings,
        RecipeSettings,
        MachineSettings,
    )
    leaves = sum(len(vars(group())) for group in groups) - 5  # the groups themselves
    assert len(flatten_config(FinetuneConfig())) == leaves


def test_flatten_and_back() -> None:
    assert unflatten_config(FinetuneConfig(), flatten_config(ALL_SET)) == ALL_SET
    assert unflatten_config(ALL_SET, {}) == ALL_SET
    assert unflatten_config(ALL_SET, flatten_config(FinetuneConfig())) == FinetuneConfig()


@pytest.mark.parametrize("config", [ALL_SET, FinetuneConfig(data="x")])
def test_yaml_and_back(tmp_path: Path, config: FinetuneConfig) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config_to_yaml(config), encoding="utf-8")
    table = read_config_yaml(path)
    assert not table.keys() & set(UNSAVED_SETTINGS)
    kept_apart = {
        name: flatten_config(config)[name]
        for name in UNSAVED_SETTINGS
        if name in flatten_config(config)
    }
    assert unflatten_config(unflatten_config(FinetuneConfig(), table), kept_apart) == config


def test_the_config_of_a_run_is_accepted(tmp_path: Path) -> None:
    """A filled config comes back the same through the command line's own reader."""
    from patchwords.cli.train.finetune import parse_finetune

    asked = replace(ALL_SET, recipe=replace(ALL_SET.recipe, epochs=None, examples=None))
    for config in (asked, FinetuneConfig(data="x")):
        filled, _ = fill_recipe_settings(config, images=1009, from_weights=False, model="ViT-B/16")
        path = tmp_path / "config.yaml"
        path.write_text(config_to_yaml(filled), encoding="utf-8")
        read = flatten_config(parse_finetune(["--config", str(path)]))
        wanted = {
            name: v for name, v in flatten_config(filled).items() if name not in UNSAVED_SETTINGS
        }
        assert {name: read[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "hint"), [("weight_decya", "; did you mean 'weight_decay'"), ("xyzzy", "$")]
)
def test_an_unknown_setting(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^x.yaml: unknown setting '{name}'{hint}"):
        unflatten_config(FinetuneConfig(), {name: 1}, where="x.yaml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lr: [1, 2", "is not YAML"),
        ("- lr\n- steps", "must hold settings as 'name: value' lines"),
        ("just words", "must hold settings"),
        ("1: 2", "must hold settings"),
        ("lr: !!python/object/apply:os.mkdir [exploded]", "is not YAML"),
        ("\tlr: 1", "is not YAML"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_config_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_yaml_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config_yaml(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"lr: \xff\xfe")
    with pytest.raises(ConfigError, match="is not YAML"):
        read_config_yaml(tmp_path / "binary.yaml")


def test_yaml_may_be_empty_and_may_spell_names_as_flags(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("# nothing\n")
    assert read_config_yaml(path) == {}
    path.write_text("weight-decay: 0.1\n")
    assert read_config_yaml(path) == {"weight_decay": 0.1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": ""}, "no data given"),
        ({"epochs": 2.0, "steps": 3}, "--epochs 2 and --steps 3 both say how long"),
        ({"examples": 2_000_003, "steps": 3}, "--steps 3 and --examples 2000003 both say"),
        ({"epochs": 0.5, "examples": 7, "steps": 3}, "5 and --steps 3 and --examples 7 all say"),
        ({"examples": 0}, "--examples 0 must be greater"),
        ({"resume": True, "overwrite": True}, "--resume .* --overwrite"),
        ({"train": "tail"}, "--train 'tail'"),
        ({"epochs": 0.0}, "--epochs 0 must be greater"),
        ({"steps": 0}, "--steps 0 must be greater"),
        ({"batch_size": -3}, "--batch-size -3 must be greater"),
        ({"lr": float("nan")}, "--lr nan must be greater"),
        ({"lr": float("inf")}, "--lr inf must be a finite number"),
        ({"epochs": float("inf")}, "--epochs inf must be a finite number"),
        ({"clip": 0.0}, "--clip 0 must be greater"),
        ({"layer_decay": 0.0}, "--layer-decay 0 must be greater"),
        ({"early_stop": 0}, "--early-stop 0 must be greater"),
        ({"grad_accum": 0}, "--grad-accum 0 must be greater"),
        ({"log_every": 0}, "--log-every 0 must be greater"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1 must be at least 0 and less than 1"),
        ({"ema": 1.0}, "--ema 1 must be"),
        ({"test": -0.1}, "--test -0.1 must be"),
        ({"validation": 1.0}, "--validation 1 must be"),
        ({"max_bad": -1.0}, "--max-bad -1 must be"),
        ({"warmup_steps": -1}, "--warmup-steps -1 is negative"),
        ({"scale": "auto"}, "--scale auto says how much of a --recipe"),
        ({"recipe": "x", "scale": 0.0}, "--scale 0 must be above 0 and at most 1, or auto"),
        ({"recipe": "x", "scale": 1.5}, "--scale 1.5 must be above 0 and at most 1, or auto"),
        ({"drops": ()}, "--drops lacks a value"),
        ({"schedule": "staircase", "drops": (0.6, 0.3)}, "--drops 0.6 0.3: give rising shares"),
        ({"schedule": "staircase", "drops": (0.5, 1.0)}, "--drops 0.5 1: give rising shares"),
        ({"drops": (0.5,)}, "--drops says where --schedule staircase falls"),
        ({"random_crop": 0.8, "crop_ratio": (1, 1)}, "--crop-ratio shapes the inception crop"),
        ({"weight_decay": -0.1}, "--weight-decay -0.1 is negative"),
        ({"workers": -1}, "--workers -1 is negative"),
        ({"early_stop": 2, "validation": 0.0}, "--early-stop needs validation images"),
    ],
)
def test_what_is_refused_before_anything_starts(change: dict[str, Any], reason: str) -> None:
    FinetuneConfig(data="x").check()
    with pytest.raises(ConfigError, match=reason) as caught:
        unflatten_config(FinetuneConfig(), {"data": "x", **change}).check()
    assert "\n" not in str(caught.value)
