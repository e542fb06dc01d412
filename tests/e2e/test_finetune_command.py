"""`patchwords finetune PHOTOS`: from the folder to the report, and from one run to the next."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from stage import COUNTS, TINY, call, done, make_photos, rows, snapshot, train_only, weights

import patchwords as pw


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model" / "model.safetensors")


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_run_folder_holds_what_it_promises(run: Path) -> None:
    for name in (
        *("config.yaml", "environment.json", "data.json", "splits.csv", "metrics.jsonl"),
        *("model/model.safetensors", "model/config.json", "predictions.csv", "evaluation.json"),
        "report.html",
    ):
        assert (run / name).stat().st_size > 0, name
    assert list(run.glob("tensorboard/events.out.tfevents.*"))
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step-00000040", "step-00000060"]
    partial = [name for name in snapshot(run) if name.endswith(".part") or "/." in name]
    assert not partial


def test_every_row_of_the_metrics_is_there(run: Path) -> None:
    assert [row["step"] for row in rows(run, "train")][-1] == 60
    evaluations = rows(run, "evaluation")
    assert [row["step"] for row in evaluations] == [20, 40, 60]
    assert {row["split"] for row in evaluations} == {"validation"}
    assert all(row["loss"] > 0 and 0 <= row["accuracy"] <= 1 for row in rows(run))


def test_the_split_is_stratified_and_nothing_is_lost(run: Path, photos: Path) -> None:
    splits = read_csv(run / "splits.csv")
    assert {row["path"] for row in splits} == {
        str(path.relative_to(photos)) for path in photos.rglob("*.png")
    }
    # A fifth for the test, a tenth of what is left for validation, from each class alike.
    by_class = Counter((row["split"], row["label"]) for row in splits)
    for name, count in COUNTS.items():
        assert abs(by_class["test", name] - count / 5) < 1
        assert by_class["validation", name] == 1
    data = json.loads((run / "data.json").read_text())
    assert data["classes"] == sorted(COUNTS)
    assert sum(split["images"] for split in data["splits"].values()) == 40


def test_predictions_are_the_held_out_images_and_no_others(run: Path) -> None:
    held_out = [row["path"] for row in read_csv(run / "splits.csv") if row["split"] == "test"]
    predictions = read_csv(run / "predictions.csv")
    assert sorted(row["path"] for row in predictions) == sorted(held_out)
    right = sum(row["label"] == row["prediction"] for row in predictions)
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["images"] == len(held_out)
    assert evaluation["accuracy"]["value"] == pytest.approx(right / len(held_out))
    # Coloured shapes are easy; a third is what guessing gets. So it is the trained model that was
    # measured, saved and described.
    assert evaluation["accuracy"]["value"] > 0.8


def test_the_report_names_what_matters(run: Path) -> None:
    page = (run / "report.html").read_text()
    evaluation = json.loads((run / "evaluation.json").read_text())
    for text in ("disc", "square", "stripe", f"{evaluation['images']} ", "ViT-mu/4", "lr"):
        assert text in page
    assert page.count("data:image/png;base64") > 3  # the held-out photos
    assert 'src="http' not in page  # it opens offline


def test_what_was_decided_is_shown_before_the_first_step(photos: Path, tmp_path: Path) -> None:
    out = done("finetune", photos, *TINY, "--output", tmp_path / "run")
    for text in (
        "train",
        "validation",
        "test",
        "disc",
        "from scratch",
        "weight_decay",
        "optimizer",
    ):
        assert text in " ".join(out.split("step 1/3")[0].split())
    assert out.splitlines()[-1].endswith(str(tmp_path / "run" / "report.html"))


def test_json_is_all_that_is_printed(photos: Path, tmp_path: Path) -> None:
    result = call("finetune", photos, *TINY, "--output", tmp_path / "run", "--json")
    assert result.code == 0
    summary = json.loads(result.out)
    assert summary["steps"] == 3
    assert summary["images"] == 8
    assert Path(summary["report"]).is_file()
    assert 0 <= summary["accuracy"]["low"] <= summary["accuracy"]["value"] <= 1


def test_a_taken_name_is_refused_or_overwritten_but_never_mixed(
    photos: Path, own_run: Path
) -> None:
    before = snapshot(own_run)
    error = call("finetune", photos, *TINY, "--output", own_run).error
    assert error.startswith(f"{own_run} exists: go on with it by --resume")
    assert snapshot(own_run) == before
    done("finetune", photos, *TINY, "--output", own_run, "--overwrite")
    assert sorted(path.name for path in (own_run / "checkpoints").iterdir())[-1] == "step-00000003"
    assert rows(own_run)[-1]["step"] == 3


def test_overwrite_spares_what_is_no_run(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("two years of work")
    before = snapshot(tmp_path)
    error = call("finetune", photos, *TINY, "--output", tmp_path / "thesis", "--overwrite").error
    assert "is not a run folder" in error
    assert snapshot(tmp_path) == before


def test_a_run_without_a_name_takes_the_next_number(photos: Path) -> None:
    for _ in range(2):
        train_only(photos, *TINY)
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "photos-ViT-mu-4",
        "photos-ViT-mu-4-2",
    ]


def test_config_makes_the_same_weights_again(photos: Path, tmp_path: Path) -> None:
    varied = "--mixup 0.2 --ema 0.9 --dropout 0.1 --randaugment 2 9 --balance loss --seed 5"
    first = train_only(photos, *TINY, *varied.split(), "--output", tmp_path / "a").folder
    again = train_only("--config", first.config, "--output", tmp_path / "b").folder
    assert weights(again.path) == weights(first.path)
    assert again.config.read_bytes() == first.config.read_bytes()
    other = train_only("--config", first.config, "--seed", 6, "--output", tmp_path / "c").folder
    assert weights(other.path) != weights(first.path)  # a flag wins over the file


def test_config_makes_a_model_of_another_shape_again(photos: Path, tmp_path: Path) -> None:
    """Without --model, it is the default that the shape changes."""
    shape = ("--depth", 1, "--width", 32, "--heads", 2, "--mlp-width", 64)
    first = train_only(photos, *TINY[2:], *shape, "--output", tmp_path / "a").folder
    again = train_only("--config", first.config, "--output", tmp_path / "b").folder
    assert weights(again.path) == weights(first.path)
    onward = train_only(
        *(photos, "--weights", first.path, *TINY[2:], "--output", tmp_path / "c")
    ).folder
    done("finetune", photos, *TINY[2:], "--output", onward.path, "--resume")


def test_the_run_is_described_for_others(run: Path, photos: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"] == str(photos)
    assert config["model"] == "ViT-mu/4"
    assert None not in (config["lr"], config["batch_size"], config["optimizer"], config["steps"])
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["data"]["fingerprint"]


def test_weights_of_the_same_classes_keep_their_head_by_name(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    out = done(
        *("finetune", photos, "--weights", run, "--steps", 1, "--lr", 1e-9, "--workers", 0),
        *("--precision", "fp32", "--batch-size", 8, "--output", tmp_path / "run"),
    )
    assert "the head is kept: the weights know the classes of the data" in out
    assert "Table 4" in out  # and the recipe is that of fine-tuning
    before, after = tensors(run), tensors(tmp_path / "run")
    # A single step at a rate of 1e-9 with a gradient of norm 1 moves nothing by more.
    torch.testing.assert_close(
        after["head.linear.weight"], before["head.linear.weight"], atol=1e-8, rtol=0
    )


def test_weights_of_other_classes_get_a_new_head_and_say_so(run: Path, tmp_path: Path) -> None:
    fewer = make_photos(tmp_path / "two", {"disc": 8, "stripe": 8})
    out = done(
        *("finetune", fewer, "--weights", run, "--steps", 1, "--lr", 1e-9, "--workers", 0),
        *("--precision", "fp32", "--batch-size", 4, "--output", tmp_path / "run"),
    )
    assert "the head is new, for 2 classes in place of 3" in out
    head = tensors(tmp_path / "run")["head.linear.weight"]
    assert head.shape == (2, 32)
    assert head.abs().max() < 1e-8
    assert pw.from_pretrained(tmp_path / "run").labels == ("disc", "stripe")


def test_another_image_size_resizes_the_positions_and_says_so(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    out = done(
        *("finetune", photos, "--weights", run, "--image-size", 24, "--steps", 1, "--workers", 0),
        *("--precision", "fp32", "--batch-size", 8, "--output", tmp_path / "run"),
    )
    assert "positions resized from 4x4 to 6x6 patches" in out
    assert tensors(tmp_path / "run")["positions.table"].shape == (1, 37, 32)
    assert pw.from_pretrained(tmp_path / "run").preprocess.image_size == (24, 24)


def test_training_the_head_leaves_the_encoder_as_it_was(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    words = ("--steps", 2, "--workers", 0, "--precision", "fp32", "--batch-size", 8, "--lr", 0.1)
    job = train_only(
        *(photos, "--weights", run, "--train", "head", *words, "--output", tmp_path / "run")
    )
    before, after = tensors(run), tensors(job.folder.path)
    for name, value in before.items():
        same = torch.equal(value, after[name])
        assert same != name.startswith("head."), name


def test_python_loads_what_the_command_made(photos: Path, tmp_path: Path) -> None:
    job = train_only(photos, *TINY, "--output", tmp_path / "run")
    source = pw.from_pretrained(tmp_path / "run")
    assert source.labels == job.data.classes
    assert source.architecture == "ViT-mu/4"


def test_the_report_says_what_was_learned(own_run: Path) -> None:
    found = json.loads((own_run / "insight.json").read_text())
    assert found["beginning"] == {"words": "the initial weights of seed 0", "there": True}
    assert not found["left_out"]
    assert 0 < found["filters"]["moved"] < 5
    held_out = {row["path"] for row in read_csv(own_run / "predictions.csv")}
    assert set(found["maps"]["paths"]) <= held_out
    page = (own_run / "report.html").read_text()
    assert 'id="learned"' in page
    # Of the folder alone the same is found again, but for the order of sums.
    with np.load(own_run / "insight.npz") as file:
        before = dict(file)
    for name in ("insight.json", "insight.npz", "report.html"):
        (own_run / name).unlink()
    done("report", own_run)
    again = json.loads((own_run / "insight.json").read_text())
    assert again["maps"] == found["maps"]
    with np.load(own_run / "insight.npz") as file:
        assert file.files == list(before)
        for name in file.files:
            np.testing.assert_allclose(file[name], before[name], atol=1e-3, err_msg=name)
    kept, first = snapshot(own_run), (own_run / "report.html").read_bytes()
    done("report", own_run)  # now it is a function of the folder
    assert snapshot(own_run) == kept
    assert (own_run / "report.html").read_bytes() == first


def test_what_goes_wrong_with_the_look_costs_no_report(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr("patchwords.evaluation.model_insight.analyse_model", fails)
    done("finetune", photos, *TINY, "--output", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The analysis of the model failed: out of memory." in page
    assert "Confusion" in page
    monkeypatch.undo()
    done("report", tmp_path / "run")  # looks again
    assert "The analysis of the model failed" not in (tmp_path / "run" / "report.html").read_text()


def test_the_beginning_of_a_run_from_weights_is_these_weights(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    done(
        *("finetune", photos, "--weights", run, "--image-size", 24, "--steps", 1, "--workers", 0),
        *("--train", "head", "--batch-size", 8, "--device", "cpu", "--output", tmp_path / "run"),
    )
    found = json.loads((tmp_path / "run" / "insight.json").read_text())
    assert found["beginning"] == {"words": str(run), "there": True}
    assert found["filters"]["moved"] == 0
    assert found["positions"]["grid"] == [6, 6]
    assert found["positions"]["explained"] == found["positions"]["explained_before"]
