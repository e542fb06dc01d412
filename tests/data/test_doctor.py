"""The doctor: each defect is found where it is, and nothing else is."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from patchwords.cli import main
from patchwords.cli.data.doctor import DoctorCommand, run_doctor
from patchwords.data.dataset import DatasetSplits, ImageDataset
from patchwords.data.doctor import fingerprints
from patchwords.data.doctor.checks import CHECKS, DoctorReport
from patchwords.data.doctor.diagnose import diagnose_dataset
from patchwords.data.doctor.fingerprints import (
    group_equal_values,
    group_near_duplicates,
    hamming_distances,
    perceptual_hash,
)
from patchwords.data.doctor.survey import survey_image
from patchwords.data.open import open_data
from patchwords.data.sources.folder import open_folder
from patchwords.errors import ConfigError, DataError
from patchwords.rng import numpy_generator

SHARED = Path(os.environ.get("PATCHWORDS_DATA", Path(__file__).parents[3] / "shared" / "data"))
FLOWERS = SHARED / "flower_photos"


def photo(place: object, width: int = 131, height: int = 97) -> Image.Image:
    """A picture of soft coloured shapes, another one for every place."""
    coarse = numpy_generator(0, "photo", str(place)).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def healthy(root: Path, classes: tuple[str, ...] = ("ant", "bee"), images: int = 11) -> Path:
    for name in classes:
        for i in range(images):
            write(root / name / f"{i:02}.jpg", encoded(photo((name, i))))
    return root


def found(findings: DoctorReport) -> dict[str, set[str]]:
    """kind -> the paths, or for whole classes the labels, that it concerns."""
    return {
        kind: {
            place.path or place.label
            for finding in findings.of_kind(kind)
            for place in finding.places
        }
        for kind in CHECKS
        if findings.of_kind(kind)
    }


def check(root: Path, **options: int) -> dict[str, set[str]]:
    return found(diagnose_dataset(open_folder(str(root)), workers=0, **options))


# ---- whole folders


def test_a_healthy_folder_has_no_findings(tmp_path: Path) -> None:
    findings = diagnose_dataset(open_folder(str(healthy(tmp_path))))
    assert findings.findings == ()
    assert findings.images == 22
    assert findings.counts == {"all": (11, 11)}
    assert findings.sizes == {"width": (131,) * 5, "height": (97,) * 5}
    assert findings.formats == {"JPEG": 22}


def spoil(root: Path) -> dict[str, set[str]]:
    """Add one of each defect of a single image; returns what has to be found."""
    ant = root / "ant"
    sound = encoded(photo("sound"), quality=95)
    write(ant / "cut.jpg", sound[: len(sound) * 3 // 4])
    write(ant / "empty.jpg", b"")
    write(ant / "text.png", b"this is no picture")
    write(ant / "tiny.jpg", encoded(photo("tiny", 29, 23)))
    write(ant / "long.jpg", encoded(photo("long", 409, 101)))
    write(ant / "black.png", encoded(Image.new("RGB", (131, 97)), "PNG"))
    write(ant / "inks.jpg", encoded(photo("inks").convert("CMYK")))
    deep = np.asarray(photo("deep").convert("L")).astype(np.uint16) * 257
    write(ant / "deep.png", encoded(Image.fromarray(deep), "PNG"))
    write(ant / "fax.png", encoded(photo("fax").convert("1"), "PNG"))
    write(ant / "palette.png", encoded(photo("palette").quantize(37), "PNG"))
    clear = photo("clear").convert("RGBA")
    clear.putalpha(photo("mask").convert("L"))
    write(ant / "clear.png", encoded(clear, "PNG"))
    exif = Image.Exif()
    exif[0x0112] = 6
    write(ant / "turned.jpg", encoded(photo("turned"), exif=exif))
    frames = [photo(("frame", i)) for i in range(3)]
    write(ant / "film.gif", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    return {
        "unreadable": {"ant/cut.jpg", "ant/empty.jpg", "ant/text.png"},
        "small": {"ant/tiny.jpg"},
        "panorama": {"ant/long.jpg"},
        "blank": {"ant/black.png"},
        "cmyk": {"ant/inks.jpg"},
        "16-bit": {"ant/deep.png"},
        "1-bit": {"ant/fax.png"},
        "palette": {"ant/palette.png"},
        "alpha": {"ant/clear.png"},
        "rotated": {"ant/turned.jpg"},
        "frames": {"ant/film.gif"},
    }


def test_each_defect_of_an_image_is_found_and_nothing_else(tmp_path: Path) -> None:
    expected = spoil(healthy(tmp_path))
    findings = diagnose_dataset(open_folder(str(tmp_path)), workers=0)
    assert found(findings) == expected
    reasons = {f.keys[0]: f.detail for f in findings.of_kind("unreadable")}
    assert "truncated" in reasons["ant/cut.jpg"]
    assert "empty" in reasons["ant/empty.jpg"]
    assert "not an image" in reasons["ant/text.png"]
    assert findings.of_kind("small")[0].detail == "29x23 pixels"


def test_copies_are_told_apart_by_class_and_split(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            for i in range(11):
                write(tmp_path / split / name / f"{i}.png", encoded(photo((split, name, i)), "PNG"))
    train, test = tmp_path / "train", tmp_path / "test"

    def copy(source: str, target: Path) -> None:
        write(target, (train / source).read_bytes())

    def again(source: str, target: Path) -> None:
        write(target, encoded(Image.open(train / source).convert("RGB"), quality=80))

    copy("ant/0.png", train / "ant/copy.png")
    copy("ant/1.png", train / "bee/copy.png")
    copy("ant/2.png", test / "ant/copy.png")
    copy("bee/3.png", test / "ant/copy of bee.png")  # wrong twice
    again("ant/4.png", train / "ant/again.jpg")
    again("ant/5.png", train / "bee/again.jpg")
    again("ant/6.png", test / "ant/again.jpg")
    assert check(tmp_path) == {
        "duplicate": {"train/ant/0.png", "train/ant/copy.png"},
        "contradiction": {
            *("train/ant/1.png", "train/bee/copy.png"),
            *("train/bee/3.png", "test/ant/copy of bee.png"),
        },
        "leakage": {
            *("train/ant/2.png", "test/ant/copy.png"),
            *("train/bee/3.png", "test/ant/copy of bee.png"),
        },
        "near-duplicate": {"train/ant/4.png", "train/ant/again.jpg"},
        "near-contradiction": {"train/ant/5.png", "train/bee/again.jpg"},
        "near-leakage": {"train/ant/6.png", "test/ant/again.jpg"},
    }


def test_classes_that_are_empty_tiny_unbalanced_or_missing(tmp_path: Path) -> None:
    healthy(tmp_path / "train", images=31)
    healthy(tmp_path / "train", classes=("cow", "dog"), images=3)
    healthy(tmp_path / "test", classes=("ant", "dog"), images=13)
    for i in range(3):
        (tmp_path / f"train/dog/{i:02}.jpg").write_bytes(b"")  # all of a class unreadable
    for i in range(13):  # else the same pictures as in train
        write(tmp_path / f"test/ant/{i:02}.jpg", encoded(photo(("test ant", i))))
        write(tmp_path / f"test/dog/{i:02}.jpg", encoded(photo(("test dog", i))))
    (tmp_path / "train" / "eel").mkdir()
    kinds = check(tmp_path)
    assert kinds.pop("unreadable") == {f"train/dog/{i:02}.jpg" for i in range(3)}
    assert kinds == {
        "empty-class": {"dog", "eel"},
        "tiny-class": {"cow"},
        "missing-class": {"bee", "cow"},
        "imbalance": {"ant", "cow"},
    }


def test_what_training_refuses_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "lone" / "x.jpg", encoded(photo("lone")))
    data = open_folder(str(healthy(tmp_path)))
    everything = data.splits["all"]
    labels = np.where(np.arange(23) == 3, -1, everything.labels)
    bare = replace(data, splits={"all": replace(everything, labels=labels)})
    kinds = found(diagnose_dataset(bare, workers=0))
    assert kinds == {
        "one-image": {"lone"},
        "unlabelled": {everything.keys[3]},
        "imbalance": {"bee", "lone"},
    }
    only_test = replace(data, splits={"test": everything.select(range(22))})  # without the lone
    assert found(diagnose_dataset(only_test, workers=0)) == {"empty-class": {"lone"}}


def test_a_single_class_is_an_error(tmp_path: Path) -> None:
    data = open_folder(str(healthy(tmp_path)))
    ants = data.splits["all"].select(range(11))
    alone = replace(data, classes=("ant",), splits={"all": replace(ants, classes=("ant",))})
    assert found(diagnose_dataset(alone, workers=0)) == {"one-class": {"ant"}}


def test_images_without_labels_have_no_class_findings(tmp_path: Path) -> None:
    data = open_folder(str(healthy(tmp_path)))
    bare = replace(data.splits["all"], classes=(), labels=np.full(22, -1))
    findings = diagnose_dataset(replace(data, classes=(), splits={"all": bare}), workers=0)
    assert [finding.kind for finding in findings.findings] == ["no-labels"]


def test_small_is_relative_to_the_rest(tmp_path: Path) -> None:
    for i in range(23):
        write(tmp_path / "ant" / f"{i}.png", encoded(photo(("a", i), 8, 8), "PNG"))
        write(tmp_path / "bee" / f"{i}.png", encoded(photo(("b", i), 8, 8), "PNG"))
    assert check(tmp_path) == {}  # all are 8x8, as digits are: none is suspicious
    write(tmp_path / "bee" / "dot.png", encoded(photo("dot", 3, 3), "PNG"))
    assert check(tmp_path) == {"small": {"bee/dot.png"}}


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_count_changes_nothing(tmp_path: Path, workers: int) -> None:
    spoil(healthy(tmp_path, images=71))  # more than a task of 64 images in each class
    data = open_folder(str(tmp_path))
    seen: list[tuple[int, int]] = []
    one = diagnose_dataset(data, workers=0)
    other = diagnose_dataset(
        data, workers=workers, progress=lambda done, total: seen.append((done, total))
    )
    assert replace(one, seconds=0.0) == replace(other, seconds=0.0)
    assert seen == [(64, 155), (128, 155), (155, 155)]


class Gone:
    """A reader whose files have vanished, or whose process dies."""

    def __init__(self, deadly: bool = False) -> None:
        self.deadly = deadly

    def __call__(self, row: int) -> bytes:
        if self.deadly:
            os._exit(3)
        raise FileNotFoundError(2, "No such file or directory")


def vanished(deadly: bool) -> DatasetSplits:
    examples = ImageDataset(
        ("ant",), np.zeros(5, np.int64), list("abcde"), np.ones(5), Gone(deadly), np.arange(5)
    )
    return DatasetSplits("gone", "folder of ghosts", ("ant",), {"all": examples})


def test_a_file_that_has_vanished_is_unreadable_and_nobodys_copy() -> None:
    findings = diagnose_dataset(vanished(deadly=False), workers=0)
    assert found(findings)["unreadable"] == set("abcde")
    assert findings.of_kind("unreadable")[0].detail == "No such file or directory"
    assert findings.of_kind("duplicate") == ()
    assert findings.sizes == {"width": (), "height": ()}


def test_a_worker_that_dies_is_one_line() -> None:
    with pytest.raises(DataError, match="--workers 0"):
        diagnose_dataset(vanished(deadly=True), workers=1)


@pytest.mark.parametrize("wrong", [{"near": 17}, {"near": -1}, {"smallest": -1}, {"workers": -1}])
def test_settings_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        diagnose_dataset(vanished(deadly=False), **wrong)  # type: ignore[arg-type]


# ---- one image


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("BMP", {})],
)
def test_truncation_is_seen_wherever_the_file_is_cut(kind: str, options: dict[str, bool]) -> None:
    # At a scaled-down decode, too. The last bytes of a PNG (its checksums) and of a BMP (the
    # padding of a row) hold no pixels: without them all of the image is there.
    data = encoded(photo("cut", 523, 389), kind, **options)
    assert not survey_image(data).unreadable
    trailer = {"PNG": 24, "BMP": 3}.get(kind, 0)
    for share in np.linspace(0.01, 1, 31):
        cut = min(int(share * len(data)), len(data) - trailer - 1)
        assert survey_image(data[:cut]).unreadable, f"{cut} of {len(data)} bytes"


EDITS = {
    "re-encoded": lambda image: image,
    "90 %": lambda image: image.resize((471, 350), Image.Resampling.LANCZOS),
    "half": lambda image: image.resize((262, 195), Image.Resampling.LANCZOS),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "grey": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_copy_looks_alike(edit: str) -> None:
    for i in range(13):
        original = photo(("edited", i), 523, 389)
        copy = encoded(EDITS[edit](original), quality=50)
        hashes = [survey_image(encoded(original)).hash, survey_image(copy).hash]
        # Soft synthetic pictures have weak high frequencies, as photos do.
        assert hamming_distances(*(np.array([h], np.uint64) for h in hashes)).item() <= 4


def test_different_pictures_do_not_look_alike() -> None:
    hashes = np.array([perceptual_hash(photo(("other", i))) for i in range(293)], np.uint64)
    apart = hamming_distances(hashes, hashes)[np.triu_indices(293, 1)]
    # Independent bits differ as 64 coins do: 32 +- 4. Of 42,778 pairs the nearest should be
    # some 4.1 standard deviations away.
    assert apart.mean() == pytest.approx(32, abs=1)
    assert apart.min() > 8


def test_a_flat_image_has_no_hash() -> None:
    dim = np.random.default_rng(0).normal(128, 2, (97, 131)).clip(0, 255).astype(np.uint8)
    assert perceptual_hash(Image.fromarray(dim)) is None
    assert perceptual_hash(photo("rich")) is not None


# ---- searching


def naive(hashes: np.ndarray, distance: int) -> list[list[int]]:
    """Groups by comparing everything with everything, one merge at a time."""
    groups = [{i} for i in range(len(hashes))]
    for i, a in enumerate(hashes.tolist()):
        for j, b in enumerate(hashes.tolist()[:i]):
            if (a ^ b).bit_count() <= distance:
                one, other = (next(g for g in groups if k in g) for k in (i, j))
                if one is not other:
                    groups.remove(other)
                    one |= other
    return sorted(sorted(group) for group in groups if len(group) > 1)


@pytest.mark.parametrize("distance", [0, 1, 4, 7, 16])
def test_the_index_finds_what_comparing_everything_finds(
    distance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fingerprints, "MAX_COMPARISONS", 11
    )  # buckets are compared in several blocks
    draw = numpy_generator(0, "hashes", distance)
    hashes = draw.integers(0, 2**64, 53, dtype=np.uint64)
    hashes = draw.choice(hashes, 211)  # families, some members equal, others some bits away
    for _ in range(distance + 2):
        flipped = draw.random(211) < 0.4
        hashes[flipped] ^= np.uint64(1) << draw.integers(0, 64, flipped.sum(), dtype=np.uint64)
    groups = [group.tolist() for group in group_near_duplicates(hashes, distance)]
    assert groups == naive(hashes, distance)
    assert len(groups) > 3


@pytest.mark.parametrize("numpy_1", [False, True])
def test_distances_count_bits(numpy_1: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if numpy_1:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    draw = numpy_generator(0, "bits")
    a, b = (draw.integers(0, 2**64, n, dtype=np.uint64) for n in (7, 5))
    expected = [[(x ^ y).bit_count() for y in b.tolist()] for x in a.tolist()]
    assert hamming_distances(a, b).tolist() == expected


def test_no_hashes_no_groups() -> None:
    assert group_near_duplicates(np.array([], dtype=np.uint64), 4) == []
    assert group_equal_values([]) == []


# ---- the command


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = healthy(tmp_path)
    assert run_doctor(DoctorCommand(str(root), strict=True)) == 0
    write(root / "ant/long.jpg", encoded(photo("long", 509, 101)))  # a note
    assert run_doctor(DoctorCommand(str(root), strict=True)) == 0
    write(root / "ant/copy.jpg", (root / "ant/03.jpg").read_bytes())  # a warning
    assert run_doctor(DoctorCommand(str(root))) == 0
    assert run_doctor(DoctorCommand(str(root), strict=True)) == 2
    write(root / "bee/copy.jpg", (root / "ant/03.jpg").read_bytes())  # an error
    capsys.readouterr()
    assert run_doctor(DoctorCommand(str(root))) == 2
    out = capsys.readouterr().out
    assert "contradiction" in out
    assert "ant and bee" in out
    assert "1 error, 0 warnings, 1 note" in out


def test_csv_lists_every_image(tmp_path: Path) -> None:
    root = healthy(tmp_path / "odd [b]names[/b]")
    write(root / "ant/a,b \N{SNOWMAN}.jpg", (root / "ant/03.jpg").read_bytes())
    write(root / "ant/no.jpg", b"")
    target = tmp_path / "findings.csv"
    run_doctor(DoctorCommand(str(root), csv=target))
    with open(target, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [tuple(row.values()) for row in rows] == [
        ("unreadable", "error", "all", "ant", "ant/no.jpg", "empty file (0 bytes)", "0"),
        ("duplicate", "warning", "all", "ant", "ant/03.jpg", "2 images", "1"),
        ("duplicate", "warning", "all", "ant", "ant/a,b \N{SNOWMAN}.jpg", "2 images", "1"),
    ]


def test_a_csv_is_never_overwritten_unasked(tmp_path: Path) -> None:
    root, target = healthy(tmp_path / "photos"), tmp_path / "findings.csv"
    target.write_text("precious")
    with pytest.raises(ConfigError, match="--overwrite"):
        run_doctor(DoctorCommand(str(root), csv=target))
    assert target.read_text() == "precious"
    run_doctor(DoctorCommand(str(root), csv=target, overwrite=True))
    assert target.read_text() == "kind,severity,split,label,path,detail,group\n"
    with pytest.raises(ConfigError, match="does not exist"):
        run_doctor(DoctorCommand(str(root), csv=tmp_path / "no" / "f.csv"))
    with pytest.raises(ConfigError, match="is a folder"):
        run_doctor(DoctorCommand(str(root), csv=tmp_path, overwrite=True))


def test_json_is_all_that_stdout_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = healthy(tmp_path)
    write(root / "bee/cut.jpg", encoded(photo("cut"))[:999])
    assert run_doctor(DoctorCommand(str(root), json=True)) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == 23
    assert told["counts"] == {"all": {"ant": 11, "bee": 12}}
    assert told["exit_code"] == 2
    (finding,) = told["findings"]
    assert finding["kind"] == "unreadable"
    assert finding["severity"] == "error"
    assert finding["places"] == [{"split": "all", "label": "bee", "path": "bee/cut.jpg"}]


def test_names_that_are_no_text_are_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = healthy(tmp_path / "photos")
    try:
        write(root / os.fsdecode(b"ant/caf\xe9\n[red].jpg"), b"")
    except OSError:
        pytest.skip("this file system takes only names in UTF-8")
    assert run_doctor(DoctorCommand(str(root), csv=tmp_path / "f.csv")) == 2
    assert "caf\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[red].jpg" in (
        capsys.readouterr().out
    )
    assert b"caf\xe9" in (tmp_path / "f.csv").read_bytes()


def test_many_classes_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    healthy(tmp_path, classes=tuple(f"c{i:02}" for i in range(19)), images=2)
    run_doctor(DoctorCommand(str(tmp_path)))
    out = capsys.readouterr().out
    assert "4 more" in out
    assert "tiny-class" in out
    assert "and 16 more" in out


def test_the_command_is_imported_without_heavy_libraries() -> None:
    code = (
        "import sys, patchwords.cli.data.doctor; "
        "print([m for m in ('torch', 'PIL', 'numpy', 'sklearn') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# ---- real photos


@pytest.mark.skipif(not FLOWERS.is_dir(), reason=f"the photos of flowers are not at {FLOWERS}")
def test_real_photos() -> None:
    data = open_folder(str(FLOWERS))
    everything = data.splits["all"]
    edited = ("dandelion/17161833794_e1d92259d2_m.jpg", "dandelion/18304194360_2a4a0be631_m.jpg")
    same = ("roses/15922772266_1167a06620.jpg", "tulips/15922772266_1167a06620.jpg")
    chosen = [i for i, key in enumerate(everything.keys) if key in edited + same or i % 8 == 0]
    findings = diagnose_dataset(replace(data, splits={"all": everything.select(chosen)}), workers=0)
    kinds = found(findings)
    assert kinds["contradiction"] == set(same)  # the same photo, as a rose and as a tulip
    assert set(edited) <= kinds["near-duplicate"]  # in colour, and in black and white
    assert findings.of_kind("unreadable") == ()


def _put_scenes(root: Path, *keys: str) -> Path:
    for number, key in enumerate(keys):
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        scene = np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(scene).save(root / key)
    return root


UNTRAINABLE = {
    "flat": (["1.png", "2.png", "3.png", "4.png"], "no-labels"),
    "one class": (["a/1.png", "a/2.png"], "one-class"),
}


@pytest.mark.parametrize(("keys", "kind"), UNTRAINABLE.values(), ids=UNTRAINABLE)
def test_ready_is_said_only_where_finetune_starts(
    keys: list[str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(_put_scenes(tmp_path, *keys))]) == 2
    out = capsys.readouterr().out
    assert kind in out
    assert "ready to train" not in out


def test_a_table_of_test_images_only_is_not_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _put_scenes(tmp_path, *(f"{n}.png" for n in range(40)))
    rows = "".join(f"{n}.png,{'ab'[n % 2]},test\n" for n in range(40))
    (tmp_path / "x.csv").write_text("path,label,split\n" + rows)
    assert main(["doctor", str(tmp_path / "x.csv")]) == 2
    assert "has images for test, but none for train" in capsys.readouterr().out


def test_classes_further_down_are_pointed_at(tmp_path: Path) -> None:
    keys = [f"Dataset/{c}/{n}.png" for c in range(3) for n in range(4)]
    wrap = str(_put_scenes(tmp_path / "wrap", *keys, "Examples/1.png", "Examples/2.png"))
    finding = diagnose_dataset(open_data(wrap, need_labels=False)).of_kind("wrapped")
    assert [found.detail for found in finding] == [f"did you mean {wrap}/Dataset?"]
    assert f"did you mean {wrap}/Dataset?" in open_data(wrap).notes[-1]
    only = str(_put_scenes(tmp_path / "only", *keys))
    with pytest.raises(DataError, match=rf"one class only, 'Dataset'.*mean {only}/Dataset\?"):
        open_data(only)
    deep = [f"{c}/{part}/{n}.png" for c in "ab" for part in ("in", "out") for n in range(4)]
    nested = open_data(str(_put_scenes(tmp_path / "deep", *deep)))
    assert not nested.notes  # folders inside of all classes are usual


def test_classes_that_look_the_same_are_found(tmp_path: Path) -> None:
    names = ["Cat", "cat", "caf\u00e9", "cafe\u0301", "a", "a ", "dog"]
    keys = [f"{name}/{n}.png" for name in names for n in range(4)]
    root = str(_put_scenes(tmp_path, *keys, "stray.png"))
    report = diagnose_dataset(open_data(root, need_labels=False))
    assert {finding.detail for finding in report.of_kind("twin-class")} == {
        "'Cat' and 'cat'",
        "'cafe\\u0301' and 'caf\\xe9'",
        "'a' and 'a '",
    }
    assert [finding.keys for finding in report.of_kind("stray")] == [("stray.png",)]
    assert sum("are they one class?" in note for note in open_data(root).notes) == 3
