"""The nearest training photos: found by the model's features, prepared aside, and optional."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked import App, photo, subject_of
from PIL import Image

from patchwords.app import neighbours as module
from patchwords.app.neighbours import NeighbourSearch
from patchwords.data.dataset import ImageDataset
from patchwords.data.open import open_images
from patchwords.evaluation.probes.cache import FeatureCache
from patchwords.evaluation.probes.features import extract_example_features
from patchwords.evaluation.probes.knn import subsample_examples


def photos(folder: Path, count: int) -> ImageDataset:
    """Photos in a folder, by seed; the last but one cannot be read. Classes alternate."""
    for seed in range(count):
        data = photo(seed) if seed != count - 2 else b"no image"
        (folder / f"{seed:03}.png").write_bytes(data)
    examples = open_images([str(folder)])
    labels = np.arange(count) % 2
    return ImageDataset(
        ("odd ones", "even ones"),
        labels,
        examples.keys,
        examples.sizes,
        examples.reader,
        examples.rows,
    )


def prepared(near: NeighbourSearch) -> NeighbourSearch:
    near.start()
    assert near.thread is not None
    near.thread.join(20)
    return near


def test_a_training_photo_is_nearest_to_itself(start: Callable[..., App], tmp_path: Path) -> None:
    subject, examples = subject_of(), photos(tmp_path, 9)
    near = prepared(NeighbourSearch(subject, examples))
    app = start(subject, neighbours=near)
    assert app.client.get("/model").json()["neighbours"] == {
        "state": "ready",
        "photos": 9,
        "of": 9,
    }
    found = app.look(photo(8)).json()["neighbours"]
    assert len(found) == 6
    assert found[0]["similarity"] == pytest.approx(1.0, abs=1e-4)
    assert found[0]["label"] == "odd ones"
    source = found[0]["picture"].partition("base64,")[2]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))
    assert np.array_equal(shown, np.asarray(Image.open(io.BytesIO(photo(8)))))
    # all of them, by numpy alone
    features = extract_example_features(
        subject.model, examples, subject.preprocess, subject.device, 0
    )
    values = features.values / np.linalg.norm(features.values, axis=1, keepdims=True)
    cosines = values @ values[features.indices.tolist().index(8)]
    order = np.argsort(-cosines)[:6]
    assert [one["similarity"] for one in found] == pytest.approx(cosines[order], abs=1e-4)
    labels = [examples.classes[examples.labels[features.indices[row]]] for row in order]
    assert [one["label"] for one in found] == labels


def test_where_there_are_none_it_is_said(app: App) -> None:
    assert app.service.neighbours.thread is None
    app.service.neighbours.start()
    assert app.look(photo()).json()["neighbours"] == []


def test_unreadable_data_are_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    near = prepared(NeighbourSearch(subject_of(), open_images([str(tmp_path)])))
    assert near.state() == {"state": "none", "reason": "none of the photos can be read"}


def test_photos_that_are_gone_have_no_picture(tmp_path: Path) -> None:
    examples = photos(tmp_path, 5)
    near = prepared(NeighbourSearch(subject_of(), examples))
    (tmp_path / "004.png").unlink()
    assert near.values is not None
    found = near.nearest(near.values[near.indices.tolist().index(4)])
    assert found[0]["picture"] is None
    assert found[1]["picture"] is not None
    assert near.nearest(near.values[0])[0]["picture"] is not None


def test_large_photos_are_shown_small(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(photo(size=(600, 300)))
    near = NeighbourSearch(subject_of(), open_images([str(tmp_path)]))
    source = near.thumbnail(0)
    assert source is not None
    assert source.startswith("data:image/jpeg;base64,")
    shown = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
    assert shown.size == (160, 80)


def test_the_end_stops_the_work_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has blocks of 64 photos: after the first the app is closed."""
    for name in ("photos", "cache"):
        (tmp_path / name).mkdir()
    examples = photos(tmp_path / "photos", 130)
    subject = subject_of()
    cache = FeatureCache(tmp_path / "cache", 2**20)
    near = NeighbourSearch(subject, examples, cache)
    began, go_on = threading.Event(), threading.Event()
    seen: list[int] = []
    compute = subject.model.represent

    def slow(images: Any) -> Any:
        seen.append(len(images))
        if len(images) > 1:
            began.set()
            assert go_on.wait(10)
        return compute(images)

    monkeypatch.setattr(subject.model, "represent", slow)
    near.start()
    assert began.wait(20)
    assert near.state()["state"] == "preparing"
    near.stopping.set()
    go_on.set()
    near.close()
    assert near.thread is not None
    assert not near.thread.is_alive()
    assert near.values is None
    seen.clear()
    again = prepared(NeighbourSearch(subject, examples, cache))
    assert again.state() == {"state": "ready", "photos": 130, "of": 130}
    # one black image for the width, the second block, and the one readable photo of the third
    assert seen == [1, 64, 1]


def test_of_many_photos_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = photos(tmp_path, 9)
    monkeypatch.setattr(module, "MAX_SEARCHED_IMAGES", 4)
    few = subsample_examples(examples, 4)
    assert len(few) == 4
    assert few.keys == sorted(few.keys) == list(subsample_examples(examples, 4).keys)
    near = NeighbourSearch(subject_of(), examples)
    assert near.state() == {"state": "preparing", "done": 0, "photos": 4, "of": 9}
