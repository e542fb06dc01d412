"""The benchmarks measure what they say: arithmetic, turns, peers that are absent, a quick try."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import (
    __main__ as entry,
)
from benchmarks import (
    child,
    end_to_end,
    fewshot,
    gpu,
    growth,
    inference,
    input,
    memory,
    peers,
    photos,
    plain_script,
    plain_transforms,
    probes,
    shapes,
    startup,
    training,
)
from benchmarks.asked import Asked
from benchmarks.table import Row, Section, compare, number
from benchmarks.timing import Ratio, interleave, ratio
from PIL import Image

from patchwords import cli
from patchwords.data.preprocess import Preprocess
from patchwords.models.inference.int8 import find_int8_obstacle

QUICK = Asked(quick=True, rounds=1)
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def no_measured_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take most of the time."""
    peaks = {"fp32": 2e9, "bf16": 4e9}
    monkeypatch.setattr("benchmarks.machine.peak", lambda precision, device="cpu": peaks[precision])


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


# Arithmetic


def test_a_ratio_is_of_what_was_measured_in_the_same_round() -> None:
    # The machine was three times slower in the second round: the pairs do not show it.
    found = ratio([1.0, 3.0, 1.0, 1.0, 1.0], [2.0, 6.0, 3.0, 4.0, 5.0])
    assert found == Ratio(median=3.0, low=2.0, high=4.0)


def test_a_ratio_where_more_is_better_is_the_other_way_round() -> None:
    assert ratio([6.0], [2.0], more_is_better=True).median == 3.0
    assert ratio([6.0], [2.0]).median == pytest.approx(1 / 3)


def test_contenders_take_turns() -> None:
    turns: list[str] = []
    calls = {name: lambda name=name: turns.append(name) for name in "ab"}
    found = interleave(calls, rounds=3, seconds=0.0)
    assert "".join(turns) == "aabb" + "ab" * 3  # two calls each to warm up
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3}


def test_a_short_call_is_repeated_and_what_was_waited_for_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def tick(seconds: float) -> None:
        clock[0] += seconds

    took = iter([0.0, 0.0, 0.25, 0.75, 0.5])  # of which the first two warm up
    found = interleave({"a": lambda: tick(next(took))}, 1, 2.5, wait=lambda: tick(0.5))
    assert found["a"] == [1.0]  # 3.0 seconds in three calls


@pytest.mark.parametrize(("goal", "met"), [(1.9, True), (2.0, True), (2.1, False), (None, None)])
def test_a_goal_is_met_or_not(goal: float | None, met: bool | None) -> None:
    row = compare("step", "images/s", [2.0], ("timm", [4.0]), goal=goal, work=32, share=0.5)
    assert (row.ours, row.theirs, row.met) == (16.0, 8.0, met)
    assert row.record()["met"] is met
    assert row.cells()[6] == {True: "met", False: "**not met**", None: ""}[met]


def test_without_a_peer_nothing_is_met() -> None:
    row = compare("step", "s", [2.0, 3.0, 7.0], None, goal=1.5)
    assert (row.ours, row.met) == (3.0, None)
    assert row.cells() == ["step", "3.00 s", "", "", "", "1.5x", "", ""]


def test_a_section_is_a_table_for_a_page_and_for_programs() -> None:
    section = Section("training")
    section.add(Row("step", "s", 2.0, "timm", 3.0, Ratio(1.5, 1.4, 1.6), 1.3, 0.45))
    section.remark("how")
    section.remark("how")
    assert section.markdown().splitlines()[4:] == [
        "| step | 2.00 s | timm | 3.00 s | 1.50 (1.40-1.60) | 1.3x | met | 45% |",
        "",
        "- how",
    ]
    assert json.loads(json.dumps(section.to_dict()))["rows"][0]["ratio"]["low"] == 1.4


@pytest.mark.parametrize(
    ("value", "words"), [(1234.5, "1,234"), (16.049, "16.0"), (0.01234, "0.0123"), (0.0, "0")]
)
def test_numbers_have_three_digits(value: float, words: str) -> None:
    assert number(value) == words


