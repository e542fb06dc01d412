"""`pw.embed` and `patchwords embed`: what is in the file, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from api_stage import draw

import patchwords as pw
from patchwords.cli import main
from patchwords.data import feature_store
from patchwords.data.open import open_data
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.probes import cache
from patchwords.files import file_lock


def read_ids(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_npy_has_the_features_and_a_csv_their_ids(
    run: pw.Run, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "features.npy"
    words = ["embed", str(run.folder), str(photos), "--output", str(output), "--workers", "0"]
    assert main([*words, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    table = pw.extract_features(run, photos)
    assert np.array_equal(np.load(output), table.values)
    ids = read_ids(tmp_path / "features.csv")
    assert tuple(row["path"] for row in ids) == table.paths
    assert [row["label"] for row in ids] == [table.classes[label] for label in table.labels]
    assert about == {
        "output": str(output),
        "ids": str(tmp_path / "features.csv"),
        "model": str(run.folder),
        "tokens": "classifier",
        "images": len(ids),
        "shape": [table.values.shape[1]],
        "dtype": "float32",
        "skipped": [],
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.csv", "features.npy"]
    recorded = {row["path"]: row["split"] for row in read_ids(run.folder / "splits.csv")}
    assert {row["path"]: row["split"] for row in ids} == recorded
    assert main(words) == 2
    assert "exists; add --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    assert f"40 x {table.values.shape[1]} features of" in capsys.readouterr().out


def test_a_parquet_is_read_by_pyarrow(run: pw.Run, photos: Path, tmp_path: Path) -> None:
    file = pw.embed(run, photos, tmp_path / "f.parquet", tokens="patches", workers=0)
    table = pyarrow.parquet.read_table(file.path)
    assert table.column_names == ["path", "split", "label", "features"]
    about = json.loads(table.schema.metadata[b"patchwords"])
    assert about == {"model": str(run.folder), "tokens": "patches", "shape": list(file.shape)}
    values = np.stack(table.column("features").to_numpy()).reshape(-1, *file.shape)
    assert np.array_equal(values, pw.extract_features(run, photos, tokens="patches").values)
    everything = open_data(str(photos)).splits["all"]
    assert table.column("path").to_pylist() == list(everything.keys)
    assert file.ids is None


def test_tokens_are_those_of_the_model(run: pw.Run, photos: Path) -> None:
    paths = [photos / "red" / "00.png", draw("blue", 1)]
    with torch.inference_mode():
        features = run.model.forward_features(run.preprocess(paths)).numpy()  # [2, T, D]
    first = run.model.num_prefix_tokens
    for tokens, expected in {
        "class": features[:, 0],
        "mean": features[:, first:].mean(1),
        "patches": features[:, first:],
    }.items():
        assert np.allclose(run.embed(paths, tokens), expected, atol=1e-5), tokens
    assert run.embed(paths[0], "patches").shape == features[0, first:].shape


def test_models_without_a_class_token(tmp_path: Path) -> None:
    resnet = pw.create_model("BiT-R50x1", units=(1, 1, 1, 1), image_size=32, num_classes=2)
    source = pw.Pretrained(resnet, pw.Preprocess((32, 32)), ())
    image = draw("red", 0)
    image.save(tmp_path / "a.png")
    patches = pw.embed(source, [tmp_path / "a.png"], tmp_path / "f.npy", tokens="patches")
    assert patches.shape == (1, 2048)  # the last map of a ResNet is a 32nd of the image
    assert read_ids(tmp_path / "f.csv")[0]["label"] == ""
    with pytest.raises(ConfigError, match="has no class token; choose classifier or mean"):
        pw.embed(source, tmp_path, tmp_path / "g.npy", tokens="class")
    with pytest.raises(ConfigError, match="'clas' is not a choice; did you mean 'class'"):
        pw.extract_features(source, [image], tokens="clas")  # type: ignore[arg-type]


def test_an_interrupted_pass_goes_on(
    run: pw.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_store, "BLOCK_ROWS", 8)
    monkeypatch.setattr(cache, "BLOCK_ROWS", 8)
    load, computed = cache.load_eval_batches, []
    stop_after = [2]

    def stopping(*args: Any) -> Any:
        for number, batch in enumerate(load(*args)):
            if number == stop_after[0]:
                raise KeyboardInterrupt
            computed.append(len(batch))
            yield batch

    monkeypatch.setattr(cache, "load_eval_batches", stopping)
    output = tmp_path / "f.npy"
    words = ["embed", str(run.folder), str(photos), "--output", str(output), "--workers", "0"]
    assert main(words) == 130
    assert not output.exists()
    stop_after[0] = -1
    file = pw.embed(run, photos, output, workers=0)
    assert computed == [8] * 5
    assert np.array_equal(np.load(output), pw.extract_features(run, photos).values)
    assert file.images == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.csv", "f.npy"]


def test_a_part_of_other_tokens_is_dropped(
    run: pw.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cache, "load_eval_batches", lambda *_: iter(()))  # fails in the middle
        with pytest.raises(ValueError, match="zip"):
            pw.embed(run, photos, tmp_path / "f.npy", workers=0)
    part = tmp_path / ".f.npy.part"
    [old] = [path for path in part.iterdir() if path.is_dir()]
    with file_lock(part / ".lock"), pytest.raises(ConfigError, match="by another program"):
        pw.embed(run, photos, tmp_path / "f.npy", workers=0)
    assert old.exists()
    file = pw.embed(run, photos, tmp_path / "f.npy", tokens="mean", workers=0)
    assert np.array_equal(
        np.load(file.path), pw.extract_features(run, photos, tokens="mean").values
    )


def test_bad_images_are_left_out_and_named(run: pw.Run, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "data")
    (tmp_path / "data" / "red" / "00.png").write_bytes(b"no image")
    file = pw.embed(run, tmp_path / "data", tmp_path / "f.npy", workers=0)
    assert [path for path, _ in file.skipped] == ["red/00.png"]
    assert len(np.load(file.path)) == len(read_ids(tmp_path / "f.csv")) == file.images == 39
    assert "red/00.png" not in {row["path"] for row in read_ids(tmp_path / "f.csv")}
    with pytest.raises(DataError, match="1 of 40 images cannot be read"):
        pw.embed(run, tmp_path / "data", tmp_path / "g.npy", workers=0, max_bad=0.0)
    assert not (tmp_path / "g.npy").exists()


def test_wrong_names_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"name end in \.npy or \.parquet"):
        pw.embed("nowhere", tmp_path, tmp_path / "f.txt")
    (tmp_path / "f.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"also writes its ids: .*f\.csv exists"):
        pw.embed("nowhere", tmp_path, tmp_path / "f.npy")
    with pytest.raises(ConfigError, match="--precision 'int8' is not a choice"):
        pw.embed("nowhere", tmp_path, tmp_path / "g.npy", precision="int8")
