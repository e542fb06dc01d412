"""`--weights auto`: which published weights the plain command takes, and what it does without."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from plain_data import CPU, GPU, make_data, tick
from stand_in_hub import SMALL, TINY, cut_in_half, put_into_hub_cache
from tiny_run import quiet

import patchwords as pw
from patchwords.cli import main
from patchwords.cli.train.finetune import parse_finetune
from patchwords.device import Device
from patchwords.errors import Interrupted
from patchwords.training import budget
from patchwords.training.config import FinetuneConfig, read_config_yaml
from patchwords.training.model_setup import choose_plain_settings
from patchwords.training.recipes import auto_weights
from patchwords.training.recipes.auto_weights import WeightsSearch
from patchwords.training.run import train_model
from patchwords.weights import published

PEAK = 4e11  # FLOP/s: a ViT-Ti/16 takes 16 ms an image, by the assumed utilisation
BASE = "vit_base_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture(autouse=True)
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_weights, "measure_matmul_peak", lambda device: PEAK)


@pytest.fixture
def hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Names that are taken to be in the hub's cache."""

    def put(*names: str) -> None:
        monkeypatch.setattr(published, "is_in_hub_cache", lambda name: name in names)

    put()
    return put


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """72 images of 48 pixels: three colours, with noise."""
    generator = np.random.default_rng(0)
    for label, colour in enumerate(("red", "green", "blue")):
        (tmp_path / "photos" / colour).mkdir(parents=True)
        for number in range(24):
            pixels = generator.integers(0, 120, (48, 48, 3))
            pixels[..., label] += 100
            image = Image.fromarray(pixels.astype(np.uint8))
            image.save(tmp_path / "photos" / colour / f"{number}.png")
    return tmp_path / "photos"


Found = tuple[list[FinetuneConfig], str]


def find(
    *words: str, counts: list[int] | None = None, device: Device = CPU, side: int = 100
) -> Found:
    """The candidates of `patchwords finetune photos WORDS`, and the reason of the first."""
    data = make_data(counts or [500, 500], (side, side))
    config = parse_finetune(["photos", *words])
    search = WeightsSearch(config, data, device, print)
    candidates, _ = choose_plain_settings(replace(config, weights=None), data, device, search.find)
    return candidates, search.explain(candidates[0].weights).why


def test_the_most_accurate_that_fits_is_taken(cached: Callable[..., None]) -> None:
    cached(TINY, SMALL, BASE)
    candidates, why = find("--budget", "15m")
    assert [c.weights for c in candidates] == [BASE, TINY, None, None, None]
    assert candidates[0].recipe.recipe == "plain-head"
    assert (candidates[0].recipe.train, candidates[0].augment.views) == ("head", 2)
    assert why.startswith("84.53 % top-1, ImageNet (timm); on this machine; licence as on hugg")
    assert "given up: deit3_huge_patch14_224.fb_in22k_ft_in1k (87.2 %; --budget " in why
    assert [c.weights for c in find("--budget", "4m")[0]] == [SMALL, TINY, None, None, None]
    candidates, _ = find("--budget", "1m")
    assert (candidates[0].weights, candidates[0].augment.views) == (TINY, 2)
    assert [c.weights for c in candidates] == [TINY, None, None, None]


def test_without_time_it_is_the_cnn(cached: Callable[..., None]) -> None:
    cached(TINY)
    candidates, why = find("--budget", "2s")
    assert [c.model for c in candidates] == ["CNN-8x2", "CNN-4x1", "CNN-4x1"]
    assert re.search(
        r"features of 1,000 images take [\d.]+ s or more; --budget 1m has the time", why
    )


def test_a_gpu_with_time_trains_all_layers_by_the_paper(cached: Callable[..., None]) -> None:
    cached(TINY)
    [first, *_], _ = find(device=GPU, counts=[50, 50])
    assert (first.weights, first.recipe.recipe, first.recipe.train) == (TINY, None, "all")
    assert (first.recipe.label_smoothing, first.augment.crop_area) == (0.0, (0.05, 1.0))
    [first, *_], _ = find(device=GPU, counts=[5000, 5000])
    assert (first.recipe.recipe, first.recipe.train) == ("plain-head", "head")


