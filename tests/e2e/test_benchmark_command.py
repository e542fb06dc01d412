"""`patchwords benchmark`: the whole of it on a tiny model, and what it refuses."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stage import Done, call, done

from patchwords.benchmark import loader as photos_made
from patchwords.benchmark import machine
from patchwords.benchmark.loader import make_synthetic_photos
from patchwords.cli.train import benchmark as summary
from patchwords.cli.train import finetune
from patchwords.planning import matmul_peak as peak

TINY = ("ViT-mu/4", "--image-size", 16, "--batch-size", 1, 2, "--seconds", 0.01, "--device", "cpu")


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """The peak of small matrices, copies of few bytes, few photos, one worker at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peak, "MATRIX_SIDES", {"cpu": (64,)})
        patch.setattr(peak, "SECONDS_PER_SIDE", 0.0)
        patch.setattr(machine, "COPY_BYTES", {"cpu": 2**16})
        patch.setattr(machine, "COPY_SECONDS", 0.0)
        patch.setattr(machine, "count_usable_cores", lambda: 1)
        patch.setattr("patchwords.processes.count_usable_cores", lambda: 1)
        patch.setattr(photos_made, "make_synthetic_photos", lambda: make_synthetic_photos(2))
        patch.setattr("patchwords.device.has_fast_bf16", lambda cuda: True)
        peak._measure_matmul_peak.cache_clear()
        yield
        peak._measure_matmul_peak.cache_clear()


@pytest.fixture(scope="module")
def measured(
    quick: None, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Done]:
    """The folder and the words of one benchmark that has all flags."""
    folder = tmp_path_factory.mktemp("benchmark") / "out"
    words = (*TINY, "--data", photos, "--epochs", 3, "--output", folder, "--json")
    result = call("benchmark", *words)
    assert result.code == 0, result
    return folder, result


