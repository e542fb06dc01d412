"""`patchwords vtab` on small stand-ins in the benchmark's layout."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from stage import call, done, draw, make_photos, rows, snapshot, weights

from patchwords.data.dataset import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.evaluation.sweeps import series
from patchwords.evaluation.sweeps.vtab_tasks import VTAB_TASK_NAMES
from patchwords.models.zoo import create_model
from patchwords.report import run_insight
from patchwords.weights.store import save_pretrained

WORDS = (
    *("--steps", 5, "--batch-size", 8, "--image-size", 16, "--workers", 0, "--device", "cpu"),
    *("--precision", "fp32", "--save-every", 1, "--log-every", 1, "--grad-accum", 1),
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights to start from, of other classes."""
    folder = tmp_path_factory.mktemp("start")
    model = create_model("ViT-mu/4", num_classes=2, image_size=16, seed=7)
    preprocess = Preprocess(image_size=(16, 16), crop_fraction=1.0)
    save_pretrained(model, folder, labels="ab", preprocess=preprocess, architecture="ViT-mu/4")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks in three forms: folders; 1,000 images in one; a list, with bins for classes."""
    place = tmp_path_factory.mktemp("vtab")
    for split, counts, first in (
        ("train", {"disc": 8, "square": 5}, 0),
        ("val", {"disc": 2, "square": 1}, 100),
        ("test", {"disc": 3, "square": 3, "stripe": 1}, 200),  # a class that was never seen
    ):
        make_photos(place / "sun397" / split, counts, first)
    for split, first in (("train", 300), ("test", 400)):
        make_photos(place / "eurosat" / split, {"disc": 4, "stripe": 3}, first)
    bins = place / "clevr-count"
    bins.mkdir()
    with (bins / "labels.csv").open("w") as file:
        file.write("path,label,split\n")
        for number in range(17):
            name = ("disc", "square")[number % 2]
            draw(name, number).save(bins / f"{number}.png")
            split = "train" if number < 9 else "val" if number < 12 else "test"
            file.write(f"{number}.png,{3 + number % 2},{split}\n")
    return place


def brief_report(run: Path, examples: ImageDataset) -> None:
    """The whole one has tests of its own, and takes seconds."""
    (run / "report.html").write_text(f"{len(examples)} test images")


@pytest.fixture(scope="module")
def finished(
    one_thread: None, root: Path, start: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """To be read only."""
    folder = tmp_path_factory.mktemp("runs") / "vtab"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_insight, "write_report", brief_report)
        return folder, done("vtab", root, "--weights", start, *WORDS, "--output", folder)


def test_each_task_is_trained_on_all_its_images_and_judged_by_its_own(
    finished: tuple[Path, str],
) -> None:
    folder, _ = finished
    found = json.loads((folder / "results.json").read_text())
    tasks = {task["task"]: task for task in found["tasks"]}
    assert list(tasks) == ["sun397", "eurosat", "clevr-count"]  # as Table 9 has them
    assert [task["train"] for task in tasks.values()] == [16, 7 * 1, 12]
    assert [task["images"] for task in tasks.values()] == [7, 7, 5]
    for name, task in tasks.items():
        data = json.loads((folder / name / "data.json").read_text())
        assert {split: part["images"] for split, part in data["splits"].items()} == {
            "train": task["train"],
            "test": task["images"],
        }
        evaluation = json.loads((folder / name / "evaluation.json").read_text())
        assert task["accuracy"] == evaluation["accuracy"]["value"]
        assert not rows(folder / name, "evaluation")
        learned = json.loads((folder / name / "insight.json").read_text())
        assert {"filters", "positions", "distance", "truth"} <= learned.keys()
    assert tasks["sun397"]["classes"] == 3
    unseen = json.loads((folder / "sun397" / "evaluation.json").read_text())["per_class"]
    [stripe] = [row for row in unseen if row["class"] == "stripe"]
    assert (stripe["support"], stripe["recall"]) == (1, 0.0)  # it counts, as an error


def test_means_and_the_papers_beside(finished: tuple[Path, str]) -> None:
    folder, out = finished
    found = json.loads((folder / "results.json").read_text())
    accuracy = {task["task"]: task["accuracy"] for task in found["tasks"]}
    assert found["mean"]["accuracy"] == pytest.approx(sum(accuracy.values()) / 3)
    assert found["mean"]["tasks"] == 3
    assert found["groups"]["specialized"]["accuracy"] == accuracy["eurosat"]
    assert found["groups"]["structured"]["paper"]["H/14 JFT"] == pytest.approx(0.917)
    assert found["mean"]["paper"]["L/16 I21k"] == pytest.approx((0.61 + 0.956 + 0.703) / 3)
    assert found["missing"] == [n for n in VTAB_TASK_NAMES if n not in accuracy]
    assert found["departures"] == [
        "steps 5 (paper: 2,500)",
        "batch_size 8 (paper: 512)",
        "warmup_steps 0 (paper: 200)",
        "image_size 16 16 (paper: 384 384)",
    ]
    assert "over 3 of the 19 tasks" in out
    assert "Not the paper's protocol: steps 5 (paper: 2,500);" in out
    assert "eurosat is not VTAB-1k's: 7 training images (VTAB-1k: 1,000)" in out
    assert "No data: caltech101, cifar100, dtd" in out
    with (folder / "results.csv").open(newline="") as file:
        table = {row["task"]: row for row in csv.DictReader(file)}
    assert float(table["eurosat"]["accuracy"]) == accuracy["eurosat"]
    assert float(table["eurosat"]["H/14 JFT"]) == pytest.approx(0.967)
    assert (folder / "vtab.png").read_bytes().startswith(b"\x89PNG")
    assert "clevr-count" in (folder / "vtab.svg").read_text()


def test_a_run_that_was_cut_off_ends_as_one_that_was_not(
    finished: tuple[Path, str],
    root: Path,
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, judge, ran = tmp_path / "vtab", series.evaluate_finished_run, []

    def stopped(job: Any) -> Any:
        ran.append(job.folder.path.name)
        if ran[-1] == "eurosat":
            raise KeyboardInterrupt
        return judge(job)

    monkeypatch.setattr(run_insight, "write_report", brief_report)
    with monkeypatch.context() as patch:
        patch.setattr(series, "evaluate_finished_run", stopped)
        result = call("vtab", root, "--weights", start, *WORDS, "--output", folder)
    assert result.code == 130
    assert result.err.endswith(f"go on with: patchwords vtab {root} --output {folder} --resume\n")
    assert ran == ["sun397", "eurosat"]
    done("vtab", root, "--output", folder, "--resume")
    for name in ("sun397", "eurosat", "clevr-count"):
        assert weights(folder / name) == weights(finished[0] / name)
    before = snapshot(folder)
    done("vtab", root, "--output", folder, "--resume", "--json")
    after = snapshot(folder)
    assert {name for name in after if after[name] != before.get(name)} <= {"environment.json"}

    def never(job: Any) -> Any:
        raise AssertionError("the test images were read twice")

    (folder / "eurosat" / "report.html").unlink()  # as if it was stopped before the report
    monkeypatch.setattr(series, "evaluate_finished_run", never)
    done("vtab", root, "--output", folder, "--resume")
    assert (folder / "eurosat" / "report.html").is_file()


def test_chosen_tasks_only(root: Path, start: Path, tmp_path: Path) -> None:
    words = ("--tasks", "clevr-count", "--output", tmp_path / "run")
    out = done("vtab", root, "--weights", start, *WORDS, *words, "--json")
    found = json.loads(out)
    assert [task["task"] for task in found["tasks"]] == ["clevr-count"]
    assert "eurosat" not in found["missing"]
    assert "Accuracy on the test images" in (tmp_path / "run/clevr-count/report.html").read_text()


def test_mistakes_are_one_line(root: Path, start: Path, tmp_path: Path) -> None:
    output = ("--weights", start, *WORDS, "--output", tmp_path / "run")

    def error(place: Path, *words: object) -> str:
        return call("vtab", place, *output, *words).error

    assert error(root, "--tasks", "dtd").startswith("--tasks dtd: no data; there is neither ")
    assert "VTAB-1k has no task 'euro'" in error(root, "--tasks", "euro")
    assert "the splits of VTAB-1k are fixed" in error(root, "--test", 0.3)
    assert "say from which --weights" in call("vtab", root, *output[2:]).error
    assert "ROOT is a folder" in error(tmp_path / "none")
    other = tmp_path / "other"
    other.mkdir()
    assert "no data of a task of VTAB-1k; the folders are to be called" in error(other)
    shutil.copytree(root / "eurosat", other / "eurosat")
    shutil.move(other / "eurosat" / "test", other / "eurosat" / "val")
    lacks = f"task eurosat: {other}/eurosat has no split test; it has 7 train, 7 validation"
    assert error(other) == lacks
    make_photos(other / "dtd")
    assert "task dtd: " in error(other)
    assert "its 40 images are not divided" in error(other)
    assert not (tmp_path / "run").exists()
