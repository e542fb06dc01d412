"""docs/walkthrough.md and its Chinese version: the Python prints what is shown, the code is ours."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / "walkthrough.md", ROOT / "README.zh-CN.md", *sorted((DOCS / "zh").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def code_blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text("utf-8"))


def test_the_walkthrough_prints_what_is_shown() -> None:
    """All of the page in one session, as a reader types it."""
    text = (DOCS / "walkthrough.md").read_text("utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, "walkthrough", "walkthrough.md", 0)
    assert len(test.examples) >= 30
    printed: list[str] = []
    with torch.no_grad():
        doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
    assert not printed, "".join(printed)


def test_the_walkthrough_quotes_the_code() -> None:
    """A block that begins with a file's name has lines of that file, in their order."""
    quotes = [block for block in code_blocks(DOCS / "walkthrough.md") if block.startswith("# ")]
    assert len(quotes) >= 6
    for quote in quotes:
        name, *lines = [line.strip() for line in quote.splitlines()]
        source = (ROOT / "src/patchwords" / name.removeprefix("# ")).read_text("utf-8")
        there = iter(line.strip() for line in source.splitlines())
        for line in lines:
            assert line in there, f"{name}: {line}"  # `in` goes on from the line before


def test_the_chinese_walkthrough_has_the_same_code() -> None:
    ours, theirs = (code_blocks(DOCS / name) for name in ("walkthrough.md", "zh/walkthrough.md"))
    assert theirs == ours


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    missing = [
        link
        for link in links
        if not link.startswith("http") and not (page.parent / link).resolve().exists()
    ]
    assert missing == []
