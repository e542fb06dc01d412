"""What a finished run is for: predict, evaluate, report; and the verbs that need no run."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from stage import COUNTS, call, done, make_photos, snapshot

import patchwords as pw


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Photos that no run has seen: two of each class."""
    return make_photos(tmp_path / "new", dict.fromkeys(COUNTS, 2), first=50)


# predict


def test_predict_says_what_python_says(run: Path, new: Path) -> None:
    paths = sorted(new.rglob("*.png"))
    lines = done("predict", run, *paths, "--json", "--top-k", 3).splitlines()
    answers = [json.loads(line) for line in lines]
    assert [answer["path"] for answer in answers] == [str(path) for path in paths]
    source = pw.from_pretrained(run)
    for path, answer in zip(paths, answers, strict=True):
        wanted = source.predict(path, top_k=3)
        assert [best["label"] for best in answer["predictions"]] == [b["label"] for b in wanted]
        scores = [best["score"] for best in answer["predictions"]]
        # One at a time or many at once: sums in float32 in another order.
        assert scores == pytest.approx([best["score"] for best in wanted], abs=1e-5)
        assert sum(scores) == pytest.approx(1.0, abs=1e-5)
    right = sum(
        a["predictions"][0]["label"] == p.parent.name for a, p in zip(answers, paths, strict=True)
    )
    assert right >= 5  # of 6: the run has learned colours


def test_predict_for_a_person(run: Path, new: Path) -> None:
    out = done("predict", run, new / "disc", "--top-k", 2)
    lines = out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{new / 'disc' / '50.png'}: disc ")
    assert lines[0].count("%") == 2


def test_predict_takes_folders_patterns_and_files(run: Path, new: Path) -> None:
    asked = (new / "disc", new / "s*" / "50.png", new / "stripe" / "51.png")
    paths = [json.loads(x)["path"] for x in done("predict", run, *asked, "--json").splitlines()]
    assert [str(Path(path).relative_to(new)) for path in paths] == [
        *("disc/50.png", "disc/51.png", "square/50.png", "stripe/50.png", "stripe/51.png")
    ]


def test_predict_into_a_csv(run: Path, new: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.csv"
    done("predict", run, new, "--csv", out, "--top-k", 2)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert list(rows[0]) == ["path", "rank", "label", "score"]
    assert [row["rank"] for row in rows] == ["1", "2"] * 6
    before = out.read_bytes()
    assert "exists; add --overwrite" in call("predict", run, new / "disc", "--csv", out).error
    assert out.read_bytes() == before
    done("predict", run, new / "disc", "--csv", out, "--overwrite")
    assert len(out.read_text().splitlines()) == 1 + 2 * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv", "new"]


def test_predict_names_the_unreadable_and_answers_for_the_rest(run: Path, new: Path) -> None:
    (new / "disc" / "51.png").write_bytes(b"no image at all")
    result = call("predict", run, new, "--json", "--batch-size", 2)
    assert "51.png" in result.error
    assert len(result.out.splitlines()) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.png",), "nowhere.png: no such file or folder"),
        (("none/*.jpg",), "none/*.jpg: no file matches"),
        ((".", "--top-k", 0), "--top-k 0 must be at least 1"),
        ((".",), "no images in this folder"),
        (("x.png", "--batch-size", 0), "--batch-size 0 must be at least 1"),
        (("x.png", "--csv", "no/where.csv"), "where.csv"),
    ],
)
def test_predict_refuses(words: tuple[object, ...], said: str, run: Path) -> None:
    Path("notes.txt").write_text("no image")
    assert said in call("predict", run, *words).error
    assert [path.name for path in Path().iterdir()] == ["notes.txt"]


def test_predict_needs_a_model(photos: Path, tmp_path: Path) -> None:
    assert "no weights at" in call("predict", tmp_path / "run", photos).error
    assert "is no model folder" in call("predict", photos, photos).error


# evaluate


def test_evaluate_repeats_the_run_and_leaves_training_images_out(run: Path, photos: Path) -> None:
    again = json.loads(done("evaluate", run, photos, "--json"))
    first = json.loads((run / "evaluation.json").read_text())
    for name in ("split", "images", "accuracy", "per_class", "confusion"):
        assert again[name] == first[name], name
    assert again["loss"] == pytest.approx(first["loss"], rel=1e-6)
    out = done("evaluate", run, photos)
    assert f"accuracy {first['accuracy']['value']:.2%} on 8 images of test" in out
    assert "29 images were left out: the run trained on them" in out


@pytest.mark.parametrize(
    ("split", "images"), [("all", 40), ("train", 29), ("validation", 3), ("test", 8)]
)
def test_evaluate_on_a_split_of_choice(split: str, images: int, run: Path, photos: Path) -> None:
    out = done("evaluate", run, photos, "--split", split)
    assert f"on {images} images" in out
    assert ("warning: the model was trained on some of these images" in out) == (images > 8)


