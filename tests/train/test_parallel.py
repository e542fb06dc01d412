"""Two processes are one: the same losses, weights, skipped images and errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import ranks

from patchwords.train.journal import read_rows

SCENES = ("even", "uneven", "too_many_bad", "small_gpu", "breaks_in_one", "first_part")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two(folder: Path) -> Mapping[str, list[dict[str, Any]]]:
    return ranks.play(folder / "two", 2, SCENES)


@pytest.fixture(scope="module")
def one(folder: Path) -> Mapping[str, dict[str, Any]]:
    (folder / "one").mkdir()
    return {scene: ranks.SCENES[scene](folder / "one" / scene) for scene in ("even", "uneven")}


@pytest.mark.parametrize("scene", ["even", "uneven"])
def test_two_processes_are_one(folder: Path, one: Any, two: Any, scene: str) -> None:
    print(max(abs(a-b) for a,b in zip(one[scene]["weights"], two[scene][0]["weights"])))
    for name in ("weights", "average"):
        assert two[scene][0][name] == two[scene][1][name]
        assert two[scene][0][name] == pytest.approx(one[scene][name], abs=1e-5)
    rows = [read_rows(folder / count / scene / "metrics.jsonl") for count in ("one", "two")]
    assert [(r["kind"], r["step"]) for r in rows[0]] == [(r["kind"], r["step"]) for r in rows[1]]
    for name in ("loss", "accuracy", "grad_norm"):
        ours, theirs = ([row[name] for row in some if name in row] for some in rows)
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_print(two: Any, one) -> None:
    for k,v in two.items(): print(k, [{a:(b if a!="weights" and a!="average" else 0) for a,b in x.items()} for x in v])
    print(one["uneven"]["skipped"]== two["uneven"][1]["skipped"], list(one["uneven"]["skipped"])==list(two["uneven"][1]["skipped"]))
    assert 0
