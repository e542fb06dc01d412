"""Photos with masks: how they are found, which values are which class, and what is refused."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchwords.cli import main
from patchwords.data.doctor.diagnose import diagnose_dataset
from patchwords.data.open import open_data
from patchwords.data.sources.mask_table import (
    IGNORE,
    MaskTable,
    make_palette,
    parse_class_csv,
    read_mask_pixels,
)
from patchwords.data.sources.masks import get_mask_reader, is_mask_folder, survey_masks
from patchwords.errors import DataError

TABLE = MaskTable(("a", "b", "c"), (0, 1, 2))


def write_pair(
    root: Path, name: str, mask: np.ndarray, size: tuple[int, int] | None = None, ending: str = ""
) -> None:
    height, width = size or mask.shape[:2]
    seed = sum(name.encode())
    photo = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo).save(root / "images" / f"{name}.jpg")
    Image.fromarray(mask).save(root / "masks" / f"{name}{ending}.png")


def squares(values: tuple[int, ...] = (0, 1, 2), side: int = 8) -> np.ndarray:
    return np.repeat(np.array(values, np.uint8), side)[None].repeat(side, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        write_pair(tmp_path / "scenes", f"p{number:02d}", squares())
    (tmp_path / "scenes" / "classes.txt").write_text("sky\nroad\ncar\n")
    return tmp_path / "scenes"


def png(mask: np.ndarray, mode: str = "") -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(mask)
    (image.convert(mode) if mode else image).save(file, "PNG")
    return file.getvalue()


def read_masks(path: Path, split: str = "all") -> list[np.ndarray]:
    data = open_data(str(path), need_labels=False)
    part = data.splits[split]
    return [get_mask_reader(part, "x").read(row) for row in part.rows.tolist()]


def test_a_folder_of_photos_and_masks_is_recognised(folder: Path, tmp_path: Path) -> None:
    data = open_data(str(folder), need_labels=False)
    assert (data.kind, len(data.splits["all"]), data.classes) == ("masks", 12, ())
    assert get_mask_reader(data.splits["all"], "x").table.classes == ("sky", "road", "car")
    assert all((mask == squares()).all() for mask in read_masks(folder))
    assert not is_mask_folder(str(tmp_path))


@pytest.mark.parametrize("layout", ["{split}/{kind}", "{kind}/{split}"])
def test_folders_of_splits(layout: str, tmp_path: Path, folder: Path) -> None:
    root = tmp_path / "divided"
    for split in ("training", "val", "test"):
        for kind in ("images", "masks"):
            shutil.copytree(folder / kind, root / layout.format(split=split, kind=kind))
    assert is_mask_folder(str(root))
    data = open_data(str(root), need_labels=False)
    assert {name: len(part) for name, part in data.splits.items()} == {
        name: 12 for name in ("train", "validation", "test")
    }
    assert len(read_masks(root, "validation")) == 12


def test_masks_may_have_an_ending_and_other_values(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", squares((0, 7, 255)), ending="_mask")
    write_pair(tmp_path, "b", squares((3, 7, 255)), ending="_mask")
    table = get_mask_reader(open_data(str(tmp_path), need_labels=False).splits["all"], "x").table
    assert (table.classes, table.values) == (("0", "3", "7"), (0, 3, 7))
    assert read_masks(tmp_path)[0][0, ::8].tolist() == [0, 2, IGNORE]


def test_black_and_white_masks_are_ground_and_object(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", squares((0, 255, 0)))
    write_pair(tmp_path, "b", squares((0, 255, 0)))
    (tmp_path / "masks" / "b.png").write_bytes(png(squares((0, 255, 0)), "1"))
    table = get_mask_reader(open_data(str(tmp_path), need_labels=False).splits["all"], "x").table
    assert table.classes == ("background", "foreground")
    assert [mask[0, ::8].tolist() for mask in read_masks(tmp_path)] == [[0, 1, 0]] * 2


def test_one_value_after_the_last_class_in_most_masks_is_no_label(tmp_path: Path) -> None:
    for name in "abc":
        write_pair(tmp_path, name, squares((0, 1, 2)))
    (tmp_path / "classes.txt").write_text("sky\nroad\n")
    data = open_data(str(tmp_path), need_labels=False)
    assert any("value 2, one after the last class" in note for note in data.notes)
    assert read_masks(tmp_path)[0][0, ::8].tolist() == [0, 1, IGNORE]
    for name in "defg":  # now in the smaller part of the masks: a mistake
        write_pair(tmp_path, name, squares((0, 1, 1)))
    sights = survey_masks(open_data(str(tmp_path), need_labels=False))["all"]
    assert [sight.kind for sight in sights] == ["mask-values"] * 3 + [""] * 4


def test_colours_of_a_table_and_of_a_palette(tmp_path: Path) -> None:
    text = "name, r, g, b\nsky,10,20,30\nroad,200,0,0\nVoid,0,0,0\n"
    table = parse_class_csv(text, "classes.csv")
    assert table.classes == ("sky", "road")
    colours = np.array([[10, 20, 30], [200, 0, 0], [0, 0, 0]], np.uint8)
    mask = colours[squares()]
    assert table.decode(png(mask))[0, ::8].tolist() == [0, 1, IGNORE]
    image = Image.fromarray(squares())
    image.putpalette(colours.reshape(-1).tolist())
    file = io.BytesIO()
    image.save(file, "PNG")
    assert table.decode(file.getvalue())[0, ::8].tolist() == [0, 1, IGNORE]
    assert read_mask_pixels(file.getvalue())[0, ::8].tolist() == [0, 1, 2]
    mask[0, 0] = (1, 2, 3)
    with pytest.raises(DataError, match=r"the colour \(1, 2, 3\), outside of classes.csv"):
        table.decode(png(mask))


def test_classes_are_matched_by_name() -> None:
    table = TABLE.map_to(("c", "x", "a"))
    assert table[[0, 1, 2, IGNORE]].tolist() == [2, IGNORE, 0, IGNORE]
    assert len(set(make_palette(50))) == 50


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name\na\nb\n", "give name,value or name,r,g,b"),
        ("name,value\na,0\na,1\n", "the class 'a' is there twice"),
        ("name,value\na,0\nb,0\n", "the value 0 is there twice"),
        ("name,value\na,0\nb,x\n", "is not a whole number"),
        ("name,value\na,0\nb,300\n", "the value 300 does not fit"),
        ("name,value\na,0\n", "names 1 classes"),
    ],
)
def test_a_faulty_table_is_refused(text: str, line: str, folder: Path) -> None:
    (folder / "classes.txt").unlink()
    (folder / "classes.csv").write_text(text)
    with pytest.raises(DataError, match=line):
        open_data(str(folder), need_labels=False)


def damage_size(root: Path) -> None:
    Image.fromarray(squares(side=4)).save(root / "masks" / "p03.png")


def damage_values(root: Path) -> None:
    Image.fromarray(squares((0, 1, 9))).save(root / "masks" / "p03.png")


def damage_lossy(root: Path) -> None:
    (root / "masks" / "p03.png").unlink()
    Image.fromarray(squares()).save(root / "masks" / "p03.jpg")


def damage_missing(root: Path) -> None:
    (root / "masks" / "p03.png").unlink()


def damage_colours(root: Path) -> None:
    Image.fromarray(squares()).convert("RGB").save(root / "masks" / "p03.png")


def damage_file(root: Path) -> None:
    path = root / "masks" / "p03.png"
    path.write_bytes(path.read_bytes()[:45])


FAULTS = {
    "mask-size": (damage_size, "its mask is of 12x4 pixels, the photo of 24x8"),
    "mask-values": (damage_values, "its mask has the value 9, outside of classes.txt"),
    "mask-lossy": (damage_lossy, "its mask is a JPEG"),
    "no-mask": (damage_missing, "masks/p03.png is missing"),
    "mask-colours": (damage_colours, "its mask has RGB colours"),
    "mask-unreadable": (damage_file, "its mask cannot be read"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_the_doctor_names_each_fault(kind: str, folder: Path) -> None:
    damage, reason = FAULTS[kind]
    damage(folder)
    report = diagnose_dataset(open_data(str(folder), need_labels=False), workers=0)
    (finding,) = report.of_severity("error")
    assert (finding.kind, finding.keys) == (kind, ("images/p03.jpg",))
    assert reason in finding.detail


def test_the_doctor_finds_sound_masks_ready(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(folder)]) == 0
    assert "ready to train" in capsys.readouterr().out
    (folder / "classes.txt").write_text("sky\nroad\ncar\ntree\n")
    Image.fromarray(squares((255, 255, 255))).save(folder / "masks" / "p05.png")
    report = diagnose_dataset(open_data(str(folder), need_labels=False), workers=0)
    kinds = {finding.kind for finding in report.of_severity("warning")}
    assert {"absent-class", "mask-empty"} <= kinds


def test_masks_in_colours_without_a_table_are_refused(folder: Path) -> None:
    (folder / "classes.txt").unlink()
    for path in (folder / "masks").iterdir():
        Image.open(path).convert("RGB").save(path)
    with pytest.raises(DataError, match="no table says which class they are"):
        open_data(str(folder), need_labels=False)


def test_data_without_masks_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    words = ["finetune", str(tmp_path / "photos"), "--task", "segmentation", "--steps", "1"]
    assert main([*words, "--output", str(tmp_path / "run")]) == 2
    assert "segmentation needs masks" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [damage_size, damage_missing])
def test_training_takes_one_bad_mask_and_refuses_more(
    damage: Callable[[Path], None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folder.parent / "divided"
    for split in ("train", "val"):
        shutil.copytree(folder, root / split)
    damage(root / "train")
    words = ["finetune", str(root), "--explain", "--steps", "2", "--workers", "0"]
    assert main(words) == 0
    for number in (4, 5):
        Image.fromarray(squares(side=4)).save(root / "train" / "masks" / f"p{number:02d}.png")
    capsys.readouterr()
    assert main(words) == 2
    assert "images with masks cannot be read, more than --max-bad 1.00%" in capsys.readouterr().err
