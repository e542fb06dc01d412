"""`patchwords plan`: its numbers, its lines, and what it refuses."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest

from patchwords.cli import main
from patchwords.cli.train import plan
from patchwords.cli.train import plan as plan_summary
from patchwords.cli.train.plan import MEMORY_PARTS, PlanCommand, check_plan, estimate_plan
from patchwords.planning.hardware import HARDWARE

HUGE = "--model ViT-H/14 --images 303e6 --epochs 14 --gpus 64 --gpu h100"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(words: str) -> str:
        assert main(["plan", *words.split()]) == 0
        return capsys.readouterr().out

    return run


def estimate(**settings: Any) -> dict[str, Any]:
    config = PlanCommand(**{"gpu": "h100", **settings})
    return estimate_plan(config, *check_plan(config))


def test_the_numbers_of_huge_on_64_h100(say: Any) -> None:
    found = json.loads(say(f"{HUGE} --json"))
    assert found["parameters"] == 632_045_800
    assert found["images_seen"] == 4_242_000_000
    assert found["steps"] == 1_035_645
    assert found["training_exaflops"] == pytest.approx(4258, rel=1e-3)
    # 4258e18 / (64 x 989.5e12 x 0.4) seconds
    assert found["days"] == pytest.approx(4258e18 / (64 * 989.5e12 * 0.4) / 86_400, rel=1e-3)
    assert found["device_days"] == pytest.approx(64 * found["days"])
    assert found["images_per_second"] == pytest.approx(4_242_000_000 / found["seconds"])
    assert found["read_mb_per_second"] == pytest.approx(found["images_per_second"] * 0.11)
    assert found["data_gb"] == pytest.approx(33_330)
    assert found["checkpoint_gb"] == pytest.approx(632_045_800 * 12 / 1e9)
    ddp = next(row for row in found["memory"] if row["chosen"])
    assert (ddp["parallel"], ddp["checkpoint_activations"]) == ("ddp", False)
    assert ddp["weights_bytes"] == 4 * 632_045_800
    assert ddp["state_bytes"] == 8 * 632_045_800
    assert ddp["micro_batch"] * ddp["parts"] == 64
    parts = sum(ddp[name] for name in MEMORY_PARTS.values())
    assert parts == ddp["total_bytes"] <= found["hardware_usable_bytes"] == int(0.9 * 80 * 2**30)


def test_every_number_says_its_unit() -> None:
    found = estimate(gpus=2)
    units = ("bytes", "gb", "gib", "kb", "tflops", "exaflops", "days", "seconds", "hour")
    counts = ("images", "steps", "epochs", "parameters", "devices", "size", "image", "cores")
    shares = ("utilisation", "price", "second", "core", "batch", "parts", "seen")
    for row in (found, *found["memory"]):
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert name.split("_")[-1] in {*units, *counts, *shares}, name


@pytest.mark.parametrize(
    "words",
    [
        HUGE,
        "--gpu 4090",
        "--model ViT-G/14 --gpu a100-80gb --gpus 8 --ema --price-per-hour 2.5",
        "--model BiT-R152x4 --gpu h100 --gpus 128 --images jft --checkpoint-activations",
        "--model G/14 --gpus 1000 --gpu tpu-v3 --images 2e12 --parallel fsdp",
        "--measured 31.5 --model ViT-mu/4 --images 7 --epochs 1 --batch-size 2",
    ],
)
def test_a_plan_fits_the_width_and_has_its_sections(words: str, say: Any) -> None:
    out = say(words)
    assert max(map(len, out.splitlines())) <= 100
    for title in ("Work", "Memory of a device, GiB", "Time", "Data and disk"):
        assert f"\n{title}\n" in out
    assert "…" not in out  # nothing is cut off
    assert ("an assumption" in out) == ("--measured" not in words)


def test_the_layout_asked_for_is_marked(say: Any) -> None:
    assert "  fsdp, checkpointed *" in say(f"{HUGE} --parallel fsdp --checkpoint-activations")
    assert "  ddp *" in say(HUGE)
    assert "one device *" in say("--gpu l4")


def test_what_does_not_fit_comes_with_what_would(say: Any) -> None:
    out = say("--model G/14 --gpu 4090 --gpus 4")
    assert "It does not fit. This would: --gpus 4 --parallel fsdp\n" in out
    would = say("--model G/14 --gpu 4090 --gpus 4 --parallel fsdp")
    assert "does not fit" not in would
    hopeless = say("--model G/14 --gpu t4 --image-size 8190")
    assert "It does not fit. Take devices with more memory" in hopeless


def test_settings_change_what_they_should() -> None:
    base = estimate(gpus=8)
    chosen = base["memory"][0]
    small = estimate(gpus=8, optimizer="sgd", ema=True)["memory"][0]
    assert small["state_bytes"] * 2 == chosen["state_bytes"]
    assert small["average_bytes"] == chosen["weights_bytes"]
    assert chosen["average_bytes"] == 0
    assert estimate(gpus=8, utilisation=0.2)["days"] == pytest.approx(2 * base["days"])
    assert estimate(gpus=8, image_size=(448,))["macs_per_image"] > 4 * base["macs_per_image"]
    assert estimate(gpus=8, image_kb=11)["data_gb"] == pytest.approx(base["data_gb"] / 10)
    assert estimate(gpus=8, classes=10)["parameters"] == base["parameters"] - 990 * 769
    assert estimate(gpus=8, epochs=30)["steps"] == -(-1_281_167 * 30 // 4096)
    slow = estimate(gpus=8, precision="fp32")
    assert slow["days"] / base["days"] == pytest.approx(989.5 / 67)
    assert slow["memory"][0]["activations_bytes"] / slow["memory"][0]["micro_batch"] > (
        1.3 * chosen["activations_bytes"] / chosen["micro_batch"]
    )
    paid = estimate(gpus=8, price_per_hour=2.5)
    assert paid["price"] == pytest.approx(2.5 * 24 * base["device_days"])
    assert base["price"] is None
    measured = estimate(gpus=8, measured=1000)
    assert measured["images_per_second"] == pytest.approx(8000)
    assert measured["utilisation"] == pytest.approx(1000 * 6 * 17.564e9 / 989.5e12, rel=1e-3)
    assert measured["utilisation_is"] == "measured"


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("303e6", 303_000_000),
        ("1,281,167", 1_281_167),
        ("JFT", 303_000_000),
        ("ImageNet-21k", 14_197_122),
        ("1", 1),
    ],
)
def test_images_in_any_form(text: str, images: int) -> None:
    assert plan.parse_image_count(text) == images


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "--gpu is missing: give one of b200, h200, h100, "),
        ("--gpu cpu", "--gpu cpu: no peak says how fast a CPU trains"),
        ("--gpu h10", "--gpu h10: not in the table of hardware; did you mean 'h100'?"),
        ("--gpu h100 --images 0", "--images 0 must be a whole number of at least 1, such as 303e6"),
        ("--gpu h100 --images=-3e6", "--images -3e6 must be a whole number of at least 1"),
        ("--gpu h100 --images 1.5", "--images 1.5 must be a whole number of at least 1"),
        ("--gpu h100 --images nan", "--images nan must be a whole number of at least 1"),
        ("--gpu h100 --images inf", "--images inf must be a whole number of at least 1"),
        (
            "--gpu h100 --images imagent",
            "--images 'imagent': expected a number, such as 303e6, or a ",
        ),
        ("--gpu h100 --epochs 0", "--epochs 0 must be a number greater than 0"),
        ("--gpu h100 --epochs nan", "--epochs nan must be a number greater than 0"),
        ("--gpu h100 --images 3 --epochs 0.1", "--epochs 0.1 of 3 images is less than one image"),
        ("--gpu h100 --gpus -1", "--gpus -1 must be a number greater than 0"),
        ("--gpu h100 --batch-size 0", "--batch-size 0 must be a number greater than 0"),
        ("--gpu h100 --gpus 9 --batch-size 8", "--gpus 9 for batches of 8: a device would have"),
        ("--gpu h100 --utilisation 1.1", "--utilisation 1.1 is a share of the peak, up to 1"),
        ("--gpu h100 --price-per-hour 0", "--price-per-hour 0 must be a number greater than 0"),
        ("--gpu h100 --image-kb -1", "--image-kb -1 must be a number greater than 0"),
        (
            "--gpu h100 --parallel fsdp",
            "--parallel fsdp shards weights over several devices, and --gpus is 1",
        ),
        ("--gpu h100 --gpus 8 --micro-batch 513", "--micro-batch 513 on 8 devices is more than "),
        ("--gpu h100 --image-size 225", "image size 225x225 does not divide into patches of 16"),
        ("--gpu h100 --image-size 1 2 3", "--image-size takes one number, or height and width"),
        ("--gpu h100 --image-size", "--image-size takes one number, or height and width"),
        ("--gpu h100 --model ViT-Q/16", "unknown model 'ViT-Q/16'"),
        ("--gpu v100-16gb --precision bf16", "--precision bf16: NVIDIA V100 16 GB has no bf16"),
        (
            "--gpu tpu-v3 --precision fp32",
            "--precision fp32: the table has no such peak of TPU v3",
        ),
        ("--gpu h100 --parallel dp", "--parallel 'dp' is not a choice"),
        ("--gpu h100 --epoch 3", "unknown flag --epoch; did you mean '--epochs'?"),
    ],
)
def test_a_wrong_setting_is_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"patchwords: {said}")
    assert err.count("\n") == 1


DOCS = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()


@pytest.mark.parametrize("shown", re.findall(r"```\n\$ patchwords plan (.*?)```", DOCS, re.S))
def test_the_documents_show_what_is_printed(shown: str, say: Any) -> None:
    command, *lines = shown.splitlines()
    words, _, part = command.partition(" | grep")
    printed = [line.rstrip() for line in say(words).splitlines()]
    if part:
        assert lines
        assert [line for line in printed if line in lines] == lines
    else:
        assert printed == lines


@pytest.mark.parametrize("name", HARDWARE)
def test_the_documents_have_every_hardware(name: str) -> None:
    row = HARDWARE[name]
    source, _, address = row.source.rpartition(": ")
    numbers = f"| {row.memory} | {row.bf16 or '-'} | {row.fp32 or '-'} "
    assert f"| `{name}` {numbers}| [{source}]({address}) |\n" in DOCS


def test_nothing_is_written(say: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    say("--gpu l40s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [plan, plan_summary])
def test_examples_in_docstrings(module: Any) -> None:
    assert doctest.testmod(module).attempted
    assert doctest.testmod(module).failed == 0