def test_what_the_user_sets_wins_even_where_it_equals_the_recipe(
    cached: Callable[..., None],
) -> None:
    cached(TINY)
    words = ("--label-smoothing", "0.1", "--views", "3")
    [first, *_], _ = find(*words, device=GPU, counts=[50, 50])
    assert (first.recipe.label_smoothing, first.augment.views) == (0.1, 3)
    [first, *_], _ = find("--views", "3")
    assert first.augment.views == 3
    [first, *_], _ = find("--train", "last:1")
    assert (first.recipe.recipe, first.recipe.train) == (None, "last:1")


@pytest.mark.parametrize("words", [("--weights", "none"), ("--weights", "none", "--offline")])
def test_none_is_none(words: tuple[str, ...], cached: Callable[..., None]) -> None:
    cached(TINY)
    assert [c.weights for c in find(*words)[0]] == [None, None, None]


def test_images_that_are_too_small_are_not_enlarged(cached: Callable[..., None]) -> None:
    cached(TINY)
    candidates, why = find(side=28)
    assert candidates[0].weights is None
    assert "images of 28 pixels are too small for published weights" in why
    assert find("--weights", "auto", side=28)[0][0].weights == TINY


@pytest.mark.parametrize(
    "words", [("--model", "ViT-Ti/16"), ("--recipe", "plain"), ("--image-size", "64")]
)
def test_auto_leaves_no_model_to_name(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["finetune", "digits", "--weights", "auto", *words]) == 2
    error = capsys.readouterr().err
    assert "--weights auto chooses the model by the data: leave out --model" in error
    assert error.count("\n") == 1


def test_auto_is_for_finetune(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "digits", "--weights", "auto"]) == 2
    assert "--weights auto is for finetune" in capsys.readouterr().err


# The hub


def test_nothing_is_asked_for_offline(
    cached: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_weights, "ask_hub_for_bytes", None)  # a call would fail
    assert "HF_HUB_OFFLINE forbids the download" in find()[1]
    assert "--offline forbids the download" in find("--offline")[1]