def test_evaluate_counts_only_new_images_of_the_same_folder(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    grown = Path(shutil.copytree(photos, tmp_path / "photos"))
    make_photos(grown, dict.fromkeys(COUNTS, 3), first=60)
    evaluation = json.loads(done("evaluate", run, grown, "--json"))
    assert evaluation["images"] == 8 + 9  # the test split, and what came later


def test_evaluate_on_fewer_classes_and_one_image(run: Path, tmp_path: Path) -> None:
    few = make_photos(tmp_path / "few", {"stripe": 1}, first=70)
    evaluation = json.loads(done("evaluate", run, few, "--json"))
    assert evaluation["images"] == 1
    assert [row["support"] for row in evaluation["per_class"]] == [0, 0, 1]


def test_evaluate_refuses_a_class_it_does_not_know(run: Path, tmp_path: Path) -> None:
    other = make_photos(tmp_path / "other", {"disc": 2, "square": 2})
    (other / "square").rename(other / "squares")
    assert (
        "class 'squares' is not one of the model's; did you mean 'square'?"
        in call("evaluate", run, other).error
    )


def test_evaluate_writes_a_report_of_its_own(run: Path, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "again"
    before = snapshot(run)
    out = done("evaluate", run, photos, "--output", output)
    assert f"report: {output / 'report.html'}" in out
    names = {path.name for path in output.iterdir()}
    assert {"report.html", "evaluation.json", "predictions.csv"} <= names
    kept = snapshot(output)
    assert "exists; add --overwrite" in call("evaluate", run, photos, "--output", output).error
    assert snapshot(output) == kept
    done("evaluate", run, photos, "--output", output, "--overwrite")
    assert snapshot(run) == before


def test_evaluate_stops_past_the_share_of_unreadable(run: Path, new: Path) -> None:
    (new / "disc" / "51.png").write_bytes(b"no image at all")
    strict = call("evaluate", run, new, "--max-bad", 0)
    assert "1 of 6 images cannot be read, more than" in strict.error
    out = done("evaluate", run, new, "--max-bad", 0.5)
    assert "on 5 images" in out
    assert "disc/51.png" in out


# report


def test_report_writes_the_same_page_again(own_run: Path) -> None:
    before = snapshot(own_run)
    (own_run / "report.html").unlink()
    shutil.rmtree(own_run / "figures")
    assert done("report", own_run) == f"{own_run / 'report.html'}\n"
    assert snapshot(own_run) == before


def test_report_finds_the_images_of_some_classes(photos: Path, tmp_path: Path) -> None:
    words = ("--classes", "disc", "stripe", "--model", "ViT-mu/4", "--image-size", 16)
    run = tmp_path / "run"
    done("finetune", photos, *words, "--steps", 2, "--workers", 0, "--output", run)
    before = (run / "report.html").read_bytes()
    result = call("report", run)
    assert (result.code, result.err) == (0, "")
    assert (run / "report.html").read_bytes() == before


# doctor and models


def test_doctor_finds_nothing_wrong_with_the_photos(photos: Path) -> None:
    out = done("doctor", photos)
    assert "40 images of 3 classes" in out
    assert "0 errors" in out


def test_doctor_ends_with_2_on_errors_and_lists_them(photos: Path, tmp_path: Path) -> None:
    sick = Path(shutil.copytree(photos, tmp_path / "photos"))
    (sick / "disc" / "00.png").write_bytes(b"no image at all")
    shutil.copy(sick / "stripe" / "01.png", sick / "square" / "copy.png")
    before = snapshot(sick)
    result = call("doctor", sick, "--csv", tmp_path / "found.csv", "--workers", 0)
    assert (result.code, result.err) == (2, "")
    found = list(csv.DictReader(io.StringIO((tmp_path / "found.csv").read_text())))
    assert {"disc/00.png", "stripe/01.png", "square/copy.png"} <= {row["path"] for row in found}
    assert snapshot(sick) == before
    told = json.loads(call("doctor", sick, "--json", "--workers", 0).out)
    assert told["exit_code"] == 2


def test_models_by_name_and_pattern() -> None:
    assert "ViT-B/16" in done("models")
    rows = json.loads(done("models", "ViT-B/16", "--json"))
    # The published count: google-research/vision_transformer, ViT-B/16 with 1,000 classes.
    assert [row["parameters"] for row in rows] == [86_567_656]
    small = json.loads(done("models", "ViT-B/16", "--json", "--image-size", 384, "--classes", 10))
    assert small[0]["tokens"] == 577
    assert (
        "did you mean" in call("models", "ViT-B/61x").error
        or "lists the names" in call("models", "ViT-B/61x").error
    )
