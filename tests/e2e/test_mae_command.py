"""`patchwords pretrain --objective mae`: from images to a model that fine-tuning starts from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from stage import TINY, call, done, rows, snapshot

import patchwords as pw

MAE = ("--objective", "mae", *TINY)


@pytest.fixture(scope="module")
def run(one_thread: None, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, long enough to have learned. To be read only."""
    folder = tmp_path_factory.mktemp("runs") / "mae"
    words = [*MAE[:6], "--steps", 60, *MAE[8:]]
    longer = ("--lr", 0.01, "--crop-area", 0.9, 1, "--eval-every", 30, "--validation", 0.3)
    done("pretrain", photos, *words, *longer, "--output", folder)
    return folder


def test_it_learns_and_says_what_it_did(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["objective"], config["mask_ratio"]) == ("mae", 0.75)
    assert (config["decoder_width"], config["decoder_depth"]) == (16, 2)
    results = json.loads((run / "mae.json").read_text())
    assert (results["split"], results["patches"], results["hidden"]) == ("validation", 16, 12)
    assert results["loss"] == pytest.approx(rows(run, "evaluation")[-1]["loss"], rel=1e-5)
    assert results["explained"] == pytest.approx(1 - results["loss"] / results["baseline"])
    assert 0 < results["explained"] < 1  # of noise with shapes on it
    assert len(results["pictures"]) == 8
    for row in results["pictures"]:
        assert all((run / row[name]).is_file() for name in ("image", "given", "predicted"))


def test_the_report_shows_reconstructions(run: Path, tmp_path: Path) -> None:
    page = (run / "report.html").read_text()
    for text in (
        "12 of 16 patches",
        "2 blocks of width 16",
        "Variance explained within hidden patches",
        "chequers hide the others",
    ):
        assert text in page
    assert page.count("data:image/png;base64") >= 24
    assert "cannot be shown" not in page
    copy = Path(shutil.copytree(run, tmp_path / run.name))
    (copy / "report.html").unlink()
    done("report", copy)
    assert (copy / "report.html").read_text() == page
    assert pw.load_run(run).metrics["explained"] > 0


def test_finetuning_starts_from_it(run: Path, photos: Path, tmp_path: Path) -> None:
    source = pw.from_pretrained(run)
    assert source.labels == ()
    assert not any("decoder" in name for name in source.model.state_dict())
    words = ("--steps", 2, "--workers", 0, "--batch-size", 4, "--lr", 1e-9)
    decay = ("--optimizer", "adamw", "--layer-decay", 0.65)
    done("finetune", photos, "--weights", run, *words, *decay, "--output", tmp_path / "on")
    after = pw.from_pretrained(tmp_path / "on").model.state_dict()
    for name, value in source.model.state_dict().items():
        if not name.startswith("head."):
            assert after[name].sub(value).abs().max() < 1e-6, name


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*MAE, "--mask-ratio", 0.95), "--mask-ratio 0.95 leaves none of 16 patches to see"),
        ((*MAE, "--decoder-width", 30), "--decoder-width 30: sines of two axes need"),
        ((*MAE, "--mixer", "pooling"), "mixer 'pooling' cannot, as it needs the grid"),
        ((*MAE, "--mixup", 0.2), "--mixup 0.2 has a meaning with --objective supervised"),
        (
            ("--objective", "masked", *TINY, "--decoder-depth", 2),
            "--decoder-depth 2 has a meaning with --objective mae only",
        ),
        (
            ("--objective", "mae", "--model", "BiT-R50x1", "--image-size", 32),
            "a ResNet cannot: choose a ViT",
        ),
    ],
    ids=str,
)
def test_mistakes_are_one_line(
    words: tuple[object, ...], line: str, photos: Path, tmp_path: Path
) -> None:
    before = snapshot(tmp_path)
    assert line in call("pretrain", photos, *words, "--output", tmp_path / "run").error
    assert snapshot(tmp_path) == before
