"""docs/corrections.md: its commands and its Python print what it shows, its links lead there."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from patchwords.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "corrections.md").read_text()
SHOWN = re.findall(r"^\$ patchwords (.*)\n((?:(?!\$ |```).*\n)+)", PAGE, re.MULTILINE)
LINKS = re.findall(r"\]\(([^)]*)\)", PAGE)


def sections(page: str) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_shown_command_has_its_output() -> None:
    assert len(SHOWN) == PAGE.count("\n$ patchwords ") >= 9


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(
    command: str,
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # a usual terminal: the table of a recipe fills it
    words, _, grep = command.partition(" | grep ")
    assert main(shlex.split(words)) == 0
    *options, pattern = shlex.split(grep)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    found = [(line, match) for line in printed if (match := re.search(pattern, line))]
    only = "-o" in options  # the part that matches
    assert [match[0] if only else line for line, match in found] == shown.splitlines()


def test_the_python_prints_what_is_shown() -> None:
    """All of the page in one session, as a reader types it."""
    test = doctest.DocTestParser().get_doctest(PAGE, {}, "corrections", "corrections.md", 0)
    assert len(test.examples) >= 25
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_a_link_leads_to_a_section(link: str) -> None:
    name, _, section = link.partition("#")
    page = (DOCS / name).read_text() if name else PAGE
    assert not section or section in sections(page)


def test_the_summary_has_every_correction() -> None:
    summary, _, rest = PAGE.partition("## The paper")
    numbered = re.findall(r"^### ([PCN]\d+)\. ", rest, re.MULTILINE)
    assert len(numbered) == len(set(numbered)) >= 30
    named = re.findall(r"^\| \[([PCN]\d+)\]", summary, re.MULTILINE)
    ranges = {"N1": ["N1", "N2", "N3", "N4"]}  # these four share a row
    assert [number for first in named for number in ranges.get(first, [first])] == numbered
