"""Run folders and model folders that patchwords 0.1.0 wrote: today's code opens and continues them.

They lie in v0.1/, made by make.py at the commit that recorded.json names. What is tested is what a
person can do with them, by the command line and by the names that `import patchwords` gives.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from make import logits_of, machine

import patchwords as pw
from patchwords.cli import main

FOLDER = Path(__file__).parent / "v0.1"
RECORDED = json.loads((FOLDER / "recorded.json").read_text())
MODELS = sorted(RECORDED["logits"])
# Of the largest logit. In float64 sums in another order move the last of 16 digits, in float32
# the last of 7: the two precisions are up to 1e-6 apart. Ten times the epsilon of the norms, which
# is little as faults go, makes 1e-6 (a ResNet) or 1e-5 and more (ViTs) in float64.
NEAR = {"float64": 1e-11, "float32": 1e-5}
# What torch's kernels without AVX-512, or without AVX2, change from step 6 to step 12 on the
# machine that recorded: 2e-4 of a weight (Adam takes a step even where the gradient is all
# rounding), 3e-7 of a loss. Without the moments of the checkpoint: 4e-3 and 7e-3, at least.
NEAR_WEIGHTS, NEAR_LOSS = 1e-3, 1e-5
PLACE = ("--workers", 0, "--device", "cpu", "--precision", "fp32")
TRAINED = ("finished", "head-whole", "hybrid", "lively-whole", "onward", "shares-whole")
PAIRS = {"lively": "finetune", "head": "finetune", "pixels": "pretrain", "shares": "finetune"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folders where a test may change them; the paths in the runs are relative to it."""
    copy = Path(shutil.copytree(FOLDER, tmp_path / "v0.1"))
    monkeypatch.chdir(copy)
    yield copy
    shutil.rmtree(copy)  # pytest keeps the folders of its last runs


def call(*words: object) -> tuple[int, str, str]:
    """`patchwords WORDS` -> its exit code, what it printed, and what it printed as errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def done(*words: object) -> str:
    code, out, err = call(*words)
    assert code == 0, (out, err)
    return out


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model" / "model.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_model_answers_as_it_did(name: str) -> None:
    source = pw.from_pretrained(FOLDER / name)
    assert bool(source.changes) == name.endswith(".npz")  # which has no names for the classes
    for precision, found in logits_of(source).items():
        wanted = np.array(RECORDED["logits"][name][precision])
        assert np.abs(found - wanted).max() <= NEAR[precision] * np.abs(wanted).max(), precision


@pytest.mark.parametrize("name", MODELS)
def test_labels_and_preprocessing_are_those_of_the_card(name: str) -> None:
    source = pw.from_pretrained(FOLDER / name)
    if name.endswith(".npz"):
        assert source.labels == ("0", "1", "2")
        return
    if name.startswith("exports"):
        assert source.labels == ("disc", "square", "stripe")
        return
    home = FOLDER / name if name.startswith("models") else FOLDER / name / "model"
    card = json.loads((home / "config.json").read_text())
    assert list(source.labels) == card["labels"]
    assert source.architecture == card["architecture"]
    assert source.preprocess.to_dict() == card["preprocess"]
    assert source.model.config.to_dict() == {
        k: v for k, v in card["model"].items() if k != "family"
    }


@pytest.mark.parametrize("name", sorted(p.name for p in (FOLDER / "models").iterdir()))
def test_a_model_of_a_card_is_created_and_saved_again(name: str, tmp_path: Path) -> None:
    """Today's card says the same as that of 0.1, and the tensors have the same names."""
    source = pw.from_pretrained(FOLDER / "models" / name)
    pw.save_pretrained(
        source.model,
        tmp_path / name,
        labels=source.labels,
        preprocess=source.preprocess,
        architecture=source.architecture,
    )
    ours, theirs = (
        json.loads((folder / name / "config.json").read_text())
        for folder in (tmp_path, FOLDER / "models")
    )
    assert ours == theirs
    ours, theirs = (
        safetensors.torch.load_file(folder / name / "model.safetensors")
        for folder in (tmp_path, FOLDER / "models")
    )
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key].float()) for key in theirs)


