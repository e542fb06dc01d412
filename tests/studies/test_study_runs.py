"""A study from end to end: killed and gone on with, shared by processes, refused, trimmed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_study import COUNTED, DIGITS, MINI, SLOW, TINY, go

from patchwords.errors import ConfigError, Diverged, Interrupted
from patchwords.studies import runner as running
from patchwords.studies import training
from patchwords.studies.budget import TrialTiming
from patchwords.studies.page import build_page_blocks, render_html_page, render_markdown_page
from patchwords.studies.study import StudyContext
from patchwords.training.config import read_config_yaml

PATIENCE = 90.0  # seconds; it needs ten or so


@pytest.fixture(scope="module")
def whole(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of a study that nobody disturbed."""
    return go(tmp_path_factory.mktemp("studies") / "whole")


def start(study: str, folder: Path, jobs: int, seeds: int = 1) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("tiny_study.py")
    return subprocess.Popen(
        [sys.executable, *map(str, (script, study, folder, jobs, seeds))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


def numbers(results: dict[str, Any]) -> list[dict[str, Any]]:
    """All but the time that it took."""
    return [
        {name: value for name, value in cell.items() if name != "seconds"}
        for cell in results["cells"]
    ]


def test_every_cell_is_trained_and_judged(whole: dict[str, Any]) -> None:
    none, one_d = whole["cells"]
    assert none["name"] == "none"
    assert one_d["images"] == 60 * 8
    assert one_d["parameters"] - none["parameters"] == 5 * 32  # 4 patches and the class token
    assert one_d["flops"] > 0
    assert none["validation at 0.5"] is not None
    assert none["validation"] == none["validation at 1"]
    assert none["test images"] > 300
    assert [one["paper"] for one in whole["labels"]] == [None, 0.64206]
    [claim] = whole["claims"]
    assert claim["values"] == [pytest.approx(one_d["accuracy"] - none["accuracy"])]
    assert claim["verdict"] == "cannot tell at this scale"  # one seed
    assert whole["compute"]["flops"] == none["flops"] + one_d["flops"]


def test_killed_with_its_processes_at_work_it_goes_on_to_the_same_end(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    """SIGKILL to the process that speaks: those at work stop, too, and leave checkpoints."""
    folder = tmp_path / "study"
    process = start("tiny", folder, jobs=2)
    metrics = [folder / "cells" / name / "run" / "metrics.jsonl" for name in ("none-0", "1-d-0")]
    wait_for(lambda: any(lines(file) > 5 for file in metrics), process)
    process.kill()
    process.communicate()
    assert not (folder / "cells" / "none-0" / "judged.json").exists()
    wait_for(lambda: all(is_free(file.parent.parent / ".lock") for file in metrics))
    assert numbers(go(folder)) == numbers(whole)
    log = (folder / "cells" / "none-0" / "log.txt").read_text()
    assert "going on after step " in log + (folder / "cells" / "1-d-0" / "log.txt").read_text()


def is_free(lock: Path) -> bool:
    if not lock.exists():
        return True
    with running.file_lock(lock, wait=False) as mine:
        return mine


def test_what_is_done_is_not_done_again(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(cell: Any, bench: StudyContext) -> dict[str, float]:
        calls.append(cell.title)
        return {"validation": 0.5}

    study = replace(SLOW, measure_trial=counted)
    go(tmp_path, study)
    go(tmp_path, study)
    assert calls == ["none, seed 0", "1-D, seed 0"]
    more = go(tmp_path, study, seeds=2)
    assert calls[2:] == ["none, seed 1", "1-D, seed 1"]
    assert more["seeds"] == 2
    assert [cell["seed"] for cell in more["cells"]] == [0, 0, 1, 1]


def test_two_commands_share_a_grid(tmp_path: Path) -> None:
    both = [start("slow", tmp_path / "shared", jobs=1, seeds=6) for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    measured = [line for out in said for line in out.splitlines() if line.startswith("measured")]
    assert len(measured) == 12
    assert len({line.partition(": ")[2].rpartition(", ")[0] for line in measured}) == 12


def test_a_polite_stop_says_how_to_go_on(tmp_path: Path) -> None:
    process = start("tiny", tmp_path / "study", jobs=2)
    metrics = tmp_path / "study" / "cells" / "none-0" / "run" / "metrics.jsonl"
    wait_for(lambda: lines(metrics) > 3, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert re.search(
        r"Interrupted: stopped with [01] of 2 trials done; continue with: this command", err
    )  # one of them may just have ended
    assert (tmp_path / "study" / "cells" / "none-0" / "run" / "checkpoints").is_dir()


def test_a_cell_that_diverges_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = training.train_trial

    def train(cell: Any, bench: StudyContext) -> Any:
        if cell.name == "none":
            raise Diverged("the loss is not a number any more")
        return real(cell, bench)

    monkeypatch.setattr(training, "train_trial", train)
    results = go(tmp_path)
    none, _ = results["cells"]
    assert (none["validation"], none["accuracy"]) == (None, None)
    [claim] = results["claims"]
    assert claim["seeds_lost"] == [0]
    assert claim["difference"] is None
    assert results["compute"]["diverged"] == 1
    page = render_markdown_page("Tiny", build_page_blocks(TINY, results, (), "command"))
    assert "diverged in every seed" in page
    assert "1 of them diverged" in page


def refused(folder: Path, study: Any = SLOW, **asked: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        go(folder, study, **asked)
    return str(caught.value)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert refused(tmp_path) == (
        f"--output {tmp_path} exists and holds no study (no study.json); choose another"
    )


def test_other_studies_versions_and_settings_are_refused(tmp_path: Path) -> None:
    go(tmp_path, SLOW)
    assert "holds the study tiny at scale mini, not other" in refused(
        tmp_path, replace(SLOW, name="other")
    )
    newer = refused(tmp_path, replace(SLOW, version=2))
    assert f"{tmp_path} holds results of another version of tiny (1, " in newer
    longer = replace(MINI, settings={**MINI.settings, "steps": 61})
    assert "another version of tiny" in refused(
        tmp_path, replace(SLOW, scales={**SLOW.scales, "mini": longer})
    )
    assert refused(tmp_path, budget=5.0) == (
        f"{tmp_path} was started without --budget; use the same, or choose another --output"
    )
    stored = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**stored, "data": "other"}))
    assert "--data: the images are not those" in refused(tmp_path)
    (tmp_path / "study.json").write_text("{")
    assert "is damaged" in refused(tmp_path)


def test_a_budget_trims_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.01 s a step: two cells of 60 steps, one after the other, take 1.2 s and 2 s beside."""
    speeds = iter([TrialTiming(step=0.01, overhead=1)])
    monkeypatch.setattr(running, "measure_trial_timing", lambda *_: next(speeds))
    study = replace(SLOW, scales={**SLOW.scales, "mini": replace(MINI, seeds=3)})
    first = go(tmp_path, study, budget=7 / 60)  # two of three seeds
    assert (first["seeds"], first["settings"]["steps"]) == (2, 60)
    [note] = first["notes"]
    assert note.startswith("Trimmed to a budget of 0.116667 minutes: 2 seeds in place of 3 seeds")
    again = go(tmp_path, study, budget=7 / 60)  # without measuring again
    assert again == first
    assert "was started with --budget 0.116667" in refused(tmp_path, study)
    assert note in render_markdown_page("Tiny", build_page_blocks(study, first, (), "command"))


def test_a_hopeless_budget_is_refused_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "measure_trial_timing", None)  # a call would fail
    with pytest.raises(ConfigError, match=r"--budget 0.01: .* at the very least"):
        go(tmp_path, TINY, budget=0.01)


def test_trimmed_steps_reach_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        running, "measure_trial_timing", lambda *_: TrialTiming(step=0.1, overhead=0)
    )
    monkeypatch.setattr("patchwords.studies.budget.MIN_STEPS", 6)
    monkeypatch.setattr("patchwords.studies.budget.MIN_OVERHEAD", 0.1)
    results = go(tmp_path, TINY, budget=2 * 0.6 / 60 + 1e-9)
    assert results["settings"]["steps"] == 6
    assert [cell["steps"] for cell in results["cells"]] == [6, 6]
    assert results["settings"]["eval_every"] == 3


def test_the_speed_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    results = go(tmp_path, TINY, budget=1000.0)
    assert results["notes"] == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".speed")]
    record = json.loads((tmp_path / "study.json").read_text())
    assert (record["budget"], record["share"]) == (1000.0, 1.0)


def test_a_scale_that_pre_trains_is_judged_by_few_shots(tmp_path: Path) -> None:
    settings = {**MINI.settings, "steps": 4, "eval_every": 4}
    scale = replace(
        MINI, verb="pretrain", settings=settings, grid={"1-D": {}}, shots=2, transfer=DIGITS
    )
    study = replace(
        TINY, scales={"mini": scale}, claims=(), choose_trials=lambda *_: {"1-D": "1-D"}
    )
    assert "is evaluated on digits: give it by --transfer" in refused(tmp_path, study)
    # digits are not divided: their own test part is set apart
    results = go(tmp_path, study, transfer="digits")
    [cell] = results["cells"]
    assert 0 < cell["accuracy"] < 1
    assert cell["test images"] > 100
    assert list((tmp_path / "shared" / "features").iterdir())


def test_cells_start_from_a_shared_encoder_and_tell_what_they_like(tmp_path: Path) -> None:
    """A measurement and a training from one pre-training of each seed."""
    assert "trains its trials on digits: give it by --transfer" in refused(tmp_path, COUNTED)
    results = go(tmp_path, COUNTED, transfer="digits")
    assert [(one["name"], one["seed"]) for one in results["pretrainings"]] == [
        ("usual", 0),
        ("usual", 1),
    ]
    assert results["compute"]["trainings"] == 4  # two encoders, two tuned
    assert [one["steps"] for one in results["pretrainings"]] == [20, 20]
    tuned = tmp_path / "cells" / "tuned-1" / "run"
    weights = read_config_yaml(tuned / "config.yaml")["weights"]
    assert weights == str(tmp_path / "shared" / "usual-1" / "run" / "model")
    count = results["cells"][0]["parameters"]
    assert [label["values"] for label in results["labels"]] == [[count, count]] * 2
    [claim] = results["claims"]
    assert (claim["verdict"], claim["difference"]["mean"]) == ("agrees", count)
    page = render_markdown_page("Counted", build_page_blocks(COUNTED, results, (), "command"))
    assert f"| tuned: parameters | {count / 1000:.2f} ± 0.00 | 86000.00 |" in page
    assert f"+{count / 1000:.3f} thousand" in page
    assert "| usual | model ViT-mu/4" in page
    again = go(tmp_path, COUNTED, transfer="digits")
    assert again == results


def test_the_pages_say_what_the_results_say(whole: dict[str, Any]) -> None:
    pieces = build_page_blocks(TINY, whole, ("tiny",), "patchwords study tiny")
    page = render_markdown_page("Tiny <study>", pieces)
    web = render_html_page("Tiny <study>", pieces, {"tiny.png": b"png"})
    one_d = whole["labels"][1]
    ours = f"{100 * one_d['over_seeds']['mean']:.1f}"
    assert f"| 1-D | {ours} | 64.2 |" in page
    assert f">{ours}<" in web
    assert "Tiny &lt;study&gt;" in web
    assert "http" not in web.replace("http-equiv", "")
    for words in ("cannot tell at this scale", "patchwords study tiny", "+2.8 points (Table 8)"):
        assert words in page
        assert words in web


def test_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(running.get_world(), size=2)
    monkeypatch.setattr(running, "get_world", lambda: here)
    assert "leave torchrun out" in refused(tmp_path)


def test_a_process_that_stops_early_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "run_workers", lambda *_: None)
    with pytest.raises(Interrupted, match="stopped with 0 of 2 trials done"):
        go(tmp_path, SLOW)
