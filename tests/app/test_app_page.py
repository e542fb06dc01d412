"""The page in a real browser: upload, paint, shuffle, another size, wrong files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asked import LIMITS, App, photo, subject_of
from starlette.testclient import TestClient
from test_serve import serving

from browser import CHROMIUM, Browser, browsing
from patchwords.app.middleware import LOOPBACK_HOSTS
from patchwords.app.neighbours import NeighbourSearch
from patchwords.app.server import create_app
from patchwords.app.service import PredictionService
from patchwords.data.open import open_images

TIMES = "\N{MULTIPLICATION SIGN}"
READY = "document.querySelector('#about')?.textContent.startsWith('5 classes')"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Browser]]:
    """The app, and a browser with its page."""
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(3):
        (folder / f"{seed}.png").write_bytes(photo(seed))
    subject = subject_of()
    near = NeighbourSearch(subject, open_images([str(folder)]))
    service = PredictionService(subject, near, LIMITS)
    app = App(service, TestClient(create_app(service, LOOPBACK_HOSTS)))
    near.start()
    with (
        serving(app) as (host, port),
        browsing(tmp_path_factory.mktemp("profile")) as browser,
    ):
        browser.open(f"http://{host}:{port}/")
        browser.until(READY)
        yield app, browser
    service.close()


@pytest.fixture
def browser(opened: tuple[App, Browser], tmp_path: Path) -> Iterator[Browser]:
    """The page, loaded anew, with a photo answered."""
    _, browser = opened
    browser.value("window.old = true")
    browser.call("Page.reload")
    browser.until(f"!window.old && {READY}")
    (tmp_path / "photo.png").write_bytes(photo(1))
    browser.choose("#file", tmp_path / "photo.png")
    browser.until("!document.querySelector('#answered').hidden")
    yield browser
    assert browser.faults == []


def score(browser: Browser) -> str:
    return browser.text("#bars")


def settled(browser: Browser, before: str) -> None:
    """Every wish is answered, and the answer has moved."""
    browser.until("!document.querySelector('#answer').classList.contains('waiting')")
    assert score(browser) != before


def colour(browser: Browser, row: float, column: float) -> list[int]:
    """Of a pixel of the canvas; places are shares of height and width."""
    return list(
        browser.value(
            "(() => { const c = document.querySelector('#picture'); return [...c.getContext('2d')"
            f".getImageData(c.width * {column}, c.height * {row}, 1, 1).data.slice(0, 3)]; }})()"
        )
    )


def test_a_photo_is_answered(opened: tuple[App, Browser], browser: Browser) -> None:
    app, _ = opened
    best = app.service.loaded.source.predict(photo(1))[0]
    assert browser.text("#best") == best["label"]
    assert browser.text("#sure") == f"{100 * best['score']:.1f} %"
    assert browser.text("#best-before") == best["label"]
    assert f"20 {TIMES} 12 pixels, 5 {TIMES} 3 patches" in browser.text("#seen")
    # a class may be named like HTML: it is text on the page
    assert "<b>tulips</b>" in browser.text("#bars")
    assert browser.value("document.querySelectorAll('#bars b').length") == 0


def test_the_nearest_photos_are_shown(browser: Browser) -> None:
    browser.until("document.querySelectorAll('#gallery img').length === 3")
    assert "cosine 1.00" in browser.text("#gallery figure")
    loaded = "[...document.querySelectorAll('#gallery img')].every((one) => one.naturalWidth)"
    browser.until(loaded)


def test_patches_are_painted_away_and_brought_back(browser: Browser) -> None:
    before = score(browser)
    assert colour(browser, 0.5, 0.5) != [0, 0, 0]
    # from the second to the fourth patch of the middle row, in one jump of the mouse
    browser.stroke("#picture", (0.3, 0.5), (0.7, 0.5))
    settled(browser, before)
    assert "3 painted away" in browser.text("#seen")
    assert colour(browser, 0.5, 0.5) == [0, 0, 0]
    assert colour(browser, 0.1, 0.5) != [0, 0, 0]
    assert "likely" in browser.text("#change")
    painted = score(browser)
    browser.click("#bring")
    browser.stroke("#picture", (0.5, 0.5))
    settled(browser, painted)
    assert "2 painted away" in browser.text("#seen")
    browser.click("#whole")
    browser.until("document.querySelector('#change').innerText === 'nothing is changed yet'")
    assert score(browser) == before


def test_the_keyboard_does_it_too(browser: Browser) -> None:
    before = score(browser)
    browser.value("document.querySelector('#picture').focus()")
    for key, code, text in (
        ("ArrowRight", 39, ""),  # the first patch
        ("ArrowDown", 40, ""),
        ("ArrowRight", 39, ""),
        (" ", 32, " "),
    ):
        browser.press(key, code, text)
    settled(browser, before)
    assert "1 painted away" in browser.text("#seen")
    assert colour(browser, 0.5, 0.3) == [0, 0, 0]


def test_tiles_are_shuffled_and_dealt_again(browser: Browser) -> None:
    before = score(browser)
    browser.slide("#tiles", 2)
    settled(browser, before)
    assert browser.text("#tiles-said") == f"4 {TIMES} 4 tiles"
    shuffled = score(browser)
    browser.click("#deal")
    settled(browser, shuffled)
    browser.slide("#tiles", 0)
    browser.until("document.querySelector('#change').innerText === 'nothing is changed yet'")
    assert score(browser) == before


def test_another_size_keeps_what_is_painted(browser: Browser) -> None:
    before = score(browser)
    browser.stroke("#picture", (0.5, 0.5))
    settled(browser, before)
    painted = score(browser)
    browser.slide("#size", 4)
    settled(browser, painted)
    now = f"40 {TIMES} 24 pixels, 10 {TIMES} 6"
    browser.until(f"document.querySelector('#seen').innerText.includes({now!r})")
    assert "4 painted away" in browser.text("#seen")
    assert colour(browser, 0.5, 0.5) == [0, 0, 0]


def test_wrong_files_are_refused_in_a_line(browser: Browser, tmp_path: Path) -> None:
    best = browser.text("#best")
    (tmp_path / "page.png").write_text("<html></html>")
    browser.choose("#file", tmp_path / "page.png")
    browser.until("!document.querySelector('#fault').hidden")
    assert browser.text("#fault") == "not an image, or its first bytes are damaged"
    (tmp_path / "large.png").write_bytes(bytes(LIMITS.body + 1))
    browser.choose("#file", tmp_path / "large.png")
    browser.until("document.querySelector('#fault').innerText.includes('at most 1 MiB')")
    assert browser.text("#best") == best
    (tmp_path / "other.png").write_bytes(photo(2))
    browser.choose("#file", tmp_path / "other.png")
    browser.until("document.querySelector('#fault').hidden")


def test_a_dropped_address_is_not_opened(browser: Browser) -> None:
    browser.value(
        "{ const data = new DataTransfer(); data.setData('text/uri-list', 'http://a.example/x');"
        "document.dispatchEvent(new DragEvent('drop', {dataTransfer: data, cancelable: true})) }"
    )
    assert browser.text("#fault") == "Drop a file: addresses of pictures are not opened."


def test_a_photo_is_pasted(browser: Browser) -> None:
    before = score(browser)
    browser.value(
        "(async () => { const photo = await new Promise((made) => "
        "document.querySelector('#picture').toBlob(made)); const data = new DataTransfer();"
        "data.items.add(new File([photo], 'x.png', {type: 'image/png'}));"
        "document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data})) })()"
    )
    settled(browser, before)
    assert "nothing is changed yet" in browser.text("#change")


def test_the_interface_has_a_page(opened: tuple[App, Browser]) -> None:
    _, browser = opened
    here = browser.value("location.origin")
    browser.open(f"{here}/docs")
    browser.until("document.querySelectorAll('#routes section').length === 3")
    assert "POST /predict" in browser.text("#routes")
    assert f"{here}/predict" in browser.text("#curl")
    assert browser.faults == []
