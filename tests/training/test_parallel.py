"""Several processes are one: the same losses, weights, skipped images, errors and checkpoints."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from scenes import BATCH, SCENES, WORDS, digest

from patchwords.training.logs.metrics_log import read_metrics
from patchwords.weights.store import from_pretrained

TWO = (
    *("even", "uneven", "small_gpu", "too_many_bad", "breaks_in_one", "batch_of_33"),
    *("told_to_stop", "undisturbed", "undisturbed_shares", "sharded", "sharded_uneven"),
    *(
        "masked",
        "masked_shares",
        "mae",
        "mae_shares",
        "every_kind",
        "replicated_first",
        "sharded_first",
        "sweep",
    ),
)
LATER = (
    *("replicated_then_replicated", "replicated_then_sharded"),
    *("sharded_then_replicated", "sharded_then_sharded"),
)
PATIENCE = 120.0  # seconds for processes to get somewhere; they need ten or so
Found = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two(folder: Path) -> Found:
    return ranks.play(folder / "two", 2, TWO)


@pytest.fixture(scope="module")
def one(folder: Path) -> Found:
    (folder / "one").mkdir()
    scenes = ("even", "uneven", "whole_way", "masked", "mae", "sweep")
    return {scene: [SCENES[scene](folder / "one" / scene)] for scene in scenes}


def losses(run: Path) -> dict[tuple[str, int], float]:
    rows = read_metrics(run / "metrics.jsonl")
    return {(row["kind"], row["step"]): row["loss"] for row in rows if "loss" in row}


@pytest.mark.parametrize(
    ("scene", "alone"),
    [
        ("even", "even"),
        ("uneven", "uneven"),  # also where a process has no image in a step, or nobody has
        ("small_gpu", "even"),
        ("sharded", "even"),
        ("sharded_uneven", "uneven"),
    ],
)
def test_two_processes_are_one(
    folder: Path, one: Found, two: Found, scene: str, alone: str
) -> None:
    (expected,), (first, second) = one[alone], two[scene]
    assert first == second
    assert list(first["skipped"].items()) == list(expected["skipped"].items())
    # float32 sums of 12 losses in another order, over 9 steps
    for name in ("weights", "average"):
        assert first[name] == pytest.approx(expected[name], abs=1e-5)
    wanted = read_metrics(folder / "one" / alone / "metrics.jsonl")
    rows = read_metrics(folder / "two" / scene / "metrics.jsonl")
    assert [(r["kind"], r["step"]) for r in rows] == [(r["kind"], r["step"]) for r in wanted]
    for name in ("loss", "accuracy", "grad_norm"):
        found, alone_found = ([r[name] for r in some if name in r] for some in (rows, wanted))
        assert found == pytest.approx(alone_found, rel=1e-5)


def test_uneven_is_uneven(one: Found) -> None:
    assert len(one["uneven"][0]["skipped"]) == BATCH + BATCH // 2 + 1


def test_out_of_memory_in_one_cuts_the_parts_of_all(two: Found) -> None:
    assert [found["micro_batch"] for found in two["even"]] == [3, 3]
    assert [found["micro_batch"] for found in two["small_gpu"]] == [2, 2]


def test_bad_images_are_counted_over_all(two: Found) -> None:
    first, second = (found["error"] for found in two["too_many_bad"])
    assert first == second
    assert first.startswith("DataError: 18 of 97 training images cannot be read, more than")


def test_an_error_of_one_is_that_of_all(two: Found) -> None:
    assert [found["error"] for found in two["breaks_in_one"]] == ["DataError: only here"] * 2


def test_a_batch_that_does_not_divide_is_said_once(folder: Path, two: Found) -> None:
    first, second = two["batch_of_33"]
    line = "--batch-size 33 is not a multiple of the 2 processes: take 32 or 34, or start 1 process"
    assert first == {"code": 2, "err": f"patchwords: {line}\n"}
    assert second == {"code": 2, "err": ""}
    assert not (folder / "two" / "batch_of_33").exists()


def test_a_signal_to_one_stops_all_after_a_checkpoint(folder: Path, two: Found) -> None:
    first, second = two["told_to_stop"]
    assert (first["code"], second) == (143, {"code": 143, "err": ""})
    assert first["err"].startswith(
        "patchwords: stopped after step 9 of 40; go on with: torchrun --nproc-per-node 2 -m "
        "patchwords finetune digits --output"
    )
    saved = sorted(path.name for path in (folder / "two/told_to_stop/checkpoints").iterdir())
    assert saved == ["step-00000007", "step-00000009"]


def test_shares_end_as_a_whole_model(folder: Path, two: Found) -> None:
    """The dropout of a process is the same however the weights are held."""
    runs = [folder / "two" / name for name in ("undisturbed", "undisturbed_shares")]
    whole, shares = (losses(run) for run in runs)
    assert whole.keys() == shares.keys()
    assert list(shares.values()) == pytest.approx(list(whole.values()), rel=1e-5)
    logits = [from_pretrained(run).model(torch.zeros(1, 3, 16, 16)) for run in runs]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=0)
    names = {path.name for path in runs[1].glob("checkpoints/step-00000040/*")}
    assert names == {"plain.pt", ".metadata", "sha256", "__0_0.distcp", "__1_0.distcp"}


@pytest.mark.parametrize("scene", ["masked", "masked_shares", "mae", "mae_shares"])
def test_hidden_patches_are_the_same_in_two(
    folder: Path, one: Found, two: Found, scene: str
) -> None:
    """Training and evaluation hide those of each image that one process would."""
    objective = scene.removesuffix("_shares")
    alone, together = losses(folder / "one" / objective), losses(folder / "two" / scene)
    assert len(alone) == 12 + 2
    assert together == pytest.approx(alone, rel=1e-5)
    # An image on the border of two classes may be taken for either: of 144, one or two.
    expected = one[objective][0]["fewshot"]
    assert len(expected) == 2
    assert two[scene][0]["fewshot"] == pytest.approx(expected, abs=0.02)


def test_two_processes_sweep_as_one(folder: Path, one: Found, two: Found) -> None:
    """The rate that diverges is lost in both, and the others are trained all the same."""
    (expected,), (first, second) = one["sweep"], two["sweep"]
    assert first == second
    assert [loss is None for loss in first["losses"]] == [False, False, True]
    assert first["accuracies"] == expected["accuracies"]
    assert first["losses"][:2] == pytest.approx(expected["losses"][:2], rel=1e-5)
    assert first["test"] == pytest.approx(expected["test"], rel=1e-5)
    for name in ("images", "lr"):
        assert first[name] == expected[name]
    assert (folder / "two" / "sweep" / "final" / "predictions.csv").is_file()


def test_every_kind_of_model_can_be_held_in_shares(two: Found) -> None:
    for kind, difference in two["every_kind"][0].items():
        assert difference < 1e-6, kind


@pytest.mark.parametrize("count", [1, 3])
def test_a_checkpoint_of_two_goes_on_in_another_number(
    folder: Path, one: Found, two: Found, count: int
) -> None:
    place = folder / f"later-{count}"
    for scene in LATER:
        shutil.copytree(folder / "two" / f"{scene.split('_')[0]}_first", place / scene)
    found = (
        {scene: [SCENES[scene](place / scene)] for scene in LATER}
        if count == 1
        else dict(ranks.play(place, count, LATER))
    )
    whole = losses(folder / "one" / "whole_way")
    for scene in LATER:
        assert found[scene][0]["best"] == one["whole_way"][0]["best"]
        assert losses(place / scene) == pytest.approx(whole, rel=1e-5)


def steps(run: Path) -> int:
    rows = read_metrics(run / "metrics.jsonl")
    return int(rows[-1]["step"]) if rows else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def torchrun(*words: object) -> subprocess.Popen[str]:
    command = ("torch.distributed.run", "--standalone", "--nproc-per-node", 2, *words)
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def worker(parent: int, rank: int) -> int:
    """The process that torchrun runs as this rank; Linux tells."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in map(int, children):
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if b"RANK=%d" % rank in variables:
            return child
    raise AssertionError(children)


def test_a_killed_run_comes_back_and_ends_as_an_undisturbed_one(
    folder: Path, two: Found, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ("-m", "patchwords", "finetune", *WORDS, "--output", run, "--overwrite")
    process = torchrun("--max-restarts", 1, *command)
    wait_for(lambda: steps(run) >= 17, process)
    os.kill(worker(process.pid, 1), signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out, err)
    assert "going on after step" in out
    assert "Traceback" not in err
    assert err.count("patchwords: process 0 of 2 has lost another one") == 1
    assert (run / "report.html").is_file()
    assert digest(run) == two["undisturbed"][0]["sha256"]
    rows = [(row["kind"], row["step"], row["loss"]) for row in read_metrics(run / "metrics.jsonl")]
    whole = read_metrics(folder / "two" / "undisturbed" / "metrics.jsonl")
    assert rows == [(row["kind"], row["step"], row["loss"]) for row in whole]
