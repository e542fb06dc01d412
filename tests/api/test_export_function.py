"""`pw.export` and `Run.export`; the name is that of a folder of the package, too."""

from __future__ import annotations

import subprocess
import sys
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


@pytest.mark.parametrize("first", ["pw.export", "import patchwords.export.onnx"])
def test_the_function_is_its_folder_in_either_order_of_imports(first: str) -> None:
    code = f"""
import sys
import patchwords as pw
{first}
light = "torch" not in sys.modules
import patchwords.export.onnx
from patchwords import export
assert export is pw.export is patchwords.export is sys.modules["patchwords.export"]
sys.modules["patchwords.api.models"] = type(sys)("models")
sys.modules["patchwords.api.models"].export = lambda *names, **settings: (names, settings)
print(light, pw.export("run", "a.onnx", opset=20))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = first == "pw.export"
    assert found.stdout == f"{light} (('run', 'a.onnx'), {{'opset': 20}})\n"


def test_wrong_formats_are_named(run: pw.Run) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConfigError, match="'onx' is not a choice; did you mean 'onnx'"):
        run.export("a.onnx", to="onx")
    with pytest.raises(ConfigError, match=r"must end in \.onnx"):
        run.export("a.zip")
