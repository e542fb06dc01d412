from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from patchwords.errors import WeightsError
from patchwords.weights import locate as module
from patchwords.weights.locate import (
    AUGREG_INDEX_URL,
    STORAGE_URL,
    find_best_augreg,
    find_published_url,
    locate_weights,
)

B16 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What would be fetched from the web, in place of fetching it."""
    asked: list[str] = []

    def fetch(url: str) -> Path:
        asked.append(url)
        path = tmp_path / url.rsplit("/", 1)[1]
        path.touch()
        return path

    monkeypatch.setattr(module, "fetch_cached", fetch)
    return asked


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """A stand-in for the hub's library: a folder with this config.json, or this error."""

    def serve(config: dict[str, object] | None, error: Exception | None = None) -> list[str]:
        asked: list[str] = []

        def snapshot_download(repository: str, allow_patterns: object) -> str:
            asked.append(repository)
            if error is not None:
                raise error
            (tmp_path / "config.json").write_text(json.dumps(config))
            (tmp_path / "model.safetensors").touch()
            return str(tmp_path)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return asked

    return serve


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("imagenet21k/ViT-B_16", "vit_models/imagenet21k/ViT-B_16.npz"),
        ("imagenet21k/R50+ViT-B_16.npz", "vit_models/imagenet21k/R50+ViT-B_16.npz"),
        (
            "imagenet21k+imagenet2012/ViT-B_16-224",
            "vit_models/imagenet21k+imagenet2012/ViT-B_16-224.npz",
        ),
        ("howto-i21k-B/16", f"vit_models/augreg/{B16}.npz"),
        (B16, f"vit_models/augreg/{B16}.npz"),
        (
            f"{B16}--imagenet2012-steps_20k-lr_0.03-res_384.npz",
            f"vit_models/augreg/{B16}--imagenet2012-steps_20k-lr_0.03-res_384.npz",
        ),
        (
            "R26_S_32-i1k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
            "vit_models/augreg/R26_S_32-i1k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0.npz",
        ),
        ("i1k-s16-90ep", "big_vision/vit_s16_i1k_90ep.npz"),
        ("BiT-M-R50x1", "bit_models/BiT-M-R50x1.npz"),
        ("BiT-S-R101x3-imagenet2012", "bit_models/BiT-S-R101x3-ILSVRC2012.npz"),
        ("gs://vit_models/sam/ViT-B_32.npz", "vit_models/sam/ViT-B_32.npz"),
    ],
)
def test_published_names_have_their_addresses(name: str, place: str, fetched: list[str]) -> None:
    assert find_published_url(name) == f"{STORAGE_URL}/{place}"
    found = locate_weights(name)
    assert fetched == [f"{STORAGE_URL}/{place}"]
    assert found.kind == "google"
    assert found.name == place.rsplit("/", 1)[1].removesuffix(".npz")


@pytest.mark.parametrize("name", ["google/vit-base-patch16-224", "ViT-B/16", "photos", "BiT-M"])
def test_other_names_have_none(name: str) -> None:
    assert find_published_url(name) is None


