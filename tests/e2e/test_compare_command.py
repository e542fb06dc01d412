"""`patchwords compare` and `evaluate --real`: models on one set of photos, as a user has it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from stage import TINY, call, done, make_photos, snapshot

from patchwords.data.splits import read_splits


@pytest.fixture(scope="module")
def other(one_thread: None, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run over the same photos: of another size, hardly trained, divided otherwise."""
    folder = tmp_path_factory.mktemp("runs") / "other"
    words = [*TINY, "--seed", 1]
    words[words.index("16")] = "12"
    done("finetune", photos, *words, "--output", folder)
    return folder


def test_two_runs_are_asked_about_what_neither_was_trained_on(
    run: Path, other: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "compared"
    words = ("compare", run, other, photos, "--device", "cpu", "--workers", 0)
    out = done(*words, "--output", folder)
    results = json.loads((folder / "results.json").read_text())
    trained = {
        place
        for one in (run, other)
        for place, split in read_splits(one / "splits.csv").items()
        if split == "train"
    }
    assert results["left_out_as_trained_on"] == len(trained)
    assert results["trained_on"] == {"a": False, "b": False}
    assert 0 < results["images"] <= 40 - len(trained)
    pairs = results["pairs"]
    assert sum(pairs.values()) == results["images"]
    assert f"both right on {pairs['both']}, only A on {pairs['only_a']}" in out
    assert f"{len(trained)} images were left out: a run trained on them" in out
    assert "McNemar's exact p" in out or "neither is ahead" in out
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [row["class"] for row in results["per_class"]]
    assert sum(int(row["support"]) for row in rows) == results["images"]
    with (folder / "disagreements.csv").open() as file:
        apart = list(csv.DictReader(file))
    agreed = round(results["agreement"] * results["images"])
    assert len(apart) == results["images"] - agreed
    assert {path.name for path in folder.iterdir()} == {
        *("results.json", "results.csv", "disagreements.csv", "recall.png", "recall.svg"),
    }
    monkeypatch.setattr(
        "patchwords.evaluation.compare.predict_with_models", None
    )  # refused before the models are asked
    assert f"--output {folder} exists; add --overwrite" in call(*words, "--output", folder).error


def test_what_both_have_left_says_the_same_without_a_model(
    run: Path, other: Path, photos: Path, tmp_path: Path
) -> None:
    asked = json.loads(done("compare", run, other, photos, "--split", "all", "--json"))
    folders = []
    for one in (run, other):
        folders.append(tmp_path / one.name)
        done("evaluate", one, photos, "--split", "all", "--output", folders[-1])
    found = json.loads(done("compare", *folders, "--json"))
    assert found["trained_on"] == {"a": True, "b": True}
    assert (found["images"], found["left_out"]) == (40, [0, 0])
    for key in ("pairs", "mcnemar", "difference", "agreement", "per_class"):
        assert found[key] == asked[key], key
    path = folders[1] / "evaluation.json"
    path.write_text(path.read_text().replace('"trained_on": true', '"trained_on": null'))
    out = done("compare", *folders)
    assert f"warning: {folders[0]} was trained on some of these images" in out
    assert f"warning: the training images of {folders[1]} are not recorded" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["RUN", "RUN", "PHOTOS"], "is given twice: give two different models"),
        (["RUN", "OTHER", "--split", "all"], "--split all needs DATA"),
        (["RUN", "nowhere"], "nowhere has no predictions.csv, so its answers are not known"),
        (["RUN", "FEWER", "PHOTOS"], "the models answer with other classes: only "),
        (["RUN", "OTHER", "digits"], "digits: class '0' is not one of the model's"),
        (["RUN", "OTHER", "RENAMED"], "class 'circle' is not one of the model's"),
        (["RUN"], "missing B"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(
    words: list[str], line: str, run: Path, other: Path, photos: Path, tmp_path: Path
) -> None:
    fewer = Path(shutil.copytree(run, tmp_path / "fewer"))
    card = fewer / "model" / "config.json"
    card.write_text(card.read_text().replace('"disc"', '"disk"'))
    renamed = make_photos(tmp_path / "renamed", {"disc": 2, "square": 2}, first=50)
    (renamed / "disc").rename(renamed / "circle")
    named = {"RUN": run, "OTHER": other, "PHOTOS": photos, "FEWER": fewer, "RENAMED": renamed}
    before = snapshot(tmp_path)
    given = [named.get(word, word) for word in words]
    assert line in call("compare", *given, "--output", tmp_path / "x").error
    assert snapshot(tmp_path) == before


def test_no_image_is_left_for_both(run: Path, other: Path, photos: Path, tmp_path: Path) -> None:
    """Only what one of the two was trained on: there is nothing to judge by."""
    trained = [
        key for (key, _), split in read_splits(run / "splits.csv").items() if split == "train"
    ]
    rows = [f"{key},{key.split('/')[0]}\n" for key in trained]
    table = photos.parent / f"{tmp_path.name}.csv"
    table.write_text("path,label\n" + "".join(f"{photos.name}/{row}" for row in rows))
    # under other names, the runs know them by their content
    line = call("compare", run, other, table).error
    assert f"there are {len(rows)} train ({len(rows)} under other names or saved again)" in line
    for key in trained:  # the run's own keys
        (tmp_path / "only" / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / key, tmp_path / "only" / key)
    line = call("compare", run, other, tmp_path / "only").error
    assert "no images of split 'held-out'; there are" in line


def test_renamed_training_images_are_left_out(run: Path, photos: Path, tmp_path: Path) -> None:
    splits = read_splits(run / "splits.csv")
    for key, _ in splits:
        copy = (tmp_path / key).with_stem(f"x-{Path(key).stem}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / key, copy)
    trained = list(splits.values()).count("train")
    out = done("evaluate", run, tmp_path)
    line = f"{trained} images were left out: the run trained on them ({trained} under other names"
    assert line in out
    assert f"on {list(splits.values()).count('test')} images of test" in out
    insisted = done("evaluate", run, tmp_path, "--split", "all")
    assert "warning: the model was trained on some of these images" in insisted


def test_several_right_classes_in_evaluate_and_its_report(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    own = {
        f"{path.parent.name}/{path.name}": ["disc", "square", "stripe"]
        for path in photos.glob("disc/*.png")
    }
    lists = tmp_path / "lists.json"
    lists.write_text(json.dumps(own))
    words = ("evaluate", run, photos, "--split", "all", "--real", lists)
    out = done(*words, "--output", tmp_path / "x")
    assert f"accuracy by the classes of {lists} 100.00%" in out
    assert "on 14 images; 26 have none there" in " ".join(out.split())
    assert "macro F1" in out
    found = json.loads((tmp_path / "x" / "evaluation.json").read_text())
    assert (found["real"]["images"], found["real"]["accuracy"]) == (14, 1.0)
    page = (tmp_path / "x" / "report.html").read_text()
    assert "Accuracy with several labels" in page
    assert "95 % interval of F1" in page
    lists.write_text("[]")
    error = call(*words, "--output", tmp_path / "y").error
    assert error.startswith(f"--real {lists}: its classes are ImageNet's by number")
    assert not (tmp_path / "y").exists()


def test_a_report_of_an_evaluation_without_intervals(own_run: Path) -> None:
    """As older versions wrote it."""
    path = own_run / "evaluation.json"
    results = json.loads(path.read_text())
    for row in (*results["per_class"], results["macro"], results):
        for name in [name for name in row if name.endswith(("_low", "_high"))]:
            del row[name]
    path.write_text(json.dumps(results))
    done("report", own_run)
    page = (own_run / "report.html").read_text()
    assert "95 % interval of recall" in page
    assert "95 % interval of F1" not in page
    assert "is incomplete" not in page
