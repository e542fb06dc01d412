"""`patchwords` and its words: what is understood, what is refused, and at what cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stage import call, done

import patchwords
from patchwords.cli import COMMANDS
from patchwords.cli.flags import list_flags
from patchwords.cli.help import format_usage
from patchwords.training.config import FinetuneConfig, flatten_config

SOURCE = Path(patchwords.__file__).parent


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_the_overview_names_every_verb(words: tuple[str, ...]) -> None:
    out = done(*words)
    assert all(re.search(rf"^  {verb} ", out, re.MULTILINE) for verb in COMMANDS)


def test_version() -> None:
    assert done("--version") == f"patchwords {patchwords.__version__}\n"


def test_an_unknown_verb_gets_the_nearest() -> None:
    assert call("finetun", "x").error == "unknown command 'finetun'; did you mean 'finetune'?"


def test_the_program_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "patchwords", "evalute"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "patchwords: unknown command 'evalute'; did you mean 'evaluate'?\n"


def test_neither_help_nor_a_wrong_flag_loads_anything_heavy() -> None:
    code = (
        "import contextlib, io, json, sys\n"
        "from patchwords.cli import COMMANDS, main\n"
        "heavy, found = {'torch', 'sklearn', 'matplotlib', 'datasets', 'pyarrow'}, {}\n"
        "for verb in COMMANDS:\n"
        "    for words in ([verb, '--help'], [verb, '--no-such-flag'], ['--help']):\n"
        "        quiet = io.StringIO()\n"
        "        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):\n"
        "            try:\n"
        "                ended = main(words)\n"
        "            except SystemExit as end:\n"
        "                ended = end.code\n"
        "        found[' '.join(words)] = [ended, sorted(heavy & set(sys.modules))]\n"
        "print(json.dumps(found))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    for words, (code_, loaded) in json.loads(result.stdout).items():
        assert code_ == (2 if "no-such" in words else 0), words
        assert loaded == [], words


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_flag_of_a_verb_is_explained(verb: str) -> None:
    command = COMMANDS[verb].load()[1]
    text = done(verb, "--help")
    for flag in list_flags(command):
        assert len(flag.text.split()) >= 2, (verb, flag.name)
        assert re.search(rf"^  {re.escape(format_usage(flag))}( |$)", text, re.MULTILINE), flag.name
        if flag.default is None:  # what the program does then
            assert flag.unset or "default:" in flag.text, (verb, flag.name)
    assert (command.__doc__ or "").split(maxsplit=1)[0] in text
    assert f"patchwords {verb}" in text
    assert "None|" not in text
    assert "default: None" not in text


def test_the_verb_of_0_1_still_lists_the_studies() -> None:
    assert done("studies", "--json") == done("study", "--json")


def test_every_setting_of_finetune_is_read_somewhere() -> None:
    """A setting that nobody reads would be shown, stored, and without effect."""
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "config.py")
    for name in flatten_config(FinetuneConfig()):
        assert re.search(rf"\.{name}\b|\"{name}\"", text), name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lrr 1", "unknown flag --lrr; did you mean '--lr'? (see patchwords finetune --help)"),
        ("--data x", "unknown flag --data; DATA is given without a flag (see patchwords "),
        ("extra", "did not expect 'extra' (see patchwords finetune --help)"),
        ("--lr a", "--lr 'a': expected a number (see patchwords finetune --help)"),
        ("--lr=a", "--lr 'a': expected a number (see patchwords finetune --help)"),
        ("--steps 1.5", "--steps '1.5': expected a whole number (see patchwords finetune --help)"),
        ("--mixup", "--mixup: expected a number (see patchwords finetune --help)"),
        (
            "--crop-area 0.5 --seed 1",
            "--crop-area '0.5': expected two numbers (see patchwords finetune --help)",
        ),
        (
            "--randaugment 2",
            "--randaugment '2': expected a whole number and a number "
            "(see patchwords finetune --help)",
        ),
        (
            "--grad-accum some",
            "--grad-accum 'some': expected auto or a whole number (see patchwords finetune --help)",
        ),
        ("--schedule cosin", "--schedule 'cosin' is not a choice; did you mean 'cosine'?"),
        ("--classes", "--classes lacks a value; leave it out, or say which"),
        ("--image-size", "--image-size lacks a value; leave it out, or say which"),
        (
            "--train last",
            "--train 'last': choose all, head, norms, last:N with N layers, as last:2",
        ),
        ("--epochs 2 --steps 3", "--epochs 2 and --steps 3 both say how long to train; give one"),
        ("--resume --overwrite", "--resume: say which run to go on with by --output RUN"),
        ("--resume --overwrite --output r", "--resume: r holds no run to go on with"),
        ("--lr 0", "--lr 0 must be greater than 0"),
        ("--batch-size -4", "--batch-size -4 must be greater than 0"),
        ("--label-smoothing 1", "--label-smoothing 1 must be at least 0 and less than 1"),
        ("--workers -1", "--workers -1 is negative"),
        ("--early-stop 2 --validation 0", "--early-stop needs validation images"),
        ("--model ViT-Q/16", "unknown model 'ViT-Q/16'"),
    ],
)
def test_a_wrong_flag_is_one_line(words: str, said: str, photos: Path) -> None:
    assert call("finetune", photos, *words.split()).error.startswith(said)


def test_what_is_missing_is_named() -> None:
    assert "no data given: patchwords finetune DATA" in call("finetune").error
    assert call("predict").error.startswith("patchwords predict: missing MODEL")
    assert call("evaluate", "run").error.startswith("patchwords evaluate: missing DATA")
    assert call("report").error.startswith("patchwords report: missing RUN")
    assert call("predict", "run").code == 2


def test_another_tyro_gets_its_own_message_in_one_line(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tyro._errors", None)  # its import fails
    error = call("finetune", photos, "--lr", "a").error
    assert "--lr" in error
    assert error.endswith("(see patchwords finetune --help)")
    assert "--lrr" in call("finetune", photos, "--lrr", "1").error


def test_debug_shows_the_traceback(photos: Path) -> None:
    result = call("finetune", photos, "--lr", "0", "--debug")
    assert result.code == 2
    assert "Traceback (most recent call last)" in result.err
    assert result.err.splitlines()[-1] == "patchwords: --lr 0 must be greater than 0"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("train", "photos"), "finetune"),
        (("eval", "run", "photos"), "evaluate"),
        (("finetune", "photos", "--pretrained", "x"), "--weights"),
        (("finetune", "photos", "--lr_rate", "0.1"), "--lr"),
        (("finetune", "photos", "--learning-rate", "0.1"), "--lr"),
        (("finetune", "photos", "--minutes", "4"), "--(budget|epochs)"),
        (("finetune", "photos", "--arch", "vit"), "--model"),
        (("models", "resnet50"), "BiT-R50x1"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_words_of_other_programs_are_understood(words: tuple[str, ...], meant: str) -> None:
    assert re.search(f"did you mean '{meant}'", call(*words).error)
