"""patchwords: Vision Transformers, "an image is worth 16x16 words" (arXiv 2010.11929).

    >>> import patchwords as pw
    >>> model = pw.create_model("ViT-Ti/16", num_classes=10)
    >>> model(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 10])

Names are imported when first used, so `import patchwords` costs nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from patchwords.version import __version__

if sys.platform == "darwin":  # what torch lacks on the GPU of a Mac runs on its CPU
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

if TYPE_CHECKING:
    from patchwords.api.inspection import inspect
    from patchwords.api.models import export
    from patchwords.api.probes import embed, fewshot, knn, probe
    from patchwords.api.runs import Run, evaluate, extract_features, finetune, load_run, pretrain
    from patchwords.data.preprocess import Preprocess
    from patchwords.data.torch_dataset import load_dataset
    from patchwords.models.resnet.resnet import ResNet
    from patchwords.models.vit import ViT
    from patchwords.models.zoo import create_model, list_models
    from patchwords.weights.pretrained import Pretrained
    from patchwords.weights.published import list_weights
    from patchwords.weights.store import from_pretrained, save_pretrained

PUBLIC = {
    "inspect": "patchwords.api.inspection",
    "embed": "patchwords.api.probes",
    "fewshot": "patchwords.api.probes",
    "knn": "patchwords.api.probes",
    "probe": "patchwords.api.probes",
    "Run": "patchwords.api.runs",
    "evaluate": "patchwords.api.runs",
    "extract_features": "patchwords.api.runs",
    "finetune": "patchwords.api.runs",
    "load_run": "patchwords.api.runs",
    "pretrain": "patchwords.api.runs",
    "create_model": "patchwords.models.zoo",
    "list_models": "patchwords.models.zoo",
    "list_weights": "patchwords.weights.published",
    "ResNet": "patchwords.models.resnet.resnet",
    "ViT": "patchwords.models.vit",
    "Preprocess": "patchwords.data.preprocess",
    "load_dataset": "patchwords.data.torch_dataset",
    "Pretrained": "patchwords.weights.pretrained",
    "from_pretrained": "patchwords.weights.store",
    "save_pretrained": "patchwords.weights.store",
}

__all__ = [
    "Preprocess",
    "Pretrained",
    "ResNet",
    "Run",
    "ViT",
    "__version__",
    "create_model",
    "embed",
    "evaluate",
    "export",
    "extract_features",
    "fewshot",
    "finetune",
    "from_pretrained",
    "inspect",
    "knn",
    "list_models",
    "list_weights",
    "load_dataset",
    "load_run",
    "pretrain",
    "probe",
    "save_pretrained",
]


def __getattr__(name: str) -> Any:
    if name == "export":  # the folder of that name, which is callable
        return importlib.import_module("patchwords.export")
    if name not in PUBLIC:
        raise AttributeError(f"module 'patchwords' has no attribute {name!r}")
    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