def write_index(path: Path) -> Path:
    rows = [
        ("B/16", "i21k", 0.31, "B_16-a"),
        ("B/16", "i21k", 0.47, "B_16-b"),
        ("B/16", "i21k", 0.43, "B_16-c"),
        ("B/16", "i1k", 0.79, "B_16-d"),
        ("R26+S/32", "i21k", 0.41, "R26_S_32-e"),
    ]
    lines = ["name,ds,final_val,filename", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_index_gives_the_best_of_imagenet_21k(tmp_path: Path) -> None:
    index = write_index(tmp_path / "index.csv")
    assert find_best_augreg("B/16", index) == find_best_augreg("B_16", index) == "B_16-b"
    assert find_best_augreg("R26+S/32", index) == "R26_S_32-e"
    with pytest.raises(WeightsError, match=r"no model 'B/17'; did you mean 'B_16'"):
        find_best_augreg("B/17", index)
    index.write_text("<html>no such file</html>")
    with pytest.raises(WeightsError, match=r"AugReg has no model|is not AugReg's table"):
        find_best_augreg("B/16", index)


def test_augreg_by_model_goes_through_the_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def fetch(url: str) -> Path:
        asked.append(url)
        return (
            write_index(tmp_path / "index.csv") if url == AUGREG_INDEX_URL else tmp_path / "x.npz"
        )

    monkeypatch.setattr(module, "fetch_cached", fetch)
    assert locate_weights("augreg:B/16").name == "B_16-b"
    assert asked == [AUGREG_INDEX_URL, f"{STORAGE_URL}/vit_models/augreg/B_16-b.npz"]


@pytest.mark.parametrize(
    ("source", "repository"),
    [
        ("google/vit-base-patch16-224", "google/vit-base-patch16-224"),
        ("hf-hub:someone/flowers", "someone/flowers"),
        ("hf_hub:timm/vit_tiny_patch16_224.augreg_in21k", "timm/vit_tiny_patch16_224.augreg_in21k"),
        ("vit_tiny_patch16_224.augreg_in21k", "timm/vit_tiny_patch16_224.augreg_in21k"),
        ("timm/resnetv2_50x1_bit.goog_in21k", "timm/resnetv2_50x1_bit.goog_in21k"),
    ],
)
def test_hub_names(source: str, repository: str, hub: Callable[..., list[str]]) -> None:
    asked = hub({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {}})
    place = locate_weights(source)
    assert asked == [repository]
    assert (place.kind, place.name) == ("timm", repository)


def test_the_hub_out_of_reach_names_the_files_to_fetch(hub: Callable[..., list[str]]) -> None:
    hub(None, LocalEntryNotFoundError("no network"))
    with pytest.raises(WeightsError) as caught:
        locate_weights("google/vit-base-patch16-224")
    assert "fetch config.json and model.safetensors from https://huggingface.co/google/" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


def test_a_name_that_the_hub_has_not(hub: Callable[..., list[str]]) -> None:
    hub(None, RepositoryNotFoundError("404", response=Mock()))
    with pytest.raises(WeightsError, match="there is no x/y on the Hugging Face hub"):
        locate_weights("x/y")


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ({"format": "patchwords"}, "patchwords"),
        ({"architecture": "vit_base_patch16_224"}, "timm"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "huggingface"),
    ],
)
def test_folders_say_whose_they_are(table: dict[str, object], kind: str, tmp_path: Path) -> None:
    for inner in (tmp_path / "a", tmp_path / "run" / "model"):
        inner.mkdir(parents=True)
        (inner / "config.json").write_text(json.dumps(table))
        (inner / "model.safetensors").touch()
    assert locate_weights(tmp_path / "a").kind == kind
    assert locate_weights(tmp_path / "a" / "model.safetensors").path == tmp_path / "a"
    assert locate_weights(tmp_path / "run").path == tmp_path / "run" / "model"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("ViT-B/16", "names an architecture (ViT-B/16), not weights"),
        ("B/16", "names an architecture (ViT-B/16), not weights"),
        ("nothing", "give a run folder"),
        ("weights/b16.npz", "there is no such file"),
        ("./photos", "there is no such file"),
        ("http://host/a.npz", "only https"),
    ],
)
def test_what_cannot_be_found_says_what_would_do(source: str, says: str) -> None:
    with pytest.raises(WeightsError) as caught:
        locate_weights(source)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_and_files_of_no_known_kind(tmp_path: Path) -> None:
    for name, content, says in [
        ("none", None, "lacks config.json and model.safetensors"),
        ("odd", "{}", "of no kind known here"),
        ("list", "[1]", "holds no table"),
        ("broken", "{", "is damaged"),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        if content is not None:
            (folder / "config.json").write_text(content)
        with pytest.raises(WeightsError, match=says):
            locate_weights(folder)
    for name, says in [("a.onnx", "can predict but not learn"), ("a.h5", "weights end in")]:
        (tmp_path / name).touch()
        with pytest.raises(WeightsError, match=says):
            locate_weights(tmp_path / name)
