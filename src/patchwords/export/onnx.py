"""A model as an ONNX file, by torch.export: float32 images, already scaled, in; logits out.

Sizes: B batch (free), C channels, H W image (fixed: the one that the positions are made for).
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchwords.errors import ConfigError
from patchwords.export.card import INPUT_NAME, OUTPUT_NAME, PRODUCER, ExportMetadata
from patchwords.export.packages import import_export_package
from patchwords.export.prepare import prepare_for_export
from patchwords.version import __version__

DEFAULT_OPSET = (
    20  # the first with GELU as one operator; ONNX Runtime 1.17 (2024) and later have it
)
SUPPORTED_OPSETS = range(18, 24)  # torch writes 18 and later; ONNX Runtime 1.23 reads up to 23


def check_opset(opset: int) -> None:
    if opset not in SUPPORTED_OPSETS:
        raise ConfigError(
            f"--opset {opset} is not one of {SUPPORTED_OPSETS[0]} to {SUPPORTED_OPSETS[-1]}; {DEFAULT_OPSET} is usual"
        )


def write_onnx(
    model: nn.Module, card: ExportMetadata, path: Path, opset: int = DEFAULT_OPSET
) -> None:
    """Write `path`; beyond 2 GB the weights go into a second file, `path` + ".data".

    Needs onnx and onnxscript.
    """
    import_export_package("onnx")
    import_export_package("onnxscript")
    height, width = card.preprocess.image_size
    # Two images: torch.export takes an axis of length 1 for one that never changes.
    images = torch.zeros(2, card.preprocess.channels, height, width)
    with silence_exporters(), torch.no_grad():
        program = torch.onnx.export(
            prepare_for_export(model),
            (images,),
            dynamo=True,
            verbose=False,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=opset,
        )
    assert program is not None
    set_onnx_metadata(program.model, card)
    program.save(path)


def set_onnx_metadata(graph: Any, card: ExportMetadata) -> None:
    """Put the card in, and take out what torch notes of each node: our source code and its paths.

    `graph` is an onnx_ir.Model.
    """
    graph.producer_name, graph.producer_version = PRODUCER, __version__
    graph.graph.name = PRODUCER
    values = [*graph.graph.inputs, *graph.graph.initializers.values()]
    for node in graph.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        values += node.outputs
    for value in values:
        value.metadata_props.clear()
    graph.graph.metadata_props.clear()
    graph.metadata_props.clear()
    graph.metadata_props.update(card.to_strings())


def quantize_onnx(source: Path, target: Path, card: ExportMetadata) -> None:
    """The weights of matrix products in int8, one scale per column; their inputs by the batch.

    Weights take 7 of the 8 bits: CPUs without VNNI would overflow on the eighth. The convolution
    that embeds patches stays in float32. Needs onnx and onnxruntime.
    """
    onnx, quantization = (
        import_export_package("onnx"),
        import_export_package("onnxruntime.quantization"),
    )
    large = source.with_name(f"{source.name}.data").exists()
    graph = onnx.load(source, load_external_data=False)
    del graph.graph.value_info[:]  # shapes of weights that the quantizer transposes; it infers them
    onnx.save(graph, source)
    with silence_exporters():
        quantization.quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=True,
            use_external_data_format=large,
        )
        graph = onnx.load(target, load_external_data=False)
    graph.producer_name, graph.producer_version = PRODUCER, __version__
    onnx.helper.set_model_props(graph, card.to_strings())
    onnx.save(graph, target)


@contextlib.contextmanager
def silence_exporters() -> Iterator[None]:
    """The exporters warn of their own innards, and of packages that nobody needs here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "root")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
