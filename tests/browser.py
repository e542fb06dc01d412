"""A real browser, driven over pipes by the DevTools protocol: nothing but Chromium is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "chrome", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)


class Failed(AssertionError):
    """What the browser did not do: as a script, while it goes to another page."""


class Browser:
    """One tab. Evaluates JavaScript, presses the mouse and keys, chooses files."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, back
        self.number, self.rest = 0, b""
        self.faults: list[str] = []  # errors of the page's scripts, and what its policy forbade
        self.session = ""
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        opened = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self.session = opened["sessionId"]
        for part in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            said = self.read()
            if said.get("id") == self.number:
                if "error" in said:
                    raise Failed(f"{method}: {said['error']}")
                return said["result"]
            if said.get("method") == "Runtime.exceptionThrown":
                self.faults.append(str(said["params"]["exceptionDetails"]))
            if said.get("method") == "Log.entryAdded" and "level" in said["params"]["entry"]:
                entry = said["params"]["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    self.faults.append(entry["text"])

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            part = os.read(self.back, 2**16)
            assert part, "the browser has gone"
            self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """What a JavaScript expression is; promises are waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60.0) -> Any:
        """Wait until an expression is true; -> its value."""
        end = time.monotonic() + seconds
        found = None
        while not found:
            assert time.monotonic() < end, script
            with suppress(Failed):
                found = self.value(script)
            time.sleep(0 if found else 0.03)
        return found

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({selector!r}).innerText"))

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({selector!r}).click()")

    def slide(self, selector: str, place: int) -> None:
        """Move a slider to a place."""
        self.value(
            f"{{ const at = document.querySelector({selector!r}); at.value = {place}; "
            "at.dispatchEvent(new Event('input', {bubbles: true})) }"
        )

    def choose(self, selector: str, path: Path) -> None:
        """A file for an <input type=file>."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def stroke(self, selector: str, *places: tuple[float, float]) -> None:
        """Press the mouse, and draw through places: shares of the element's width and height."""
        self.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.value(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        kinds = ["mousePressed", *["mouseMoved"] * len(places), "mouseReleased"]
        for kind, (x, y) in zip(kinds, (places[0], *places, places[-1]), strict=True):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box["left"] + x * box["width"],
                y=box["top"] + y * box["height"],
                button="left",
                buttons=0 if kind == "mouseReleased" else 1,
                clickCount=1,
            )

    def press(self, key: str, code: int, text: str = "") -> None:
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=key,
            text=text,
            windowsVirtualKeyCode=code,
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browsing(profile: Path, width: int = 1300, height: int = 1000) -> Iterator[Browser]:
    """A browser with a profile of its own; it is closed in the end."""
    assert CHROMIUM
    theirs, to = os.pipe()
    back, them = os.pipe()

    process = subprocess.Popen(
        [
            # the browser reads from descriptor 3 and writes to 4
            *("bash", "-c", f'exec "$@" 3<&{theirs} 4>&{them}', "browser"),
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
            *(f"--user-data-dir={profile}", f"--window-size={width},{height}"),
            *("--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"),
        ],
        pass_fds=(theirs, them),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.close(them)
    try:
        yield Browser(to, back)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(back)
