"""finetune on shards of a web server: the server goes, the run stays."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import TINY, call, done, rows, train_only, weights

from patchwords import download as remote
from storage import Server, serving, write_set

COUNTS = (7, 5, 11, 3, 7, 2, 5)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_RETRY_PAUSE", 0.001)
    (tmp_path / "far").mkdir()
    write_set(tmp_path / "far", COUNTS)
    with serving(tmp_path / "far") as found:
        yield found


def command(server: Server, output: Path) -> list[object]:
    spec = f"{server.address}/x-{{0..6}}.tar"
    mixed = ("--shuffle-shards", 2, "--cache-size", 62_000 / 2**30)  # a half of the shards
    longer = ("--steps", 16, "--batch-size", 5, "--eval-every", 100, "--save-every", 100)
    return [spec, *TINY, *mixed, *longer, "--output", output]


def test_a_run_outlives_its_storage(server: Server, tmp_path: Path) -> None:
    train_only(*command(server, tmp_path / "whole"))
    asked = sum(server.asked.values())
    assert asked > 2 * len(COUNTS)  # the cache does not hold them all
    for entry in os.scandir(tmp_path / "cache/shards"):
        os.unlink(entry)

    server.until = asked + 9
    words = command(server, tmp_path / "broken")
    line = call("finetune", *words).error
    assert line.startswith(f"{server.address}/x-")
    assert "cannot be read after 5 tries: the server says 503" in line
    kept = sorted(os.listdir(tmp_path / "broken/checkpoints"))
    assert len(kept) == 1
    assert 0 < int(kept[0].removeprefix("step-")) < 16
    server.until = None
    train_only(*words, "--resume")
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    losses = [
        {row["step"]: row["loss"] for row in rows(tmp_path / name, "evaluation")}
        for name in ("whole", "broken")
    ]
    assert losses[0] == losses[1]


def test_what_is_set_is_heeded(server: Server, tmp_path: Path) -> None:
    words = command(server, tmp_path / "a")
    train_only(*words)
    words[words.index("--shuffle-shards") + 1] = 1
    words[-1] = tmp_path / "b"
    train_only(*words)
    assert weights(tmp_path / "a") != weights(tmp_path / "b")
    words[words.index("--cache-size") + 1] = 9e-6
    words[-1] = tmp_path / "c"
    assert call("finetune", *words).error.startswith(
        "--cache-size 9e-06 GiB is less than the 2.86e-05 GiB of"
    )
    assert not (tmp_path / "c").exists()


def test_images_on_the_list_are_left_out(server: Server, tmp_path: Path) -> None:
    near = str(tmp_path / "far/x-{0..6}.tar")
    list_ = tmp_path / "dedup.csv"
    done("dedup", near, "--against", tmp_path / "far/x-2.tar", "--output", list_, "--workers", 0)
    with list_.open(newline="") as file:
        listed = {row["path"] for row in csv.DictReader(file)}
    assert len(listed) == COUNTS[2]  # too small for a perceptual hash: by their files
    words = command(server, tmp_path / "run")
    done("finetune", *words, "--exclude", list_)
    data = json.loads((tmp_path / "run/data.json").read_text())
    assert f"{len(listed)} images left out that {list_} names" in data["notes"]
    assert sum(split["images"] for split in data["splits"].values()) == sum(COUNTS) - len(listed)
    with (tmp_path / "run/splits.csv").open(newline="") as file:
        assert not listed & {row["path"] for row in csv.DictReader(file)}
    done("report", tmp_path / "run")  # finds the same images
    assert "--exclude" in call("finetune", *words, "--resume", "--exclude", "other.csv").error
