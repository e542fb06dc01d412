"""The explorer's page as a file: whole, small, closed to everything outside, the same each time."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from planted_view import plant

from patchwords.errors import ConfigError
from patchwords.report.explorer import page
from patchwords.report.explorer.page import list_viridis_stops, render_explorer, write_explorer


class Parts(HTMLParser):
    """Scripts and styles as a browser finds them: (attributes, content)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, list[tuple[dict[str, str | None], str]]] = {"script": [], "style": []}
        self.metas: dict[str, str] = {}
        self.open: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in self.found:
            self.found[tag].append((given, ""))
            self.open = tag
        if tag == "meta" and "http-equiv" in given:
            self.metas[str(given["http-equiv"])] = str(given["content"])

    def handle_endtag(self, tag: str) -> None:
        self.open = None

    def handle_data(self, data: str) -> None:
        if self.open:
            attributes, before = self.found[self.open].pop()
            self.found[self.open].append((attributes, before + data))

    def script(self, name: str) -> str:
        [content] = [text for given, text in self.found["script"] if given.get("id") == name]
        return content


def test_attention_is_in_the_page_and_comes_out_again() -> None:
    views = [plant(), plant("rose.jpg", layers=2, seed=1, prefix=0)]
    parts = Parts(render_explorer(views))
    for i, view in enumerate(views):
        codes = gzip.decompress(base64.b64decode(parts.script(f"codes-{i}")))
        assert codes == view.codes.tobytes()
    told = json.loads(parts.script("views"))
    assert told["photos"] == ["daisy.jpg", "rose.jpg"]
    assert told["models"] == ["tiny"]
    first, second = told["views"]
    assert (first["layers"], first["kept"], first["heads"], first["prefix"]) == (3, 2, 2, 1)
    assert (second["layers"], second["photo"], second["prefix"]) == (2, 1, 0)
    assert (first["grid"], first["size"]) == ([3, 5], [12, 20])


def test_base_at_224_is_below_6_megabytes() -> None:
    """Logits of deviation 1 leave the codes most even, so the least can be saved on them."""
    view = plant(layers=12, heads=12, grid=(14, 14), patch=16)
    assert view.codes.size == 5_588_496  # 12 x 12 x 197 x 197
    size = len(render_explorer([view]).encode())
    assert 5_000_000 < size < 6_000_000


def test_only_its_own_script_and_style_may_run() -> None:
    text = render_explorer([plant()])
    parts = Parts(text)
    policy = dict(rule.split(" ", 1) for rule in parts.metas["Content-Security-Policy"].split("; "))
    [script] = [text for given, text in parts.found["script"] if given.get("type") == "module"]
    [(_, look)] = parts.found["style"]
    for rule, content in (("script-src", script), ("style-src", look)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[rule] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "data:"
    assert " style=" not in text
    assert not re.search(r"\son\w+=", re.sub(r"<script.*?</script>", "", text, flags=re.S))


def test_nothing_is_loaded() -> None:
    """The one address in the page names what SVG is."""
    text = render_explorer([plant()])
    assert set(re.findall(r"https?://[^\"'` )]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|iframe|img|base)\b|import\s|@import|url\(", text)


def test_names_cannot_break_out() -> None:
    nasty = "</script><script>alert(1)</script>.jpg"
    text = render_explorer([plant(nasty, model="<i>&\u2028")])
    parts = Parts(text)
    assert json.loads(parts.script("views"))["photos"] == [nasty]
    assert "<script>alert" not in text
    assert "<i>&" not in text


def test_the_same_views_give_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At another time, too."""
    first = write_explorer(tmp_path / "a.html", [plant()])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert first.read_bytes() == write_explorer(tmp_path / "b.html", [plant()]).read_bytes()


def test_what_the_page_says_of_precision() -> None:
    views = [plant(), replace(plant("b.jpg"), error=0.0123)]
    assert "than 1.2 percentage points" in Parts(render_explorer(views)).script("views")


def test_the_map_rises_in_grey() -> None:
    """Luminance by Rec. 709: a brighter grey is always a larger weight, by steps that are seen."""
    stops = np.array(list_viridis_stops()).reshape(-1, 3) / 255
    assert len(stops) == page.COLOUR_MAP_STOPS
    linear = np.where(stops <= 0.04045, stops / 12.92, ((stops + 0.055) / 1.055) ** 2.4)
    lightness = 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
    steps = np.diff(lightness)
    assert lightness[0] < 20
    assert lightness[-1] > 88
    assert steps.min() > 0.5 * steps.mean()


def test_every_photo_for_every_model() -> None:
    for views in ([], [plant("a"), plant("b"), plant("a", "other")], [plant("a"), plant("a")]):
        with pytest.raises(ConfigError, match="each photo once for each model") as raised:
            render_explorer(views)
        assert "\n" not in str(raised.value)


def test_too_much_for_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_PAGE_WEIGHTS", 1535)  # one less than 3 x 2 x 16 x 16
    with pytest.raises(ConfigError, match="fewer photos"):
        render_explorer([plant()])
    monkeypatch.setattr(page, "MAX_PAGE_WEIGHTS", 1536)
    assert render_explorer([plant()])


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_explorer(tmp_path / "absent" / "page.html", [plant()])
