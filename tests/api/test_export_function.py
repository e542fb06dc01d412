"""`pw.export` and `Run.export`; the name is that of a folder of the package, too."""

from __future__ import annotations

from pathlib import Path

import pytest

import patchwords as pw
from patchwords.errors import ConfigError


def test_a_run_is_exported_and_answers_alike(run: pw.Run, photos: Path) -> None:
    pytest.importorskip("onnxruntime")
    exported = run.export("photos.onnx", calibrate=photos)
    from patchwords.export.runtime import open_exported_model

    assert exported.files == (Path("photos.onnx"),)
    told = exported.to_dict()
    assert told["largest_difference"] < 1e-4
    assert told["pytorch"] == told["file"]
    assert told["changed"] == 0
    assert open_exported_model("photos.onnx").labels == run.labels
    assert "photos.onnx" in exported._repr_html_()
    with pytest.raises(ConfigError, match=r"photos\.onnx exists"):
        pw.export(run.folder, "photos.onnx")  # the folder was imported: still a function
    larger = pw.export(run, "larger.onnx", image_size=32)
    assert larger.source.preprocess.image_size == (32, 32)
    assert run.preprocess.image_size == (16, 16)


def test_wrong_formats_are_named(run: pw.Run) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConfigError, match="'onx' is not a choice; did you mean 'onnx'"):
        run.export("a.onnx", to="onx")
    with pytest.raises(ConfigError, match=r"must end in \.onnx"):
        run.export("a.zip")
