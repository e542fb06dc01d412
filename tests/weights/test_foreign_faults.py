"""Folders and files with absurd or hostile content: one line each, harmless on a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from drawn import drawn
from patchwords import cli
from patchwords.cli.format import make_console, print_lines
from patchwords.data.preprocess import Preprocess
from patchwords.errors import (
    ConfigError,
    PatchwordsError,
    WeightsError,
    escape_control_characters,
)
from patchwords.models.resnet.config import ResNetConfig, TrunkConfig
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT
from patchwords.weights.locate import WeightsLocation, locate_weights
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.safe_load import read_torch
from patchwords.weights.store import from_pretrained, save_pretrained

LABELS = ("red\x1b[2J\x1b[31m", "green", "b\nlue", "c\x9b1A", "d\u202e", "\ud800", "g" * 10_000)


@pytest.fixture
def folder(tiny: Callable[..., ViT], tmp_path: Path) -> Path:
    return save_pretrained(tiny(), tmp_path / "model", preprocess=Preprocess((12, 20)))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(path)
    return path


def change(folder: Path, *keys: str, value: Any) -> None:
    """Set a value of config.json."""
    path = folder / "config.json"
    table = json.loads(path.read_text())
    inner = table
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(table))


def refusal(capsys: pytest.CaptureFixture[str], folder: Path, photo: Path) -> str:
    """The one line with which predict refuses a folder."""
    capsys.readouterr()
    assert cli.main(["predict", str(folder), str(photo), "--device", "cpu", "--workers", "0"]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(
    value: float, folder: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["encoder.norm.weight"][3] = value
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert "encoder.norm.weight holds NaN or infinity" in refusal(capsys, folder, photo)


def test_scores_that_are_no_numbers_are_no_answer(
    folder: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finite weights may overflow."""
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["head.linear.weight"][:] = 3e38
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert "numbers that are not finite" in refusal(capsys, folder, photo)
    with pytest.raises(WeightsError, match="not finite"):
        from_pretrained(folder).predict(photo)


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("preprocess", "mean"), [math.nan, 0.5, 0.5], "mean is (nan"),
        (("preprocess", "mean"), [0.5, "0.5", 0.5], "mean must be a number, not '0.5'"),
        (("preprocess", "mean"), [0.5, [0.5], 0.5], "mean must be a number, not [0.5]"),
        (("preprocess", "mean"), 0.5, "mean is 0.5; give a number for each channel"),
        (("preprocess", "std"), [math.nan] * 3, "std is (nan"),
        (("preprocess", "std"), [1e-320] * 3, "every value must be above 0"),
        (("preprocess", "std"), [1e300] * 3, "std is (1e+300"),
        (("preprocess", "crop_fraction"), "1", "crop_fraction must be a number"),
        (("preprocess", "image_size"), [100_000, 100_000], "image_size 100000x100000 has more"),
        (("preprocess", "image_size"), ["a", 3], "image_size must be a whole number"),
        (("model", "width"), 10**9, "a model too large for any machine"),
        (("model", "mlp_width"), 2**64, "a model too large for any machine"),
        (("model", "image_size"), [100_000, 100_000], "image_size 100000x100000 has more"),
        (("model", "gelu"), "\ud800\x1b[31m", "unknown gelu"),
    ],
)
def test_tables_of_absurd_values_are_refused(
    keys: tuple[str, ...],
    value: Any,
    says: str,
    folder: Path,
    photo: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(folder, *keys, value=value)
    line = refusal(capsys, folder, photo)
    assert says in line
    assert "\x1b" not in line


def test_a_bit_of_transformers_with_huge_images_is_refused(
    tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trunk = TrunkConfig((1,), form="pre", standardise="var+1e-8", group_norm_eps=1e-5)
    trunk = replace(trunk, padding="symmetric", pool_padding="zeros")
    model = drawn(ResNet(ResNetConfig(trunk, (32, 32), num_classes=3)))
    folder = save_pretrained(model, tmp_path / "bit", format="huggingface")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"crop_size": 200_000}))
    assert "200000x200000" in refusal(capsys, folder, photo)


@pytest.mark.parametrize("start", ['{"a":', "["])
def test_a_table_nested_deep_is_refused(
    start: str, folder: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_text(start * 100_000)
    assert "is damaged: maximum recursion depth" in refusal(capsys, folder, photo)


def test_labels_are_harmless_on_a_terminal(
    tiny: Callable[..., ViT], photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pretrained(tiny(), tmp_path / "m", labels=[str(i) for i in range(7)])
    change(tmp_path / "m", "labels", value=list(LABELS))
    assert from_pretrained(tmp_path / "m").labels == LABELS  # what the file says
    capsys.readouterr()
    command = ["predict", str(tmp_path / "m"), str(photo), "--top-k", "7", "--workers", "0"]
    assert cli.main([*command, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    assert escape_control_characters(shown) == shown
    assert "red\\x1b[2J\\x1b[31m" in shown
    assert len(shown) < 1000


def test_tables_are_harmless_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = make_console(force_terminal=True, width=60)
    table = Table("class")
    for label in LABELS[:5]:
        table.add_row(Text(label, style="red"))
    console.print(table)
    print_lines(console, LABELS[0])
    shown = capsys.readouterr().out
    assert "\x1b[31mred\\x1b[2J" in shown  # the style's own colour stays
    assert "\x1b[2J" not in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown


def test_a_torchscript_file_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.script(torch.nn.Linear(2, 3)).save(str(path))
    with pytest.raises(WeightsError, match=r"TorchScript program.*save model\.state_dict\(\)"):
        read_torch(path)
    torch.save({"weight": torch.zeros(2)}, path)
    assert read_torch(path)["weight"].shape == (2,)


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/google/vit-base-patch16-224",
        "https://huggingface.co/google/vit-base-patch16-224/",
        "https://huggingface.co/google/vit-base-patch16-224/tree/main",
        "https://huggingface.co/google/vit-base-patch16-224/tree/main/",
        "https://www.huggingface.co/google/vit-base-patch16-224?library=timm",
        "https://hf.co/google/vit-base-patch16-224#model-card",
    ],
)
def test_the_page_of_a_model_is_its_hub_id(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def download(repository: str, **_: Any) -> str:
        fetched.append(repository)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    place = locate_weights(address)
    assert place == WeightsLocation("patchwords", folder, "google/vit-base-patch16-224")
    assert fetched == ["google/vit-base-patch16-224"]


def test_other_addresses_are_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(
        "patchwords.weights.locate.fetch_cached",
        lambda url: fetched.append(url) or tmp_path / "x.npz",
    )
    file = "https://huggingface.co/google/vit/resolve/main/model.npz"
    for address in (file, "https://huggingface.co/datasets/cifar10"):
        locate_weights(address)
    assert fetched == [file, "https://huggingface.co/datasets/cifar10"]


def test_images_beyond_the_memory_are_refused_before_they_are_made(
    tiny: Callable[..., ViT], photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="more than 67,108,864 pixels"):
        Preprocess((10_000, 10_000))

    def fail(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", fail)
    pretrained = Pretrained(tiny(), Preprocess((12, 20)), tuple("abcdefg"))
    with pytest.raises(PatchwordsError, match="GiB of memory, which this machine does not have"):
        pretrained.predict([photo], workers=1)
