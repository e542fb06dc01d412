"""A model as OpenVINO's two files, .xml and .bin, made from its ONNX file.

Weights stay float32: OpenVINO's own default, float16, moves the logits of ViT-Ti/16 by 7e-4.
"""

from __future__ import annotations

from pathlib import Path

from patchwords.export.card import PRODUCER, ExportMetadata
from patchwords.export.packages import import_export_package


def write_openvino(onnx_file: Path, card: ExportMetadata, path: Path) -> None:
    """Write `path`, which ends in .xml, and beside it the .bin of the weights."""
    openvino = import_export_package("openvino")
    model = openvino.Core().read_model(onnx_file)
    del model.rt_info["framework"]  # where it keeps what an ONNX file says of itself
    for name, value in card.to_strings().items():
        model.set_rt_info(value, [PRODUCER, name])
    openvino.save_model(model, path, compress_to_fp16=False)
