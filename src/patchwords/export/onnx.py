"""Export to ONNX and OpenVINO, and comparison of the file's logits with PyTorch's.

The input is float32 images, normalised; the output is logits.

Sizes: B batch (free), C channels, H W image (fixed by the position embeddings).
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, WeightsError
from patchwords.export.metadata import INPUT_NAME, OUTPUT_NAME, PRODUCER, ExportMetadata
from patchwords.export.runtime import import_export_package
from patchwords.models.resnet.trunk import Root, StdConv, standardise_weight
from patchwords.rng import torch_generator
from patchwords.version import __version__

# A copy of the model that computes the same in a form that the engines handle better.


# ONNX Runtime (1.31) merges a padding by 0 into the max-pooling that follows, which then pads by
# minus infinity: wrong where all values are negative, as after BiT's root. This is not 0 to it.
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@torch.no_grad()
def prepare_for_export(model: nn.Module) -> nn.Module:
    """Copy the model to the CPU in eval mode, with standardised weights computed once."""
    model = copy.deepcopy(model).cpu().eval()
    for module in model.modules():
        if isinstance(module, StdConv) and module.form is not None:
            module.weight.copy_(standardise_weight(module.weight, module.form))
            module.form = None
        if isinstance(module, Root) and module.border == 0:
            module.border = SMALLEST_NORMAL
    return model


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
    """Write an ONNX file; weights beyond 2 GB go into a second file, `path` + ".data".

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
    """Set the metadata of an onnx_ir.Model, and remove source paths that torch adds to nodes."""
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
    """Quantise matrix products to int8: weights per column, inputs per batch.

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
    """Suppress warnings of the exporters about their internals and optional packages."""
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


# A model as OpenVINO's two files, .xml and .bin, made from its ONNX file.
#
# Weights stay float32: OpenVINO's own default, float16, moves the logits of ViT-Ti/16 by 7e-4.


def write_openvino(onnx_file: Path, card: ExportMetadata, path: Path) -> None:
    """Write `path` (.xml), and its weights next to it (.bin)."""
    openvino = import_export_package("openvino")
    model = openvino.Core().read_model(onnx_file)
    del model.rt_info["framework"]  # where it keeps what an ONNX file says of itself
    for name, value in card.to_strings().items():
        model.set_rt_info(value, [PRODUCER, name])
    openvino.save_model(model, path, compress_to_fp16=False)


# Whether an exported file computes what the model computes.
#
# Sizes: B batch, C channels, H W image.


CHECKED_BATCH_SIZES = (1, 3)  # the file must not have learned the number of images by heart
# In float32. Sums are taken in another order, which costs some 1e-6 of the largest logit; a wrong
# operator, or half precision, costs 1e-3 and more.
LOGIT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class LogitDifference:
    """Difference between the logits of PyTorch and those of the file."""

    largest: float  # absolute, over all logits
    scale: float  # the largest logit, absolute

    def refuse_large(self, what: str) -> None:
        """Raise WeightsError for NaN or a difference above 1e-4 (relative for logits above 1)."""
        if not self.largest <= LOGIT_TOLERANCE * max(1.0, self.scale):
            raise WeightsError(
                f"{what} differs from PyTorch by {self.largest:.2g} (logits up to "
                f"{self.scale:.2g}), more than {LOGIT_TOLERANCE:g}: it is not kept"
            )


@torch.inference_mode()
def compare_logits(
    model: nn.Module, exported: nn.Module, batches: Sequence[Tensor]
) -> LogitDifference:
    """Find the largest difference over batches of normalised images [B, C, H, W]."""
    largest, scale = [], []
    for images in batches:
        logits = model(images)  # [B, classes]
        largest.append((exported(images) - logits).abs().max())
        scale.append(logits.abs().max())
    return LogitDifference(float(torch.stack(largest).max()), float(torch.stack(scale).max()))


def make_random_batches(preprocess: Preprocess) -> list[Tensor]:
    """Make batches of one and of three noise images [B, C, H, W], the same at every call."""
    generator = torch_generator(0, "export")
    shape = (preprocess.channels, *preprocess.image_size)
    return [
        preprocess.normalise(
            torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
        )
        for count in CHECKED_BATCH_SIZES
    ]