@pytest.fixture
def results(measured: tuple[Path, Done]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(measured[1].out)
    return found


def test_what_is_printed_is_written_and_the_steps_are_told(measured: tuple[Path, Done]) -> None:
    folder, result = measured
    assert json.loads((folder / "results.json").read_text()) == json.loads(result.out)
    with (folder / "results.csv").open() as file:
        kinds = [row["kind"] for row in csv.DictReader(file)]
    assert kinds == [*["inference"] * 4, *["training"] * 4, *["input"] * 2, "together"]
    steps = [line.split(" ", 1)[0] for line in result.err.splitlines()]
    assert steps == [f"{step}/9" for step in range(1, 10)]


def test_everything_is_in_the_json(results: dict[str, Any]) -> None:
    assert list(results) == [
        *(
            "patchwords",
            "model",
            "image_size",
            "sees",
            "parameters",
            "macs_per_image",
            "macs_computed",
        ),
        *("start", "optimizer", "data", "images", "image_bytes"),
        *("machine", "inference", "training", "input", "together", "operations"),
        *("prediction", "advice", "command", "run"),
    ]
    assert (results["model"], results["image_size"]) == ("ViT-mu/4", [16, 16])
    assert results["images"] == 40
    assert results["machine"]["device"] == "cpu"
    assert set(results["machine"]["peak_flops_per_second"]) == {"bf16", "fp32"}
    for kind in ("inference", "training"):
        rows = results[kind]
        settings = [(row["precision"], row["batch"]) for row in rows]
        assert settings == [("bf16", 1), ("bf16", 2), ("fp32", 1), ("fp32", 2)]
        flops = (2 if kind == "inference" else 6) * results["macs_computed"]
        for row in rows:
            if row["skipped"] is None:
                peak_flops = results["machine"]["peak_flops_per_second"][row["precision"]]
                used = row["images_per_second"] * flops / peak_flops
                assert row["share_of_peak"] == pytest.approx(used)
    assert [row["workers"] for row in results["input"]] == [0, 1]
    advised = {row["name"]: row["value"] for row in results["advice"]}
    assert list(advised) == [
        *("--precision", "images at a time", "--grad-accum", "--workers"),
        *("--checkpoint-activations", "--compile", "bound by"),
    ]
    together = results["together"]
    assert together["precision"] == advised["--precision"]
    assert together["batch"] == advised["images at a time"]
    assert together["workers"] == advised["--workers"]
    assert advised["--grad-accum"] == -(-results["run"]["batch"] // together["batch"])
    assert [row["name"] for row in results["prediction"]] == ["--precision", "--batch-size"]


def test_the_plan_has_the_time_that_is_promised(results: dict[str, Any]) -> None:
    run = results["run"]
    assert (run["images"], run["epochs"]) == (40, 3.0)
    assert run["images_per_second"] == pytest.approx(results["together"]["images_per_second"], 1e-3)
    assert run["seconds"] == pytest.approx(40 * 3 / run["images_per_second"])
    program, *words = shlex.split(run["plan"])
    assert program == "patchwords"
    plan = json.loads(done(*words, "--json"))
    assert plan["seconds"] == pytest.approx(run["seconds"])
    assert (plan["steps"], plan["batch_size"]) == (run["steps"], run["batch"])
    assert plan["parameters"] == results["parameters"]
    assert plan["precision"] == results["together"]["precision"]


def test_the_command_is_one_that_finetune_takes(results: dict[str, Any]) -> None:
    program, verb, *words = shlex.split(results["command"])
    assert (program, verb) == ("patchwords", "finetune")
    config = finetune.parse_finetune(words)
    config.check()
    advised = {row["name"]: row["value"] for row in results["advice"]}
    assert (config.data, config.weights, config.model) == ("DATA", "WEIGHTS", "ViT-mu/4")
    assert config.model_settings.image_size == (16,)
    assert config.machine.precision == advised["--precision"]
    assert config.machine.grad_accum == advised["--grad-accum"]
    assert config.machine.workers == advised["--workers"]
    assert not config.machine.checkpoint_activations
    assert config.machine.compile == "auto"


def test_a_busy_machine_is_told() -> None:
    found = {
        **{"device": "cpu", "threads": 1, "cores": 2, "free_bytes": 1 << 30},
        **{"peak_flops_per_second": {"fp32": 1e9}, "copied_bytes_per_second": 1e9},
    }
    quiet = summary.machine_rows({**found, "load": 0.4})
    assert [row[0] for row in quiet] == ["matrix peak, fp32", "memory", "free memory"]
    assert summary.machine_rows({**found, "load": None}) == quiet
    assert summary.machine_rows({**found, "load": 1.26})[-1][:2] == ("load", "1.3")


def test_without_data_photos_are_made_and_no_run_is_promised() -> None:
    text = done("benchmark", *TINY, "--precision", "fp32", "--start", "scratch")
    assert "synthetic JPEGs of 500 x 375 pixels" in text
    assert "Training step, adamw" in text
    assert "Your run" not in text
    assert "--grad-accum" not in text
    assert "patchwords finetune DATA --model ViT-mu/4 --image-size 16 --precision fp32" in text


def test_a_run_of_as_many_images_as_one_says(photos: Path) -> None:
    words = ("--data", photos, "--images", "1e6", "--precision", "fp32")
    text = done("benchmark", *TINY, *words)
    assert "1,000,000 images x 20 epochs" in text
    assert "patchwords plan --model ViT-mu/4 --image-size 16 --classes 1000" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ViT-Q/16", "unknown model 'ViT-Q/16'"),
        ("--batch-size 8 0", "--batch-size 0 must be at least 1"),
        ("--batch-size", "--batch-size lacks a value"),
        ("--image-size 1 2 3", "--image-size takes one number, or height and width"),
        ("--image-size 30", "image size 30x30 does not divide into patches of 16"),
        ("--seconds 0", "--seconds 0 must be a number greater than 0"),
        ("--epochs -1 --images 5", "--epochs -1 must be a number greater than 0"),
        ("--epochs 3", "--epochs 3 needs --images with a number, or --data"),
        ("--images many", "--images 'many': expected a number"),
        ("--images 1 --epochs 0.1", "--epochs 0.1 of 1 images is less than one image"),
        ("--image-column jpg", "--image-column needs --data"),
        ("--data no-such-folder", "no-such-folder"),
        ("--batch-size 1000000000", "ViT-S/16: training on 1000000000 images at a time takes"),
        ("--precision fp8", "--precision 'fp8' is not a choice"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(words: str, said: str) -> None:
    result = call("benchmark", *words.split())
    assert result.error.startswith(said)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call("benchmark", "--device", "cuda").error.startswith("--device cuda: this machine has")


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert call("benchmark").error == "benchmark measures one process: start it without torchrun"


def test_results_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    assert call("benchmark", *TINY, "--output", tmp_path).error.startswith("--output")
