"""An exported file computes what the model computes, or it is not there."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from trees import TINY, make, noise

import patchwords.export.write as exporting
from patchwords.errors import ConfigError, WeightsError
from patchwords.export.onnx import LogitDifference
from patchwords.export.runtime import import_export_package, open_exported_model
from patchwords.export.write import export_model, list_export_files, move_exported_files
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig
from patchwords.weights.pretrained import Pretrained

WIDE = replace(TINY, image_size=(24, 40), patch_size=2)
FAMILIES = {
    "relative, map": replace(TINY, position="relative", classifier="map"),
    # The root has both traps: standardised weights, and BiT's max-pooling over zeros.
    "hybrid": replace(WIDE, trunk=replace(HYBRID_TRUNK, units=())),
    "BiT": ResNetConfig(replace(BIT_TRUNK, units=(1,)), image_size=(24, 40), num_classes=7),
}


@pytest.mark.parametrize("name", ["trees.onnx", "trees.xml"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_scores_are_those_of_pytorch(
    files: Path, source: Pretrained, name: str, count: int
) -> None:
    found = open_exported_model(files / name).scores(noise(count))
    assert (found.shape, found.dtype) == ((count, 7), np.float32)
    # Float32, summed in another order.
    np.testing.assert_allclose(found, source.scores(noise(count)), atol=2e-6)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_other_families(config: ViTConfig, tmp_path: Path) -> None:
    source = make(config)
    before = {name: value.clone() for name, value in source.model.state_dict().items()}
    written = export_model(source, tmp_path / "a.onnx", opset=18)
    assert written.difference.largest < 1e-4 * written.difference.scale
    for name, value in source.model.state_dict().items():  # the model itself is left as it was
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    # Nothing is standardised anew for each image.
    model = onnx.load(tmp_path / "a.onnx")
    assert not {"Sqrt", "Div", "ReduceSum"} & {node.op_type for node in model.graph.node}
    assert model.opset_import[0].version == 18


def test_int8_is_near_and_smaller_and_says_so(files: Path, source: Pretrained) -> None:
    exported = open_exported_model(files / "trees-int8.onnx")
    assert exported.card == replace(
        open_exported_model(files / "trees.onnx").card, quantized="int8"
    )
    difference = np.abs(exported.scores(noise(5)) - source.scores(noise(5))).max()
    assert 1e-5 < difference < 0.1  # 7 bits of each weight, 8 of each input
    graph = onnx.load(files / "trees-int8.onnx").graph
    # q, k and v; the output; the MLP's two; the classifier
    assert [node.op_type for node in graph.node].count("MatMulInteger") == 5
    rounded = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    shapes = [tuple(tensor.dims) for tensor in rounded if len(tensor.dims) == 2]
    assert sorted(shapes) == [(12, 7), (12, 12), (12, 23), (12, 36), (23, 12)]
    scales = [tensor.dims for tensor in graph.initializer if tensor.name.endswith("_scale")]
    assert sorted(map(tuple, scales)) == [(7,), (12,), (12,), (23,), (36,)]  # one per column


def test_what_is_inside(files: Path) -> None:
    model = onnx.load(files / "trees.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert (model.producer_name, model.opset_import[0].version) == ("patchwords", 20)
    (images,), (logits,) = model.graph.input, model.graph.output
    assert (images.name, logits.name) == ("images", "logits")
    batch = images.type.tensor_type.shape.dim[0]
    assert (batch.dim_param, batch.dim_value) == ("batch", 0)
    for name in ("trees.onnx", "trees-int8.onnx", "trees.xml"):
        text = (files / name).read_bytes()
        for trace in (b"vit.py", b"forward", b"patchwords.models", str(Path.cwd()).encode()):
            assert trace not in text, name
    assert (files / "trees.bin").stat().st_size > 4 * 12 * 12  # float32, not float16


def test_a_file_that_computes_something_else_is_not_left_behind(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_another(model: nn.Module, card: object, path: Path, opset: int) -> None:
        shutil.copy(files / "trees.onnx", path)

    other = make()
    other.model.get_parameter("head.linear.bias").data += 0.002
    (tmp_path / "a.onnx").write_text("the one before")
    monkeypatch.setattr(exporting, "write_onnx", write_another)
    with pytest.raises(WeightsError, match=r"differs from PyTorch by 0\.002 .* it is not kept"):
        export_model(other, tmp_path / "a.onnx", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]
    assert (tmp_path / "a.onnx").read_text() == "the one before"


@pytest.mark.parametrize(
    ("largest", "scale", "kept"),
    [
        (9e-5, 0.1, True),
        (2e-4, 0.1, False),
        (2e-4, 3.0, True),
        (4e-4, 3.0, False),
        (float("nan"), 3.0, False),
    ],
)
def test_how_much_may_differ(largest: float, scale: float, kept: bool) -> None:
    difference = LogitDifference(largest, scale)
    if kept:
        difference.refuse_large("the file")
        return
    with pytest.raises(WeightsError, match="not kept"):
        difference.refuse_large("the file")


@pytest.mark.parametrize("name", ["a.onnx", "a.xml"])
def test_both_files_are_put_in_place(tmp_path: Path, name: str) -> None:
    """As those of a model beyond 2 GB; what is written over leaves no weights behind."""
    made, target = tmp_path / "made", tmp_path / name
    made.mkdir()
    for file in list_export_files(made / name):
        file.write_text("new")
    for file in list_export_files(target):
        file.write_text("old")
    assert move_exported_files(made, target) == list_export_files(target)
    assert [file.read_text() for file in list_export_files(target)] == ["new", "new"]
    (made / name).write_text("newer")
    assert move_exported_files(made, target) == (target,)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "made"]


def test_what_is_refused_before_any_work(source: Pretrained, tmp_path: Path) -> None:
    def refused(path: str, message: str, of: Pretrained = source, **settings: object) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            export_model(of, tmp_path / path, **settings)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)

    (tmp_path / "taken.onnx").write_text("mine")
    (tmp_path / "half.bin").write_text("mine")
    (tmp_path / "folder.onnx").mkdir()
    refused("taken.onnx", "taken.onnx exists; add --overwrite")
    refused("half.xml", "half.bin exists")
    refused("folder.onnx", "folder.onnx exists", overwrite=True)
    refused("a.pt", "must end in .onnx, or in .xml")
    refused("nowhere/a.onnx", "the folder .*nowhere does not exist")
    refused("a.onnx", "--opset 30 is not one of 18 to 23", opset=30)
    refused("a.xml", "int8 is for ONNX", int8=True)
    resnet = make(FAMILIES["BiT"])
    refused("a.onnx", "int8 is for the matrix products", resnet, int8=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "folder.onnx",
        "half.bin",
        "taken.onnx",
    ]


@pytest.mark.parametrize(("name", "package"), [("a.onnx", "onnxscript"), ("a.xml", "openvino")])
def test_a_missing_package_is_named(
    source: Pretrained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs {package}.*pip install 'patchwords\[export\]'"):
        export_model(source, tmp_path / name)


def test_openvino_reports_to_nobody() -> None:
    import_export_package("openvino")
    import openvino.tools.ovc.telemetry_utils as reporting

    assert reporting.tm.__name__ == "openvino.tools.ovc.telemetry_stub"
