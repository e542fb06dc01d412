"""Fine-tuning of the last layers, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from stage import TINY, call, rows, train_only, weights

FIXED = ("--random-crop", "1", "--resize", "squash", "--no-flip", "--train", "head")
LONG = (*TINY[:4], "--steps", "12", "--dropout", "0", *TINY[6:])  # three passes and more


def test_what_was_kept_is_gone_with_the_end_of_the_run(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = train_only(photos, *LONG, *FIXED, "--output", tmp_path / "run")
    assert not (tmp_path / "run" / "frozen").exists()
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (settings["frozen"], settings["views"]) == ("cache", None)
    assert job.state.step == 12


def test_views_change_the_weights_from_the_second_epoch_on(photos: Path, tmp_path: Path) -> None:
    runs = []
    for views in ("1", "2", "None"):
        words = (*LONG, "--train", "head", "--views", views)
        runs.append(weights(train_only(photos, *words, "--output", tmp_path / views).folder.path))
    assert len(set(runs)) == 3


def test_the_same_run_again_says_what_is_kept(photos: Path, tmp_path: Path) -> None:
    whole = train_only(photos, *LONG, *FIXED, "--output", tmp_path / "whole")
    words = ("finetune", photos, *LONG, *FIXED, "--output", tmp_path / "run")
    result = call(*words)
    assert result.code == 0, result
    assert "frozen" in result.out
    assert "computed once for each image" in " ".join(result.out.split())
    assert weights(tmp_path / "run") == weights(whole.folder.path)
    assert rows(tmp_path / "run", "train")[-1]["seconds"] > 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--views 0", "views is 0; give 1 or more"),
        ("--frozen cache", "--frozen cache: every layer learns; add --train head"),
        ("--frozen cache --train head", "--frozen cache: crops, flips and colours are new"),
        ("--train head --views 2 --frozen cache --cache-size 1e-9", "more than --cache-size 1e-09"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    words: str, line: str, photos: Path, tmp_path: Path
) -> None:
    result = call("finetune", photos, *LONG, *words.split(), "--output", tmp_path / "run")
    assert line in result.error
    assert not (tmp_path / "run").exists()
