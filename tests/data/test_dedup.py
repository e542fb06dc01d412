"""Images of a test set among those to pre-train on: planted ones are found, and no others."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from patchwords.cli import main
from patchwords.data.doctor.dedup import NEAR_DUPLICATE_BITS, find_duplicates
from patchwords.data.doctor.fingerprints import find_near_pairs
from patchwords.data.open import open_data
from patchwords.data.splits import exclude_listed_images, read_exclusion_list
from patchwords.errors import ConfigError, DataError


def scene(number: int, side: int = 96) -> Image.Image:
    """A picture with structure at all scales: smoothed noise, no two alike."""
    rng = np.random.default_rng(number)
    layers = [
        np.asarray(
            Image.fromarray(rng.integers(0, 256, (n, n, 3), np.uint8)).resize(
                (side, side), Image.Resampling.BICUBIC
            ),
            dtype=np.float64,
        )
        for n in (3, 5, 9)
    ]
    return Image.fromarray(np.clip(np.mean(layers, axis=0) * 1.4 - 50, 0, 255).astype(np.uint8))


def put(path: Path, image: Image.Image, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


EDITS = {
    "recompressed": lambda image: (image, "jpg", {"quality": 55}),
    "half": lambda image: (image.resize((48, 48), Image.Resampling.LANCZOS), "png", {}),
    "brighter": lambda image: (ImageEnhance.Brightness(image).enhance(1.15), "png", {}),
    "grey": lambda image: (image.convert("L"), "png", {}),
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/: 41 images, 6 of them out of the test sets; flowers/ of 13 and 7, pets/ of 11."""
    root = tmp_path_factory.mktemp("sets")
    for number in range(35):
        put(root / f"train/{'ab'[number % 2]}/{number:03d}.png", scene(number))
    for number in range(100, 113):
        put(root / f"flowers/test/{'xy'[number % 2]}/{number}.png", scene(number))
    for number in range(200, 207):
        put(root / f"flowers/train/{'xy'[number % 2]}/{number}.png", scene(number))
    for number in range(300, 311):
        put(root / f"pets/{'xy'[number % 2]}/{number}.png", scene(number))
    for number, (name, edit) in enumerate(EDITS.items(), start=100):
        image, ending, options = edit(scene(number))
        put(root / f"train/a/{name}.{ending}", image, **options)
    put(root / "train/b/same.png", scene(305))
    put(root / "train/b/of-flowers-train.png", scene(201))  # which nobody measures on
    flat = Image.new("RGB", (64, 64), (9, 99, 200))
    put(root / "train/b/flat.png", flat)
    put(root / "pets/x/flat.jpg", flat)
    return root


def words(sets: Path, output: Path) -> list[str]:
    tests = [str(sets / "flowers"), str(sets / "pets")]
    return ["dedup", str(sets / "train"), "--against", *tests, "--output", str(output)]


def test_the_planted_ones_and_no_others(sets: Path, tmp_path: Path) -> None:
    assert main([*words(sets, tmp_path / "dedup.csv"), "--workers", "0"]) == 0
    with (tmp_path / "dedup.csv").open(newline="") as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    flowers, pets = str(sets / "flowers"), str(sets / "pets")
    assert {path: (row["like"], row["of"]) for path, row in rows.items()} == {
        "a/recompressed.jpg": ("test/x/100.png", flowers),
        "a/half.png": ("test/y/101.png", flowers),
        "a/brighter.png": ("test/x/102.png", flowers),
        "a/grey.png": ("test/y/103.png", flowers),
        "b/same.png": ("y/305.png", pets),
    }
    assert {path for path, row in rows.items() if row["same_file"] == "yes"} == {"b/same.png"}
    assert all(int(row["distance"]) <= NEAR_DUPLICATE_BITS for row in rows.values())
    size = (sets / "train/a/half.png").stat().st_size
    assert int(rows["a/half.png"]["bytes"]) == size


