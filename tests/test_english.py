"""The words of help texts, docstrings and messages, and docs/glossary.md, which explains them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import patchwords
from patchwords.cli import COMMANDS, main

PACKAGE = Path(patchwords.__file__).parent
ROOT = Path(__file__).parents[1]
GLOSSARY = [
    row.strip("| ").split(" | ")
    for row in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    if row.startswith("| ") and not row.startswith("| word")
]
REFUSED = (
    *("anew", "beside", "but for", "comes to", "commonest", "dearest", "for a person"),
    *("from afar", "in words", "likeliest", "nobody", "none given", "of which", "so many"),
    *("somebody", "whoever"),
)
# Rooms (folders or files of src/patchwords) without a refused word; the set only grows.
CLEAN_ROOMS = {
    *("__init__.py", "__main__.py", "api", "app"),
    "benchmark",
    "cli",
    "data",
    "device.py",
    "distributed.py",
    "download.py",
    "errors.py",
    "evaluation",
    *("export", "files.py", "interpret", "models", "planning"),
    "rng.py",
    "studies",
    *("tasks", "training"),
    "weights",
}


def find_refused_words(text: str) -> list[str]:
    plain = " ".join(re.sub(r"--[a-z-]+", "", text.lower()).split())  # flags keep their names
    return [word for word in REFUSED if re.search(rf"\b{word}\b", plain)]


def list_texts(path: Path) -> list[tuple[int, str]]:
    """(line, text) of the strings of a module: docstrings, help, messages."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.parametrize("verb", ["", *COMMANDS])
def test_help_is_written_in_plain_english(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert find_refused_words(text) == []


def test_docstrings_and_messages_are_written_in_plain_english() -> None:
    refused = [
        f"{path.relative_to(PACKAGE)}:{line}: {word}"
        for room in sorted(CLEAN_ROOMS)
        for path in sorted((PACKAGE / room).rglob("*.py") if "." not in room else [PACKAGE / room])
        for line, text in list_texts(path)
        for word in find_refused_words(text)
    ]
    assert refused == []


def test_the_glossary_is_alphabetical() -> None:
    words = [re.split(r"[,(]", word.strip("`").lower())[0].strip() for word, _, _ in GLOSSARY]
    assert words == sorted(words)


def test_the_glossary_has_every_public_name() -> None:
    words = {word.strip("`") for word, _, _ in GLOSSARY}
    assert set(patchwords.__all__) - {"__version__"} <= words


def test_the_glossary_says_where_the_code_is() -> None:
    places = [where for _, _, where in GLOSSARY]
    assert [
        where
        for where in places
        if not ((ROOT if where.startswith("docs/") else PACKAGE) / where).exists()
    ] == []
