"""`--train lora:R` and `--train norms`: what learns, exact resume, and a plain model at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every_kind import EVERY_KIND, lively
from tiny_run import VIT, Killed, assemble, config_of, go, go_on, killed_at

import patchwords as pw
from patchwords.errors import ConfigError
from patchwords.models.build import Model
from patchwords.models.inference.packed import pack_for_inference
from patchwords.training.config import FinetuneConfig, parse_lora_rank
from patchwords.training.engine.lora import LoRALinear, add_lora, merge_lora
from patchwords.training.engine.optimizer import (
    describe_trained_share,
    freeze_layers,
    iterate_named_parameters,
)
from patchwords.training.outputs import gather_full_model

IMAGES = torch.randn(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))
BLOCKS = [kind for kind, config in EVERY_KIND.items() if hasattr(config, "mixer")]


def updated(kind: str) -> Model:
    """A model whose low-rank updates are not zero."""
    model = lively(EVERY_KIND[kind]).eval()
    add_lora(model, 2, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LoRALinear):
                module.up.normal_(0, 0.1, generator=generator)
    return model


@pytest.mark.parametrize("kind", BLOCKS)
@torch.no_grad()
def test_it_starts_as_the_model_and_ends_as_a_plain_one(kind: str) -> None:
    plain = lively(EVERY_KIND[kind]).eval()
    expected, names = plain(IMAGES), list(plain.state_dict())
    add_lora(plain, 2, seed=0)
    assert torch.equal(plain(IMAGES), expected)
    model = updated(kind)
    logits = model(IMAGES)
    assert not torch.allclose(logits, expected, atol=1e-3)
    assert torch.allclose(pack_for_inference(model)(IMAGES), logits, atol=1e-4)
    merge_lora(model)
    assert list(model.state_dict()) == names
    assert torch.allclose(model(IMAGES), logits, atol=1e-4)


def test_what_learns() -> None:
    model = lively(VIT)
    add_lora(model, 2, seed=0)
    freeze_layers(model, "lora:2", VIT)
    learning = {name for name, p in iterate_named_parameters(model) if p.requires_grad}
    dense = ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2")
    expected = {
        f"encoder.blocks.{block}.{layer}.{part}"
        for block in range(VIT.layers)
        for layer in dense
        for part in ("down", "up")
    }
    rest = {"head.linear.weight", "head.linear.bias", "encoder.norm.weight", "encoder.norm.bias"}
    assert learning == expected | rest
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert describe_trained_share(model).startswith(f"{count:,} of ")
    model = lively(VIT)
    freeze_layers(model, "norms", VIT)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {n for n, _ in model.named_parameters() if "norm" in n or "head." in n}


def test_norms_of_a_resnet() -> None:
    model = lively(EVERY_KIND["BiT"])
    freeze_layers(model, "norms", model.config)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("norm" in name or name.startswith("head.")), name


def test_ranks_are_checked() -> None:
    with pytest.raises(ConfigError, match="for the blocks of a ViT, and the model has none"):
        add_lora(lively(EVERY_KIND["BiT"]), 2, seed=0)
    with pytest.raises(ConfigError, match=r"--train lora:14: .* allow ranks up to 13"):
        add_lora(lively(VIT), 14, seed=0)
    config = FinetuneConfig(data="digits")
    recipe, machine = (
        replace(config.recipe, train="lora:4"),
        replace(config.machine, parallel="fsdp"),
    )
    with pytest.raises(ConfigError, match="--train lora:4 is not for --parallel fsdp"):
        replace(config, recipe=recipe, machine=machine).check()
    assert [parse_lora_rank(text) for text in ("lora:8", "lora:0", "lora:", "last:2")] == [
        8,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("train", ["lora:3", "norms"])
def test_stopped_and_continued_is_bit_equal(tmp_path: Path, train: str) -> None:
    config = config_of()
    config = replace(config, recipe=replace(config.recipe, train=train))
    whole = go(assemble(tmp_path / "whole", config))
    with pytest.raises(Killed):
        go(assemble(tmp_path / "torn", config), killed_at(2))
    job = go_on(tmp_path / "torn", config)
    assert job.resumed_at == 15
    a, b = (run.state.to_dict() for run in (whole, job))
    assert a["model"].keys() == b["model"].keys()
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert all(torch.equal(a["average"][name], b["average"][name]) for name in a["average"])
    frozen = [name for name, p in whole.state.model.named_parameters() if not p.requires_grad]
    start = assemble(tmp_path / "other", config).state.model.state_dict()
    assert frozen
    assert all(torch.equal(a["model"][name], start[name]) for name in frozen)
    assert not all(torch.equal(a["model"][name], start[name]) for name in start)
    plain = gather_full_model(whole).state.model
    assert list(plain.state_dict()) == list(lively(VIT).state_dict())


def test_a_run_leaves_a_plain_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny: dict[str, Any] = {"model": "ViT-mu/4", "image_size": 8, "device": "cpu", "workers": 0}
    run = pw.finetune("digits", train="lora:2", steps=3, batch_size=8, output="run", **tiny)
    out = " ".join(capsys.readouterr().out.split())
    assert "parameters learn (" in out
    plain = pw.create_model("ViT-mu/4", num_classes=10, image_size=8)
    assert list(run.model.state_dict()) == list(plain.state_dict())
    again = pw.load_run("run", device="cpu").resume()  # finished: it is loaded and evaluated again
    assert again.accuracy.value == run.accuracy.value
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(again.model(images), run.model(images))
