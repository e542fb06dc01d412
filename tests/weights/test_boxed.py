"""The model in the box: small, whole, named, and with a card that says what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from patchwords.cli import main
from patchwords.errors import WeightsError
from patchwords.models.cost import count_parameters
from patchwords.weights.locate import BUNDLED_FOLDER, locate_weights
from patchwords.weights.store import from_pretrained

NAME = "patchwords:cifar10-small"


def test_it_is_a_vit_of_a_million_parameters_below_3_mb() -> None:
    found = from_pretrained(NAME)
    assert count_parameters(found.model.config) == 1_024_138
    assert {p.dtype for p in found.model.parameters()} == {torch.float32}
    assert found.labels[:2] == ("airplane", "automobile")
    assert len(found.labels) == 10
    assert sum(file.stat().st_size for file in locate_weights(NAME).path.iterdir()) < 3_000_000


def test_the_card_has_the_numbers_of_the_model() -> None:
    card = (BUNDLED_FOLDER / "cifar10-small" / "README.md").read_text()
    table = json.loads((BUNDLED_FOLDER / "cifar10-small" / "config.json").read_text())
    for word in ("1,024,138 parameters", f"width {table['model']['width']}", "Apache 2.0", "seed"):
        assert word in card


def test_another_name_says_which_there_are() -> None:
    with pytest.raises(WeightsError, match=f"in this package; there are: {NAME}"):
        locate_weights("patchwords:imagenet")
    with pytest.raises(WeightsError, match="there are"):
        locate_weights("patchwords:../boxed/cifar10-small")


def test_it_takes_other_sizes_and_classes(tmp_path: Path) -> None:
    model = from_pretrained(NAME, image_size=16, num_classes=3).model
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 3)


def test_the_demo_starts_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", "digits", "--config", "docs/digits.yaml", "--weights", NAME]
    root = Path(__file__).parents[2]
    words[3] = str(root / words[3])
    more = ["--epochs", "1", "--classes", "0", "1", "--device", "cpu", "--workers", "0"]
    assert main([*words, *more, "--output", str(tmp_path / "run")]) == 0
    assert "cifar10-small" in capsys.readouterr().out
