"""`patchwords sweep`: every rate on a dev split, the best on everything, test images read once."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stage import call, done, make_photos, rows, snapshot, weights

import patchwords as pw
from patchwords.cli.train import sweep as command
from patchwords.data.dataset import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.data.sources.folder import FileReader
from patchwords.evaluation.sweeps import series
from patchwords.evaluation.sweeps.sweep import SweepResult, sweep_learning_rates
from patchwords.models.zoo import create_model
from patchwords.report import run_insight
from patchwords.tasks.classification import Classification
from patchwords.training.logs.display import Display
from patchwords.weights.store import save_pretrained

WORDS = (
    *("--steps", 5, "--batch-size", 8, "--workers", 0, "--device", "cpu", "--precision", "fp32"),
    *("--eval-every", 2, "--save-every", 1, "--log-every", 1, "--mixup", 0.2, "--grad-accum", 1),
)
# the last one leaves the range of float32 after a step or two
LRS = ("--lrs", 0.05, 1e30, 0.002)
CELLS = ("lr-0.002", "lr-0.05")


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights to start from, of other classes."""
    folder = tmp_path_factory.mktemp("start")
    model = create_model("ViT-mu/4", num_classes=2, image_size=16, seed=7)
    preprocess = Preprocess(image_size=(16, 16), crop_fraction=1.0)
    save_pretrained(model, folder, labels="ab", preprocess=preprocess, architecture="ViT-mu/4")
    return folder


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos with splits of their own: 24 for training, 9 for validation, 15 for test."""
    root = tmp_path_factory.mktemp("divided")
    for split, count, first in (("train", 8, 0), ("val", 3, 100), ("test", 5, 200)):
        make_photos(root / split, dict.fromkeys(("disc", "square", "stripe"), count), first)
    return root


def brief_report(run: Path, examples: ImageDataset) -> None:
    """The whole one has tests of its own, and takes seconds."""
    (run / "report.html").write_text(f"{len(examples)} test images")


def go(*words: object) -> SweepResult:
    """`patchwords sweep WORDS` without reports and figures."""
    config = command.parse_sweep([str(word) for word in words])
    return sweep_learning_rates(config, Display(Console(file=io.StringIO())))


@pytest.fixture(scope="module")
def finished(
    one_thread: None, photos: Path, start: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A sweep of the whole program, and what it printed. To be read only."""
    folder = tmp_path_factory.mktemp("sweeps") / "sweep"
    words = (photos, "--weights", start, *WORDS, *LRS, "--dev", 0.2, "--seeds", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_insight, "write_report", brief_report)
        return folder, done("sweep", *words, "--output", folder)


