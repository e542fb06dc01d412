"""A run that is killed, stopped or damaged ends with the very weights of one that was not.

Killed for real: a process of its own, SIGKILL at any moment. What a step draws is at stake, so
dropout, MixUp, an average and the random crops are on, and the number of workers differs.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from stage import TINY, call, done, rows, start, train_only, weights

STEPS = 81  # two epochs
WORDS = (
    *("digits", "--model", "ViT-mu/4", "--image-size", 16, "--batch-size", 32, "--epochs", 2),
    *("--dropout", 0.1, "--ema", 0.9, "--mixup", 0.2, "--erase", 0.2, "--log-every", 1),
    *("--eval-every", 27, "--save-every", 7, "--device", "cpu", "--precision", "fp32"),
)
PATIENCE = 60.0  # seconds for a process to get somewhere; it needs five or so


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the others are compared with; it decodes in the main process."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    train_only(*WORDS, "--workers", 0, "--output", folder)
    return folder


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def steps(run: Path) -> int:
    found = rows(run, "train")
    return found[-1]["step"] if found else 0


def assert_same_end(run: Path, wanted: Path) -> None:
    assert weights(run) == weights(wanted)
    # And the record is the one of a single run: no row twice, none missing.
    ours, theirs = ([(r["kind"], r["step"], r["loss"]) for r in rows(f)] for f in (run, wanted))
    assert ours == theirs


def test_kill_9_at_the_start_and_in_the_middle(uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("finetune", *WORDS, "--workers", 2, "--output", run)
    process = start(*words)
    wait_for(lambda: steps(run) >= 1, process)  # before the first checkpoint, or about then
    process.kill()
    process.communicate()
    process = start(*words, "--resume")
    wait_for(lambda: steps(run) >= 32, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (run / "model").exists()
    assert 32 <= steps(run) < STEPS
    assert "has not ended" in call("predict", run, run).error
    out = done("finetune", "digits", "--output", run, "--resume", "--workers", 1)
    assert "going on after step " in out
    assert_same_end(run, uninterrupted)


def test_a_polite_stop_says_how_to_go_on(uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"  # a name that a shell would take apart
    process = start("finetune", *WORDS, "--output", run)
    for number, code, step in ((signal.SIGTERM, 143, 5), (signal.SIGINT, 130, 40)):
        wait_for(lambda step=step: steps(run) >= step, process)  # type: ignore[misc]
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code
        (line,) = err.splitlines()
        assert line.startswith("patchwords: stopped after step ")
        stopped = int(line.removeprefix("patchwords: stopped after step ").split()[0])
        assert (run / "checkpoints" / f"step-{stopped:08d}" / "state.pt").is_file()
        program, *words = shlex.split(line.split("go on with: ")[1])
        assert program == "patchwords"
        process = start(*words)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert f"report:  {run / 'report.html'}" in out
    assert_same_end(run, uninterrupted)


def test_a_damaged_checkpoint_is_passed_over(uninterrupted: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    shutil.rmtree(run / "model")
    newest = sorted((run / "checkpoints").iterdir())[-1] / "state.pt"
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    out = done("finetune", *WORDS, "--output", run, "--resume")
    assert "is damaged" in out
    assert "going on after step 77 of 81" in out
    assert_same_end(run, uninterrupted)


def test_without_a_whole_checkpoint_nothing_is_made_up(uninterrupted: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    for state in run.glob("checkpoints/*/state.pt"):
        state.write_bytes(state.read_bytes()[:1000])
    result = call("finetune", *WORDS, "--output", run, "--resume")
    assert result.code == 2
    assert "no checkpoint" in result.err


def test_a_finished_run_gone_on_with_is_as_it_was(uninterrupted: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    done("finetune", *WORDS, "--output", run, "--resume")
    assert_same_end(run, uninterrupted)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("--lr 0.5", "was started with --lr 0.000265, not with 0.5"),
        ("--steps 90", "was started with --steps 81, not with 90"),
        ("--epochs 3", "was started with --epochs 2.0, not with 3.0"),
        ("--examples 99", "was started without --examples, not with 99"),
        ("--model ViT-Ti/4", "was started with --model ViT-mu/4, not with ViT-Ti/4"),
        ("--image-size 32", "was started with --image-size 16 16, not with 32"),
        ("--seed 3", "was started with --seed 0, not with 3"),
        ("--no-flip", "was started with --flip True, not with False"),
    ],
)
def test_going_on_with_other_settings_is_refused_by_name(
    change: str, said: str, uninterrupted: Path
) -> None:
    error = call("finetune", "digits", *change.split(), "--output", uninterrupted, "--resume").error
    assert said in error
    assert f"--weights {uninterrupted}" in error


def test_going_on_and_deleting_at_once_is_refused(uninterrupted: Path) -> None:
    words = ("digits", "--output", uninterrupted, "--resume", "--overwrite")
    error = call("finetune", *words).error
    assert error == "--resume goes on with a run, --overwrite deletes it; give one"
    assert (uninterrupted / "checkpoints").is_dir()


def test_going_on_with_other_data_is_refused(
    uninterrupted: Path, photos: Path, tmp_path: Path
) -> None:
    error = call("finetune", photos, "--output", uninterrupted, "--resume").error
    assert f"was started with data digits, not with {photos}" in error


def test_ctrl_c_while_the_report_is_made_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    words = ("finetune", photos, *TINY, "--output", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("patchwords.api.runs.evaluate_finished_run", interrupted)
        result = call(*words)
    assert result.code == 130
    command = f"patchwords finetune {photos} --output {tmp_path / 'run'} --resume"
    assert result.err == (
        f"patchwords: stopped before the report was written; go on with: {command}\n"
    )
    done(*words, "--resume")
    assert (tmp_path / "run" / "report.html").is_file()