def test_exponents_of_power_laws() -> None:
    sizes = [2.0, 3.0, 7.0, 11.0]
    assert growth.exponent(sizes, [5 * n**1.7 for n in sizes]) == pytest.approx(1.7)
    knee = [n if n < 5 else n**2 for n in sizes]
    assert growth.local(sizes, knee)[0] == pytest.approx(1.0)
    assert growth.local(sizes, knee)[2] == pytest.approx(2.0)


def test_the_sizes_that_grow_are_those_that_are_named() -> None:
    sides = [point.side for point in growth.GROWS["tokens"]]
    assert (min(sides) ** 2, max(sides) ** 2) == (64, 2304)
    config = growth.Point(side=3, depth=2, width=128).build().config
    assert (config.tokens, config.depth, config.width, config.heads) == (9, 2, 128, 2)


# Peers


def test_an_absent_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "timm", "transformers")
    monkeypatch.setattr(inference, "PEERS", {k: inference.PEERS[k] for k in training.PEERS})
    for module in (inference, training):
        section = module.measure(QUICK)
        assert "timm: not installed, skipped" in section.remarks
        assert "transformers: not installed, skipped" in section.remarks
        assert section.records
        assert all(row["peer"] == "" and row["met"] is None for row in section.records)


def test_a_peer_that_does_not_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator x::y does not exist\nand more")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(peers.Absent, match=r"^openvino: does not import \(operator x::y does not"):
        peers.load("openvino")


def test_another_function_is_refused() -> None:
    wanted = torch.tensor([1.0, -200.0])
    peers.check_same("timm", wanted + 0.01, wanted)  # 5e-5 of the largest
    with pytest.raises(peers.Different, match=r"^timm does not compute.* 1\.0e-03"):
        peers.check_same("timm", wanted + 0.2, wanted)
    with pytest.raises(peers.Different):
        peers.check_same("timm", wanted * float("nan"), wanted)


@pytest.mark.parametrize("name", ["transformers", "timm"])
def test_a_peer_answers_and_learns_as_ours(name: str) -> None:
    model = peers.random_model("ViT-mu/16", 32)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    theirs = training.PEERS[name](model)
    answer = peers.eager(theirs, "fp32")(images)
    peers.check_same(name, answer, inference.ours(model, "fp32")(images))
    assert answer.std() > 0.01  # zeros would agree, too
    batch = training.draw(shapes.TINY, 3, 1000)
    training.check_losses(
        {
            "ours fp32": training.our_step(model, batch, "fp32"),
            f"{name} fp32": training.peer_step(theirs, batch, "fp32"),
        }
    )


# What a plain script does


def test_the_plain_crop_keeps_5_to_100_percent_inside_the_photo() -> None:
    dice, shares = random.Random(0), []
    for _ in range(500):
        left, top, width, height = plain_transforms.draw_box(311, 257, dice)
        assert 0 <= left <= 311 - width
        assert 0 <= top <= 257 - height
        assert 0.74 < width / height < 1.35
        shares.append(width * height / (311 * 257))
    assert 0.045 < min(shares) < 0.1
    assert 0.9 < max(shares) <= 1


def test_the_plain_views_see_what_ours_see() -> None:
    photo = photos.encoded(
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)).resize(
            (311, 257), Image.Resampling.BICUBIC
        )
    )
    view = input.eval_views()
    ours, theirs = np.asarray(view["ours"](photo, 0)), np.asarray(view[input.FULL](photo, 0))
    # The corner of the crop is rounded up here, down in ours: half a pixel of a smooth picture.
    assert np.abs(ours.astype(int) - theirs).mean() < 2
    crop = plain_transforms.train_crop(photo, random.Random(0), 32)
    tensor = plain_transforms.to_tensor(crop)
    wanted = Preprocess((32, 32)).normalise(torch.from_numpy(np.array(crop)).permute(2, 0, 1)[None])
    torch.testing.assert_close(tensor[None], wanted, rtol=0, atol=1e-6)


def test_large_photos_are_12_megapixels() -> None:
    tile = photos.encoded(Image.new("RGB", (37, 41), (9, 99, 200)))
    [made] = photos.large([tile], 1, (120, 90))
    image = Image.open(io.BytesIO(made))
    assert image.size == (120, 90)
    assert abs(np.asarray(image).astype(int) - (9, 99, 200)).max() < 5  # no gap is left black
    assert photos.LARGE[0] * photos.LARGE[1] == 12_000_000