def test_a_hub_that_answers_offers_the_best_of_a_size(
    cached: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    asked = []

    def answer(repository: str, seconds: float) -> int:
        asked.append((repository, seconds))
        return 88_000_000

    monkeypatch.setattr(auto_weights, "ask_hub_for_bytes", answer)
    candidates, why = find("--budget", "4m")
    assert asked == [(f"timm/{candidates[0].weights}", 5.0)]
    assert f"a download of 88 MB from huggingface.co/timm/{candidates[0].weights}" in why
    assert [c.weights for c in candidates[1:]] == [None, None, None]
    large = [row for row in published.PUBLISHED_WEIGHTS if row.name == candidates[0].weights]
    assert large[0].parameters < 125e6


def test_a_hub_that_is_silent_is_left_in_time(
    cached: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(auto_weights, "HUB_SECONDS", 0.2)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: released.wait(60))
    started = time.monotonic()
    candidates, why = find()
    assert time.monotonic() - started < 30  # it did not wait for the answer
    released.set()
    assert candidates[0].model == "CNN-8x2"
    assert "the Hugging Face hub did not answer within 0.2 s" in why


def test_offline_refuses_what_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    for name, what in ((TINY, f"timm/{TINY}"), ("i1k-s16-90ep", "vit_s16_i1k_90ep.npz")):
        assert main(["finetune", "digits", "--weights", name, "--offline"]) == 2
        error = capsys.readouterr().err
        assert what in error
        assert "--offline forbids" in error
        assert error.count("\n") == 1


# Runs


WORDS = ("--device", "cpu", "--precision", "fp32", "--workers", "0", "--epochs", "8")


def test_auto_trains_the_head_and_goes_on_to_the_same_bits(
    hub_cache: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into_hub_cache(hub_cache)
    tick(monkeypatch, 0.5)

    def train(folder: str, *words: str) -> dict[str, torch.Tensor]:
        output = ("--output", str(tmp_path / folder))
        train_model(parse_finetune([str(photos), *WORDS, *output, *words]), quiet())
        return pw.from_pretrained(tmp_path / folder).model.state_dict()

    whole = train("whole", "--save-every", "5")
    stored = read_config_yaml(tmp_path / "whole" / "config.yaml")
    assert {name: stored[name] for name in ("weights", "recipe", "train", "frozen", "views")} == {
        "weights": TINY,
        "recipe": "plain-head",
        "train": "head",
        "frozen": "cache",
        "views": 4,
    }
    origin = pw.from_pretrained(TINY).model.state_dict()
    same = [name for name in whole if torch.equal(whole[name], origin.get(name, torch.zeros(())))]
    assert {name for name in whole if name not in same} == {
        "head.linear.weight",
        "head.linear.bias",
    }
    with monkeypatch.context() as patch:
        stop_after(7, patch)
        with pytest.raises(Interrupted):
            train("cut", "--save-every", "5")
    monkeypatch.setattr(budget, "measure_step_seconds", None)  # a call would fail
    monkeypatch.setattr(auto_weights, "measure_matmul_peak", None)
    again = train("cut", "--save-every", "5", "--resume")
    assert [name for name in whole if not torch.equal(again[name], whole[name])] == []


def stop_after(steps: int, patch: pytest.MonkeyPatch) -> None:
    from patchwords.training.engine import loop

    step, calls = loop.train_step, []

    def stopped(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > steps:
            raise Interrupted("stopped", 130)
        return step(*args)

    patch.setattr(loop, "train_step", stopped)


def test_the_command_says_what_it_takes_and_a_damaged_cache_leads_to_scratch(
    hub_cache: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = put_into_hub_cache(hub_cache)
    tick(monkeypatch, 0.5)
    words = ["finetune", str(photos), *WORDS, "--output", str(tmp_path / "run")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert f"weights: {TINY}: 75.45 % top-1, ImageNet (timm); on this machine" in shown
    assert "accuracy" in shown
    assert (tmp_path / "run" / "report.html").is_file()
    cut_in_half(folder / "model.safetensors")
    assert main([*words, "--explain", "--overwrite"]) == 0
    shown = capsys.readouterr().out
    [note] = [line for line in shown.splitlines() if "going on without" in line]
    assert note.startswith(f"note: going on without {TINY}: ")
    assert "model.safetensors is damaged" in note
    assert "weights: none: those that were chosen cannot be read" in shown
    assert "CNN-" in shown


def test_a_download_is_announced_before_it_begins(
    hub_cache: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(auto_weights, "ask_hub_for_bytes", lambda *_: 22_900_000)
    rows = [row for row in published.PUBLISHED_WEIGHTS if row.name == TINY]
    monkeypatch.setattr(auto_weights, "PUBLISHED_WEIGHTS", rows)
    tick(monkeypatch, 0.5)
    said: list[str] = []
    display = quiet()
    monkeypatch.setattr(display, "say", said.append)

    def download(repository: str, allow_patterns: object) -> str:
        said.append("bytes come")
        return str(put_into_hub_cache(tmp_path / "fetched"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    words = [str(photos), *WORDS, "--output", str(tmp_path / "run")]
    from patchwords.training.run import explain_training

    explain_training(parse_finetune([*words, "--explain"]), display)
    assert "bytes come" not in said
    said.clear()
    train_model(parse_finetune(words), display)
    address = f"huggingface.co/timm/{TINY}"
    assert said[:2] == [f"downloading 23 MB from {address} (once)", "bytes come"]
    assert read_config_yaml(tmp_path / "run" / "config.yaml")["weights"] == TINY
