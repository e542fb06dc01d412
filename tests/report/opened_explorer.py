"""An explorer open in a browser: what is on it, pointed at and pressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from browser import Browser
from patchwords.interpret.view import AttentionView
from patchwords.report.explorer.page import write_explorer

FIRST = "explorer.panels[0]"


def open_file(browser: Browser, path: Path) -> str:
    """-> a script that is true when the page before it has gone."""
    browser.open(path.as_uri())
    return f"location.href === {path.as_uri()!r}"


class Page:
    """An explorer that is open."""

    def __init__(self, browser: Browser, path: Path, *views: AttentionView) -> None:
        self.browser = browser
        browser.faults.clear()
        there = open_file(browser, write_explorer(path, views))
        browser.until(f"{there} && document.documentElement?.dataset.ready === 'true'")
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn; small maps come later."""
        frames = (
            "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))"
        )
        self.browser.value(frames)
        self.browser.until("!explorer.pending")
        assert not self.browser.faults

    def numbers(self, script: str) -> np.ndarray:
        return np.array(self.browser.value(f"Array.from({script})"))

    def state(self, name: str) -> Any:
        return self.browser.value(f"explorer.state.{name}")

    def key(self, *keys: str) -> None:
        for key in keys:
            self.browser.press(key, 0)
        self.settle()

    def point(self, down: float, across: float, kind: str = "mouseMoved", panel: int = 0) -> None:
        """Move the mouse to shares of the photo's height and width."""
        photo = f"document.querySelectorAll('canvas.photo')[{panel}]"
        self.browser.value(f"{photo}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.browser.value(f"{photo}.getBoundingClientRect().toJSON()")
        x, y = box["left"] + across * box["width"], box["top"] + down * box["height"]
        pressed: dict[str, Any] = (
            {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        )
        self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def hover(self, down: float, across: float, panel: int = 0) -> None:
        self.point(down, across, panel=panel)
        self.settle()

    def click(self, down: float, across: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.point(down, across, kind)
        self.settle()

    def said(self) -> str:
        return self.browser.text(".shown")

    def colour(self, row: int, column: int, view: AttentionView) -> list[int]:
        """RGB in the map of the first panel."""
        pixel = f"{FIRST}.map.getContext('2d').getImageData({column}, {row}, 1, 1).data"
        return self.numbers(pixel).tolist()[:3]
