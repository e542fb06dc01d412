"""A mixer from outside the package, through the command line and Python.

Each command is a process of its own that knows the mixer's module by PYTHONPATH alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import patchwords as pw
from patchwords.errors import ConfigError, WeightsError
from patchwords.models.config import ViTConfig
from patchwords.models.cost import count_forward_macs, count_macs, count_parameters
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model, resolve_model
from patchwords.training.engine.optimizer import has_weight_decay

HERE = Path(__file__).parent
NAME = "gated_mixer:GatedConv"
TRAIN = (
    *("finetune", "digits", "--model", "ViT-mu/4", "--image-size", "16", "--mixer", NAME),
    *("--batch-size", "32", "--train-images", "96", "--steps", "6", "--save-every", "1"),
    *("--dropout", "0.1", "--workers", "0", "--device", "cpu", "--precision", "fp32"),
)


def patchwords(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "patchwords", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_with_mixer(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def path_with_mixer() -> str:
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error that is the user's."""
    assert result.returncode == 2, result
    [line] = result.stderr.splitlines()
    return line


def weights(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gated") / "run"
    result = patchwords(*TRAIN, "--output", folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module can be imported, and is not imported yet."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delitem(sys.modules, "gated_mixer", raising=False)


def test_trained_weights_are_of_the_mixer(run: Path) -> None:
    config = json.loads((run / "model" / "config.json").read_text())["model"]
    assert (config["mixer"], config["classifier"]) == (NAME, "gap")
    assert list(run.glob("checkpoints/*"))


def test_an_interrupted_run_is_resumed_to_the_bit(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "patchwords", *TRAIN, "--output", str(other)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_with_mixer()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journal = other / "metrics.jsonl"
    while process.poll() is None and not (journal.exists() and '"step": 3' in journal.read_text()):
        pass
    process.kill()
    process.wait()
    resume = ("finetune", "digits", "--output", other, "--resume")
    assert "names code from outside of patchwords: --mixer gated_mixer" in refused(
        patchwords(*resume)
    )
    result = patchwords(*resume, "--mixer", NAME)
    assert result.returncode == 0, result.stderr
    assert weights(other) == weights(run)


def test_a_model_folder_runs_no_code_unless_the_user_says_so(run: Path, tmp_path: Path) -> None:
    predict = ("predict", run, HERE.parent.parent / "docs" / "report.png", "--json")
    line = refused(patchwords(*predict))
    assert f"mixer '{NAME}' is code from outside" in line
    assert "set PATCHWORDS_IMPORT=gated_mixer" in line
    allowed = patchwords(*predict, PATCHWORDS_IMPORT="gated_mixer")
    assert allowed.returncode == 0, allowed.stderr


@pytest.mark.usefixtures("known")
def test_python_loads_what_it_has_imported(run: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="import gated_mixer first"):
        pw.from_pretrained(run)
    assert "gated_mixer" not in sys.modules
    import gated_mixer

    loaded = pw.from_pretrained(run)
    assert isinstance(loaded.model, ViT)
    assert isinstance(loaded.model.encoder.blocks[0].mixer, gated_mixer.GatedConv)
    pw.save_pretrained(
        loaded.model, tmp_path / "copy", labels=loaded.labels, preprocess=loaded.preprocess
    )
    images = torch.randn(2, 3, 16, 16)
    copy = pw.from_pretrained(tmp_path / "copy").model
    assert torch.equal(copy(images), loaded.model(images))
    larger = loaded.model.forward_dense(torch.randn(1, 3, 24, 32))
    assert larger.shape == (1, 32, 6, 8)


@pytest.mark.usefixtures("known")
def test_its_parameters_and_products_are_counted() -> None:
    plain = resolve_model("ViT-mu/4").config.with_settings(classifier="gap", image_size=16)
    config = plain.with_settings(mixer=NAME)
    width, patches = 32, 16
    before, after = 4 * width * (width + 1), 2 * width * (width + 1) + 9 * width + 2 * width
    assert count_parameters(config) - count_parameters(plain) == after - before
    attention = 4 * patches * width**2 + 2 * patches**2 * width
    gated = 2 * patches * width**2 + 9 * patches * width
    assert count_macs(config) - count_macs(plain) == gated - attention
    assert count_forward_macs(config) == count_macs(config)


@pytest.mark.usefixtures("known")
def test_every_parameter_has_initial_values_and_a_decay_rule() -> None:
    model = create_model("ViT-mu/4", image_size=16, mixer=NAME)
    values = dict(model.named_parameters())
    mixer = "encoder.blocks.0.attention."
    assert not values[mixer + "scale"].any()
    assert values[mixer + "conv.weight"].std() > 0.1
    decays = {name for name in values if name.startswith(mixer) and has_weight_decay(name)}
    assert decays == {mixer + f"{part}.weight" for part in ("gate", "conv", "proj")}


@pytest.mark.usefixtures("known")
def test_its_row_in_the_table_of_models() -> None:
    result = patchwords("models", "ViT-mu/16", "--mixer", NAME, "--classifier", "gap", "--json")
    assert result.returncode == 0, result.stderr
    [row] = json.loads(result.stdout)
    config = resolve_model("ViT-mu/16").config.with_settings(mixer=NAME)
    assert row["parameters"] == count_parameters(config)
    assert row["activation_bytes"] > 0


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gated", "unknown mixer 'gated'"),
        ("poling", "unknown mixer 'poling'; did you mean 'pooling'"),
        ("nowhere_at_all:Mixer", "No module named 'nowhere_at_all'; PYTHONPATH"),
        ("gated_mixer:Missing", "gated_mixer has no class Missing"),
        ("gated_mixer:NotAMixer", "gated_mixer has no class NotAMixer"),
        ("gated_mixer:", "unknown mixer 'gated_mixer:'"),
    ],
)
def test_what_is_no_mixer_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        create_model("ViT-mu/4", mixer=name)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("known")
def test_a_config_from_a_file_imports_nothing() -> None:
    table = {"mixer": NAME, "classifier": "gap"}
    with pytest.raises(ConfigError, match="import gated_mixer first"):
        ViTConfig.from_dict(table)
    assert "gated_mixer" not in sys.modules
    ViTConfig().with_settings(mixer=NAME)
    assert ViTConfig.from_dict(table).mixer == NAME


@pytest.mark.usefixtures("known")
def test_a_class_token_has_no_place_in_it() -> None:
    with pytest.raises(ConfigError, match="choose classifier gap or map"):
        create_model("ViT-mu/4", mixer=NAME, classifier="token")
    with pytest.raises(ConfigError, match="has no attention to look at"):
        create_model("ViT-mu/4", mixer=NAME).attention(torch.zeros(1, 3, 224, 224))
