"""The drawings in the documentation are those that their script makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

DRAWINGS = Path(__file__).parent.parent / "docs" / "drawings"

spec = importlib.util.spec_from_file_location("draw", DRAWINGS / "draw.py")
assert spec is not None
assert spec.loader is not None
draw = importlib.util.module_from_spec(spec)
spec.loader.exec_module(draw)


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_the_file_is_what_the_script_makes(name: str) -> None:
    text = (DRAWINGS / f"{name}.svg").read_text()
    assert text == draw.svg(name), "run: python docs/drawings/draw.py"
    assert ElementTree.fromstring(text).tag.endswith("svg")