@pytest.mark.parametrize("run", TRAINED)
def test_predict_says_what_predictions_csv_says(run: str, here: Path) -> None:
    predictions = read_csv(here / run / "predictions.csv")
    photos = [here / "photos" / row["path"] for row in predictions]
    lines = done("predict", run, *photos, "--json", *PLACE[:4]).splitlines()
    for line, row in zip(lines, predictions, strict=True):
        scores = {best["label"]: best["score"] for best in json.loads(line)["predictions"]}
        wanted = {key[2:]: float(value) for key, value in row.items() if key.startswith("p:")}
        assert scores == pytest.approx(wanted, abs=2e-6)  # six digits are in the table


@pytest.mark.parametrize("run", TRAINED)
def test_evaluate_finds_the_held_out_images_of_the_run(run: str, here: Path) -> None:
    """By splits.csv; were the images it trained on among them, there would be 24."""
    found = json.loads(done("evaluate", run, "photos", "--json", *PLACE))
    wanted = json.loads((here / run / "evaluation.json").read_text())
    assert found["images"] == wanted["images"] == 5
    assert found["accuracy"] == wanted["accuracy"]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)


@pytest.mark.parametrize("run", ["finished", "masked"])
def test_report_is_written_from_the_folder(run: str, here: Path) -> None:
    if run == "finished":  # and the look at the model is taken from the folder, too
        (here / run / "report.html").unlink()
        before = contents(here / run)
    done("report", run)
    page = (here / run / "report.html").read_text()
    assert "Traceback" not in page
    assert "cannot be shown" not in page
    assert "The look at the model failed" not in page
    assert page.count("data:image/png;base64") >= 5  # the images are found, and fit
    if run == "finished":
        after = contents(here / run)
        assert {name: after[name] for name in before} == before


def test_inspect_compare_and_convert_open_a_run(here: Path) -> None:
    photo = here / "photos" / "disc" / "2.png"
    few = ("--truth-images", 1, "--distance-images", 1, "--photos", 1)
    done("inspect", "finished", photo, *few, "--output", "looked")
    assert (here / "looked" / "results.json").is_file()
    compared = json.loads(done("compare", "finished", "hybrid", "photos", "--json", *PLACE))
    assert "finished" in json.dumps(compared)
    for form in ("huggingface", "timm"):
        done("convert", "finished", f"new-{form}", "--to", form)
        ours, theirs = contents(here / f"new-{form}"), contents(here / "exports" / form)
        assert ours.keys() == theirs.keys()
        for name in (name for name in theirs if name.endswith(".json")):
            assert json.loads(ours[name]) == json.loads(theirs[name]), name


def test_what_was_exported_answers(here: Path) -> None:
    pytest.importorskip("onnxruntime")
    photos = sorted((here / "photos").rglob("*.png"))[:3]
    words = (*photos, "--json", "--workers", 0)
    exported, run = (
        [json.loads(line)["predictions"] for line in done("predict", model, *words).splitlines()]
        for model in ("exports/finished.onnx", "finished")
    )
    for ours, theirs in zip(exported, run, strict=True):
        assert [row["label"] for row in ours] == [row["label"] for row in theirs]
        assert [row["score"] for row in ours] == pytest.approx(
            [row["score"] for row in theirs], abs=1e-5
        )


def test_the_ranges_of_calibrate_are_taken(here: Path) -> None:
    words = ("predict", "finished", "photos/disc", "--json", "--precision", "int8", *PLACE[:4])
    code, out, err = call(*words)
    if "int8 cannot be computed here" in err:
        pytest.skip(err)
    assert code == 0, err
    assert json.loads(out.splitlines()[0])["predictions"][0]["label"] == "disc"


