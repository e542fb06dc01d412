"""Every setting of finetune runs, alone and together with others, and has an effect."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from stage import TINY, rows, train_only, weights

import patchwords as pw


@pytest.fixture(scope="module")
def baseline(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return weights(
        train_only(photos, *TINY, "--output", tmp_path_factory.mktemp("b") / "run").folder.path
    )


@pytest.mark.parametrize(
    "words",
    [
        "--balance loss",
        "--balance sample",
        "--ema 0.9",
        "--label-smoothing 0.1",
        "--layer-decay 0.5",
        "--optimizer sgd --lr 0.03",
        "--schedule linear",
        "--schedule constant",
        "--schedule staircase",
        "--schedule staircase --drops 0.4",
        "--recipe bit-imagenet --scale auto",
        "--random-crop 0.5",
        "--warmup-steps 2",
        "--weight-decay 0.9",
        "--clip 0.001 --optimizer sgd --lr 0.03",
        "--lr 0.1",
        "--batch-size 5",
        "--epochs 0.5",
        "--examples 9",
        "--mixup 0.2",
        "--cutmix 1.0",
        "--mixup 0.2 --cutmix 1.0",
        "--randaugment 2 9",
        "--color-jitter 0.4",
        "--erase 1.0",
        "--no-flip",
        "--crop-area 0.9 1.0",
        "--crop-ratio 1 1",
        "--depth 2",
        "--width 48 --heads 3",
        "--heads 4",
        "--mlp-width 64",
        "--classifier gap",
        "--classifier map",
        "--representation-size 12",
        "--patch-size 2",
        "--mixer axial",
        "--mixer local --window 3",
        "--mixer pooling",
        "--mixer mlp",
        "--mixer identity",
        "--position 2d",
        "--position 2d --position-at every",
        "--position-at shared --depth 2",
        "--position relative",
        "--position sincos2d",
        "--position none",
        "--gelu erf",
        "--dropout 0.3",
        "--precision bf16",
        "--grad-accum 2",
        "--train last:1",
        "--train head",
        "--seed 1",
        "--image-size 16 24",
        "--model ViT-mu/8",
        "--classes disc stripe",
        "--test 0.4",
        "--validation 0.3",
        "--train-images 20",
    ],
)
def test_a_setting_changes_the_weights(
    words: str, photos: Path, tmp_path: Path, baseline: str
) -> None:
    given = words.split()
    tiny = list(TINY)
    for flag in ("--model", "--image-size", "--batch-size", "--precision"):
        if flag in given:
            place = tiny.index(flag)
            del tiny[place : place + 2]
    if {"--epochs", "--examples"} & set(given):
        place = tiny.index("--steps")
        del tiny[place : place + 2]
    job = train_only(photos, *tiny, *given, "--output", tmp_path / "run")
    assert weights(job.folder.path) != baseline


@pytest.mark.parametrize(
    "words",
    [
        "--workers 1",
        "--workers 2",
        "--eval-every 1",
        "--save-every 1",
        "--log-every 3",
        "--fewshot-every 1",
        "--fewshot-every 2 --fewshot-shots 3",
        "--validation 0.1",
    ],
)
def test_a_setting_changes_nothing_in_the_weights(
    words: str, photos: Path, tmp_path: Path, baseline: str
) -> None:
    job = train_only(photos, *TINY, *words.split(), "--output", tmp_path / "run")
    assert weights(job.folder.path) == baseline


@pytest.mark.parametrize("words", ["--resize squash", "--crop-fraction 0.75"])
def test_how_images_are_evaluated_goes_with_the_model(
    words: str, photos: Path, tmp_path: Path, baseline: str
) -> None:
    job = train_only(photos, *TINY, *words.split(), "--output", tmp_path / "run")
    assert weights(job.folder.path) == baseline  # training sees random crops
    preprocess = pw.from_pretrained(job.folder.path).preprocess
    assert (preprocess.resize, preprocess.crop_fraction) in {("squash", 0.875), ("crop", 0.75)}


def test_stochastic_depth_drops_blocks_of_a_deep_model(photos: Path, tmp_path: Path) -> None:
    deep = ["ViT-Ti/16" if word == "ViT-mu/4" else word for word in TINY]
    runs = [
        train_only(photos, *deep, "--drop-path", rate, "--output", tmp_path / rate).folder.path
        for rate in ("0", "0.5")
    ]
    assert weights(runs[0]) != weights(runs[1])


def test_early_stopping_stops_and_keeps_the_best(photos: Path, tmp_path: Path) -> None:
    # At a rate of 1e-12 nothing ever gets better than the first evaluation.
    words = ["--steps", "40", "--lr", "1e-12", "--eval-every", "1", "--early-stop", "2"]
    tiny = [*TINY[:4], *TINY[6:]]
    job = train_only(photos, *tiny, *words, "--output", tmp_path / "run")
    assert job.state.stopped
    assert job.state.step == 3
    assert job.state.best is not None
    assert job.state.best["step"] == 1
    assert len(rows(tmp_path / "run", "evaluation")) == 3


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler of torch needs g++")
@pytest.mark.skipif(
    not os.environ.get("PATCHWORDS_SLOW_TESTS"),
    reason="compiling takes most of a minute; set PATCHWORDS_SLOW_TESTS=1",
)
def test_a_compiled_model_learns_the_same(photos: Path, tmp_path: Path) -> None:
    job = train_only(photos, *TINY, "--compile", "yes", "--dropout", 0, "--output", tmp_path / "a")
    plain = train_only(photos, *TINY, "--dropout", 0, "--output", tmp_path / "b")
    losses = [[row["loss"] for row in rows(j.folder.path, "train")] for j in (job, plain)]
    # The compiler orders sums anew: float32 rounding, in three steps.
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
