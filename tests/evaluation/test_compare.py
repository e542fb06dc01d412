"""Two models on the same images: the numbers by hand, the matching, and one read for both."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import f1_score

from patchwords.cli.options import format_csv
from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import EncodedImage
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import World
from patchwords.errors import DataError
from patchwords.evaluation import compare as asking
from patchwords.evaluation import held_out
from patchwords.evaluation.compare import (
    DISAGREEMENT_COLUMNS,
    PackedPreprocess,
    compare_predictions,
    list_disagreements,
    predict_with_models,
)
from patchwords.evaluation.held_out import predict_examples
from patchwords.evaluation.metrics import (
    bootstrap_macro_f1,
    compute_classification_metrics,
    percentile_interval,
    wilson_interval,
)
from patchwords.evaluation.predictions import (
    LabelledPredictions,
    LoadedModel,
    Predictions,
    match_predictions,
    read_labelled_predictions,
    write_predictions,
)
from patchwords.evaluation.statistics import PairedCounts, accuracy_difference, mcnemar_test
from patchwords.models.zoo import create_model
from patchwords.report.figures import comparison as recalls
from patchwords.report.figures.comparison import draw_recall_comparison
from patchwords.weights.pretrained import Pretrained

CLASSES = ("bee", "cat", "dog")


def answers(
    name: str, labels: list[int], predicted: list[int], sure: list[float] | None = None
) -> LabelledPredictions:
    keys = [f"{i}.jpg" for i in range(len(labels))]
    probability = np.array(sure if sure is not None else [0.5] * len(labels))
    return LabelledPredictions(
        name, CLASSES, keys, np.array(labels), np.array(predicted), probability
    )


def ten() -> tuple[LabelledPredictions, LabelledPredictions]:
    labels = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    a = answers("a", labels, [0, 0, 0, 1, 1, 1, 2, 2, 0, 0])
    b = answers("b", labels, [0, 0, 1, 1, 1, 1, 1, 2, 2, 1])
    return a, b


def test_the_numbers_by_hand() -> None:
    a, b = ten()
    result = compare_predictions(a, b)
    pairs = PairedCounts(both=5, only_a=1, only_b=2, neither=2)
    assert result["pairs"] == pairs.to_dict()
    assert (result["images"], result["a"]["accuracy"], result["b"]["accuracy"]) == (10, 0.6, 0.7)
    assert (result["a"]["accuracy_low"], result["a"]["accuracy_high"]) == wilson_interval(6, 10)
    apart = result["difference"]
    found = (apart["accuracy"], apart["accuracy_low"], apart["accuracy_high"])
    assert found == accuracy_difference(pairs)
    assert (result["mcnemar"]["exact_p"], result["mcnemar"]["mid_p"]) == mcnemar_test(pairs)
    assert result["agreement"] == 0.6
    f1 = [f1_score(a.labels, one.predicted, average="macro") for one in (a, b)]
    assert [result[side]["macro_f1"] for side in "ab"] == pytest.approx(f1)
    assert apart["macro_f1"] == pytest.approx(f1[1] - f1[0])
    alone = compute_classification_metrics(a.labels, np.eye(3)[a.predicted], CLASSES)[
        "macro"
    ]  # as `evaluate` has it
    for end in ("low", "high"):
        assert result["a"][f"macro_f1_{end}"] == alone[f"f1_{end}"]
    drawn = bootstrap_macro_f1(a.labels, np.stack([a.predicted, b.predicted]), 3)
    ends = percentile_interval(drawn[:, 1] - drawn[:, 0])
    assert (apart["macro_f1_low"], apart["macro_f1_high"]) == ends
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_recall_of_each_class() -> None:
    a, b = ten()
    bee, cat, dog = compare_predictions(a, b)["per_class"]
    assert [row["class"] for row in (bee, cat, dog)] == list(CLASSES)
    assert [row["support"] for row in (bee, cat, dog)] == [4, 3, 3]
    assert [row["recall_a"] for row in (bee, cat, dog)] == [3 / 4, 2 / 3, 1 / 3]
    assert [row["recall_b"] for row in (bee, cat, dog)] == [2 / 4, 3 / 3, 2 / 3]
    value, low, high = accuracy_difference(PairedCounts(both=2, only_a=0, only_b=1, neither=0))
    assert (cat["difference"], cat["difference_low"], cat["difference_high"]) == (value, low, high)


def test_classes_without_images_have_no_row() -> None:
    rows = compare_predictions(answers("a", [0, 2], [1, 2]), answers("b", [0, 2], [0, 1]))[
        "per_class"
    ]
    assert [row["class"] for row in rows] == ["bee", "dog"]


def test_disagreements_begin_where_both_are_sure() -> None:
    labels = [0, 1, 2, 0]
    a = answers("a", labels, [0, 1, 0, 1], [0.99, 0.7, 0.9, 0.6])
    b = answers("b", labels, [1, 1, 1, 0], [0.55, 0.7, 0.8, 0.999])
    rows = list_disagreements(a, b)
    assert [row["path"] for row in rows] == ["2.jpg", "3.jpg", "0.jpg"]
    assert [row["right"] for row in rows] == ["neither", "b", "a"]
    assert rows[2] == dict(
        zip(DISAGREEMENT_COLUMNS, ("0.jpg", "bee", "bee", 0.99, "cat", 0.55, "a"), strict=True)
    )
    assert format_csv(rows).splitlines()[0] == ",".join(DISAGREEMENT_COLUMNS)


def test_matched_by_path_and_by_the_names_of_classes() -> None:
    a, b = ten()
    order = ("dog", "bee", "cat")
    place = np.array([order.index(name) for name in CLASSES])
    turned = replace(b, classes=order, labels=place[b.labels], predicted=place[b.predicted])
    some = turned.select([7, 3, 9])
    first, second = match_predictions(a, some)
    assert first.keys == second.keys == ["3.jpg", "7.jpg", "9.jpg"]
    assert second.classes == CLASSES
    assert second.labels.tolist() == first.labels.tolist() == [0, 2, 2]
    assert second.predicted.tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"classes": ("bee", "cat", "dogs")}, "only a knows 'dog'; only b knows 'dogs'; did you"),
        ({"classes": (*CLASSES, "x")}, "other classes: only b knows 'x'$"),
        ({"keys": [f"q{i}" for i in range(10)]}, "no image in common: 10 such as '0.jpg', and 10"),
        ({"labels": np.array([0] * 10)}, "'4.jpg' is 'cat' for a and 'bee' for b .6 such images"),
    ],
)
def test_what_cannot_be_matched(change: dict[str, object], says: str) -> None:
    a, b = ten()
    with pytest.raises(DataError, match=says):
        match_predictions(a, replace(b, **change))  # type: ignore[arg-type]


def folder_of(folder: Path, keys: list[str], probabilities: np.ndarray) -> Path:
    """What `patchwords evaluate` leaves, as far as comparing needs it."""
    folder.mkdir()
    n = len(keys)
    labels = np.arange(n) % 3
    rows = np.arange(n)
    examples = ImageDataset(CLASSES, labels, keys, np.ones(n), lambda row: b"", rows)
    predictions = Predictions(rows, labels, probabilities, [])
    write_predictions(folder / "predictions.csv", examples, predictions, CLASSES)
    evaluation = {
        **compute_classification_metrics(labels, probabilities, CLASSES),
        "trained_on": False,
    }
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


def test_answers_of_a_folder(tmp_path: Path) -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    folder = folder_of(tmp_path / "x", ["a", "b", "odd\udcff", "d", "e"], probabilities)
    found = read_labelled_predictions(folder)
    assert found.keys == ["a", "b", "odd\udcff", "d", "e"]
    assert found.labels.tolist() == [0, 1, 2, 0, 1]
    assert found.predicted.tolist() == probabilities.argmax(1).tolist()
    assert found.probability == pytest.approx(probabilities.max(1), abs=5e-7)  # six decimals
    assert found.trained_on is False


def test_folders_without_answers_or_with_damaged_ones(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", ["a", "b"], np.full((2, 3), 1 / 3))
    for name in ("evaluation.json", "predictions.csv"):
        path = folder / name
        content = path.read_text()
        path.unlink()
        with pytest.raises(DataError, match=f"has no {name}"):
            read_labelled_predictions(folder)
        path.write_text(content.replace("cat", "cow"))
        with pytest.raises(DataError, match=r"do not fit: there is no 'c[ao][tw]'"):
            read_labelled_predictions(folder)
        path.write_text(content[: len(content) // 2].replace("0.3", "x"))
        with pytest.raises(DataError, match=re.escape(str(folder))):
            read_labelled_predictions(folder)
        path.write_text(content)


def photos(n: int, bad: int | None = None) -> ImageDataset:
    def read(row: int) -> bytes:
        if row == bad:
            return b"not an image"
        random = np.random.default_rng(row)
        file = io.BytesIO()
        size = (301, 401) if row == 1 else (23, 31 + row)  # one is large enough to decode at less
        pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "JPEG" if row == 1 else "PNG")
        return file.getvalue()

    rows = np.arange(n)
    return ImageDataset(CLASSES, rows % 3, [f"{i}.png" for i in rows], np.ones(n), read, rows)


def subject(name: str, preprocess: Preprocess, classes: tuple[str, ...] = CLASSES) -> LoadedModel:
    size = preprocess.image_size
    model = create_model("ViT-mu/4", image_size=size, channels=preprocess.channels, num_classes=3)
    torch.manual_seed(len(name))
    torch.nn.init.normal_(model.head.linear.weight)
    source = Pretrained(model.eval(), preprocess, classes)
    return LoadedModel(name, source, Device(torch.device("cpu"), bf16=False), workers=0)


GREY = Preprocess((8, 12), channels=1)
COLOUR = Preprocess((16, 16), resize="squash", mean=(0.4, 0.5, 0.6))


def test_both_are_asked_as_each_would_be_alone() -> None:
    """Of another size, other channels and another order of classes; the answers are the same."""
    examples = photos(11, bad=4)
    subjects = [subject("a", GREY), subject("bb", COLOUR, ("dog", "bee", "cat"))]
    found = predict_with_models(subjects, examples, max_bad=0.1)
    for one, asked in zip(subjects, found, strict=True):
        alone = predict_examples(one.model, examples, one.preprocess, one.device, 0)
        assert asked.keys == [examples.keys[i] for i in alone.indices]
        assert asked.predicted.tolist() == alone.probabilities.argmax(1).tolist()
        # The one is a faster copy of the other (models/inference/packed.py): the last digits of float32.
        np.testing.assert_allclose(asked.probability, alone.probabilities.max(1), rtol=1e-6)
        names = [asked.classes[label] for label in asked.labels]
        assert names == [CLASSES[label] for label in alone.labels]


def test_an_image_is_read_once_and_cut_as_each_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    strip = PackedPreprocess((GREY, COLOUR))
    assert strip.shape == (1, 8 * 12 + 16 * 16 * 3, 1)
    data = photos(1).read(0)
    strips = torch.from_numpy(strip(data, 0, 0, 0)).permute(2, 0, 1)[None]  # [1, 1, 1, bytes]
    image = Image.open(io.BytesIO(data))
    for wanted, cut in strip.cut(strips).items():
        np.testing.assert_array_equal(
            cut[0].permute(1, 2, 0).numpy(), wanted.resize_and_crop(np.asarray(image))
        )
    reads: list[int] = []
    decoded: list[int | None] = []
    pixels = EncodedImage.pixels
    monkeypatch.setattr(EncodedImage, "pixels", lambda d, s=None: decoded.append(s) or pixels(d, s))
    examples = photos(3)
    counted = replace(examples, reader=lambda row: reads.append(row) or examples.reader(row))  # type: ignore[arg-type,func-returns-value]
    predict_with_models([subject("a", GREY), subject("bb", COLOUR), subject("c", GREY)], counted)
    assert reads == [0, 1, 2]
    assert decoded == [None] * 3  # whole, and once for all models


def test_processes_share_the_images_and_all_know_every_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples, subjects = photos(7, bad=3), [subject("a", GREY), subject("bb", COLOUR)]
    whole = predict_with_models(subjects, examples, max_bad=0.2)
    shares: list[object] = []

    class Sent(Exception):
        """Of a process that has done its part."""

    def send(share: object) -> None:
        shares.append(share)
        raise Sent

    monkeypatch.setattr(asking, "all_gather_objects", send)
    for rank in (2, 1):
        monkeypatch.setattr(held_out, "get_world", lambda r=rank: World(r, r, 3, 3))
        with pytest.raises(Sent):
            predict_with_models(subjects, examples, max_bad=0.2)
    monkeypatch.setattr(asking, "all_gather_objects", lambda share: [share, *reversed(shares)])
    monkeypatch.setattr(held_out, "get_world", lambda: World(0, 0, 3, 3))
    told: list[tuple[int, int]] = []
    together = predict_with_models(
        subjects, examples, 0.2, lambda done, of: told.append((done, of))
    )
    assert told == [(3, 3)]  # of its own share, the unreadable one with it
    for one, other in zip(whole, together, strict=True):
        assert one.keys == other.keys
        assert one.predicted.tolist() == other.predicted.tolist()
        # other batches: float32 products in another order
        np.testing.assert_allclose(one.probability, other.probability, rtol=1e-5)


def test_what_cannot_be_asked() -> None:
    subjects = [subject("a", GREY), subject("bb", COLOUR)]
    with pytest.raises(DataError, match=r"1 of 5 images cannot be read, .* the first: 2.png"):
        predict_with_models(subjects, photos(5, bad=2))
    with pytest.raises(DataError, match="none of them can be read"):
        predict_with_models(subjects, photos(1, bad=0), max_bad=1.0)
    bare = replace(photos(3), labels=np.array([0, -1, 1]))
    with pytest.raises(DataError, match=r"1.png has no label \(1 such images\)"):
        predict_with_models(subjects, bare)
    torch.nn.init.constant_(subjects[1].model.head.linear.bias, float("nan"))
    with pytest.raises(DataError, match=r"bb answers 0.png \(and 2 more\) with numbers that are"):
        predict_with_models(subjects, photos(3))


def test_the_figure_is_drawn_for_any_names(recwarn: pytest.WarningsRecorder) -> None:
    a, b = ten()
    names = ("$x$", "odd\udcff", "\u96cf\u83ca" * 20)
    a, b = replace(a, classes=names), replace(b, classes=names)
    rows = compare_predictions(a, b)["per_class"]
    first = draw_recall_comparison(rows, "runs/$a", "runs/b" * 20)
    assert set(first) == {"recall.png", "recall.svg"}
    assert first["recall.png"].startswith(b"\x89PNG")
    assert first == draw_recall_comparison(rows, "runs/$a", "runs/b" * 20)
    assert not recwarn.list


def test_the_figure_has_the_widest_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalls, "MAX_RECALL_CLASSES", 3)
    ends = {"recall_a": 0.5, "recall_b": 0.5, "difference_low": -1, "difference_high": 1}
    rows = [{**ends, "class": f"c{i}", "difference": i / 10 - 0.3} for i in range(6)]
    drawn = re.findall(
        r"<!-- (c\d) -->", recalls.draw_recall_comparison(rows, "a", "b")["recall.svg"].decode()
    )
    assert drawn == ["c0", "c1", "c5"]  # -0.3, -0.2, +0.2: from the bottom to the top
