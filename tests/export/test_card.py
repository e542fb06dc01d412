"""What an exported file says of itself survives as strings, and nothing else is believed."""

from __future__ import annotations

import json

import pytest
from trees import LABELS, PREPROCESS

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.export.metadata import METADATA_KEYS, ExportMetadata

CARD = ExportMetadata(
    LABELS, Preprocess.from_dict({**PREPROCESS, "image_size": [12, 20]}), "ViT-B/16"
)


def test_there_and_back() -> None:
    for card in (
        CARD,
        ExportMetadata(LABELS, CARD.preprocess),
        ExportMetadata(LABELS, CARD.preprocess, None, "int8"),
    ):
        strings = card.to_strings()
        assert ExportMetadata.from_strings(strings, "a.onnx") == card
        assert set(strings) <= set(METADATA_KEYS)
        assert all(value.isascii() and value.isprintable() for value in strings.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"producer": None}, "was not written by patchwords export"),
        ({"producer": "pytorch"}, "was not written by patchwords export"),
        ({"version": "2"}, "is of a newer patchwords"),
        ({"version": "one"}, "damaged"),
        ({"labels": None}, "damaged.*labels"),
        ({"labels": "{"}, "damaged"),
        ({"labels": '"abc"'}, "labels are not a list of names"),
        ({"labels": "[1, 2]"}, "labels are not a list of names"),
        ({"preprocess": "[]"}, "damaged"),
        ({"preprocess": json.dumps({"image_size": [12, 20], "hue": 1})}, "damaged.*'hue'"),
        ({"preprocess": json.dumps({"image_size": -12})}, "damaged"),
    ],
)
def test_what_is_not_believed(change: dict[str, str | None], message: str) -> None:
    strings = {**CARD.to_strings(), **change}
    left = {name: value for name, value in strings.items() if value is not None}
    with pytest.raises(WeightsError, match=message) as caught:
        ExportMetadata.from_strings(left, "a.onnx")
    assert str(caught.value).startswith("a.onnx ")
    assert "\n" not in str(caught.value)