def test_the_plain_script_learns_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_script, "WORKERS", 0)
    data = photos.make(tmp_path, 33)
    model = peers.random_model("ViT-mu/16", 32)
    before = model.head.linear.weight.clone()
    found = plain_script.train(model, data, 32, steps=2)  # an epoch has one whole batch
    assert (found["images"], torch.equal(before, model.head.linear.weight)) == (64, False)
    answers = plain_script.predict(model, data, 32)["answers"]
    assert set(answers) == {str(path) for path in photos.paths_of(data)}


# A quick try of each


def here(words: Any) -> tuple[float, str]:
    """patchwords in this process, in place of one of its own."""
    assert words[:2] == ("-m", "patchwords")
    assert cli.main([str(word) for word in words[2:]]) == 0
    return 3.0, ""


def test_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "load", lambda name: None)
    asked: list[Any] = []

    def plain(module: str, words: Any) -> dict[str, float]:
        asked.append(words)
        return {"seconds": 100.0}

    def run(words: Any) -> tuple[float, str]:
        if words[1] == "patchwords":
            return here(words)
        paths = photos.paths_of(Path(words[4]))
        return 6.0, json.dumps({"answers": {str(path): -1 for path in paths}})

    monkeypatch.setattr(child, "ask", plain)
    monkeypatch.setattr(child, "run", run)
    monkeypatch.setattr(peers, "quietly", lambda *a, **k: Path("theirs"))
    section = end_to_end.measure(QUICK)
    train, predict = section.records
    assert train["what"] == "fine-tune mu/16 at 32 px, an epoch of 64 photos"
    assert train["theirs"] == 100.0
    assert train["met"]
    assert asked[0][-4:] == ("--steps", 2, "--size", 32)
    assert predict["ratio"]["median"] == 2.0
    assert predict["met"]
    assert "both name the same class for 0 of 16 photos" in section.remarks


@pytest.mark.parametrize("module", [end_to_end, input])
def test_without_photos_it_says_so(module: Any) -> None:
    assert module.measure(Asked()).remarks == ["skipped, it needs photos (--data FOLDER)"]


def test_input() -> None:
    section = input.measure(QUICK)
    assert len(section.records) == 8
    assert [row["goal"] for row in section.records[::2]] == [1.9, 1.6, 3.0, 4.5]
    assert all(row["goal"] is None for row in section.records[1::2])


def test_inference_beside_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "PEERS", {"timm": inference.ours})
    monkeypatch.setattr(inference, "GOALS", {("mu/16 at 32 px", "bf16"): 2.0})
    asked = Asked(quick=True, rounds=1, data=photos.make(tmp_path, 3))
    records = inference.measure(asked).records
    rows = [row for row in records if "int8" not in row["what"]]  # not every machine has it
    assert len(records) - len(rows) == (0 if find_int8_obstacle() else 2)
    *rows, agreement = rows
    assert [(row["what"][-4:], row["peer"], row["goal"]) for row in rows] == [
        ("bf16", "timm fp32", 2.0),
        ("bf16", "timm bf16", None),
        ("fp32", "timm fp32", None),
    ]
    assert (agreement["what"][:23], agreement["goal"]) == ("top-1 of bf16 on 3 phot", 0.995)
    assert 0 <= agreement["ours"] <= 1


def test_the_share_of_the_peak_counts_2_for_each_mac() -> None:
    section, found = Section("x"), {"ours bf16": [0.5], "ours fp32": [1.0]}
    inference.add_rows(section, "x", shapes.TINY, found, batch=10, cost=10**7)
    # 2 x 1e7 x 20 images a second of 4e9, and half as many of 2e9
    assert [row["share"] for row in section.records] == [0.1, 0.1]


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"patchwords": 3 * 2**20, "timm": 4 * 2**20}
    monkeypatch.setattr(child, "ask", lambda module, words: {"bytes": held[words[0]]})
    row, _ = memory.measure(QUICK).records
    assert (row["ours"], row["theirs"], row["met"]) == (3.0, 4.0, True)
    held["timm"] = 2 * 2**20
    assert not memory.measure(QUICK).records[0]["met"]


