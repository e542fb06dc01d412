"""A hybrid and a ResNet through the whole program, as ViTs go, and what each refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stage import TINY, call, done, train_only

import patchwords as pw
from patchwords.models.build import get_model_family

CHEAP = tuple(word for word in TINY if word not in ("--model", "ViT-mu/4"))
MODELS = {  # name -> what the encoder or the head sees at 16 pixels
    "R+ViT-mu/16 --patch-size 2": "5 tokens",
    "BiT-R26x1": "1x1 features of 2,048 channels",
}


@pytest.mark.parametrize("model", MODELS)
def test_trained_asked_measured_and_trained_further(
    one_thread: None, model: str, photos: Path, tmp_path: Path
) -> None:
    run, name = tmp_path / "run", model.split(maxsplit=1)[0]
    out = done("finetune", photos, *CHEAP, "--model", *model.split(), "--output", run)
    assert MODELS[model] in out
    assert ("dropout" in out) == ("ViT" in name)
    assert (run / "report.html").is_file()
    source = pw.from_pretrained(run)
    assert str(source.architecture).startswith(name)
    assert get_model_family(source.model.config) == ("vit" if "ViT" in name else "resnet")
    answer = json.loads(done("predict", run, photos / "disc" / "00.png", "--json"))
    assert answer["predictions"][0]["label"] in source.labels

    words = [word for word in CHEAP if word not in ("--image-size", "16")]
    size = ("--image-size", 24, "--weights", run, "--output", tmp_path / "further")
    job = train_only(photos, *words, *size)
    assert job.start.name == source.architecture
    found = job.start.model.config.to_dict()  # fine-tuning has a dropout of its own
    wanted = source.model.config.with_settings(image_size=24).to_dict()
    assert {name for name in wanted if found[name] != wanted[name]} <= {"dropout"}
    assert "the head is kept" in job.start.changes[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model BiT-R26x1 --position 2d", "a ResNet has no setting 'position'"),
        ("--model BiT-R26x1 --dropout 0.1", "a ResNet has no setting 'dropout'"),
        ("--model BiT-R26x1 --train last:9", "--train last:9: the model has 8 residual units"),
        ("--model BiT-R26x1 --optimizer adamw", "has a learning rate for sgd only; give --lr"),
        ("--model ViT-mu/4 --mixer local --window 9", "window 9 has no place in a grid of 4x4"),
        ("--model ViT-mu/4 --window 3", "window 3 needs mixer 'local', not 'attention'"),
        ("--model ViT-mu/4 --heads 5", "width 32 does not split into 5 heads; 4 or 8 heads would"),
        (
            "--model ViT-mu/4 --position relative --position-at every",
            "position 'relative' has no position_at 'every' (Table 8): choose stem",
        ),
        (
            "--model ViT-mu/4 --mixer axial --classifier token",
            "where a class token has no place: choose classifier gap or map",
        ),
        ("--model R26+ViT-mu/32 --patch-size 3", "1x1 after the convolutions, does not divide"),
    ],
)
def test_settings_that_contradict_one_another_are_one_line(
    words: str, said: str, photos: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert said in call("finetune", photos, *CHEAP, *words.split(), "--output", run).error
    assert not run.exists()


def test_the_weights_fix_what_they_fix(run: Path, photos: Path, tmp_path: Path) -> None:
    short = [word for word in CHEAP if word not in ("--image-size", "16")]
    words = ("finetune", photos, *short, "--weights", run, "--output", tmp_path / "next")
    for flag, value in {"--mixer": "axial", "--position": "2d"}.items():
        assert (
            "was asked for, but the weights are of a model with" in call(*words, flag, value).error
        )
    out = done(*words, "--classifier", "gap", "--representation-size", 9)
    assert "the head reads the mean of all tokens in place of the class token" in out
    assert "on a tanh layer of 9 with initial weights" in out
    config = pw.from_pretrained(tmp_path / "next").model.config
    assert (config.classifier, config.representation_size) == ("gap", 9)
