"""DATA in every form gives a trained model and a report; and the forms of one data set agree."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from stage import COUNTS, TINY, done, make_photos, png, snapshot, train_only


def divided_folders(folder: Path) -> Path:
    make_photos(folder / "train")
    make_photos(folder / "val", dict.fromkeys(COUNTS, 3), first=20)
    # A class that a split lacks must shift nothing.
    make_photos(folder / "test", {"disc": 4, "stripe": 4}, first=30)
    return folder


def csv_file(folder: Path) -> Path:
    make_photos(folder / "images")
    path = folder / "labels.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        for image in sorted((folder / "images").rglob("*.png")):
            rows.writerow([image.relative_to(folder), image.parent.name])
    return path


def parquet_file(folder: Path) -> Path:
    named = [(name, number) for name, count in COUNTS.items() for number in range(count)]
    table = pyarrow.table(
        {
            "image": [{"bytes": png(*place), "path": None} for place in named],
            "label": [name for name, _ in named],
        }
    )
    folder.mkdir()
    pyarrow.parquet.write_table(table, folder / "shapes.parquet")
    return folder / "shapes.parquet"


def shards(folder: Path) -> Path:
    folder.mkdir()
    named = [(name, number) for name, count in COUNTS.items() for number in range(count)]
    for shard in range(2):
        with tarfile.open(folder / f"shapes-{shard:03d}.tar", "w") as tar:
            for name, number in named[shard::2]:
                for suffix, data in (("png", png(name, number)), ("cls", name.encode())):
                    member = tarfile.TarInfo(f"{name}{number}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return folder / "shapes-{000..001}.tar"


def digits(folder: Path) -> str:
    return "digits"


# How many images are held out: 8 of 40 for the test, 10 % of the rest for validation.
SIZES = {"train": 29, "validation": 3, "test": 8}


@pytest.mark.parametrize(
    ("make", "kind", "sizes"),
    [
        (divided_folders, "folder", {"train": 40, "validation": 9, "test": 8}),
        (csv_file, "csv", SIZES),
        (parquet_file, "parquet", SIZES),
        (shards, "shards", SIZES),
        (digits, "digits", {"train": 1294, "validation": 144, "test": 359}),
    ],
)
def test_a_kind_of_data_is_trained_on_and_reported(
    make: Callable[[Path], Path | str],
    kind: str,
    sizes: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    source = make(tmp_path / "data")
    before = snapshot(tmp_path / "data")
    run = tmp_path / "run"
    done("finetune", source, *TINY, "--output", run)
    assert snapshot(tmp_path / "data") == before
    data = json.loads((run / "data.json").read_text())
    assert data["kind"] == kind
    found = {split: part["images"] for split, part in data["splits"].items()}
    assert found == pytest.approx(sizes, abs=1)
    assert data["classes"] == sorted(map(str, range(10)) if kind == "digits" else COUNTS)
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["images"] == found["test"]
    support = {row["class"]: row["support"] for row in evaluation["per_class"]}
    if make is divided_folders:
        assert support == {"disc": 4, "square": 0, "stripe": 4}
    assert (run / "report.html").stat().st_size > 10_000


def test_classes_leaves_the_others_out(photos: Path, tmp_path: Path) -> None:
    job = train_only(*(photos, *TINY, "--classes", "stripe", "disc", "--output", tmp_path / "run"))
    assert job.data.classes == ("disc", "stripe")
    assert "square" not in (tmp_path / "run" / "splits.csv").read_text()