def test_memory_of_steps_is_above_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a process of its own: what this one has held before counts, too.
    words = ("patchwords", "ViT-mu/16", 224, 64, "fp32")
    assert child.ask("memory", words)["bytes"] > 30 * 2**20
    args = {"who": "patchwords", "model": "ViT-mu/16", "size": 224, "precision": "fp32"}
    held = iter([100, 175])
    monkeypatch.setattr(memory, "peak_memory", lambda device: next(held))
    assert memory.peak_of_steps(Namespace(**args, batch=1)) == 75


def test_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"--help": 0.3, "import patchwords": 0.1, "import torch": 1.0}

    def run(words: Any) -> tuple[float, str]:
        if "timm" in words[-1]:
            raise child.Failed("x: exit code 1: benchmarks.peers.Absent: timm: not installed")
        return took.get(words[-1], 2.0), ""

    monkeypatch.setattr(child, "run", run)
    section = startup.measure(QUICK)
    first, second, _ = section.records
    assert (first["met"], first["ratio"]["median"]) == (True, pytest.approx(4 / 3))
    assert (second["met"], second["ratio"]["median"]) == (True, pytest.approx(10))
    assert "timm: not installed" in section.remarks


def test_a_process_that_fails_is_named() -> None:
    took, said = child.run(("-c", "print(17)"))
    assert (took > 0, said) == (True, "17\n")
    with pytest.raises(child.Failed, match="exit code 1: ZeroDivisionError"):
        child.run(("-c", "1 / 0"))


def test_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Namespace(classes=7, shots=3, width=11, penalties=2)
    found = {name: [fewshot.measure(name, settings)] for name in fewshot.CONTENDERS}
    monkeypatch.setattr(fewshot, "race", lambda *_: {k: list(v) for k, v in found.items()})
    assert [row["goal"] for row in probes.measure(QUICK).records] == [8.0, None, 8.0, None]
    found["Ridge"] = [{**found["Ridge"][0], "sample": [1.0] * fewshot.SAMPLE}]
    with pytest.raises(peers.Different, match="Ridge's weights are"):
        probes.measure(QUICK)


def test_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(module: str, words: Any) -> dict[str, int]:
        return {"bytes": max(1, growth.memory_of(growth.Point(**json.loads(words[1])), words[0]))}

    monkeypatch.setattr(child, "ask", ask)
    section = growth.measure(Asked(quick=True, rounds=1, output=tmp_path / "out"))
    assert [row["size"] for row in section.records] == [4, 25, 4, 25]
    forward, step = (
        [row["macs"] for row in section.records if row["pass"] == what] for what in growth.PASSES
    )
    assert step == [3 * count for count in forward]
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"growth.csv", "growth.png", "growth.svg"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_without_a_gpu_it_says_so() -> None:
    assert gpu.measure(Asked()).remarks == ["no GPU here: skipped"]


# The entry


def test_the_list_names_all() -> None:
    words = [sys.executable, "-m", "benchmarks", "--list"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(entry.NAMES)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["inferense"], "there is no benchmark 'inferense'; there are inference"),
        (["gpu", "--rounds", "0"], "--rounds 0 must be at least 1"),
        (["gpu", "--json", "nowhere/x.json"], "the folder nowhere does not exist; make it first"),
        (["gpu", "--data", "nowhere"], "--data nowhere: there is no JPEG"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(words) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_one_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(asked: Asked) -> Section:
        raise peers.Different("timm does not compute what ours does")

    monkeypatch.setattr(inference, "measure", broken)
    monkeypatch.setattr(gpu, "measure", lambda asked: Section("gpu", remarks=["skipped"]))
    file = tmp_path / "found.json"
    assert entry.main(["inference", "gpu", "--json", str(file)]) == 1
    assert "failed: Different: timm does not compute what ours does" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert [section["name"] for section in written["benchmarks"]] == ["gpu"]
    assert written["machine"]["peak_fp32"] == 2e9
