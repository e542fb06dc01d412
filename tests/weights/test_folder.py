"""What is saved comes back the same; what is damaged is refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, WeightsError
from patchwords.models.vit import ViT
from patchwords.weights.store import from_pretrained, save_pretrained

Build = Callable[..., ViT]
NAMES = ("rose", "ä b", "", "a,b", 'say "x"', "1", "2")


@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
@pytest.mark.parametrize("representation", [None, 11])
@pytest.mark.parametrize("position", ["1d", "none"])
def test_round_trip_is_bit_equal(
    tmp_path: Path,
    tiny: Build,
    images: torch.Tensor,
    classifier: str,
    representation: int | None,
    position: str,
) -> None:
    model = tiny(
        classifier=classifier,
        representation_size=representation,
        position=position,
        gelu="erf",
        norm_eps=1e-12,
        head_bias=-3.5,
        dropout=0.1,
        resize="bicubic-antialias",
    )
    preprocess = Preprocess((12, 20), "squash", 0.9, "bicubic", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    folder = save_pretrained(
        model, tmp_path / "m", labels=NAMES, preprocess=preprocess, architecture="ViT-x"
    )
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    found = from_pretrained(folder)
    assert (found.model.config, found.preprocess) == (model.config, preprocess)
    assert (found.labels, found.architecture, found.changes) == (NAMES, "ViT-x", ())
    expected = model.state_dict()
    assert found.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(v, expected[k]) for k, v in found.model.state_dict().items())
    assert not found.model.training  # ready to answer
    assert all(p.requires_grad for p in found.model.parameters())  # and to learn
    assert torch.equal(found.model(images), model(images))


def test_defaults(tmp_path: Path, tiny: Build) -> None:
    found = from_pretrained(save_pretrained(tiny(), tmp_path))
    assert found.labels == tuple("0123456")
    assert found.preprocess == Preprocess((12, 20))
    assert found.architecture is None


def test_a_run_folder_holds_a_model_folder(tmp_path: Path, tiny: Build) -> None:
    save_pretrained(tiny(), tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text("data: x\n")
    assert from_pretrained(str(tmp_path / "run")).labels == tuple("0123456")


def test_a_model_is_replaced(tmp_path: Path, tiny: Build) -> None:
    save_pretrained(tiny(), tmp_path)
    save_pretrained(tiny(num_classes=2), tmp_path, labels=["a", "b"])
    assert from_pretrained(tmp_path).labels == ("a", "b")


def test_grey_models(tmp_path: Path, tiny: Build) -> None:
    found = from_pretrained(save_pretrained(tiny(channels=1), tmp_path))
    assert found.preprocess.channels == 1


def test_labels_must_be_as_many_as_classes(tmp_path: Path, tiny: Build) -> None:
    with pytest.raises(WeightsError, match="6 labels for a model of 7 classes"):
        save_pretrained(tiny(), tmp_path / "m", labels=NAMES[:6])
    assert not (tmp_path / "m").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path, tiny: Build) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_pretrained(tiny(), tmp_path / "file" / "m")


def test_another_head_and_another_size_on_request(
    tmp_path: Path, tiny: Build, images: torch.Tensor
) -> None:
    save_pretrained(tiny(), tmp_path, labels=NAMES)
    found = from_pretrained(tmp_path, num_classes=3, image_size=(8, 12))
    assert found.labels == ("0", "1", "2")
    assert found.preprocess.image_size == found.model.config.image_size == (8, 12)
    assert len(found.changes) == 2  # never in silence
    assert found.model(images[..., :8, :12]).abs().max() == 0  # a head of zeros
    assert from_pretrained(tmp_path, image_size=16).preprocess.image_size == (16, 16)


def edit_card(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        card = json.loads((folder / "config.json").read_text())
        change(card)
        (folder / "config.json").write_text(json.dumps(card))

    return damage


def edit_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        change(weights)
        safetensors.torch.save_file(weights, folder / "model.safetensors")

    return damage


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)


def test_version_1_had_another_name_for_the_positions(
    tmp_path: Path, tiny: Build, images: torch.Tensor
) -> None:
    """Nor had its config a family, nor the settings that came with version 2."""
    model = tiny()
    save_pretrained(model, tmp_path, labels=NAMES)
    edit_weights(lambda w: w.update({"positions": w.pop("positions.table")}))(tmp_path)
    young = ("family", "position_at", "mixer", "window", "trunk")
    edit_card(lambda c: [c["model"].pop(name) for name in young])(tmp_path)
    with pytest.raises(WeightsError, match=r"positions should be absent, and is \(1, 16, 10\)"):
        from_pretrained(tmp_path)  # the card still says version 2
    edit_card(lambda c: c.update(version=1))(tmp_path)
    found = from_pretrained(tmp_path)
    assert found.model.config == model.config
    assert torch.equal(found.model(images), model(images))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            edit_weights(lambda w: w.update({"encoder.norm.bias": torch.ones(9)})),
            r"encoder.norm.bias should be \(10,\), and is \(9,\)",
        ),
        (
            edit_weights(lambda w: w.pop("head.linear.bias")),
            r"head.linear.bias should be \(7,\), and is absent",
        ),
        (
            edit_weights(lambda w: w.update({"extra.weight": torch.ones(2)})),
            r"extra.weight should be absent, and is \(2,\)",
        ),
        (cut, "model.safetensors is damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is empty"),
        (lambda f: (f / "model.safetensors").write_text("x" * 99), "no safetensors file"),
        (lambda f: (f / "config.json").write_text('{"a": '), "config.json is damaged"),
        (lambda f: (f / "config.json").write_text("[1]"), "config.json is damaged"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json is damaged"),
        (
            lambda f: (f / "config.json").write_text('{"format": "others", "hidden_size": 768}'),
            "of no kind known here",
        ),
        (edit_card(lambda c: c.update(version=3)), r"newer patchwords \(version 3\)"),
        (edit_card(lambda c: c.update(version="x")), "config.json is damaged"),
        (edit_card(lambda c: c.pop("version")), "config.json is damaged"),
        (edit_card(lambda c: (c.pop("model"), c.pop("labels"))), "lacks labels, model"),
        (edit_card(lambda c: c["labels"].pop()), "has 6 labels for 7 classes"),
        (edit_card(lambda c: c.update(labels=None)), "config.json is damaged"),
        (edit_card(lambda c: c.update(model=None)), "config.json is damaged"),
        (edit_card(lambda c: c["model"].update(widht=3)), "config.json: .*did you mean 'width'"),
        (edit_card(lambda c: c["model"].update(heads=3)), "config.json: width 10 does not split"),
        (edit_card(lambda c: c["preprocess"].pop("image_size")), "config.json: .*image_size"),
        (edit_card(lambda c: c.update(preprocess=5)), "config.json is damaged"),
    ],
)
def test_damage_is_one_line(
    tmp_path: Path, tiny: Build, damage: Callable[[Path], Any], message: str
) -> None:
    save_pretrained(tiny(), tmp_path)
    damage(tmp_path)
    with pytest.raises(WeightsError, match=message) as caught:
        from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value)  # which of them
    assert "\n" not in str(caught.value)


def test_what_is_no_model(tmp_path: Path, tiny: Build) -> None:
    with pytest.raises(WeightsError, match=r"no weights at .*nowhere: there is no such file"):
        from_pretrained(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match=r"is no model folder: it lacks config.json and"):
        from_pretrained(tmp_path)
    (tmp_path / "config.yaml").write_text("data: x\n")
    with pytest.raises(WeightsError, match=r"is a run that has not ended.*--resume"):
        from_pretrained(tmp_path)
    save_pretrained(tiny(), tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="is no model folder"):
        from_pretrained(tmp_path / "half")
    with pytest.raises(WeightsError, match="weights end in"):
        from_pretrained(tmp_path / "half" / "config.json")
