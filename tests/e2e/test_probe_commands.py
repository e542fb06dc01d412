"""`patchwords fewshot`, `probe` and `knn`: what a user sees, and what is left on the disk."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stage import call, done, make_photos

from patchwords.data.dataset import TEST, TRAIN
from patchwords.data.splits import read_splits

CPU = ("--device", "cpu", "--workers", 0)
VERBS: dict[str, tuple[object, ...]] = {
    "fewshot": ("--shots", 1, 3, "--seeds", 2, "--l2", 64, 1024),
    "probe": ("--l2", 0.01, 1),
    "knn": ("--k", 1, 5),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def result(verb: str, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done(verb, *words, *VERBS[verb], *CPU, "--json"))
    return found


def arrays(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.is_dir()}


@pytest.mark.parametrize("verb", VERBS)
def test_results_are_printed_and_written(
    verb: str, run: Path, photos: Path, cache: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    out = done(verb, run, photos, *VERBS[verb], *CPU, "--output", folder)
    assert "as the model's own run divided them" in out
    assert f"results: {folder}" in out
    names = {path.name for path in folder.iterdir()}
    assert names == {"results.json", "results.csv", f"{verb}.png", f"{verb}.svg"}
    results = json.loads((folder / "results.json").read_text())
    rows = results["table" if verb == "fewshot" else "path"]
    with open(folder / "results.csv") as file:
        assert len(list(csv.DictReader(file))) == len(rows) == (4 if verb == "fewshot" else 2)
    kept = arrays(cache)
    assert len(kept) == 2
    again = result(verb, run, photos)
    assert again == results
    assert arrays(cache) == kept
    assert result(verb, run, photos, "--cache", "none") == results
    other = result(verb, run, photos, "--cache", tmp_path / "elsewhere")
    assert other == results
    assert len(arrays(tmp_path / "elsewhere")) == 2
    error = call(verb, run, photos, "--output", folder).error
    assert "exists; add --overwrite" in error
    done(verb, run, photos, *VERBS[verb], *CPU, "--output", folder, "--overwrite", "--json")


def test_a_run_is_judged_on_its_own_test_images(run: Path, photos: Path) -> None:
    recorded = [*read_splits(run / "splits.csv").values()]
    found = result("knn", run, photos)
    assert (found["train"], found["test"]) == (recorded.count(TRAIN), recorded.count(TEST))
    assert found["model"] == str(run)
    assert found["architecture"] == "ViT-mu/4"
    assert found["classes"] == ["disc", "square", "stripe"]
    assert found["results"]["accuracy"]["value"] > 0.6  # colours are told apart; by chance a third


def test_other_classes_than_the_model_knows(run: Path, tmp_path: Path) -> None:
    """A model of shapes is asked about digits: a fifth of them is cut off for test."""
    found = result("probe", run, "digits")
    assert found["divided"] == "20% of each class cut off for test, by seed 0"
    assert len(found["classes"]) == 10
    assert (found["train"], found["test"]) == (1438, 359)
    assert found["results"]["accuracy"]["value"] > 0.4  # by chance a tenth


def test_few_shots_ask_for_few_images_unless_all_are_there(run: Path, cache: Path) -> None:
    drawn = result("fewshot", run, "digits")
    rows = {len(np.load(cache / name / "features.npy", mmap_mode="r")) for name in arrays(cache)}
    assert 359 in rows
    assert max(rows - {359}) <= 2 * 10 * 3
    result("knn", run, "digits")
    before = arrays(cache)
    whole = result("fewshot", run, "digits", "--shots", 1, 3)
    assert arrays(cache) == before
    assert whole["pool"] == drawn["pool"] == 1438
    assert whole["train"] == 1438  # features that were there
    for a, b in zip(whole["scores"], drawn["scores"], strict=True):
        # features of other batches differ in the last bits: an image may tip
        assert a["accuracy"] == pytest.approx(b["accuracy"], abs=0.01)


@pytest.mark.parametrize("verb", VERBS)
def test_images_that_cannot_be_read_are_named(verb: str, run: Path, tmp_path: Path) -> None:
    folder = make_photos(tmp_path / "photos", {"disc": 8, "square": 8}, first=500)
    for path in sorted((folder / "disc").iterdir())[:2]:
        path.write_bytes(b"no image")
    words = (folder, *VERBS[verb], *CPU)
    out = done(verb, run, *words, "--max-bad", 0.9)
    assert "cannot be read, the first: disc/50" in out
    assert "more than --max-bad 0.00%" in call(verb, run, *words, "--max-bad", 0).error


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("fewshot", "--shots", 1, 30), "30 shots: class 'square' has 9 training images; use 9 or"),
        (("fewshot", "--seeds", 0), "--seeds 0 must be at least 1"),
        (("fewshot", "--l2", 0), "l2 0: the penalty must be greater than 0"),
        (("probe", "--l2", -1), "l2 -1: give penalties greater than 0"),
        (("probe", "--seeds", 0), "seeds none: give one or more, a dev split each"),
        (("probe", "--dev", 0), "dev 0: it is a share of the training images"),
        (("knn", "--k", 500), "k 500: only 29 training images can vote"),
        (("knn", "--temperature", 0), "temperature 0 must be greater than 0"),
        (("knn", "--cache-size", 0), "--cache-size 0 must be more than 0 GiB"),
        (("knn", "--cache-size", 1e-7), "raise --cache-size, or say --cache none"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(
    words: tuple[object, ...], line: str, run: Path, photos: Path, tmp_path: Path
) -> None:
    verb, *rest = words
    folder = tmp_path / "out"
    assert line in call(verb, run, photos, *rest, *CPU, "--output", folder).error
    assert not folder.exists()