def splits(run: Path) -> dict[str, set[str]]:
    with (run / "splits.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    names = {row["split"] for row in table}
    return {name: {row["path"] for row in table if row["split"] == name} for name in names}


def test_every_rate_is_judged_by_the_dev_split(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    cells = json.loads((folder / "sweep.json").read_text())["cells"]
    assert [cell["lr"] for cell in cells] == [0.002, 0.05, 1e30]
    for cell in cells[:2]:
        run = folder / cell["folder"]
        last = rows(run, "evaluation")[-1]
        assert last["step"] == 5
        assert (cell["accuracy"], cell["loss"]) == (last["accuracy"], last["loss"])
        assert cell["images"] == last["images"] == len(splits(run)["validation"])
        assert max(row["lr"] for row in rows(run, "train")) == cell["lr"]
        assert not (run / "evaluation.json").exists()  # nothing was judged by test images
        assert not (run / "predictions.csv").exists()
    assert cells[2]["accuracy"] is None
    assert "not a number any more" in cells[2]["why"] or "not finite" in cells[2]["why"]


def test_the_final_runs_train_on_all_the_rest_and_share_the_test_images(
    finished: tuple[Path, str],
) -> None:
    folder, _ = finished
    cell = splits(folder / "lr-0.05")
    assert len(cell["train"] | cell["validation"] | cell["test"]) == 40
    assert len(cell["validation"]) == round(0.2 * (40 - len(cell["test"])))
    for seed in (0, 1):
        run = folder / "final" / f"seed-{seed}"
        assert splits(run) == {"train": cell["train"] | cell["validation"], "test": cell["test"]}
        assert not rows(run, "evaluation")
        assert rows(run, "train")[-1]["step"] == 5
        assert json.loads((run / "evaluation.json").read_text())["split"] == "test"
        assert (run / "report.html").read_text() == f"{len(cell['test'])} test images"
        learned = json.loads((run / "insight.json").read_text())
        assert {"filters", "positions", "distance", "truth"} <= learned.keys()
    ends = [weights(folder / "final" / f"seed-{seed}") for seed in (0, 1)]
    assert ends[0] != ends[1]


def test_the_results_say_what_was_chosen_and_how_it_did(finished: tuple[Path, str]) -> None:
    folder, out = finished
    found = json.loads((folder / "results.json").read_text())
    cells = {cell["lr"]: cell["accuracy"] for cell in found["cells"]}
    alive = {lr: accuracy for lr, accuracy in cells.items() if accuracy is not None}
    assert found["lr"] == min(alive, key=lambda lr: (-alive[lr], lr))
    accuracies = [final["accuracy"]["value"] for final in found["final"]]
    assert found["test"]["n"] == 2
    assert found["test"]["mean"] == pytest.approx(sum(accuracies) / 2)
    # of two values the standard deviation is their distance over the root of two
    assert found["test"]["std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    with (folder / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(row["run"], row["split"], row["chosen"]) for row in table] == [
        *((f"lr-{lr:g}", "dev", str(lr == found["lr"])) for lr in cells),
        ("final/seed-0", "test", ""),
        ("final/seed-1", "test", ""),
    ]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "1e+30" in (folder / "sweep.svg").read_text()
    assert "diverged" in out
    assert f"learning rate {found['lr']:g} is chosen" in out
    assert "over 2 seeds" in out
    assert pw.from_pretrained(folder / "final" / "seed-0").labels == ("disc", "square", "stripe")


def test_going_on_with_what_is_done_changes_nothing(
    finished: tuple[Path, str], photos: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished[0], tmp_path / "sweep"))
    before = snapshot(folder)
    printed = done("sweep", photos, "--output", folder, "--resume", "--json")
    after = snapshot(folder)
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"environment.json", "results.json"}  # when it was started, and where it lies
    assert after.keys() == before.keys()
    assert json.loads(printed) == json.loads((folder / "results.json").read_text())
    words = ("sweep", photos, "--output", folder, "--resume")
    error = call(*words, "--lrs", 0.1, 0.2).error
    assert "was started with --lrs 0.002 0.05 1e+30, not" in error
    assert error.endswith("leave it out, or start again with another --output")
    assert "--dev 0.2, not with 0.3" in call(*words, "--dev", 0.3).error


