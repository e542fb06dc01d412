"""The small model, and the files that it is exported as."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make

from patchwords.export.write import export_model
from patchwords.weights.pretrained import Pretrained


@pytest.fixture(scope="session")
def source(one_thread: None) -> Pretrained:
    return make()


@pytest.fixture(scope="session")
def files(source: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model as trees.xml (and .bin), and as trees.onnx in float32 and in int8."""
    folder = tmp_path_factory.mktemp("exported")
    export_model(source, folder / "trees.xml")
    export_model(source, folder / "trees.onnx")
    export_model(source, folder / "trees-int8.onnx", int8=True)
    return folder
