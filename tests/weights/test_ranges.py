"""Ranges lie beside the weights that they are of, and serve no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from patchwords.device import Device, choose_device
from patchwords.errors import ConfigError, WeightsError
from patchwords.models.inference.calibration import ActivationRanges, collect_activation_ranges
from patchwords.models.inference.int8 import QuantisedBlock, find_int8_obstacle
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model
from patchwords.weights.pretrained import (
    RANGES_FILE,
    Pretrained,
    load_activation_ranges,
    save_activation_ranges,
)
from patchwords.weights.store import from_pretrained, save_pretrained

here = pytest.mark.skipif(
    find_int8_obstacle() is not None, reason=f"no int8 here: {find_int8_obstacle()}"
)
INT8 = Device(torch.device("cpu"), bf16=False, int8=True)


@pytest.fixture
def home(tiny: Callable[..., ViT], tmp_path: Path) -> Path:
    """A model folder."""
    return save_pretrained(tiny(), tmp_path / "model")


def calibrated(home: Path) -> tuple[Pretrained, ActivationRanges]:
    """The model in the folder, with ranges beside it."""
    source = from_pretrained(home)
    config = source.model.config
    noise = torch.Generator().manual_seed(0)
    images = torch.rand(3, config.channels, *config.image_size, generator=noise)
    ranges = collect_activation_ranges(source.model, [images])
    assert save_activation_ranges(home, source.model, ranges, 3) == home / RANGES_FILE
    return source, ranges


def refused(home: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        load_activation_ranges(home, from_pretrained(home).model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_ranges_come_back(home: Path) -> None:
    _, ranges = calibrated(home)
    found = load_activation_ranges(home, from_pretrained(home).model)
    assert found.keys() == ranges.keys()
    assert all(torch.equal(found[name], value) for name, value in ranges.items())
    assert {path.name for path in home.iterdir()} == {
        RANGES_FILE,
        "config.json",
        "model.safetensors",
    }


@here
def test_a_calibrated_model_answers_in_int8(home: Path) -> None:
    source, _ = calibrated(home)
    fast = from_pretrained(str(home)).for_inference(INT8)
    assert isinstance(fast.model, ViT)
    assert all(isinstance(block, QuantisedBlock) for block in fast.model.encoder.blocks)
    config = source.model.config
    pixels = torch.randint(0, 256, (4, config.channels, *config.image_size), dtype=torch.uint8)
    apart = fast.scores(pixels, INT8) - source.scores(pixels)
    assert 0 < abs(apart).max() < 0.05
    assert (fast.scores(pixels) == fast.scores(pixels, INT8)).all()


def test_a_model_without_ranges(home: Path, tmp_path: Path) -> None:
    assert f"{home} has no ranges of activations" in refused(home)
    assert f"run patchwords calibrate {home} first" in refused(home)
    (tmp_path / "config.yaml").write_text("")  # a run has another name than its model folder
    assert f"run patchwords calibrate {tmp_path} first" in refused(home)
    with pytest.raises(WeightsError, match="int8 needs the ranges of activations, which are kept"):
        load_activation_ranges(None, from_pretrained(home).model)


def test_ranges_of_other_weights(home: Path) -> None:
    calibrated(home)
    weights = safetensors.torch.load_file(home / "model.safetensors")
    name = next(iter(weights))
    weights[name].view(-1)[0] += 1e-3
    safetensors.torch.save_file(weights, home / "model.safetensors", {"format": "pt"})
    assert f"{home / RANGES_FILE} is of other weights than the model has now" in refused(home)


@here
def test_ranges_do_not_serve_a_model_that_was_changed_in_loading(home: Path) -> None:
    calibrated(home)
    for changed in ({"num_classes": 11}, {"image_size": (24, 20)}):
        with pytest.raises(WeightsError, match="is of other weights than the model has now"):
            from_pretrained(home, **changed).for_inference(INT8)  # type: ignore[arg-type]


def test_damaged_ranges(home: Path) -> None:
    source, ranges = calibrated(home)
    whole = (home / RANGES_FILE).read_bytes()
    (home / RANGES_FILE).write_bytes(whole[: len(whole) // 2])
    assert f"{home / RANGES_FILE} is no safetensors file" in refused(home)
    torch.save(ranges, home / RANGES_FILE)  # a pickle is never read
    assert f"{home / RANGES_FILE} is no safetensors file" in refused(home)
    name = "blocks.0.norm1"
    save_activation_ranges(home, source.model, {**ranges, name: ranges[name][:3]}, 3)
    assert f"{name} should be ({len(ranges[name])},), and is (3,)" in refused(home)
    save_activation_ranges(
        home, source.model, {key: ranges[key] for key in ranges if key != name}, 3
    )
    assert f"{name} should be ({len(ranges[name])},), and is absent" in refused(home)
    save_activation_ranges(home, source.model, {**ranges, name: ranges[name] / 0}, 3)
    assert "is damaged: run patchwords calibrate" in refused(home)


def test_what_cannot_be_is_said_before_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = create_model("ViT-mu/4", num_classes=3, image_size=16, mixer="pooling").eval()
    home = save_pretrained(model, tmp_path / "model")
    monkeypatch.setattr("patchwords.models.inference.int8.find_int8_obstacle", lambda: None)
    with pytest.raises(ConfigError, match="int8 is for blocks of plain attention"):
        from_pretrained(home).for_inference(INT8)
    monkeypatch.setattr(
        "patchwords.models.inference.int8.find_int8_obstacle", lambda: "it is a toaster"
    )
    with pytest.raises(ConfigError, match="int8 cannot be computed here: it is a toaster"):
        from_pretrained(home).for_inference(INT8)


def test_int8_is_for_the_cpu() -> None:
    device = choose_device("auto", "int8")
    assert (device.type, device.precision) == ("cpu", "int8")
    assert device.describe()["precision"] == "int8"
    with pytest.raises(ConfigError, match="--precision int8 is for the CPU"):
        choose_device("cuda", "int8")
