"""`patchwords models`: its numbers, its tables, and what it refuses."""

from __future__ import annotations

import doctest
import json
from collections.abc import Callable

import pytest

from patchwords.cli import main
from patchwords.cli.model import models as models_summary
from patchwords.models.cost import count_macs, count_parameters, estimate_activation_bytes
from patchwords.models.zoo import list_models, resolve_model

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Words of the command line -> what is printed, on a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str) -> str:
        assert main(["models", *words]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Say:
    """Words of the command line -> the one line of the error."""

    def run(*words: str) -> str:
        assert main(["models", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return run


def test_every_model_has_a_row_with_its_numbers(say: Say) -> None:
    rows = json.loads(say("--json", "--batch-size", "7", "--precision", "bf16"))
    assert [row["model"] for row in rows] == list_models()
    for row in rows:
        config = resolve_model(row["model"]).config
        assert row["parameters"] == count_parameters(config)
        assert row["macs"] == count_macs(config)
        assert row["activation_bytes"] == estimate_activation_bytes(config, 7, None, 2)
        assert row["grid"] == list(config.grid)
        assert "parts" not in row


def test_one_model_has_its_parts(say: Say) -> None:
    row = json.loads(say("resnetv2_50x1_bit", "--json"))[0]
    assert (row["model"], row["tokens"], row["grid"]) == ("BiT-R50x1", None, [7, 7])
    assert [part["part"] for part in row["parts"]] == [
        *("root", "stage 1", "stage 2", "stage 3", "stage 4", "head")
    ]
    assert [part["count"] for part in row["parts"]] == [1, 3, 4, 6, 3, 1]
    for name in ("parameters", "macs"):
        assert sum(part[name] for part in row["parts"]) == row[name]
    shown = say("R50+ViT-B/16")
    assert "stage 3 x9" in shown
    assert "attention x12" in shown


def test_settings_change_the_model_and_are_told(say: Say) -> None:
    words = ("ViT-S/16", "--mixer", "local", "--window", "5", "--position", "relative")
    row = json.loads(say(*words, "--json"))[0]
    config = resolve_model("ViT-S/16").config.with_settings(
        mixer="local", window=5, position="relative"
    )
    assert (row["parameters"], row["macs"]) == (count_parameters(config), count_macs(config))
    assert "with mixer local, window 5, position relative." in say(*words)
    assert "Models as named" not in say("ViT-S/16", "--image-size", "96", "160")


@pytest.mark.parametrize(
    ("words", "size"), [(("384",), [384, 384]), (("64", "96"), [64, 96])], ids=str
)
def test_image_sizes_are_one_number_or_two(
    say: Say, words: tuple[str, ...], size: list[int]
) -> None:
    assert json.loads(say("B/16", "--json", "--image-size", *words))[0]["image_size"] == size


def test_training_operations_are_told_with_their_formula(say: Say) -> None:
    # 7 epochs of JFT: the paper has 783 exaFLOPs in Table 6.
    words = ("ViT-L/16", "--train-images", "2.121e9")
    row = json.loads(say(*words, "--json"))[0]
    assert row["training_flops"] / 1e18 == pytest.approx(783, abs=0.5)
    shown = say(*words)
    assert "783.3" in shown
    assert "6 x MACs x images / 1e18" in shown


def test_models_that_refuse_a_setting_are_notes_among_others(say: Say) -> None:
    shown = say("*50*", "--position", "2d")
    assert "R50+ViT-B/16    224x224     197" in shown
    assert "BiT-R50x1, BiT-R50x2, BiT-R50x3, AxialResNet-50: a ResNet has no setting" in shown
    rows = json.loads(say("*-B/16", "--image-size", "100", "--json"))
    assert ["note" in row for row in rows] == [True, False, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ViT-B/16", "--image-size", "100"), "96 or 112 would do"),
        (("BiT-R50x1", "--position", "2d"), "a ResNet has no setting 'position'"),
        (("ViT-B/17x",), "unknown model"),
        (("R50+ViT-B/8",), "there is no R50+ViT-B/8, but R50+ViT-B/16 and R50+ViT-B/32"),
        (("--batch-size", "0"), "--batch-size 0 must be greater than 0"),
        (("--train-images", "-1"), "--train-images -1 must be greater than 0"),
        (("--classes", "0"), "--classes 0 must be greater than 0"),
        (("--table6", "--classes", "7"), "only PATTERN and --json go with it"),
        (("--table6", "--depth", "7"), "only PATTERN and --json go with it"),
        (("ViT-Ti/16", "--table6"), "Table 6 has no ViT-Ti/16; it has ViT-B/32"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(refused: Say, words: tuple[str, ...], message: str) -> None:
    assert message in refused(*words)


def test_table6_stands_beside_our_count(say: Say) -> None:
    rows = json.loads(say("--table6", "--json"))
    assert len(rows) == 18
    assert [row["exaflops_printed"] for row in rows if row["doubt"]] == [859]
    for row in rows:
        ratio = row["exaflops_counted"] / row["exaflops_printed"]
        assert ratio == pytest.approx(1, abs=0.045)
    shown = say("R50+ViT-L/16", "--table6")
    assert "859 is a slip" in shown
    assert "ViT-B/32" not in shown


@pytest.mark.parametrize(
    "words",
    [
        ("--train-images", "4.242e9", "--batch-size", "4096"),
        ("ViT-mu/16", "--classifier", "map", "--train-images", "1000"),
        ("--table6",),
        ("*14", "--image-size", "100"),
    ],
    ids=str,
)
def test_tables_fit_100_columns(say: Say, words: tuple[str, ...]) -> None:
    shown = say(*words)
    assert max(map(len, shown.splitlines())) <= 100
    assert "…" not in shown


def test_examples_in_the_code_are_right() -> None:
    assert doctest.testmod(models_summary).failed == 0
