from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from patchwords.data.dataset import DatasetSplits, ImageDataset
from patchwords.errors import ConfigError
from patchwords.training.logs.run_folder import (
    check_output_overlap,
    claim_run_folder,
    describe_data,
    describe_environment,
    find_free_path,
    write_json,
)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def a_run(path: Path) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text("data: x\n")
    (path / "checkpoints" / "state").write_text("precious")
    return path


@pytest.mark.parametrize("there", [False, True])
def test_a_new_or_an_empty_folder_is_taken(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "deep" / "run"
    if there:
        path.mkdir(parents=True)
    assert claim_run_folder(path, resume=False, overwrite=False).path == path
    assert list(path.iterdir()) == []


def test_a_run_in_the_way(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run")
    before = contents(path)
    with pytest.raises(ConfigError, match="exists: go on with it by --resume, replace it by"):
        claim_run_folder(path, resume=False, overwrite=False)
    claim_run_folder(path, resume=True, overwrite=False)
    assert contents(path) == before
    claim_run_folder(path, resume=False, overwrite=True)
    assert contents(path) == {}


def test_other_folders_are_never_deleted(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_bytes(b"a photo")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"is not a run folder|exists"):
            claim_run_folder(photos, resume=False, overwrite=overwrite)
        with pytest.raises(ConfigError):
            claim_run_folder(photos / "a.jpg", resume=False, overwrite=overwrite)
    assert contents(tmp_path) == {"photos/a.jpg": b"a photo"}


def test_resume_needs_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="holds no run to go on with"):
            claim_run_folder(path, resume=True, overwrite=False)
    assert not (tmp_path / "none").exists()


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        claim_run_folder(tmp_path / "file" / "run", resume=False, overwrite=False)
    assert "\n" not in str(caught.value)


def test_a_read_only_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)  # also for root, whom permissions do not stop
    with pytest.raises(ConfigError, match="Read-only file system; choose another --output"):
        claim_run_folder(tmp_path / "run", resume=False, overwrite=False)


def test_free_name(tmp_path: Path) -> None:
    preferred = tmp_path / "digits-ViT-Ti-4"
    for expected in ("digits-ViT-Ti-4", "digits-ViT-Ti-4-2", "digits-ViT-Ti-4-3"):
        path = find_free_path(preferred)
        assert path.name == expected
        path.mkdir()


def test_data_json_lists_skipped_images(tmp_path: Path) -> None:
    labels = np.array([0, 1, 1])
    examples = ImageDataset(("ä", "b"), labels, ["x", "y", "z"], labels, lambda row: b"", labels)
    data = DatasetSplits("photos", "folder", ("ä", "b"), {"train": examples}, ("a note",))
    table = describe_data(data, {"y": "truncated"})
    assert table["splits"] == {"train": {"images": 3, "per_class": [1, 2]}}
    assert table["skipped"] == [{"path": "y", "reason": "truncated", "split": "train"}]
    write_json(tmp_path / "data.json", table)
    text = (tmp_path / "data.json").read_text(encoding="utf-8")
    assert json.loads(text) == table
    assert "ä" in text


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/patchwords", "finetune", "my photos"])
    table = describe_environment({"type": "cpu"}, {"source": "x"})
    assert table["command"] == "patchwords finetune 'my photos'"
    assert {"python", "torch", "patchwords"} <= table["versions"].keys()
    assert (table["device"], table["data"]) == ({"type": "cpu"}, {"source": "x"})


def test_a_run_cannot_overwrite_its_data_or_weights(tmp_path: Path) -> None:
    photos, weights = tmp_path / "photos", tmp_path / "old"
    (photos / "daisy").mkdir(parents=True)
    (weights / "model").mkdir(parents=True)
    check_output_overlap(tmp_path / "new", photos, weights)
    check_output_overlap(tmp_path / "new", Path("digits"), None)
    for output in (photos, photos / "runs" / "x"):
        with pytest.raises(ConfigError, match="lies inside the data"):
            check_output_overlap(output, photos, None)
    with pytest.raises(ConfigError, match="holds the data"):
        check_output_overlap(tmp_path, photos, None)
    for source in (weights, weights / "model"):
        with pytest.raises(ConfigError, match="needs again on --resume"):
            check_output_overlap(weights, Path("digits"), source)


def test_leftovers_of_a_run_killed_at_its_start_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "splits.csv").write_text("path,label,split,bytes\n")
    (tmp_path / "data.json").write_text("{}")
    assert claim_run_folder(tmp_path, resume=False, overwrite=False).path == tmp_path
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ConfigError):
            claim_run_folder(tmp_path, resume=False, overwrite=overwrite)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
