"""Exported files as they are opened again; what is none of them is refused in one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from trees import LABELS

from patchwords.errors import WeightsError
from patchwords.export.runtime import open_exported_model
from patchwords.weights.pretrained import Pretrained


@pytest.fixture
def own(files: Path, tmp_path: Path) -> Path:
    """A copy of the files that a test may damage."""
    return Path(shutil.copytree(files, tmp_path / "own"))


def refused(path: Path, message: str) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        open_exported_model(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["trees.onnx", "trees.xml"])
def test_labels_and_preprocessing_come_along(files: Path, source: Pretrained, name: str) -> None:
    exported = open_exported_model(files / name)
    assert exported.labels == LABELS
    assert exported.preprocess == source.preprocess
    assert exported.card.architecture == "ViT-tiny/4"


@pytest.mark.parametrize("name", ["trees.onnx", "trees.xml", "trees.bin"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_file(own: Path, name: str, part: float) -> None:
    data = (own / name).read_bytes()
    (own / name).write_bytes(data[: int(part * len(data))])
    path = own / name.replace(".bin", ".xml")
    refused(path, "cannot be read: it is damaged")


def test_what_is_no_model_at_all(tmp_path: Path) -> None:
    for name in ("a.onnx", "a.xml"):
        (tmp_path / name).write_bytes(b"<html>not found</html>")
    (tmp_path / "a.bin").write_bytes(b"")
    refused(tmp_path / "a.onnx", "cannot be read")
    refused(tmp_path / "a.xml", "cannot be read")
    refused(tmp_path / "b.onnx", "no file")


def test_an_xml_without_its_weights(own: Path) -> None:
    (own / "trees.bin").unlink()
    refused(own / "trees.xml", r"lacks its weights: .*trees\.bin is missing")


def test_the_model_of_another_program(own: Path) -> None:
    model = onnx.load(own / "trees.onnx")
    del model.metadata_props[:]
    onnx.save(model, own / "trees.onnx")
    refused(own / "trees.onnx", "was not written by patchwords export")
    xml = (own / "trees.xml").read_text()
    (own / "trees.xml").write_text(xml.replace("<producer ", "<maker "))
    refused(own / "trees.xml", "was not written by patchwords export")


@pytest.mark.parametrize("name", ["trees.onnx", "trees.xml"])
def test_labels_that_the_model_has_no_logits_for(own: Path, name: str) -> None:
    data = (own / name).read_bytes()
    changed = data.replace(b"birch", b'a","b').replace(b"a&quot;", b"a")
    if name == "trees.xml":
        changed = data.replace(b"birch", b"a&quot;,&quot;b")
    assert changed != data
    (own / name).write_bytes(changed)
    refused(own / name, r"is damaged: .*'logits': \[8\]")


def test_operators_from_elsewhere_are_not_run(own: Path) -> None:
    model = onnx.load(own / "trees.onnx")
    model.opset_import.append(onnx.helper.make_opsetid("elsewhere", 1))
    model.graph.node[-1].domain = "elsewhere"
    onnx.save(model, own / "trees.onnx")
    refused(own / "trees.onnx", "cannot be read")


SIGNAL_AFTER_MODELS = """\
import faulthandler, gc, os, signal, sys
from pathlib import Path
faulthandler.enable()  # handlers run on a stack of their own from now on
from patchwords.export.runtime import open_exported_model
signal.signal(signal.SIGCHLD, lambda *_: print("handled"))
path = Path(sys.argv[1])
first, second = open_exported_model(path), open_exported_model(path, bf16=True)
for _ in range(2):
    os.kill(os.getpid(), signal.SIGCHLD)
    first = second = None
    gc.collect()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGCHLD")
def test_a_signal_may_come_after_a_model_of_openvino(files: Path) -> None:
    command = [sys.executable, "-c", SIGNAL_AFTER_MODELS, files / "trees.xml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.split()) == (0, ["handled"] * 2), result.stderr