def test_features_that_were_kept_are_found_again(here: Path) -> None:
    about = json.loads(next((here / "features").glob("*/about.json")).read_text())
    if about["version"] != pw.__version__:
        pytest.skip("features are computed anew by another version")
    before = {path.name for path in (here / "features").iterdir()}
    few = ("--shots", 1, 2, "--seeds", 1, "--cache", "features")
    done("fewshot", "finished", "photos", *few, *PLACE)
    assert {path.name for path in (here / "features").iterdir()} == before


@pytest.mark.parametrize("name", PAIRS)
def test_a_killed_run_goes_on_to_the_end_of_one_that_was_not(name: str, here: Path) -> None:
    """Its last checkpoint is of step 6 of 12, and its record goes to step 8."""
    run, whole = here / f"{name}-killed", here / f"{name}-whole"
    assert rows(run)[-1]["step"] == 8
    words = ("--resume", *(("--parallel", "auto") if name == "shares" else ()))
    out = done(PAIRS[name], "photos", "--output", run.name, *words)
    assert "going on after step 6 of 12" in out
    ours, theirs = tensors(run), tensors(whole)
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=0, atol=NEAR_WEIGHTS, msg=key)
    # Two processes sum in another order than one.
    if machine() == RECORDED["machine"] and name != "shares":
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    ours_rows, their_rows = (
        [(row["kind"], row["step"], row.get("accuracy")) for row in rows(folder)]
        for folder in (run, whole)
    )
    assert ours_rows == their_rows
    losses = ([row["loss"] for row in rows(f) if "loss" in row] for f in (run, whole))
    assert next(losses) == pytest.approx(next(losses), rel=NEAR_LOSS)
    assert not (run / "frozen").exists()


def test_other_settings_are_refused_by_what_the_run_asked_for(here: Path) -> None:
    code, _, err = call("finetune", "photos", "--output", "lively-killed", "--resume", "--lr", 1)
    assert code == 2
    assert "was started with --lr 0.003, not with 1" in err


def test_a_sweep_goes_on(here: Path) -> None:
    wanted = json.loads((here / "sweep" / "results.json").read_text())
    found = json.loads(done("sweep", "photos", "--output", "sweep", "--resume", "--json"))
    assert found == wanted


def test_config_yaml_makes_the_same_run_again(here: Path) -> None:
    run = "lively-whole"
    done("finetune", "--config", f"{run}/config.yaml", "--output", "again")
    for key, value in tensors(here / run).items():
        torch.testing.assert_close(tensors(here / "again")[key], value, rtol=0, atol=NEAR_WEIGHTS)
    ours, theirs = (yaml.safe_load((here / f / "config.yaml").read_text()) for f in (run, "again"))
    assert {name: theirs.get(name) for name in ours} == ours


def test_a_file_of_settings_sets_what_it_says(here: Path) -> None:
    done("finetune", "--config", "settings.yaml", "--output", "run")
    said = yaml.safe_load((here / "settings.yaml").read_text())
    kept = yaml.safe_load((here / "run" / "config.yaml").read_text())
    for name, value in said.items():
        wanted = [value] * 2 if name == "image_size" else value
        assert kept[name.replace("-", "_")] == wanted, name
    assert pw.from_pretrained(here / "run").labels == ("disc", "stripe")


@pytest.mark.parametrize("weights", ["masked", "models/axial"])
def test_finetuning_starts_from_old_weights(weights: str, here: Path) -> None:
    size = (16, 24) if weights.startswith("models") else (16, 16)
    words = ("--steps", 1, "--batch-size", 8, "--lr", 1e-9, "--image-size", *size, *PLACE)
    out = done("finetune", "photos", "--weights", weights, *words, "--output", "run")
    assert ("the head is kept" in out) == (weights != "masked")
    before = pw.from_pretrained(here / weights).model.state_dict()
    for name, value in tensors(here / "run").items():
        if not name.startswith("head."):
            torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)
