"""Images recognised by content: renamed, saved again, resized; no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchwords.data.dataset import DatasetSplits
from patchwords.data.doctor import contents
from patchwords.data.open import open_data
from patchwords.data.splits import (
    divide_as_recorded,
    read_splits,
    split_dataset,
    subsample_training_images,
    write_splits,
)
from patchwords.errors import DataError
from patchwords.evaluation.held_out import (
    read_run_splits,
    recognise_run_images,
    select_held_out,
)


def scene(number: int, side: int = 96) -> Image.Image:
    """A picture of smoothed noise at several scales, no two alike."""
    rng = np.random.default_rng(number)
    layers = [
        np.asarray(
            Image.fromarray(rng.integers(0, 256, (n, n, 3), np.uint8)).resize((side, side), 3),
            dtype=np.float64,
        )
        for n in (3, 5, 9)
    ]
    return Image.fromarray(np.clip(np.mean(layers, axis=0) * 1.4 - 50, 0, 255).astype(np.uint8))


def save_scenes(folder: Path, count: int = 40) -> Path:
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        scene(number).save(path)
    return folder


def save_twins(folder: Path, count: int = 40) -> Path:
    """Photos, each next to a copy that was saved again, every other one at half the size."""
    save_scenes(folder, count)
    for path in sorted(folder.rglob("*.png")):
        image = Image.open(path)
        smaller = image.resize((48, 48)) if int(path.stem) % 4 < 2 else image
        smaller.save(path.with_name(f"copy-{path.stem}.jpg"), quality=60)
    return folder


def name_scene(key: str) -> str:
    return Path(key).stem.removeprefix("copy-")


def test_twins_stay_in_one_split_and_are_counted(tmp_path: Path) -> None:
    data = contents.add_fingerprints(open_data(str(save_twins(tmp_path / "photos"))))
    divided = split_dataset(data, seed=0)
    homes = {
        split: {name_scene(key) for key in part.keys} for split, part in divided.splits.items()
    }
    assert sum(map(len, homes.values())) == 40
    assert all(homes.values())
    assert any("40 images are copies of others (40 saved again" in note for note in divided.notes)


def test_without_twins_the_split_is_that_without_fingerprints(tmp_path: Path) -> None:
    data = open_data(str(save_scenes(tmp_path / "photos")))
    plain, looked = (split_dataset(d, seed=3) for d in (data, contents.add_fingerprints(data)))
    assert plain.notes == looked.notes == ()
    for split, part in plain.splits.items():
        assert part.keys == looked.splits[split].keys


def test_a_series_is_not_taken_for_copies(tmp_path: Path) -> None:
    base = np.asarray(scene(0), dtype=np.float64)
    for number in range(30):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        noise = np.random.default_rng(number).normal(0, 8, base.shape)
        Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8)).save(path)
    divided = split_dataset(contents.add_fingerprints(open_data(str(tmp_path))), seed=0)
    assert len(divided.splits["test"]) == 6  # one group of 30 could not be divided


def test_too_large_data_are_not_looked_at_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_data(str(save_twins(tmp_path / "photos", 10)))
    monkeypatch.setattr(contents, "MAX_NEAR_SECONDS", 0.0)
    exact = contents.add_fingerprints(data)
    assert not exact.splits["all"].fingerprints["look"].any()  # type: ignore[index]
    assert "equal files are recognised" in exact.notes[-1]
    monkeypatch.setattr(contents, "MAX_EXACT_BYTES", 0)
    assert contents.add_fingerprints(data).splits["all"].fingerprints is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DatasetSplits]:
    """A run folder with its record of splits and fingerprints, and the data."""
    folder = tmp_path_factory.mktemp("run")
    data = contents.add_fingerprints(open_data(str(save_scenes(folder / "photos"))))
    divided = split_dataset(data, seed=0)
    write_splits(folder / "splits.csv", divided)
    contents.write_fingerprints(folder / "fingerprints.npy", divided)
    return folder, divided


def test_renamed_and_saved_again_training_images_are_no_new_images(
    run: tuple[Path, DatasetSplits], tmp_path: Path
) -> None:
    folder, divided = run
    train = set(divided.splits["train"].keys)
    for path in sorted((folder / "photos").rglob("*.png")):
        key = path.relative_to(folder / "photos")
        target = tmp_path / key.with_stem(f"x-{key.stem}")
        target.parent.mkdir(exist_ok=True)
        if int(key.stem) % 3:
            shutil.copy(path, target)
        else:
            Image.open(path).resize((64, 64)).save(target.with_suffix(".jpg"), quality=70)
    for number in (500, 501):
        scene(number).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    data = open_data(str(tmp_path))
    renamed = recognise_run_images(folder, data)
    assert len(renamed) == 40
    selection = select_held_out(data, read_run_splits(folder), "held-out", renamed)
    assert selection.trained_on == selection.recognised == len(train)
    names = {Path(key).stem.removeprefix("x-") for key in selection.examples.keys}
    assert names == {Path(key).stem for key in divided.splits["test"].keys} | {"500", "501"}
    assert read_run_splits(folder, data).items() >= renamed.items()


def test_images_of_the_record_are_not_read_again(
    run: tuple[Path, DatasetSplits], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, divided = run
    monkeypatch.setattr(contents, "fingerprint_image", None)  # not called
    assert recognise_run_images(folder, divided) == {}


def test_a_damaged_record_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "fingerprints.npy"
    for damage in (b"", b"\x93NUMPY no", b"x" * 100):
        path.write_bytes(damage)
        with pytest.raises(DataError, match=r"fingerprints\.npy: cannot be read as fingerprints"):
            contents.read_fingerprints(path)
    np.save(path, np.zeros(3))
    with pytest.raises(DataError, match="holds other data"):
        contents.read_fingerprints(path)


def test_a_resumed_run_is_divided_by_its_record(run: tuple[Path, DatasetSplits]) -> None:
    folder, divided = run
    few = subsample_training_images(divided, 12, seed=0)
    write_splits(folder / "few.csv", few)
    data = open_data(str(folder / "photos"))
    again = divide_as_recorded(data, read_splits(folder / "few.csv"))
    assert again is not None
    for split, part in divided.splits.items():
        assert again.splits[split].keys == part.keys, split
    recorded = read_splits(folder / "splits.csv")
    recorded.pop(next(iter(recorded)))
    assert divide_as_recorded(data, recorded) is None
