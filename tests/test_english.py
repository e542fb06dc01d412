"""Words that help texts and docstrings do without: docs/glossary.md has those of the field."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import patchwords
from patchwords.cli import COMMANDS, main

PACKAGE = Path(patchwords.__file__).parent
REFUSED = (
    *("anew", "beside", "but for", "comes to", "commonest", "dearest", "for a person"),
    *("from afar", "in words", "likeliest", "nobody", "none given", "of which", "so many"),
    *("somebody", "whoever"),
)
# Rooms (folders or files of src/patchwords) without a refused word; the set only grows.
CLEAN_ROOMS = {"cli"}


def find_refused_words(text: str) -> list[str]:
    plain = " ".join(re.sub(r"--[a-z-]+", "", text.lower()).split())  # flags keep their names
    return [word for word in REFUSED if re.search(rf"\b{word}\b", plain)]


def list_docstrings(path: Path) -> list[tuple[int, str]]:
    """(line, text) of the docstrings of a module, its classes, functions and fields."""
    return [
        (node.lineno, node.value.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


@pytest.mark.parametrize("verb", ["", *COMMANDS])
def test_help_is_written_in_plain_english(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert find_refused_words(text) == []


def test_docstrings_are_written_in_plain_english() -> None:
    refused = [
        f"{path.relative_to(PACKAGE)}:{line}: {word}"
        for room in sorted(CLEAN_ROOMS)
        for path in sorted((PACKAGE / room).rglob("*.py") if "." not in room else [PACKAGE / room])
        for line, text in list_docstrings(path)
        for word in find_refused_words(text)
    ]
    assert refused == []
