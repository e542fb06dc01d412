"""GET /metrics: Prometheus' text, and numbers that are so."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from asked import App, photo

from patchwords.app.metrics import Histogram

LINE = re.compile(r'[a-z_]+(\{([a-z]+="[^"\\\n]*",?)+\})? [0-9.e+-]+')


def numbers(app: App) -> dict[str, float]:
    answer = app.client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), lines
    names = {re.split("[{ ]", line)[0] for line in lines}
    for name in names:  # every family is introduced
        family = re.sub("_(bucket|sum|count)$", "", name)
        assert re.search(f"^# TYPE {family} (counter|gauge|histogram)$", answer.text, re.MULTILINE)
        assert re.search(f"^# HELP {family} .+", answer.text, re.MULTILINE)
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}


def test_requests_errors_and_batches_are_counted(app: App) -> None:
    for data in (photo(1), photo(2), b"no image"):
        app.predict(data)
    app.client.get("/favicon.ico?name=private")
    app.client.get("/health", headers={"Host": "evil.example"})
    found = numbers(app)
    assert found['patchwords_requests_total{route="/predict",status="200"}'] == 2
    assert found['patchwords_requests_total{route="/predict",status="400"}'] == 1
    assert found['patchwords_requests_total{route="other",status="404"}'] == 1
    assert found['patchwords_requests_total{route="/health",status="403"}'] == 1
    assert found['patchwords_errors_total{route="/predict"}'] == 1
    assert found['patchwords_request_seconds_count{route="/predict"}'] == 3
    assert found['patchwords_request_seconds_bucket{route="/predict",le="+Inf"}'] == 3
    assert found["patchwords_batch_images_count"] == 2
    assert found["patchwords_batch_images_sum"] == 2
    assert found["patchwords_queue_length"] == 0
    assert not any("favicon" in name or "private" in name for name in found)


def test_what_waits_is_seen(app: App) -> None:
    data = photo()
    with ThreadPoolExecutor(4) as pool:
        with app.shut():
            asked = [pool.submit(app.predict, data)]
            app.until(lambda: app.calls == [1])
            asked += [pool.submit(app.predict, data) for _ in range(3)]
            app.until(lambda: len(app.desk.mind.batcher) == 3)
            now = numbers(app)
        assert [one.result().status_code for one in asked] == [200] * 4
    assert now["patchwords_queue_length"] == 3
    assert now["patchwords_requests_in_work"] == 4
    assert now["patchwords_bytes_held"] == 4 * len(data)
    after = numbers(app)
    assert after["patchwords_requests_in_work"] == after["patchwords_bytes_held"] == 0
    assert after['patchwords_batch_images_bucket{le="2"}'] == 1
    assert after['patchwords_batch_images_bucket{le="4"}'] == 2
    assert after["patchwords_batch_images_sum"] == 4


def test_a_histogram_counts_what_lies_at_or_below() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert list(histogram.lines("x", 'a="b"')) == [
        'x_bucket{a="b",le="1"} 2',
        'x_bucket{a="b",le="2"} 4',
        'x_bucket{a="b",le="+Inf"} 5',
        'x_sum{a="b"} 104',
        'x_count{a="b"} 5',
    ]