def test_what_is_said(sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dedup.csv"
    assert main([*words(sets, path), "--workers", "0"]) == 0
    said = capsys.readouterr().out
    assert "5 of 42 images are in the test sets: 1 as the same file, 4 at most 6 bits away" in said
    assert f"{sets / 'flowers'}: 4 of 13 images (30.77%) found" in said
    assert "2 images, too uniform or too small, were compared by file only" in said
    assert f"--exclude {path}" in said
    assert main([*words(sets, path), "--workers", "0", "--json", "--overwrite"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert (counts["images"], counts["to_leave_out"], counts["same_file"]) == (42, 5, 1)
    assert counts["tests"][str(sets / "pets")] == {"images": 12, "with_a_double": 1}
    assert sum(counts["by_distance"].values()) == 5


def test_nothing_is_overwritten_and_faults_are_one_line(
    sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dedup.csv"
    path.write_text("mine")
    for more, says in {
        (): f"--output {path} exists; add --overwrite",
        ("--overwrite", "--near", "17"): "near is 17",
        ("--overwrite", "--against", "nowhere/"): "nowhere/: no such file or folder",
        ("--overwrite", "--against", "digits", "digits"): "--against has the same set twice",
    }.items():
        assert main([*words(sets, path), *more]) == 2
        line = capsys.readouterr().err
        assert says in line
        assert line.count("\n") == 1
    assert path.read_text() == "mine"


def test_a_copy_many_times_is_compared_once(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / f"train/a/{number}.png", scene(1))
        put(tmp_path / f"test/a/{number}.jpg", scene(1), quality=60 + number)
    put(tmp_path / "test/a/3.png", scene(1))
    data, test = (open_data(str(tmp_path / name), need_labels=False) for name in ("train", "test"))
    found = find_duplicates(data, [test], workers=0)
    assert [(match.image, match.key, match.same_file) for match in found.matches] == [
        (number, "a/3.png", True) for number in range(3)
    ]
    assert found.found == {test.source: 4}
    with pytest.raises(ConfigError, match="near is -1"):
        find_duplicates(data, [test], near=-1)


def test_of_several_test_images_the_nearest_is_named(tmp_path: Path) -> None:
    for number in range(9):
        image = scene(number)
        put(tmp_path / f"train/a/{number}.png", image)
        put(tmp_path / f"test/a/{number}-0.jpg", image, quality=8)
        put(tmp_path / f"test/a/{number}-1.bmp", image)  # the same pixels
    data, test = (open_data(str(tmp_path / name), need_labels=False) for name in ("train", "test"))
    found = find_duplicates(data, [test], workers=0, near=8)
    farther = find_duplicates(data, [test], workers=0, near=0)
    assert [match.distance for match in found.matches] == [0] * 9
    assert found.found[test.source] > farther.found[test.source]  # so both are candidates
    assert [match.key for match in found.matches if match.key.endswith("bmp")]


@pytest.mark.parametrize("distance", [0, 3, 6])
def test_near_pairs_are_those_of_all_comparisons(distance: int) -> None:
    rng = np.random.default_rng(5)
    a = rng.integers(0, 2**63, 211, dtype=np.uint64)
    b = np.concatenate([a[:101], rng.integers(0, 2**63, 97, dtype=np.uint64)])
    for _ in range(5):  # flips up to 5 bits of each, some of them back
        b[:101] ^= np.uint64(1) << rng.integers(0, 64, 101).astype(np.uint64)
    bits = np.array([[bin(int(x) ^ int(y)).count("1") for y in b] for x in a])
    i, j = np.nonzero(bits <= distance)
    found = find_near_pairs(a, b, distance)
    assert len(i) > (90 if distance == 6 else -1)
    for got, want in zip(found, (i, j, bits[i, j]), strict=True):
        assert np.array_equal(got, want)
    assert len(find_near_pairs(a, b[:0], distance)[0]) == 0


def test_training_without_them(sets: Path, tmp_path: Path) -> None:
    data = open_data(str(sets / "train"))
    path = tmp_path / "list.csv"
    listed = [data.splits["all"].keys[i] for i in (0, 7, 40)]
    sizes = [int(data.splits["all"].sizes[i]) for i in (0, 7, 40)]
    sizes[1] += 1  # another file of that name
    text = io.StringIO()
    csv.writer(text).writerows([("bytes", "path"), *zip(sizes, listed, strict=True)])
    path.write_text(text.getvalue())
    left = exclude_listed_images(data, str(path))
    assert set(data.splits["all"].keys) - set(left.splits["all"].keys) == {listed[0], listed[2]}
    assert left.notes[-1] == f"2 images left out that {path} names"
    assert left.classes == data.classes
    with pytest.raises(DataError, match=r"none of its 3 images is in .*flowers"):
        exclude_listed_images(open_data(str(sets / "flowers")), str(path))
    path.write_text("path,label\na,b\n")
    with pytest.raises(DataError, match=r"cannot be read as a list of images .*no column 'bytes'"):
        read_exclusion_list(str(path))
    with pytest.raises(DataError, match="No such file"):
        read_exclusion_list(str(tmp_path / "none.csv"))
    path.write_text("path,bytes\n")  # nothing was found: nothing is left out
    assert len(exclude_listed_images(data, str(path)).splits["all"]) == 42
