from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from patchwords.cli import main
from patchwords.models.zoo import create_model
from patchwords.weights.store import from_pretrained, save_pretrained

LABELS = ("daisy", "rose", "tulip")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small ViT with random weights everywhere, and names."""
    model = create_model("mu/16", num_classes=3, image_size=48, depth=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return save_pretrained(model, tmp_path / "source", labels=LABELS, architecture="ViT-mu/16")


def logits(path: Path) -> torch.Tensor:
    model = from_pretrained(path, architecture=None).model
    images = torch.linspace(-1, 1, 3 * 48 * 48).reshape(1, 3, 48, 48)
    with torch.no_grad():
        return model(images)


@pytest.mark.parametrize(
    ("form", "target"),
    [("patchwords", "a"), ("timm", "b"), ("google", "c.npz"), ("huggingface", "d")],
)
def test_each_form_goes_out_and_comes_back(
    form: str, target: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / target
    assert main(["convert", str(source), str(there), "--to", form]) == 0
    said = capsys.readouterr().out
    assert f"{there}: ViT-mu/16 of 3 classes" in said
    assert "open it: " in said
    back = from_pretrained(there)
    assert torch.equal(logits(there), logits(source)), form
    assert back.labels == (LABELS if form != "google" else ("0", "1", "2"))


def test_labels_from_a_file_name_what_numbers_do_not(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("a flower\nb\nc\n")
    google, ours = tmp_path / "x.npz", tmp_path / "ours"
    assert main(["convert", str(source), str(google), "--to", "google"]) == 0
    words = ["convert", str(google), str(ours), "--to", "patchwords", "--labels", str(names)]
    assert main(words) == 0
    assert from_pretrained(ours).labels == ("a flower", "b", "c")
    for content, says in [
        ("a\nb\n", "has 2 names for a model of 3 classes"),
        ("a\nb\na\n", "line 3: 'a' is empty or a duplicate"),
        ("a\n\nc\n", "line 2: '' is empty or a duplicate"),
    ]:
        names.write_text(content)
        assert main([*words, "--overwrite"]) == 2
        assert says in capsys.readouterr().err
    assert from_pretrained(ours).labels == ("a flower", "b", "c")


def test_positions_are_resized_on_the_way(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "large.npz"
    words = ["convert", str(source), str(there), "--to", "google", "--image-size", "80"]
    assert main(words) == 0
    assert "note: positions resized from 3x3 to 5x5 patches" in capsys.readouterr().out
    with np.load(there, allow_pickle=False) as arrays:
        assert arrays["Transformer/posembed_input/pos_embedding"].shape == (1, 26, 32)


@pytest.mark.parametrize(
    ("target", "form", "says"),
    [
        ("x", "google", "call it"),
        ("x.npz", "timm", "weights are a folder"),
        ("taken", "timm", "is there already; choose another name, or add --overwrite"),
        ("file", "patchwords", "is a file; choose another name"),
    ],
)
def test_targets_that_are_taken_or_misnamed(
    target: str,
    form: str,
    says: str,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    assert main(["convert", str(source), str(tmp_path / target), "--to", form]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert (tmp_path / "taken" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_form_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = create_model("mu/16", num_classes=3, image_size=48, mixer="pooling", classifier="map")
    source = save_pretrained(model, tmp_path / "pooling")
    for form in ("huggingface", "timm", "google"):
        there = tmp_path / ("x.npz" if form == "google" else "x")
        assert main(["convert", str(source), str(there), "--to", form]) == 2
        said = capsys.readouterr().err
        assert "cannot hold this model" in said
        assert said.count("\n") == 1
        assert not there.exists()


def test_a_file_that_does_not_tell_its_architecture_asks_for_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timm = tmp_path / "timm"
    assert main(["convert", str(source), str(timm), "--to", "timm"]) == 0
    alone = tmp_path / "weights.safetensors"
    alone.write_bytes((timm / "model.safetensors").read_bytes())
    words = ["convert", str(alone), str(tmp_path / "back"), "--to", "patchwords"]
    assert main(words) == 2
    assert "weights" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["patchwords", "timm", "huggingface"])
def test_half_precision_is_half_the_size(form: str, source: Path, tmp_path: Path) -> None:
    whole, half = tmp_path / "whole", tmp_path / "half"
    for place, more in ((whole, []), (half, ["--half"])):
        assert main(["convert", str(source), str(place), "--to", form, *more]) == 0
    back = from_pretrained(half).model
    rounded = {name: value.half().float() for name, value in weights(source).items()}
    assert {p.dtype for p in back.parameters()} == {torch.float32}
    for name, value in back.state_dict().items():
        assert torch.equal(value, rounded[name]), name
    sizes = [size_of(place) for place in (whole, half)]
    assert sizes[1] < 0.6 * sizes[0]  # names and a header are as long as before


def weights(place: Path) -> dict[str, torch.Tensor]:
    return from_pretrained(place).model.state_dict()


def size_of(place: Path) -> int:
    return sum(file.stat().st_size for file in place.glob("*.safetensors"))


def test_half_precision_refuses_what_it_cannot_hold(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = from_pretrained(source).model
    with torch.no_grad():
        model.head.linear.weight[0, 0] = 7e4
    large = save_pretrained(model, tmp_path / "large", labels=LABELS)
    words = ["convert", str(large), str(tmp_path / "x"), "--half", "--to"]
    assert main([*words, "patchwords"]) == 2
    assert "head.linear.weight" in capsys.readouterr().err
    assert main([*words, "google"]) == 2
    assert "takes only float32" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
