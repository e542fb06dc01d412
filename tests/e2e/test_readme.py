"""The README's Python runs, and every command in README and docs is one that the program takes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from stage import draw

from patchwords.cli import COMMANDS
from patchwords.cli.flags import parse_command

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
    *sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "zh").glob("*.md")]),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The lines that call patchwords: in blocks of shell, and in `code` within the text."""
    text = page.read_text("utf-8")
    lines = []
    for language, block in BLOCK.findall(text):
        if language in {"", "sh", "bash", "console", "text"}:
            lines += [
                line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()
            ]
    lines += re.findall(r"`(patchwords [^`]+)`", BLOCK.sub("", text).replace("\n", " "))
    return [line for line in lines if re.match(r"patchwords (?!VERB)[a-z-]", line)]


SAID = [(page, line) for page in PAGES if page.exists() for line in commands(page)]


def test_the_readme_shows_commands() -> None:
    assert len([line for page, line in SAID if page.name == "README.md"]) >= 4


@pytest.mark.parametrize(("page", "line"), SAID, ids=lambda value: getattr(value, "name", value))
def test_a_command_in_the_documentation_parses(page: Path, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((i for i, word in enumerate(words) if word in {"|", ">", "&&"}), None)]
    if "..." in words or words[0].startswith("-"):
        return  # only a part of a command, or one without a verb
    verb, *rest = words
    assert verb in COMMANDS, line
    if not rest or rest == ["--help"]:
        return  # the verb's name, or its help
    command = COMMANDS[verb].load()[1]
    parse_command(command, [word for word in rest if word != "--debug"], f"patchwords {verb}")


def test_the_python_in_the_readme_runs(
    run: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a run and a photo where the text says that they are."""
    blocks = [
        block
        for language, block in BLOCK.findall(PAGES[0].read_text("utf-8"))
        if language == "python"
    ]
    assert blocks
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run / "model", Path("runs") / "photos" / "model")
    shutil.copytree(photos, "photos")
    Path("new").mkdir()
    draw("disc", 7).save("new/flower.jpg")
    torch.set_num_threads(os.cpu_count() or 1)  # a model of the usual size is in it
    try:
        for block in blocks:
            exec(block, {})
    finally:
        torch.set_num_threads(1)
