"""Every kind of data opens to the same thing, and every fault in it is one line that helps."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchwords.data.dataset import DatasetSplits
from patchwords.data.decode import decode_image
from patchwords.data.open import open_data, open_images
from patchwords.data.shards.tar import expand_tar_spec
from patchwords.errors import ConfigError, DataError

DATA = Path(os.environ.get("PATCHWORDS_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables' copies go to a folder of the test, not to the user's."""
    import datasets

    folder = str(tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(folder))


def photo(shade: int = 0, kind: str = "PNG") -> bytes:
    """A small image that is known by its shade."""
    file = io.BytesIO()
    Image.new("RGB", (7, 5), (shade % 256, shade // 256, 99)).save(file, format=kind)
    return file.getvalue()


def put(root: Path, *paths: str) -> Path:
    """Photos of different shades at these paths."""
    for shade, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(photo(shade))
    return root


def fails(spec: object, *says: str, **options: object) -> str:
    """Opening fails, in one line that says all of this."""
    with pytest.raises(DataError) as caught:
        open_data(str(spec), **options)  # type: ignore[arg-type]
    line = str(caught.value)
    assert "\n" not in line
    for words in says:
        assert words in line, f"{words!r} not in {line!r}"
    return line


def labelled(data: DatasetSplits, split: str = "all") -> dict[str, str]:
    """key -> class name."""
    examples = data.splits[split]
    assert examples.classes == data.classes
    assert len(examples.keys) == len(examples.labels) == len(examples.sizes) == len(examples)
    return dict(
        zip(examples.keys, (data.classes[i] for i in examples.labels.tolist()), strict=True)
    )


def check_reading(data: DatasetSplits) -> None:
    """Every image is read, has the length that was promised, and decodes; also after pickling."""
    for examples in data.splits.values():
        sent = pickle.loads(pickle.dumps(examples))
        for index in range(len(examples)):
            encoded = examples.read(index)
            assert len(encoded) == examples.sizes[index]
            assert sent.read(index) == encoded
            decode_image(encoded)


def shade(data: DatasetSplits, split: str, key: str) -> int:
    """The shade of the photo of this key, from its first pixel."""
    examples = data.splits[split]
    red, green, _ = decode_image(examples.read(list(examples.keys).index(key))).getpixel((0, 0))  # type: ignore[misc]
    return int(red) + 256 * int(green)


# Folders


def test_flat_folder(tmp_path: Path) -> None:
    put(tmp_path, "rose/b.png", "rose/a.PNG", "daisy/deep/er/c.png", "daisy/d.jpeg", "Zinnia/e.png")
    put(tmp_path, "Zinnia/f.png")
    data = open_data(str(tmp_path))
    assert (data.kind, data.source, data.notes) == ("folder", str(tmp_path), ())
    assert data.classes == ("Zinnia", "daisy", "rose")  # plain string order: capitals first
    assert labelled(data) == {
        "Zinnia/e.png": "Zinnia",
        "Zinnia/f.png": "Zinnia",
        "daisy/d.jpeg": "daisy",
        "daisy/deep/er/c.png": "daisy",
        "rose/a.PNG": "rose",
        "rose/b.png": "rose",
    }
    assert shade(data, "all", "rose/a.PNG") == 1
    assert data.splits["all"].count_per_class().tolist() == [2, 2, 2]
    check_reading(data)


def test_relative_folder_is_read_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "photos", "a/1.png", "a/2.png", "b/3.png", "b/4.png")
    monkeypatch.chdir(tmp_path)
    data = open_data("photos/")
    monkeypatch.chdir("/")
    check_reading(data)


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Val"])
def test_split_folders(tmp_path: Path, validation: str) -> None:
    put(tmp_path, "train/a/1.png", "train/a/2.png", "train/b/3.png", "train/c/4.png")
    put(tmp_path, f"{validation}/c/5.png", "test/a/6.png", "test/c/7.png")
    data = open_data(str(tmp_path))
    assert set(data.splits) == {"train", "validation", "test"}
    # b is missing from both, which shifts nothing: c is c
    assert labelled(data, "validation") == {f"{validation}/c/5.png": "c"}
    assert labelled(data, "test") == {"test/a/6.png": "a", "test/c/7.png": "c"}
    check_reading(data)


def test_hidden_things_are_passed_over_and_others_noted(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "a/2.png", "b/3.png", "b/4.png", "b/.5.png", "lost.png")
    put(tmp_path, ".git/x.png", "__MACOSX/a/y.png", "a/.ipynb_checkpoints/1.png")
    for name in ("a/Thumbs.db", "desktop.ini", ".DS_Store", "notes.txt", "a/readme.md", "b/x.pdf"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    data = open_data(str(tmp_path))
    assert data.classes == ("a", "b")
    assert len(data.splits["all"]) == 4
    assert data.notes == (
        "class folder 'empty' has no images",
        "1 image outside the class folders left out: lost.png",
        "3 files are not images: notes.txt, a/readme.md, b/x.pdf",
    )


def test_an_empty_split_is_noted(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/a/2.png", "train/b/3.png", "train/b/4.png")
    (tmp_path / "test/a").mkdir(parents=True)
    data = open_data(str(tmp_path))
    assert list(data.splits) == ["train"]
    assert data.notes == ("class folder 'test/a' has no images", "no images for test")


def test_folders_beside_the_splits_are_noted(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/b/2.png", "val/a/3.png", "raw/4.png")
    data = open_data(str(tmp_path))
    assert set(data.splits) == {"train", "validation"}
    assert data.notes == ("left out next to train/: raw/",)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    put(tmp_path, "train/1.png", "train/2.png", "bus/3.png", "bus/4.png", "train/old/5.png")
    assert open_data(str(tmp_path)).classes == ("bus", "train")


def test_links_are_followed_without_loops(tmp_path: Path) -> None:
    put(tmp_path, "photos/a/1.png", "photos/a/2.png", "elsewhere/3.png", "elsewhere/deep/4.png")
    (tmp_path / "photos/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/up").symlink_to(tmp_path / "elsewhere/deep")
    (tmp_path / "photos/a/gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "photos/a/self.png").symlink_to(tmp_path / "photos/a/self.png")
    os.mkfifo(tmp_path / "photos/b/pipe.png")
    data = open_data(str(tmp_path / "photos"))
    assert data.splits["all"].count_per_class().tolist() == [2, 2]
    assert data.notes == ("3 files are not images: a/gone.png, a/self.png, b/pipe.png",)
    check_reading(data)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "a/2.png", "b/3.png")
    Path(os.fsdecode(bytes(tmp_path) + b"/b/\xff.png")).write_bytes(photo())
    check_reading(open_data(str(tmp_path)))


def test_faults_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(tmp_path, "the folder is empty")
    flowers = put(tmp_path / "flowers", "1.png", "2.png")
    fails(flowers, "2 images (1.png, 2.png) lie in no class", "one folder per class")
    fails(tmp_path / "flowres", "no such file or folder; did you mean 'flowers'?")
    fails(tmp_path / "flowres/train", "no such file or folder; did you mean 'flowers'?")
    fails(flowers / "1.png", "not a kind of data", "name its folder")
    text = tmp_path / "text"
    (text / "a").mkdir(parents=True)
    fails(text, "no images in it, only empty folders")
    (text / "a/x.txt").touch()
    (text / "a/y.TXT").touch()
    (text / "z").touch()
    fails(text, "no images in it; found .txt (2), no suffix (1)")
    fails(put(tmp_path / "one", "a/1.png", "a/2.png"), "one class only, 'a'")
    fails(put(tmp_path / "single", "a/1.png", "a/2.png", "b/3.png"), "'b' has one image, b/3.png")
    both = put(tmp_path / "both", "train/a/1.png", "val/a/1.png", "valid/a/1.png")
    fails(both, "both val/ and valid/ are there for validation")
    fails(put(tmp_path / "trainless", "val/a/1.png", "test/b/2.png"), "test/, val/ but no train/")
    bare = put(tmp_path / "bare", "train/1.png", "test/2.png")
    fails(bare, "the images in train/ lie in no class", "one folder per class")
    hollow = put(tmp_path / "hollow", "train/a.txt", "val/a/1.png", "val/b/2.png")
    fails(hollow, "has images for validation, but none for train")
    extra = put(tmp_path / "extra", "train/roses/1.png", "train/b/2.png", "val/rose/3.png")
    fails(extra, "'rose' is in validation (val/rose/3.png) but not in train", "mean 'roses'?")
    (tmp_path / "odd.xyz").touch()
    fails(tmp_path / "odd.xyz", "not a kind of data that is known")

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    fails(flowers, f"{flowers}", "no permission to read this folder")


def test_one_image_in_train_is_enough_when_validation_is_given(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/b/2.png", "val/a/3.png")
    assert open_data(str(tmp_path)).splits["train"].count_per_class().tolist() == [1, 1]


def test_without_need_of_labels(tmp_path: Path) -> None:
    loose = put(tmp_path / "loose", "1.png", "2.png")
    data = open_data(str(loose), need_labels=False)
    assert (data.classes, data.notes) == ((), ())
    assert data.splits["all"].labels.tolist() == [-1, -1]
    check_reading(data)
    one = open_data(str(put(tmp_path / "one", "a/1.png")), need_labels=False)
    assert labelled(one) == {"a/1.png": "a"}


def test_classes_chosen_by_name(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/b/2.png", "train/c/3.png", "val/a/4.png", "val/c/5.png")
    put(tmp_path, "test/b/6.png")
    data = open_data(str(tmp_path), classes=["c", "a"])
    assert data.classes == ("a", "c")
    assert labelled(data, "validation") == {"val/a/4.png": "a", "val/c/5.png": "c"}
    assert set(data.splits) == {"train", "validation"}  # test held b only
    check_reading(data)
    fails(tmp_path, "no class 'd'; choose from a, b, c", classes=["a", "d"])
    fails(tmp_path, "one class only", classes=["a"])


def test_scanning_is_by_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/1.png", "a/2.png", "b/3.png", "b/4.png")
    monkeypatch.setattr("builtins.open", None)  # any attempt to open a file would raise
    assert len(open_data(str(tmp_path)).splits["all"]) == 4


# CSV


def write_csv(root: Path, *lines: str, name: str = "list.csv", encoding: str = "utf-8") -> Path:
    path = put(root, "img/0.png", "img/1.png", "img/2.png", "img/3.png") / name
    path.write_bytes("\r\n".join(lines).encode(encoding))
    return path


ROWS = ["img/0.png,rose", "img/1.png,daisy", "img/2.png,rose", "img/3.png,daisy"]


@pytest.mark.parametrize(
    "header", ["path,label", "image_path,class", "File,Label", "filename,class", "image,target"]
)
def test_csv(tmp_path: Path, header: str) -> None:
    data = open_data(str(write_csv(tmp_path, header, *ROWS)))
    assert (data.kind, data.classes) == ("csv", ("daisy", "rose"))
    assert labelled(data) == dict(row.split(",") for row in ROWS)
    assert shade(data, "all", "img/2.png") == 2
    check_reading(data)


@pytest.mark.parametrize("comma", [";", "\t"])
def test_csv_of_other_lands(tmp_path: Path, comma: str) -> None:
    lines = [line.replace(",", comma) for line in ["path,label", *ROWS]]
    assert len(open_data(str(write_csv(tmp_path, *lines, encoding="utf-8-sig"))).splits["all"]) == 4


def test_csv_with_splits_columns_and_quotes(tmp_path: Path) -> None:
    put(tmp_path, "img/x, y.png")
    path = write_csv(
        tmp_path,
        "id,picture,kind,split",
        "1,img/0.png,rose,train",
        "2,img/1.png,daisy,Training",
        "",
        '3,"img/x, y.png",rose,val',
        f"4,{tmp_path}/img/3.png,daisy,test",
    )
    data = open_data(str(path), image_column="picture", label_column="kind")
    assert labelled(data, "train") == {"img/0.png": "rose", "img/1.png": "daisy"}
    assert labelled(data, "validation") == {"img/x, y.png": "rose"}
    assert labelled(data, "test") == {f"{tmp_path}/img/3.png": "daisy"}
    check_reading(data)


def test_csv_without_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "path", "img/0.png")
    assert open_data(str(path), need_labels=False).splits["all"].labels.tolist() == [-1]
    path = write_csv(tmp_path, "path,label", "img/0.png,", "img/1.png,a")
    assert open_data(str(path), need_labels=False).splits["all"].labels.tolist() == [-1, 0]


def test_faults_of_csv(tmp_path: Path) -> None:
    def faulty(*lines: str) -> Path:
        return write_csv(tmp_path, *lines)

    rows = ["img/9.png,a", "img/0.png,a", "img/8.png,b"]
    fails(faulty("path,label", *rows), "row 2 names 'img/9.png'", "(2 such rows in all)")
    fails(faulty("path,label", "img/0.png,a", "img/1.png, "), "row 3 has no label")
    fails(faulty("path,label", ",a"), "row 2 has no path")
    fails(faulty("path,label", "img/0.png,a,b"), "row 2 has 3 cells, the header has 2")
    fails(faulty("path,label"), "no rows below the header")
    fails(faulty(), "is empty")
    fails(faulty("id,label", "1,a"), "no column called path", "are id, label", "--image-column")
    fails(faulty("path,flower", "img/0.png,a"), "no column called label", "--label-column")
    said = "no column 'flowr'; did you mean 'flower'?"
    fails(faulty("path,flower", "img/0.png,a"), said, label_column="flowr")
    lines = ["path,label,split", "img/0.png,a,train", "img/1.png,a,holdout"]
    fails(faulty(*lines), "row 3 has split 'holdout'; use train, validation or test")
    fails(faulty("path,label,split", "img/0.png,a,test"), "has images for test, but none for train")
    path = write_csv(tmp_path, "path,label", "img/0.png,ros\u00e9", encoding="latin-1")
    fails(path, "is not UTF-8 text")
    (tmp_path / "folder.csv").mkdir()
    fails(tmp_path / "folder.csv", "cannot be read: Is a directory")
    fails(tmp_path / "lists.csv", "no such file or folder; did you mean 'list.csv'?")


# Parquet

NAMES = ["plane", "car", "bird"]  # not in string order: the schema's order stands


def write_parquet(
    path: Path, labels: Sequence[object], *, named: bool = False, column: str = "image"
) -> Path:
    """Photos 0, 1, 2 ... in the Hugging Face layout; `named` puts class names in the metadata."""
    import pyarrow
    import pyarrow.parquet

    images = [{"bytes": photo(shade), "path": f"{shade}.png"} for shade in range(len(labels))]
    table = pyarrow.table({column: images, "label": pyarrow.array(labels)})
    if named:
        features = {
            column: {"_type": "Image"},
            "label": {"names": NAMES, "_type": "ClassLabel"},
        }
        said = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": said})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    return path


def test_parquet_file_of_text_labels(tmp_path: Path) -> None:
    data = open_data(str(write_parquet(tmp_path / "x.parquet", ["b", "a", "b", "a", "10"] * 2)))
    assert (data.kind, data.classes) == ("parquet", ("10", "a", "b"))
    assert labelled(data)["x.parquet:3"] == "a"
    assert shade(data, "all", "x.parquet:7") == 7
    (note,) = data.notes
    assert re.search(r"a copy for random access \(\d+ MiB\) is kept in /", note)
    check_reading(data)


@pytest.mark.parametrize("below", ["", "data"])
def test_parquet_folder_of_splits(tmp_path: Path, below: str) -> None:
    folder = tmp_path / below
    write_parquet(folder / "train-00000-of-00002.parquet", [2, 0, 1], named=True)
    write_parquet(folder / "train-00001-of-00002.parquet", [0, 1], named=True)
    write_parquet(folder / "validation-00000-of-00001.parquet", [1], named=True)
    write_parquet(folder / "test-00000-of-00001.parquet", [2, 2], named=True)
    data = open_data(str(tmp_path))
    assert data.classes == tuple(NAMES)
    assert list(labelled(data, "train").items())[2:4] == [
        ("train-00000-of-00002.parquet:2", "car"),
        ("train-00001-of-00002.parquet:0", "plane"),
    ]
    assert labelled(data, "validation") == {"validation-00000-of-00001.parquet:0": "car"}
    assert shade(data, "train", "train-00001-of-00002.parquet:1") == 1
    assert shade(data, "test", "test-00000-of-00001.parquet:1") == 1
    check_reading(data)


def test_parquet_train_alone_is_not_divided(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [0, 0, 1, 1], named=True)
    assert list(open_data(str(tmp_path)).splits) == ["all"]


def test_parquet_test_without_labels_is_left_aside(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [0, 0, 1, 1], named=True)
    write_parquet(tmp_path / "test-0.parquet", [-1, -1], named=True)
    data = open_data(str(tmp_path))
    assert list(data.splits) == ["all"]
    assert "split test has no labels and is left out" in data.notes
    assert open_data(str(tmp_path), need_labels=False).splits["test"].labels.tolist() == [-1, -1]


def test_parquet_that_changed_is_read_anew(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", ["a", "b"] * 2)
    assert len(open_data(str(path)).splits["all"]) == 4
    write_parquet(path, ["a", "b"] * 3)
    assert len(open_data(str(path)).splits["all"]) == 6


def test_parquet_of_plain_bytes_and_odd_columns(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    photos = [photo(shade) for shade in range(4)]
    table = {"thumb": [b"x"] * 4, "scan": photos, "fine": ["a", "b"] * 2, "rate": [0.5] * 4}
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    data = open_data(str(path), image_column="scan", label_column="fine")
    assert shade(data, "all", "x.parquet:3") == 3
    check_reading(data)
    fails(path, "several columns hold bytes (thumb, scan)", "--image-column", label_column="fine")
    fails(path, "no label column", "thumb, scan, fine, rate", image_column="scan")
    fails(path, "no column 'scn'; did you mean 'scan'?", image_column="scn", label_column="fine")
    fails(path, "'fine' holds string, not images", image_column="fine", label_column="fine")
    fails(path, "'rate' holds float", image_column="scan", label_column="rate")


def test_faults_of_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["t"], "label": [1]}), path)
    fails(path, "no image column", "its columns are text, label")
    path.write_bytes(b"PAR1 no parquet PAR1")
    fails(path, "x.parquet: not a parquet file, or a damaged one")
    write_parquet(path, ["a", "b"] * 2)
    path.write_bytes(path.read_bytes()[:-9])
    fails(path, "x.parquet: not a parquet file, or a damaged one")
    write_parquet(path, ["a", None, "b"])
    fails(path, "1 image without a label; the first is x.parquet:1")
    fails(
        write_parquet(path, [0, 7], named=True), "row 1 has label 7, but the schema names 3 classes"
    )
    damaged = bytearray(write_parquet(path, ["a", "b"] * 20).read_bytes())
    damaged[4:900] = b"\xff" * 896  # pages, not the footer
    path.write_bytes(bytes(damaged))
    fails(path, "cannot be loaded")
    folder = tmp_path / "folder"
    for name in ("train-0", "test-0", "x"):
        write_parquet(folder / f"{name}.parquet", ["a", "b"])
    fails(folder, "files are named for test, train", "x.parquet for none")


def test_cifar10_as_it_stands() -> None:
    folder = DATA / "cifar10"
    if not folder.is_dir():
        pytest.skip(f"no CIFAR-10 at {folder}; set PATCHWORDS_DATA to the folder that holds it")
    data = open_data(str(folder))
    assert " ".join(data.classes) == ("airplane automobile bird cat deer dog frog horse ship truck")
    assert {split: len(examples) for split, examples in data.splits.items()} == {
        "train": 50_000,
        "test": 10_000,
    }
    for examples in data.splits.values():
        assert len(set(examples.count_per_class().tolist())) == 1
        assert decode_image(examples.read(len(examples) - 1)).size == (32, 32)
        assert len(examples.read(17)) == examples.sizes[17]


# The hub


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    fails("hf:someone/something", "hub is out of reach", "copy its parquet files")
    fails("hf:", "no name after hf:")


def test_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the hub gives, with a local file in its place."""
    import datasets

    path = write_parquet(tmp_path / "x.parquet", [2, 0, 1, 0], named=True, column="img")
    table = datasets.load_dataset("parquet", data_files=str(path), split="train")
    asked = []

    def load_dataset(*args: object, **options: object) -> object:
        asked.append(args)
        return datasets.DatasetDict({"train": table, "valid": table, "extra": table})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = open_data("hf:someone/things:small")
    assert asked == [("someone/things", "small")]
    assert (data.kind, data.classes) == ("hub", tuple(NAMES))
    assert labelled(data, "validation")["validation:2"] == "car"
    assert "left out: 1 split extra" in data.notes
    assert shade(data, "validation", "validation:3") == 3
    check_reading(data)


# Tar shards


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def pairs(first: int, *labels: str, ending: str = "cls") -> dict[str, bytes]:
    members = {}
    for number, label in enumerate(labels, start=first):
        said = json.dumps({"label": label, "id": 3}) if ending == "json" else f"{label}\n"
        members |= {f"./d.1/{number}.png": photo(number), f"./d.1/{number}.{ending}": said.encode()}
    return members


@pytest.mark.parametrize("ending", ["cls", "json"])
@pytest.mark.parametrize("spec", ["x-{000..002}.tar", "x-*.tar"])
def test_shards(tmp_path: Path, ending: str, spec: str) -> None:
    write_tar(tmp_path / "x-000.tar", pairs(0, "3", "rose", ending=ending))
    write_tar(tmp_path / "x-001.tar", pairs(2, "rose", ending=ending))
    write_tar(tmp_path / "x-002.tar", pairs(3, "3", "rose", ending=ending))
    data = open_data(str(tmp_path / spec))
    assert (data.kind, data.classes, data.notes) == ("shards", ("3", "rose"), ())
    assert labelled(data) == {
        "x-000.tar:./d.1/0.png": "3",
        "x-000.tar:./d.1/1.png": "rose",
        "x-001.tar:./d.1/2.png": "rose",
        "x-002.tar:./d.1/3.png": "3",
        "x-002.tar:./d.1/4.png": "rose",
    }
    assert shade(data, "all", "x-002.tar:./d.1/4.png") == 4
    check_reading(data)


def test_one_tar_and_what_is_left_aside(tmp_path: Path) -> None:
    members = pairs(0, "a", "b", "a", "b") | {"0.seg.png": photo(), "README": b"", "9.cls": b"a"}
    data = open_data(str(write_tar(tmp_path / "x.tar", members)))
    assert len(data.splits["all"]) == 4
    assert data.notes == (
        "3 members of the tars left out: 0.seg.png, README, 9 (a label without an image)",
    )


def test_shards_named_for_splits(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-0.tar", pairs(0, "a", "b", "a", "b"))
    write_tar(tmp_path / "val-0.tar", pairs(4, "a"))
    data = open_data(str(tmp_path / "*-0.tar"))
    assert {split: len(examples) for split, examples in data.splits.items()} == {
        "train": 4,
        "validation": 1,
    }


def test_shards_of_equal_names_keep_their_images_apart(tmp_path: Path) -> None:
    for part in ("x", "y"):
        write_tar(tmp_path / part / "0.tar", pairs(0, "a", "b"))
    data = open_data(str(tmp_path / "*/0.tar"))
    assert len(labelled(data)) == 4
    assert data.splits["all"].keys[2] == "y/0.tar:./d.1/0.png"


def test_brace_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a8-00", "a9-00", "a10-00", "a8-01", "a9-01", "a10-01"):
        Path(f"{name}.tar").touch()
    assert expand_tar_spec("a{8..10}-{00..01}.tar") == [
        f"a{number}-{shard}.tar" for number in (8, 9, 10) for shard in ("00", "01")
    ]


def test_faults_of_shards(tmp_path: Path) -> None:
    write_tar(tmp_path / "x-0.tar", pairs(0, "a", "b"))
    fails(tmp_path / "x-{0..3}.tar", "3 of 4 tars not there", "x-1.tar")
    fails(tmp_path / "y-*.tar", "no such tar, and no file matches")
    fails(tmp_path / "y.tar.gz", "a compressed tar", "unpack")
    fails(write_tar(tmp_path / "e.tar", {}), "no images in 1 tar; found no files at all")
    fails(write_tar(tmp_path / "t.tar", {"a.txt": b""}), "no images in 1 tar; found .txt (1)")
    bare = write_tar(tmp_path / "b.tar", {"a.png": photo(1)})
    fails(bare, "a.png has no label", "a.cls or a.json")
    assert open_data(str(bare), need_labels=False).splits["all"].labels.tolist() == [-1]
    bad = write_tar(tmp_path / "j.tar", {"a.png": photo(1), "a.json": b"{"})
    fails(bad, "a.json cannot be read")
    (tmp_path / "n.tar").write_bytes(b"nothing of the kind" * 99)
    fails(tmp_path / "n.tar", "not a tar, or a damaged one")
    whole = write_tar(tmp_path / "h.tar", pairs(0, "a", "b")).read_bytes()
    (tmp_path / "h.tar").write_bytes(whole[:1700])
    fails(tmp_path / "h.tar", "damaged or cut short after 1 whole image: unexpected end")


def test_shard_that_shrinks_after_opening(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", pairs(0, "a", "b", "a", "b"))
    examples = open_data(str(path)).splits["all"]
    path.write_bytes(b"")
    with pytest.raises(OSError, match="shorter"):
        examples.read(3)


# Digits, columns, images to predict on


def test_digits() -> None:
    from sklearn.datasets import load_digits

    data = open_data("digits")
    examples = data.splits["all"]
    assert (data.kind, data.classes, len(examples)) == ("digits", tuple("0123456789"), 1797)
    raw = load_digits()
    assert np.array_equal(examples.labels, raw.target)
    sent = pickle.loads(pickle.dumps(examples))
    for index in range(0, 1797, 113):
        pixels = np.asarray(decode_image(sent.read(index)))  # [8, 8, 3]
        assert np.array_equal(pixels[..., 1], np.rint(raw.images[index] * 255 / 16))  # all 17 kept
        assert len(sent.read(index)) == examples.sizes[index]


def test_columns_are_for_tables(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "b/2.png")
    with pytest.raises(ConfigError, match="has no columns"):
        open_data(str(tmp_path), label_column="kind")


def test_open_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(put(tmp_path, "b/2.png", "b/c/1.JPG", "a.png", "z[1].png"))
    (tmp_path / "b/notes.txt").touch()
    examples = open_images(["b", "a.png", "*.png", "z[1].png", "**/*.JPG"])
    assert list(examples.keys) == [
        "b/2.png",
        "b/c/1.JPG",
        "a.png",
        *("a.png", "z[1].png"),
        "z[1].png",
        "b/c/1.JPG",
    ]
    assert examples.classes == ()
    assert set(examples.labels.tolist()) == {-1}
    monkeypatch.chdir("/")
    assert decode_image(pickle.loads(pickle.dumps(examples)).read(2)).getpixel((0, 0)) == (2, 0, 99)


def test_faults_of_open_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(put(tmp_path, "photo.png"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").touch()
    for path, said in {
        "foto.png": r"foto\.png: no such file or folder; did you mean 'photo\.png'\?",
        "*.webp": r"\*\.webp: no file matches",
        "empty": "no images in this folder, it is empty",
        "text": r"no images in this folder; found \.txt \(1\)",
    }.items():
        with pytest.raises(DataError, match=said):
            open_images(["photo.png", path])
    with pytest.raises(DataError, match="no images given"):
        open_images([])


def test_unknown_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fails("digit", "digit: no such file or folder; did you mean 'digits'?")
    fails("qqqq", "qqqq: no such file or folder")


def test_opening_needs_neither_torch_nor_tables() -> None:
    """`patchwords --help` and the dispatch of sources stay light."""
    program = """
import sys
import patchwords.data.sources, patchwords.data.splits, patchwords.data.decode
heavy = {"torch", "datasets", "pyarrow", "pandas", "sklearn", "matplotlib", "pillow_heif"}
print(*heavy & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
