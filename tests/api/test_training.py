"""`pw.finetune` and `pw.pretrain`: what the commands do, to the bit; and the run that they give."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from api_stage import TINY, draw

import patchwords as pw
from patchwords.cli import main
from patchwords.errors import ConfigError, DataError, Interrupted

FLAGS = [
    word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))
]
TIMES = {"memory", "seconds", "batch_seconds", "images_per_second", "data_wait", "utilisation"}


def command(*words: object) -> str:
    """`patchwords WORDS`, which must succeed; -> what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([str(word) for word in words]) == 0
    return out.getvalue()


def rows(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock says."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "config.yaml").read_text() == (other / "config.yaml").read_text()
    assert rows(one) == rows(other)
    assert weights(one) == weights(other)
    for name in ("evaluation.json", "predictions.csv", "splits.csv", "data.json"):
        assert (one / name).read_text() == (other / name).read_text(), name
    asked = [json.loads((run / "environment.json").read_text())["asked"] for run in (one, other)]
    assert asked[0] == asked[1]


@pytest.mark.parametrize("data", ["photos", "digits"])
def test_a_run_is_that_of_the_command(data: str, photos: Path, capfd: Any) -> None:
    source = photos if data == "photos" else "digits"
    run = pw.finetune(source, output="by-call", lr=1e-3, train="head", **TINY)
    words = ("finetune", source, *FLAGS, "--lr", "1e-3", "--train", "head")
    printed = json.loads(command(*words, "--output", "by-command", "--json"))
    assert_same_run(Path("by-call"), Path("by-command"))
    told = run.to_dict()
    assert printed.keys() == told.keys()
    for name in ("steps", "split", "images", "accuracy", "loss"):
        assert printed[name] == told[name]
    out = capfd.readouterr().out
    assert "settings" in out
    assert f"{told['split']}: accuracy {run.accuracy.value:.1%} on" in out
    assert "by-call/report.html" in out


def test_pre_training_is_that_of_the_command(photos: Path) -> None:
    run = pw.pretrain(photos, objective="masked", output="by-call", test=0.2, **TINY)
    command(
        *("pretrain", photos, "--objective", "masked", *FLAGS, "--test", 0.2),
        *("--output", "by-command"),
    )
    one, other = Path("by-call"), Path("by-command")
    assert (one / "config.yaml").read_text() == (other / "config.yaml").read_text()
    assert (rows(one), weights(one)) == (rows(other), weights(other))
    assert run.labels == ()
    assert run.accuracy.low is None
    assert run.accuracy.value == run.metrics["accuracy"]
    assert "hidden" in run._repr_html_()


def test_a_run_has_its_model_and_numbers(run: pw.Run, photos: Path) -> None:
    assert run.labels == ("blue", "green", "red")
    assert run.accuracy.low <= run.accuracy.value <= run.accuracy.high
    assert run.metrics["images"] == 8
    assert run.report.is_file()
    assert run.history[0]["kind"] == "train"
    assert run.settings["lr"] == 0.01
    assert not run.model.training
    logits = run.model(run.preprocess(photos / "red" / "00.png"))
    assert logits.shape == (1, 3)


def test_a_run_opens_again(run: pw.Run) -> None:
    again = pw.load_run(str(run.folder))
    assert again.accuracy == run.accuracy
    told = again.to_dict()
    assert {**told, "seconds": 0} == {**run.to_dict(), "seconds": 0}
    with pytest.raises(DataError, match="no run folder 'nowhere'"):
        pw.load_run("nowhere")


def test_predictions_are_alike_for_a_path_an_image_and_an_array(run: pw.Run, photos: Path) -> None:
    path = photos / "green" / "03.png"
    image = draw("green", 3)
    answer = run.predict(path)
    assert run.predict(image) == run.predict(np.asarray(image)) == run.predict(str(path)) == answer
    assert [entry["label"] for entry in answer[:1]] == ["green"]
    folder = run.predict(photos / "red", top_k=1)
    assert len(folder) == 13
    printed = command("predict", run.folder, photos / "red", "--json", "--top-k", 1)
    told = [json.loads(line)["predictions"] for line in printed.splitlines()]
    assert [one[0]["label"] for one in told] == [one[0]["label"] for one in folder]
    assert [one[0]["score"] for one in told] == pytest.approx([one[0]["score"] for one in folder])


def test_features_are_those_of_the_model(run: pw.Run, photos: Path) -> None:
    model, batch = run.model, run.preprocess([photos / "red" / "00.png", draw("blue", 1)])
    with torch.inference_mode():
        wanted = model.forward_head(model.forward_features(batch), pre_logits=True).numpy()
    found = run.embed([photos / "red" / "00.png", draw("blue", 1)])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert run.embed(draw("blue", 1)).shape == wanted[1].shape
    table = pw.extract_features(run, photos)
    assert table.values.shape == (40, wanted.shape[1])
    assert np.bincount(table.labels).tolist() == [14, 13, 13]
    np.testing.assert_allclose(table.values[table.paths.index("red/00.png")], wanted[0], atol=1e-5)
    assert pw.extract_features(run, photos, split="test").values.shape[0] == 8
    assert "red/00.png" in table._repr_html_()
    assert table.to_dict()["classes"] == run.labels


def test_evaluation_is_that_of_the_command(run: pw.Run, photos: Path) -> None:
    found = pw.evaluate(run, photos, output="judged")
    printed = json.loads(command("evaluate", run.folder, photos, "--json"))
    assert found.to_dict() == printed
    assert found.accuracy == run.accuracy
    assert found.report == Path("judged/report.html")
    assert found.report.is_file()
    assert run.evaluate(photos, split="train")["trained_on"] is True
    assert pw.evaluate(run.pretrained, photos)["of"] == str(run.folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 3}, "unknown setting 'epoch'; did you mean 'epochs'"),
        ({"lr": 0}, "--lr 0 must be greater than 0"),
        ({"epochs": 3}, "--epochs 3 and --steps 3 both say how long to train"),
        ({"lr": "fast"}, "--lr 'fast': expected a number"),
        ({"steps": 2.5}, "--steps 2.5: expected a whole number"),
        ({"device": "gpu"}, "--device 'gpu' is not a choice; did you mean 'cpu'"),
        ({"optimizer": "adam"}, "--optimizer 'adam' is not a choice; did you mean 'adamw'"),
        ({"crop_area": 0.5}, "--crop-area 0.5: expected two numbers"),
        ({"train": "heads"}, "--train 'heads': choose all, head, norms, last:N"),
        ({"model": "ViT-BB/16"}, "did you mean 'ViT-B/16'"),
        ({"resume": True}, "--resume: say which run"),
    ],
)
def test_a_wrong_setting_is_named(photos: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pw.finetune(photos, **TINY | settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(Path().iterdir())


def test_settings_come_in_the_forms_of_python(photos: Path) -> None:
    Path("settings.yaml").write_text("steps: 1\nlr: 1e-3\nseed: 5\n")
    settings = {**TINY, "image_size": (16, 16), "seed": np.int64(7), "classes": ["red", "blue"]}
    del settings["steps"]
    run = pw.finetune(photos, output=Path("run"), config="settings.yaml", **settings)
    written = yaml.safe_load(Path("run/config.yaml").read_text())
    assert (written["steps"], written["lr"], written["seed"]) == (1, 1e-3, 7)
    assert run.labels == ("blue", "red")


def test_an_interrupted_run_resumes(photos: Path) -> None:
    settings = TINY | {"steps": 150, "log_every": 1}
    whole = pw.finetune(photos, output="whole", **settings)

    def interrupt_when_it_learns() -> None:
        path = Path("cut/metrics.jsonl")
        while not (path.exists() and path.stat().st_size):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_when_it_learns).start()
    with pytest.raises(Interrupted, match="go on with: patchwords finetune"):
        pw.finetune(photos, output="cut", **settings)
    cut = pw.load_run("cut")
    with pytest.raises(DataError, match="the run has not ended"):
        _ = cut.accuracy
    with pytest.raises(ConfigError, match="was started with --steps 150, not with 151"):
        cut.resume(steps=151)
    assert cut.resume().accuracy == whole.accuracy
    assert weights(Path("cut")) == weights(Path("whole"))


def test_nothing_needs_a_terminal_or_the_main_thread(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setenv("TERM", "dumb")
    runs: list[pw.Run] = []
    thread = threading.Thread(target=lambda: runs.append(pw.finetune(photos, output="run", **TINY)))
    thread.start()
    thread.join()
    assert runs[0].report.is_file()


def test_tables_escape_what_they_show(tmp_path: Path) -> None:
    for name, like in (("<b>bold", "red"), ("plain", "blue")):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for number in range(8):
            draw(like, number).save(folder / f"<i>{number}.png")
    run = pw.finetune(tmp_path / "data", output="<u>run", **TINY)
    shown = [
        run._repr_html_(),
        run.evaluate(tmp_path / "data")._repr_html_(),
        pw.extract_features(run, tmp_path / "data")._repr_html_(),
    ]
    assert "&lt;u&gt;run" in shown[0]
    assert "&lt;b&gt;bold" in shown[1]
    assert "&lt;b&gt;bold" in shown[2]
    assert "&lt;i&gt;0.png" in shown[2]
    for html in shown:
        assert not {"<b>", "<i>", "<u>"} & {html[i : i + 3] for i in range(len(html))}
        assert html.count("<table>") == html.count("</table>") >= 1
