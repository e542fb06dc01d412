"""The explorer in a real browser, from a file: its numbers against numpy, its controls by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from opened_explorer import FIRST, Page, open_file
from planted_view import plant

from browser import CHROMIUM, Browser, browsing
from drawn import drawn
from patchwords.data.preprocess import Preprocess
from patchwords.interpret.distance import mean_head_distance, patch_distances
from patchwords.interpret.rollout import attention_rollout
from patchwords.interpret.view import build_attention_view, decode_attention
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT
from patchwords.report.explorer.page import write_explorer
from patchwords.report.format import RANGE_DASH

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium on this machine to open the page in"
)
PARITY = {"rtol": 1e-5, "atol": 1e-6}  # the page computes in float32; rows have 16 numbers or so


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile"), 1000, 700) as opened:
        yield opened


def rolled(attention: np.ndarray, depth: int) -> np.ndarray:
    """[L, K, T, T] -> [T, T]"""
    product = np.eye(attention.shape[-1])
    for layer in attention[:depth].astype(np.float64):
        product = (0.5 * layer.mean(0) + 0.5 * np.eye(len(product))) @ product
    return product


@pytest.mark.parametrize("prefix", [0, 1])
def test_numbers_are_those_of_numpy(browser: Browser, tmp_path: Path, prefix: int) -> None:
    """Rows of heads and of their mean, rollout of every depth and token, distances in pixels."""
    view = plant(prefix=prefix, grid=(3, 5))
    page = Page(browser, tmp_path / "p.html", view)
    attention = decode_attention(view.codes)
    tokens = attention.shape[-1]
    seen = f"{FIRST}.attention"
    for layer, head, query in ((0, 0, 0), (1, 1, tokens - 1), (2, 0, 7)):
        found = page.numbers(f"{seen}.row({layer}, {head}, {query})")
        np.testing.assert_allclose(found, attention[layer, head, query], **PARITY)
        mean = page.numbers(f"{seen}.row({layer}, -1, {query})")
        np.testing.assert_allclose(mean, attention[layer].mean(0)[query], **PARITY)
        over_all = page.numbers(f"{seen}.row({layer}, {head}, -1)")
        np.testing.assert_allclose(over_all, attention[layer, head].mean(0), **PARITY)
    for depth in range(4):
        expected = rolled(attention, depth)
        rows = f"Array.from({{length: {tokens}}}, (_, q) => [...{seen}.rollout({depth}, q)])"
        np.testing.assert_allclose(page.numbers(rows), expected, **PARITY)
        whole = page.numbers(f"{seen}.rollout({depth}, -1)")
        np.testing.assert_allclose(whole, expected.mean(0), **PARITY)
    between = patch_distances((3, 5), 4)
    for layer in range(3):
        expected = mean_head_distance(torch.from_numpy(attention[layer][None]), between, prefix)[0]
        found = page.numbers(f"[0, 1].map(head => {seen}.distance({layer}, head))")
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_rollout_is_the_models(browser: Browser, tmp_path: Path) -> None:
    """As interpret/rollout.py gives it. Of two rollouts the rows differ, in sum, by no more than half
    of what the rows of attention do, layer by layer."""
    config = ViTConfig(patch_size=4, width=12, depth=3, heads=2, mlp_width=23, image_size=(12, 20))
    model = drawn(ViT(config.with_settings(num_classes=2)))
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    preprocess = Preprocess((12, 20))
    view = build_attention_view(model, preprocess, pixels, photo="p", name="m", labels=("a", "b"))
    images = preprocess.normalise(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    expected = attention_rollout(model, images)[0].numpy()
    with torch.no_grad():
        exact = np.stack([a[0].mean(0).numpy() for _, a in model.attention(images)])  # [L, T, T]
    off = np.abs(decode_attention(view.codes).mean(1) - exact).sum(-1).max(-1)  # [L]
    page = Page(browser, tmp_path / "p.html", view)
    rows = f"Array.from({{length: 16}}, (_, q) => [...{FIRST}.attention.rollout(3, q)])"
    found = page.numbers(rows)
    assert np.abs(found - expected).sum(-1).max() <= 0.5 * off.sum() + 1e-5
    assert 0.5 * off.sum() < 0.05  # or it would prove nothing


def test_the_pointer_chooses_the_patch(browser: Browser, tmp_path: Path) -> None:
    view = plant(grid=(3, 5))
    page = Page(browser, tmp_path / "p.html", view)
    assert "the class token" in page.said()
    page.hover(0.5, 0.9)
    weights = decode_attention(view.codes)[2].mean(0)[1 + 1 * 5 + 4]
    best = int(weights[1:].argmax())
    said = page.said()
    assert "Layer 3 of 3, mean of 2 heads: the patch at row 2, column 5" in said
    assert f"row {best // 5 + 1}, column {best % 5 + 1}: {100 * weights[1:].max():.1f}" in said
    assert f"{100 * weights[0]:.1f}\u00a0% goes to the class token" in said
    assert page.colour(best // 5, best % 5, view) == [253, 231, 37]  # where viridis ends
    page.click(0.1, 0.1)
    page.hover(0.5, 0.5)  # no longer: the patch is held
    assert page.state("held") is True
    assert "the patch at row 1, column 1" in page.said()
    page.click(0.9, 0.5)
    assert page.state("held") is False
    assert "the patch at row 3, column 3" in page.said()


def test_keys(browser: Browser, tmp_path: Path) -> None:
    view = plant(grid=(3, 5))
    page = Page(browser, tmp_path / "p.html", view)
    browser.value("document.querySelector('canvas.photo').focus()")
    page.key("ArrowDown")  # from the middle
    assert "row 2, column 3" in page.said()
    page.key("ArrowUp", "ArrowUp", "ArrowUp", *["ArrowRight"] * 5)  # no further than the border
    assert "row 1, column 5" in page.said()
    page.key("[", "=", "=")
    assert "Layer 2 of 3, head 2 of 2" in page.said()
    page.key("[", "[", "[", "-", "-", "-")
    assert "Layer 1 of 3, mean of 2 heads" in page.said()
    page.key("r")
    assert "Rollout through layers 1 to 3 of 3" in page.said()
    page.key("[", "[", "[", "[")
    assert "Rollout through no layer" in page.said()
    found = page.numbers(f"{FIRST}.weights")
    np.testing.assert_array_equal(found, np.eye(16)[5])  # itself alone
    page.key("r", "]", "c")
    assert "Layer 2 of 3, mean of 2 heads: the class token" in page.said()
    page.key("o")
    assert page.state("opacity") == 0
    page.key("o", "s")
    assert (page.state("opacity"), page.state("stretched")) == (0.7, True)
    page.key("Enter")
    assert page.state("held") is False  # there is no patch to hold
    page.key("?")
    assert browser.value("document.getElementById('help').open") is True
    assert browser.value("document.activeElement.textContent") == "Close"
    page.key("r")
    assert page.state("mode") == "attention"  # keys belong to the list while it is open
    browser.click("#help button")
    page.key("v")
    assert browser.value("explorer.panels.length") == 1  # there is no second photo


def test_sliders_maps_and_dots(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path / "p.html", plant())
    browser.slide("#layer", 0)
    browser.slide("#head", 1)
    page.settle()
    assert "Layer 1 of 3, head 2 of 2" in page.said()
    assert browser.text(".tokens") == "16 = 3 \N{MULTIPLICATION SIGN} 5 + 1"
    assert browser.text(".answers li:nth-child(2) span") == "<b>tulip</b>"
    names = "[...document.querySelectorAll('.strip button')].map(b => b.innerText.trim())"
    browser.until(f"`${{{names}}}` === 'mean,1,2'")
    browser.click(".strip button:nth-child(2)")
    page.settle()
    assert "head 1 of 2" in page.said()
    dots = "document.querySelectorAll('.spread .dot')"
    assert browser.value(f"{dots}.length") == 6
    third = "document.querySelector('.dot[data-place=\"2 1\"]')"
    browser.value(f"{third}.dispatchEvent(new MouseEvent('click'))")
    page.settle()
    assert "Layer 3 of 3, head 2 of 2" in page.said()
    assert browser.value(f"{third}.matches('.now:last-child')")  # over the others
    far = page.browser.value(f"{FIRST}.attention.distance(2, 1)")
    assert browser.text(".distance") == f"{far:.1f} pixels"
    browser.click("[name=mode][value=rollout]")
    page.settle()
    browser.until(f"`${{{names}}}` === 'none,1,1{RANGE_DASH}2,1{RANGE_DASH}3'")
    browser.click(".strip button:nth-child(3)")
    page.settle()
    assert "Rollout through layers 1 to 2 of 3" in page.said()


def test_two_models_and_two_photos(browser: Browser, tmp_path: Path) -> None:
    """Of another depth, grid and count of heads: the place and the share of the depth are kept."""
    deep = {"model": "deep", "layers": 5, "heads": 3, "kept": 1, "grid": (6, 5), "prefix": 0}
    photos = ("a.jpg", "b.jpg")
    views = [plant(photo, seed=i) for i, photo in enumerate(photos)]
    views += [plant(photo, **deep, seed=2 + i) for i, photo in enumerate(photos)]  # type: ignore[arg-type]
    page = Page(browser, tmp_path / "p.html", *views)
    page.key("v", "[", "=")
    second = "document.querySelectorAll('.panel')[1]"
    browser.until(f"{second}?.querySelector('.shown').innerText")
    page.hover(0.4, 0.9)
    other = f"{second}.querySelector('.shown').innerText"
    assert "Layer 2 of 3, head 1 of 2: the patch at row 2, column 5" in page.said()
    assert "Layer 3 of 5, mean of 3 heads: the patch at row 3, column 5" in browser.value(other)
    browser.until(f"{second}.querySelector('.strip').innerText.includes('only their mean is kept')")
    page.hover(0.99, 0.01, panel=1)
    assert "row 3, column 1" in page.said()
    page.key("c")
    assert "all tokens, on average," in browser.value(other)
    browser.value(
        f"{{ const choice = {second}.querySelector('.photo-choice'); choice.value = 1; "
        "choice.dispatchEvent(new Event('change')) }"
    )
    browser.until("explorer.panels[1].view.photo === 1")
    page.settle()
    attention = decode_attention(views[3].codes)[2, 0].mean(0)
    np.testing.assert_allclose(page.numbers("explorer.panels[1].weights"), attention, **PARITY)
    page.key("v")
    assert browser.value("document.querySelectorAll('.panel').length") == 1


def test_heads_that_look_nowhere_else(browser: Browser, tmp_path: Path) -> None:
    """All distances are 0, and so is the scale that they are drawn on."""
    alone = np.broadcast_to(100 * np.eye(16, dtype=np.uint8), (3, 2, 16, 16))
    page = Page(browser, tmp_path / "p.html", replace(plant(), codes=alone))
    page.key("ArrowDown")
    assert browser.text(".distance") == "0.0 pixels"
    assert "row 2, column 3: 100.0" in page.said()
    assert not browser.value("document.querySelector('.spread svg').innerHTML.includes('NaN')")


def test_the_last_choice_counts(browser: Browser, tmp_path: Path) -> None:
    """Also where the one before takes longer: it is unpacked for the first time."""
    page = Page(browser, tmp_path / "p.html", plant("a.jpg"), plant("b.jpg", grid=(4, 7)))
    browser.value(f"Promise.all([{FIRST}.open(1, 0), {FIRST}.open(0, 0)]).then(() => true)")
    assert browser.value(f"{FIRST}.view.photo") == 0
    page.key("ArrowDown")
    assert "row 2, column 3" in page.said()


def test_a_damaged_page_says_so(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    write_explorer(path, [plant()])
    text = path.read_text()
    told = json.dumps({"layers": 3})[1:-1].replace(" ", "")
    assert told in text
    path.write_text(text.replace(told, told.replace("3", "4")))
    there = open_file(browser, path)
    browser.until(f"{there} && document.getElementById('trouble')?.hidden === false")
    assert "damaged" in browser.text("#trouble")
