"""The table of published weights: every row is one that loads, and says what is known."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from benchmarks import peers

import patchwords as pw
from patchwords import cli
from patchwords.models.config import ViTConfig
from patchwords.models.cost import count_parameters
from patchwords.models.zoo import resolve_model
from patchwords.weights.locate import (
    BUNDLED_PREFIX,
    HUB_ID,
    TIMM_NAME,
    find_published_url,
    locate_weights,
)
from patchwords.weights.published import PUBLISHED_WEIGHTS, PublishedWeights
from patchwords.weights.timm.architectures import resolve_timm_architecture

HUB_ROWS = [
    row
    for row in PUBLISHED_WEIGHTS
    if not row.name.startswith(BUNDLED_PREFIX) and find_published_url(row.name) is None
]


def count_without_classifier(row: PublishedWeights) -> int:
    settings: dict[str, object] = {"num_classes": 1, "image_size": row.image_size}
    config = resolve_model(row.architecture).config
    if row.name.startswith("i1k-s16"):
        settings |= {"classifier": "gap", "position": "sincos2d", "representation_size": 384}
    if row.name.startswith("deit3"):
        settings |= {"layer_scale": 1e-5, "class_position": False}
    if "dinov2" in row.name:
        settings |= {"layer_scale": 1e-5, "registers": 4 if "reg4" in row.name else 0}
    if "distilled" in row.name:
        settings["distillation"] = True
    if "mae_finetuned" in row.name:
        settings |= {"pool_norm": True, "classifier": "gap", "class_token": True}
    if "siglip" in row.name:
        settings["classifier"] = "map"
    if "openai/clip" in row.name:
        settings |= {"pre_norm": True, "patch_bias": False}
    if row.name.startswith("imagenet21k/") and isinstance(config, ViTConfig):
        settings["representation_size"] = config.width
    config = config.with_settings(**settings)
    features = config.width if isinstance(config, ViTConfig) else config.trunk.channels
    classifiers = 2 if "distilled" in row.name else 1
    return count_parameters(config) - classifiers * (features + 1)


@pytest.mark.parametrize("row", PUBLISHED_WEIGHTS[1:], ids=lambda row: row.name)
def test_the_parameters_are_those_of_the_model(row: PublishedWeights) -> None:
    assert row.parameters == count_without_classifier(row)
    assert (row.accuracy is None) == (not row.protocol)
    if row.download_bytes is not None:  # float32, with a classifier of 1,000 or 21,843 classes
        assert row.parameters * 4 < row.download_bytes < (row.parameters + 29e6) * 4


def test_the_model_in_the_box_is_as_listed() -> None:
    box = pw.from_pretrained("patchwords:cifar10-small")
    row = PUBLISHED_WEIGHTS[0]
    classifier = box.model.state_dict()["head.linear.weight"].numel() + len(box.labels)
    assert row.parameters == sum(p.numel() for p in box.model.parameters()) - classifier
    assert row.cached


def test_every_name_is_once_and_of_a_known_kind() -> None:
    names = [row.name for row in PUBLISHED_WEIGHTS]
    assert len(names) == len(set(names))
    for row in HUB_ROWS:
        assert TIMM_NAME.fullmatch(row.name) or HUB_ID.fullmatch(row.name), row.name


def test_timm_has_the_names_that_are_said_to_be_its() -> None:
    timm = peers.load("timm")
    known = set(timm.list_pretrained())
    for row in HUB_ROWS:
        if TIMM_NAME.fullmatch(row.name):
            assert row.name in known
            heads, _ = resolve_timm_architecture(row.name)
            config = resolve_model(row.architecture).config
            assert heads == (config.heads if isinstance(config, ViTConfig) else None)
            cfg = timm.models.get_pretrained_cfg(row.name)
            assert cfg.input_size[1] == row.image_size
            assert row.licence is None or cfg.license in {None, row.licence.lower()}


def test_the_list_by_pattern() -> None:
    assert pw.list_weights() == list(PUBLISHED_WEIGHTS)
    assert {row.name for row in pw.list_weights("*.dino")} == {
        f"vit_{size}_patch{patch}_224.dino" for size in ("small", "base") for patch in (8, 16)
    }
    small = pw.list_weights("vit-s/16")  # case does not count where it finds nothing
    assert {row.architecture for row in small} == {"ViT-S/16"}
    assert pw.list_weights("nothing") == []


def test_what_is_in_a_cache_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path))
    [web] = pw.list_weights("i1k-s16-90ep")
    [hub] = pw.list_weights("vit_small_patch16_224.dino")
    found: list[str] = []

    def look(repository: str, file: str) -> str | None:
        found.append(repository)
        return "there" if file == "model.safetensors" and len(found) > 3 else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", look)
    assert not web.cached
    assert not hub.cached
    path = tmp_path / "web/storage.googleapis.com/big_vision/vit_s16_i1k_90ep.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    assert web.cached
    assert locate_weights(web.name).path == path
    assert hub.cached
    assert hub.to_dict()["cached"]
    assert set(found) == {"timm/vit_small_patch16_224.dino"}


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["weights", "i1k-s16-*"]) == 0
    shown = capsys.readouterr().out
    assert "i1k-s16-300ep" in shown
    assert "80.0 %" in shown
    assert "Apache-2.0" in shown
    assert cli.main(["weights", "*.mae", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["licence"] for row in rows] == ["CC-BY-NC-4.0"] * 3
    assert rows[0]["accuracy"] == 67.8
    assert cli.main(["weights", "i1k-s16-30ep"]) == 2
    assert "did you mean 'i1k-s16-300ep'" in capsys.readouterr().err
