"""`patchwords pretrain`: from images without classes to a model that fine-tuning starts from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import safetensors.torch
import yaml
from stage import COUNTS, TINY, call, done, make_photos, png, rows, snapshot, weights

import patchwords as pw
from patchwords.errors import WeightsError

MASKED = ("--objective", "masked", *TINY)


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 photos in one folder. To be read only."""
    photos = make_photos(tmp_path_factory.mktemp("labelled"))
    folder = tmp_path_factory.mktemp("unlabelled") / "photos"
    folder.mkdir()
    for path in photos.rglob("*.png"):
        shutil.copy(path, folder / f"{path.parent.name}-{path.name}")
    return folder


@pytest.fixture(scope="module")
def masked(one_thread: None, unlabelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run without labels, long enough to have learned. To be read only."""
    folder = tmp_path_factory.mktemp("runs") / "masked"
    words = [*MASKED[:6], "--steps", 60, *MASKED[8:]]
    longer = ("--lr", 0.01, "--crop-area", 0.9, 1, "--eval-every", 30, "--validation", 0.3)
    done("pretrain", unlabelled, *words, *longer, "--output", folder)
    return folder


def test_images_without_classes_are_learned_from(masked: Path) -> None:
    evaluations = rows(masked, "evaluation")
    assert [row["step"] for row in evaluations] == [30, 60]
    first = rows(masked, "train")[0]["loss"]
    assert first == pytest.approx(6.238, abs=0.01)  # ln 512: every colour is as likely
    assert evaluations[-1]["loss"] < 0.8 * first
    data = json.loads((masked / "data.json").read_text())
    assert data["classes"] == []
    assert {name: split["images"] for name, split in data["splits"].items()} == {
        "train": 28,
        "validation": 12,
    }


def test_the_run_says_what_it_did(masked: Path) -> None:
    config = yaml.safe_load((masked / "config.yaml").read_text())
    assert config["objective"] == "masked"
    assert (config["target"], config["mask_ratio"]) == ("mean-colour", 0.5)
    results = json.loads((masked / "masked.json").read_text())
    assert (results["split"], results["images"]) == ("validation", 12)
    assert (results["patches"], results["corrupted"]) == (16, 8)
    assert results["loss"] == pytest.approx(rows(masked, "evaluation")[-1]["loss"], rel=1e-5)
    assert 0 < results["baseline"] <= results["accuracy"] <= 1
    assert len(results["pictures"]) == 8
    for row in results["pictures"]:
        for name in ("image", "given", "predicted"):
            assert (masked / row[name]).is_file()
    assert not (masked / "evaluation.json").exists()


def test_the_report_shows_the_hidden_patches(masked: Path, tmp_path: Path) -> None:
    page = (masked / "report.html").read_text()
    # eight images in three panels; filters and positions, now and at the beginning
    assert page.count("data:image/png;base64") == 24 + 4
    for text in (
        "8 of 16 patches",
        "(chequers are the mask embedding)",
        "mean-colour",
        "no classes",
    ):
        assert text in page
    assert "cannot be shown" not in page  # nothing is missing that a run of masks should have
    assert "confusion" not in page.lower()
    copy = Path(shutil.copytree(masked, tmp_path / masked.name))
    (copy / "report.html").unlink()
    done("report", copy)
    assert (copy / "report.html").read_text() == page


def test_the_model_is_a_plain_encoder_without_classes(masked: Path, tmp_path: Path) -> None:
    source = pw.from_pretrained(masked)
    assert source.labels == ()
    tensors = safetensors.torch.load_file(masked / "model" / "model.safetensors")
    assert not any(name.startswith(("mask", "prediction", "vit.")) for name in tensors)
    assert tensors["head.linear.weight"].eq(0).all()
    with pytest.raises(WeightsError, match="was pre-trained without classes"):
        source.predict(png("disc", 1))
    # it can be saved and loaded again, but other programs have no way to say this
    pw.save_pretrained(source.model, tmp_path / "copy", labels=(), preprocess=source.preprocess)
    assert pw.from_pretrained(tmp_path / "copy").labels == ()
    with pytest.raises(WeightsError, match="was pre-trained without classes"):
        pw.save_pretrained(source.model, tmp_path / "hf", labels=(), format="huggingface")


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "RUN", "PHOTO"),
        ("evaluate", "RUN", "digits"),
        ("export", "RUN", "x.onnx"),
        ("convert", "RUN", "x", "--to", "huggingface"),
    ],
    ids=lambda words: words[0],
)
def test_what_needs_classes_says_so(
    words: tuple[str, ...], masked: Path, unlabelled: Path, tmp_path: Path
) -> None:
    named = {"RUN": masked, "PHOTO": next(unlabelled.iterdir())}
    error = call(*(named.get(word, word) for word in words)).error
    assert error.startswith(f"{masked} was pre-trained without classes, so it names none")
    assert f"patchwords finetune DATA --weights {masked}" in error
    assert not list(Path().iterdir())


def test_fine_tuning_starts_from_it(masked: Path, photos: Path, tmp_path: Path) -> None:
    words = ("--steps", 1, "--lr", 1e-9, "--workers", 0, "--precision", "fp32")
    out = done(
        *("finetune", photos, "--weights", masked, *words, "--batch-size", 8),
        *("--output", tmp_path / "run"),
    )
    assert "the head is new, for 3 classes in place of none: it starts from zero" in out
    assert "Table 4" in out
    before = safetensors.torch.load_file(masked / "model" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "run" / "model" / "model.safetensors")
    for name, value in before.items():
        if not name.startswith("head."):  # a step at a rate of 1e-9 moves nothing by more
            assert (after[name] - value).abs().max() < 1e-8, name
    assert pw.from_pretrained(tmp_path / "run").labels == tuple(sorted(COUNTS))


def test_it_goes_on_and_can_be_made_again(unlabelled: Path, tmp_path: Path) -> None:
    done("pretrain", unlabelled, *MASKED, "--output", tmp_path / "a")
    config = tmp_path / "a" / "config.yaml"
    done("pretrain", "--config", config, "--output", tmp_path / "b")
    assert weights(tmp_path / "b") == weights(tmp_path / "a")
    shutil.rmtree(tmp_path / "b" / "model")
    done("pretrain", unlabelled, "--output", tmp_path / "b", "--resume")
    assert weights(tmp_path / "b") == weights(tmp_path / "a")
    words = ("pretrain", unlabelled, "--output", tmp_path / "b", "--resume", "--mask-ratio", 0.3)
    assert "was started with --mask-ratio 0.5, not with 0.3" in call(*words).error


def test_masks_go_on_from_other_weights(run: Path, unlabelled: Path, tmp_path: Path) -> None:
    """Of a classifier: its head is left out, and the encoder goes on learning."""
    words = MASKED[:2] + MASKED[6:]
    out = done("pretrain", unlabelled, "--weights", run, *words, "--output", tmp_path / "run")
    assert "the head is left out, as there are no classes to train it for" in out
    assert pw.from_pretrained(tmp_path / "run").labels == ()
    again = tmp_path / "again"
    done("pretrain", unlabelled, "--weights", tmp_path / "run", *words, "--output", again)
    assert pw.from_pretrained(again).labels == ()


def test_a_table_without_labels_and_splits_without_classes(
    unlabelled: Path, tmp_path: Path
) -> None:
    images = [path.read_bytes() for path in sorted(unlabelled.iterdir())[:12]]
    table = pyarrow.table({"image": images})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    done("pretrain", tmp_path / "x.parquet", *MASKED, "--output", tmp_path / "a")
    for split, count in (("train", 9), ("val", 3)):
        (tmp_path / "split" / split).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "split" / split / f"{number}.png").write_bytes(png("disc", number))
    done("pretrain", tmp_path / "split", *MASKED, "--output", tmp_path / "b")
    data = json.loads((tmp_path / "b" / "data.json").read_text())
    assert {name: split["images"] for name, split in data["splits"].items()} == {
        "train": 9,
        "validation": 3,
    }
    assert data["classes"] == []


def test_classes_are_learned_by_a_head_of_two_layers(photos: Path, tmp_path: Path) -> None:
    out = done("pretrain", photos, *TINY, "--loss", "sigmoid", "--output", tmp_path / "run")
    assert "a tanh layer of 32 before the classifier" in " ".join(out.split())
    source = pw.from_pretrained(tmp_path / "run")
    assert source.labels == tuple(sorted(COUNTS))
    assert source.model.config.representation_size == 32
    assert source.model.config.head_bias == pytest.approx(-0.693, abs=1e-3)  # ln 2: 3 classes
    # 3 classes at 1/3: -ln(1/3) - 2 ln(2/3)
    assert rows(tmp_path / "run", "train")[0]["loss"] == pytest.approx(1.9095, abs=1e-3)
    assert "Accuracy on the validation images" in (tmp_path / "run" / "report.html").read_text()
    words = ("--steps", 1, "--workers", 0, "--batch-size", 4, "--classes", "disc", "stripe")
    out = done(
        *("finetune", photos, "--weights", tmp_path / "run", *words, "--output", tmp_path / "b")
    )
    assert "the tanh layer of 32 before it is left out, too" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no data given: patchwords pretrain DATA"),
        (["PHOTOS", "--objective", "mask"], "unknown --objective 'mask'"),
        (["PHOTOS", "--mask-ratio", 0.3], "--mask-ratio 0.3 has a meaning with --objective masked"),
        (["PHOTOS", "--objective", "masked", "--mixup", 0.2], "--mixup 0.2 has a meaning with"),
        (["PHOTOS", *MASKED, "--mask-ratio", 0.01], "--mask-ratio 0.01 of 16 patches is none"),
        (["PHOTOS", *MASKED, "--mixer", "identity"], "mixer 'identity' never looks at"),
        (["PHOTOS", *MASKED, "--target", "small-patch", "--patch-size", 2], "are 2x2: choose"),
        (
            ["PHOTOS", "--objective", "masked", "--model", "BiT-R50x1", "--image-size", 32],
            "masked patch prediction corrupts patch embeddings, and a ResNet has none",
        ),
        (
            ["PHOTOS", "--objective", "masked", "--model", "R50+ViT-B/16", "--image-size", 32],
            "masked patch prediction would hide nothing from a hybrid",
        ),
        (["FLAT", *TINY], "lie in no class"),  # which classes need
    ],
    ids=str,
)
def test_mistakes_are_one_line(
    words: list[object], line: str, photos: Path, unlabelled: Path, tmp_path: Path
) -> None:
    named = {"PHOTOS": photos, "FLAT": unlabelled}
    before = snapshot(tmp_path)
    given = [named.get(word, word) if isinstance(word, str) else word for word in words]
    output = ["--output", tmp_path / "run"] if words else []
    assert line in call("pretrain", *given, *output).error
    assert snapshot(tmp_path) == before


def test_the_folder_of_a_first_split_alone_is_refused(tmp_path: Path) -> None:
    table = "path,split\n" + "".join(f"{n}.png,test\n" for n in range(3))
    (tmp_path / "x.csv").write_text(table)
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png("disc", number))
    error = call("pretrain", tmp_path / "x.csv", *MASKED, "--output", tmp_path / "run").error
    assert "has images for test, none for train" in error


def test_json_is_all_that_is_printed(unlabelled: Path, tmp_path: Path) -> None:
    result = call("pretrain", unlabelled, *MASKED, "--output", tmp_path / "run", "--json")
    assert result.code == 0
    summary = json.loads(result.out)
    assert summary["steps"] == 3
    assert 0 <= summary["accuracy"] <= 1
    assert Path(summary["report"]).is_file()


def test_the_report_of_masks_says_what_was_learned(masked: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(masked, tmp_path / "masked"))
    found = json.loads((own / "insight.json").read_text())
    assert found.keys() >= {"filters", "positions", "distance"}
    assert found.keys().isdisjoint({"maps", "truth"})
    assert found["distance"]["images"] == 12
    page = (own / "report.html").read_text()
    assert page.index('id="patches"') < page.index('id="learned"') < page.index('id="data"')
    (own / "insight.json").unlink()
    done("report", own)
    assert json.loads((own / "insight.json").read_text())["distance"]["images"] == 12
