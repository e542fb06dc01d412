"""`pw.load_run` opens the run folders that patchwords 0.1.0 wrote, and their models answer."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import patchwords as pw
from patchwords.errors import DataError, WeightsError

FOLDER = Path(__file__).parent / "v0.1"


@pytest.fixture
def legacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a copy of what the runs name: their data, and the weights that one starts from."""
    for name in ("photos", "finished"):
        shutil.copytree(FOLDER / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("legacy")
@pytest.mark.parametrize(("name", "steps"), [("finished", 60), ("head-whole", 12)])  # all; frozen
def test_a_finished_run_predicts_and_evaluates(name: str, steps: int) -> None:
    run = pw.load_run(FOLDER / name, device="cpu")
    evaluation = json.loads((FOLDER / name / "evaluation.json").read_text())
    assert run.labels == tuple(evaluation["classes"]) == ("disc", "square", "stripe")
    assert run.accuracy.to_dict() == evaluation["accuracy"]
    assert run.to_dict()["steps"] == run.history[-1]["step"] == steps
    assert run.settings["data"] == "photos"
    assert "accuracy" in run._repr_html_()
    with (FOLDER / name / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    answers = run.predict([Path("photos", row["path"]) for row in rows], top_k=1)
    for (answer,), row in zip(answers, rows, strict=True):
        assert answer["label"] == row["prediction"]
        assert answer["score"] == pytest.approx(float(row["probability"]), abs=2e-6)
    again = run.evaluate("photos", device="cpu", workers=0)
    assert again.accuracy == run.accuracy
    assert again["loss"] == pytest.approx(run.metrics["loss"], rel=1e-5)
    assert run.embed(Path("photos", rows[0]["path"])).shape == (run.model.config.width,)


@pytest.mark.usefixtures("legacy")
def test_a_run_without_classes_has_features() -> None:
    run = pw.load_run(FOLDER / "masked", device="cpu")
    recorded = json.loads((FOLDER / "masked" / "masked.json").read_text())
    assert run.labels == ()
    assert run.accuracy.value == recorded["accuracy"]
    assert "hidden" in run._repr_html_()
    features = pw.extract_features(run, "photos", device="cpu", workers=0)
    assert features.values.shape == (len(features.paths), run.model.config.width)
    assert np.isfinite(features.values).all()
    for use in (run.predict, run.evaluate):
        with pytest.raises(WeightsError, match="without classes"):
            use("photos")


@pytest.mark.usefixtures("legacy")
@pytest.mark.parametrize("name", ["head", "pixels"])  # frozen layers; masks
def test_a_killed_run_is_opened_and_resumed(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER / f"{name}-killed", tmp_path / "run")
    killed = pw.load_run("run", device="cpu")
    assert killed.history[-1]["step"] == 8
    with pytest.raises(DataError, match="the run has not ended"):
        _ = killed.accuracy
    with pytest.raises(WeightsError, match="run"):
        _ = killed.model
    resumed, whole = killed.resume(), pw.load_run(FOLDER / f"{name}-whole")
    assert resumed.to_dict()["steps"] == 12
    assert resumed.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-3)
    assert killed.model.training is False