def test_a_sweep_that_was_cut_off_ends_as_one_that_was_not(
    finished: tuple[Path, str],
    photos: Path,
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped in the second rate, and before the final judgement, then left alone."""
    folder, calls = tmp_path / "a sweep", Counter[str]()
    words = (photos, "--weights", start, *WORDS, *LRS, "--dev", 0.2, "--seeds", 2)
    measure, run, judge = (
        Classification.evaluate,
        series.train_model,
        series.evaluate_finished_run,
    )

    def killed(*args: Any) -> dict[str, Any]:
        calls["measured"] += 1
        if calls["measured"] == 5:  # each rate is measured three times: in step 4 of the second
            raise KeyboardInterrupt
        return measure(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "evaluate", killed)
        result = call("sweep", *words, "--output", folder)
    going_on = f"patchwords sweep {photos} --output '{folder}' --resume\n"
    assert result.code == 130
    assert result.err.endswith(f"back to the last checkpoint; go on with: {going_on}")
    assert "patchwords finetune" not in result.err
    assert [cell["lr"] for cell in json.loads((folder / "sweep.json").read_text())["cells"]] == [
        0.002
    ]
    assert len(rows(folder / "lr-0.05", "train")) == 4

    def trained(config: Any, *args: Any) -> Any:
        calls[Path(config.output).name] += 1
        return run(config, *args)

    def stopped(job: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(series, "train_model", trained)
    with monkeypatch.context() as patch:
        patch.setattr(series, "evaluate_finished_run", stopped)
        result = call("sweep", *words, "--output", folder, "--resume")
    assert result.code == 130
    assert result.err.endswith(f"stopped between two runs; go on with: {going_on}")
    assert calls == {"measured": 5, "lr-0.05": 1, "lr-1e+30": 1, "seed-0": 1}

    def judged(job: Any) -> Any:
        calls["judged"] += 1
        return judge(job)

    monkeypatch.setattr(series, "evaluate_finished_run", judged)
    outcome = go(photos, "--output", folder, "--resume")
    assert calls["judged"] == 2
    assert calls["lr-0.05"] == calls["lr-1e+30"] == 1
    wanted = finished[0]
    for name in (*CELLS, "final/seed-0", "final/seed-1"):
        assert weights(folder / name) == weights(wanted / name), name
        # and the record is the one of a single run: no row twice, none missing
        ours, theirs = (
            [(r["kind"], r["step"], r["loss"]) for r in rows(f / name)] for f in (folder, wanted)
        )
        assert ours == theirs
    assert outcome.chosen.lr == json.loads((wanted / "results.json").read_text())["lr"]


def test_no_test_image_is_read_before_the_end_and_each_but_once(
    divided: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DATA's own validation split chooses, and is then trained on."""
    read: list[str] = []
    original = FileReader.__call__

    def reading(self: FileReader, row: int) -> bytes:
        read.append(self.paths[row])
        return original(self, row)

    monkeypatch.setattr(FileReader, "__call__", reading)
    # What looks for copies reads every image before it is divided; no model sees that.
    monkeypatch.setattr("patchwords.training.data_setup.add_fingerprints", lambda data: data)
    lrs = ("--lrs", 0.05, 0.002)
    outcome = go(divided, "--weights", start, *WORDS, *lrs, "--output", tmp_path / "sweep")
    of_test = [path for path in read if path.startswith("test/")]
    assert Counter(of_test) == dict.fromkeys(sorted(set(of_test)), 1)
    assert len(of_test) == 15
    assert read[-15:] == of_test
    for cell in outcome.cells:
        run = splits(tmp_path / "sweep" / cell.folder)
        assert cell.images == 9
        assert {path.split("/")[0] for path in run["validation"]} == {"val"}
        assert {path.split("/")[0] for path in run["train"]} == {"train"}
    final = splits(tmp_path / "sweep" / "final")
    assert final.keys() == {"train", "test"}
    assert len(final["train"]) == 33
    assert len(final["test"]) == 15


def test_other_images_are_not_gone_on_with(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, folder = make_photos(tmp_path / "photos"), tmp_path / "sweep"

    def killed(*args: Any) -> dict[str, Any]:
        raise Killed

    monkeypatch.setattr(series, "train_model", killed)
    with pytest.raises(Killed):
        go(photos, "--weights", start, *WORDS, *LRS, "--output", folder)
    make_photos(photos, {"disc": 1}, first=77)
    error = call("sweep", photos, "--output", folder, "--resume").error
    assert f"--resume: {photos} is not as it was when {folder} began" in error


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["PHOTOS"], "the grid of Table 4 is for fine-tuning: start from --weights"),
        (["PHOTOS", "--weights", "W", "--lr", 0.1], "--lr 0.1: a sweep chooses"),
        (["PHOTOS", "--weights", "W", "--test", 0], "a sweep needs test images"),
        (["PHOTOS", "--weights", "W", "--lrs", 0.1], "compares two rates or more"),
        (["PHOTOS", "--weights", "W", "--lrs", "x"], "--lrs 'x': expected one or more numbers"),
        ([], "no data given: patchwords sweep DATA"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(
    words: list[object], line: str, photos: Path, start: Path, tmp_path: Path
) -> None:
    named = {"PHOTOS": photos, "W": start}
    given = [named.get(word, word) if isinstance(word, str) else word for word in words]
    output = ["--output", tmp_path / "run"] if words else []
    assert line in call("sweep", *given, *output).error
    assert not list(tmp_path.iterdir())


def test_all_diverged_is_one_line(photos: Path, start: Path, tmp_path: Path) -> None:
    words = (photos, "--weights", start, *WORDS, "--lrs", 1e30, 1e29, "--output", tmp_path / "s")
    result = call("sweep", *words)
    assert result.code == 2
    [line] = result.err.splitlines()
    assert "training diverged at every learning rate (1e+29 1e+30)" in line
