"""POST /predict: the model's own answers, many at a time, and never more than can be done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asked import LABELS, App, ask_in_parts, photo, subject_of

RAW = {"Content-Type": "image/png"}


def assert_same_answer(found: dict[str, Any], wanted: list[dict[str, Any]]) -> None:
    """The same classes in the same order; scores by packed weights differ by float32 rounding."""
    assert list(found) == ["predictions"]
    for one, other in zip(found["predictions"], wanted, strict=True):
        assert one == {"label": other["label"], "score": pytest.approx(other["score"], abs=1e-6)}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_it_answers_as_from_python(app: App, kind: str) -> None:
    data = photo(3, kind)
    answer = app.predict(data)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert_same_answer(answer.json(), subject_of().source.predict(data))


def test_a_large_jpeg_is_decoded_small_as_from_python(app: App) -> None:
    data = photo(3, "JPEG", (800, 640))
    assert_same_answer(app.predict(data).json(), subject_of().source.predict(data))


def test_a_form_is_as_good_as_a_body(app: App) -> None:
    data = photo(1)
    form = app.client.post("/predict", files={"file": ("../../etc/passwd", data, "text/html")})
    assert form.json() == app.predict(data).json()
    typed = app.client.post("/predict", content=data, headers=RAW)
    assert typed.json() == form.json()


def test_top_k(app: App) -> None:
    assert len(app.predict(photo(), params={"top_k": 2}).json()["predictions"]) == 2
    every = app.predict(photo(), params={"top_k": 1000}).json()["predictions"]
    assert {one["label"] for one in every} == set(LABELS)
    assert sum(one["score"] for one in every) == pytest.approx(1.0, abs=1e-6)
    for wrong in (0, 1001, "x"):
        refused = app.predict(photo(), params={"top_k": wrong})
        assert refused.status_code == 422
        assert refused.json()["error"].startswith("top_k: ")


def test_requests_at_once_are_answered_as_one_by_one(app: App) -> None:
    photos = [photo(seed) for seed in range(6)]
    alone = [app.predict(data).json() for data in photos]
    with ThreadPoolExecutor(6) as pool:
        assert [answer.json() for answer in pool.map(app.predict, photos)] == alone


def test_one_request_too_many_is_told_when_to_come_again(start: Callable[..., App]) -> None:
    app = start(requests=2)
    with ThreadPoolExecutor(2) as pool:
        with app.shut():
            let_in = [pool.submit(app.predict, photo(seed)) for seed in range(2)]
            app.until(lambda: app.service.active == 2)
            refused = app.predict(photo(2))
        assert [future.result().status_code for future in let_in] == [200, 200]
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json() == {"error": "busy: 2 requests are in progress; try again in a second"}
    assert app.predict(photo(2)).status_code == 200
    assert app.service.active == 0


def test_an_answer_that_takes_too_long(start: Callable[..., App]) -> None:
    app = start(answer_seconds=0.3)
    with app.shut():
        refused = app.predict(photo())
        assert refused.status_code == 504
        assert refused.json() == {"error": "the answer took more than 0.3 s"}
        assert app.predict(photo()).status_code == 504  # this one never began
    assert app.predict(photo()).status_code == 200
    assert app.calls == 2
    assert app.service.active == 0


def test_a_body_that_comes_too_slowly(start: Callable[..., App]) -> None:
    app = start(upload_seconds=0.2)
    status, headers, body, _ = ask_in_parts(app, iter([b"x", 5.0, b"y"]), RAW)
    assert status == 408
    assert headers["connection"] == "close"
    assert body == b'{"error":"the body took more than 0.2 s"}'


def test_a_large_body_is_refused_with_and_without_its_length(app: App) -> None:
    most = app.service.limits.body
    assert app.predict(bytes(most + 1)).status_code == 413
    part = bytes(2**16)
    parts = iter([part] * (2 * most // len(part)))
    status, headers, body, read = ask_in_parts(app, parts, RAW)
    assert (status, read) == (413, 2 * most // len(part))  # read to its end, and dropped
    assert headers["connection"] == "close"
    assert body == b'{"error":"the body has more than 1 MiB: send a smaller image"}'
    endless = iter(lambda: part, None)
    status, _, _, read = ask_in_parts(app, endless, RAW)
    assert (status, read) == (413, 4 * most // len(part) + 1)


def test_a_fault_of_ours_is_one_line_too(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret /home/user")

    monkeypatch.setattr(app.service, "decode", broken)
    answer = app.predict(photo())
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error of the app; see its terminal"}
    assert app.client.get("/health").status_code == 200
