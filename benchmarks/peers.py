"""The same model in other people's programs: timm, transformers, OpenVINO.

All hold the weights of ours, so that they compute the same function. One that is not installed is
`Absent`, which names it.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model
from patchwords.weights.store import save_pretrained

Answer = Callable[[Tensor], Tensor]  # normalised images [B, C, H, W] -> logits [B, classes]
DECLARED: list[torch.library.Library] = []  # an operator lives as long as what declared it
FP32_APART = 1e-4  # relative; more would be another function
NEED_TORCHVISION = ("timm", "transformers")  # the latter where it is installed
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class Absent(Exception):
    """A peer is not installed, or does not import; the text says which and why."""


class Different(Exception):
    """A peer does not compute the same function, so its speed says nothing."""


def load(name: str) -> ModuleType:
    """The package; raises Absent."""
    try:
        if name in NEED_TORCHVISION and find_spec("torchvision"):
            prepare_torchvision()
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Absent(f"{name}: not installed, skipped") from error
    except Exception as error:  # a broken installation raises anything
        raise Absent(f"{name}: does not import ({str(error).splitlines()[0]}), skipped") from error


def prepare_torchvision() -> None:
    """Make torchvision importable without its compiled part, which no ViT needs.

    torchvision's compiled part is for one build of torch; with another, torchvision stops at two
    operators that nothing has declared. They are declared here, and never called.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            library.define(operator)
        DECLARED.append(library)
        importlib.import_module("torchvision")


def random_model(name: str, image_size: int, seed: int = 0) -> ViT:
    """Ours with random weights, in training mode.

    erf GELU, as timm and transformers have it. A new head is zero in ours, and zeros would agree
    with anything.
    """
    model = create_model(name, image_size=image_size, gelu="erf", seed=seed)
    assert isinstance(model, ViT)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.head.linear.weight.normal_(0.0, 0.02, generator=noise)
    return model


def timm_model(ours: ViT) -> nn.Module:
    timm = load("timm")
    with tempfile.TemporaryDirectory() as folder:
        quietly(save_pretrained, ours, folder, format="timm")
        return timm.create_model(f"local-dir:{folder}", pretrained=True)


def transformers_model(ours: ViT) -> nn.Module:
    transformers = load("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        quietly(save_pretrained, ours, folder, format="huggingface")
        return transformers.ViTForImageClassification.from_pretrained(folder, dtype=torch.float32)


def eager(model: nn.Module, precision: str) -> Answer:
    """A peer's model as its users run it; bf16 by autocast, as its documentation says."""
    model.eval()

    def answer(images: Tensor) -> Tensor:
        with torch.inference_mode(), autocast(precision):
            return logits(model(images)).float()

    return answer


def logits(output: Any) -> Tensor:
    """transformers wraps them."""
    return output if isinstance(output, Tensor) else output.logits


def autocast(precision: str, device: str = "cpu") -> Any:
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def openvino(ours: ViT, precision: str) -> Answer:
    """What `patchwords export` writes for OpenVINO, run by it on as many threads."""
    for package in ("onnx", "onnxscript", "openvino"):
        load(package)
    from patchwords.data.preprocess import Preprocess
    from patchwords.export.runtime import OpenVinoModel
    from patchwords.export.write import export_model
    from patchwords.weights.pretrained import Pretrained

    preprocess = Preprocess(ours.config.image_size)
    labels = tuple(str(i) for i in range(ours.config.num_classes))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        quietly(export_model, Pretrained(ours, preprocess, labels), path)
        engine = OpenVinoModel(path, bf16=precision == "bf16")
    return engine.forward


def quietly(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Notes for a person who saves a model are of no use here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            return call(*arguments, **named)
        finally:
            logging.disable(logging.NOTSET)


def apart(one: Tensor, other: Tensor) -> float:
    """Largest difference, relative to the largest number of `other`."""
    return float((one - other).abs().max() / other.abs().max())


def check_same(name: str, found: Tensor, wanted: Tensor) -> None:
    """Raises Different where float32 answers differ by more than rounding."""
    distance = apart(found, wanted)
    if not distance <= FP32_APART:
        raise Different(f"{name} does not compute what ours does: relative error {distance:.1e}")
