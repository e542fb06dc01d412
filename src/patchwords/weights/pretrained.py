"""A trained model with its preprocessing and class names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.data.open import wrap_images
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.errors import DataError, WeightsError
from patchwords.files import write_atomically
from patchwords.models.build import Model
from patchwords.models.inference.calibration import ActivationRanges, list_range_shapes
from patchwords.models.inference.int8 import check_int8_support, quantise_model
from patchwords.models.inference.packed import pack_for_inference
from patchwords.weights.convert import find_shape_mismatch
from patchwords.weights.safe_load import read_safetensors, translate_read_errors

if TYPE_CHECKING:
    from patchwords.data.decode import ImageLike


# The digest of weights.


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Hash every tensor's name, type, shape and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Activation ranges, stored next to the weights: int8 needs them (models/inference/calibration.py).
#
#     model/
#       model.safetensors
#       ranges.safetensors   a range per block and place; in its header {"weights": a digest of them,
#                            "images": how many the ranges were found on}
#
# Written by `patchwords calibrate`, and good for these weights alone.


RANGES_FILE = "ranges.safetensors"


def save_activation_ranges(
    folder: Path, model: Model, ranges: ActivationRanges, images: int
) -> Path:
    """Write the ranges into the model's folder; an older file is replaced atomically."""
    about = {"format": "pt", "weights": digest_tensors(model.state_dict()), "images": str(images)}
    dense = {name: value.contiguous() for name, value in ranges.items()}
    write_atomically(folder / RANGES_FILE, safetensors.torch.save(dense, metadata=about))
    return folder / RANGES_FILE


def load_activation_ranges(folder: Path | None, model: Model) -> ActivationRanges:
    """Read the ranges of this very model. Raises WeightsError if there are none, or others."""
    if folder is None:
        raise WeightsError(
            "int8 needs the ranges of activations, which are kept in a model folder of "
            "patchwords: write one by patchwords convert SRC DST --to patchwords, then run "
            "patchwords calibrate DST DATA first"
        )
    path, run = folder / RANGES_FILE, find_run_folder(folder)
    if not path.is_file():
        raise WeightsError(
            f"{run} has no ranges of activations, which int8 needs: run patchwords calibrate "
            f"{run} first"
        )
    ranges = read_safetensors(path)
    with translate_read_errors(path), safetensors.safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
    if about.get("weights") != digest_tensors(model.state_dict()):
        raise WeightsError(
            f"{path} is of other weights than the model has now: run patchwords calibrate {run} "
            "again"
        )
    if (misfit := find_shape_mismatch(ranges, list_range_shapes(model))) is not None:
        name, expected, actual = misfit
        raise WeightsError(
            f"{path}: {name[:80]} should be {expected}, and is {actual}: run patchwords calibrate "
            f"{run} again"
        )
    if not all(value.isfinite().all() for value in ranges.values()):
        raise WeightsError(f"{path} is damaged: run patchwords calibrate {run} again")
    return {name: value.float() for name, value in ranges.items()}


def find_run_folder(folder: Path) -> Path:
    """Return the run folder of a model folder, if it is in one: the name that users know."""
    run = folder.parent
    return run if folder.name == "model" and (run / "config.yaml").is_file() else folder


PREDICT_BATCH_SIZE = 32


@dataclass(frozen=True)
class Pretrained:
    """A trained model; `predict` leads from photos to named scores."""

    model: Model
    preprocess: Preprocess
    labels: tuple[str, ...]  # none: pre-trained without classes
    architecture: str | None = None  # the name that the model was created by
    changes: tuple[str, ...] = ()  # notes for the user: what loading reset or resized
    home: Path | None = None  # the model folder of ours that it was read from
    task: Mapping[str, Any] | None = (
        None  # what it is a backbone for: {"name": "segmentation", ...}
    )

    def predict(
        self, images: ImageLike | Iterable[ImageLike], top_k: int = 5, workers: int = 0
    ) -> list[Any]:
        """Name the best `top_k` classes of an image, or of each of several.

        An image is a path, encoded bytes, a PIL image, or a uint8 array [H, W, 3]. One image gives
        `[{"label": ..., "score": ...}, ...]`, best first, as transformers' pipeline does; a
        sequence of images, a folder or a pattern gives a list of such lists. Raises DataError for
        one that cannot be read, and WeightsError where the model was pre-trained without classes.
        """
        self.require_classes("RUN")
        examples, single = wrap_images(images)
        answers = []
        for path, classes, reason in stream_predictions(self, examples, top_k, workers=workers):
            if reason is not None:
                raise DataError(f"{path}: {reason}")
            answers.append(classes)
        return answers[0] if single else answers

    def require_classes(self, source: str) -> None:
        """Raise WeightsError if there are not two classes to tell apart."""
        if self.task is not None:
            raise WeightsError(
                f"{source} is of the task {self.task.get('name')}, which this command does not know: "
                "patchwords predict and patchwords evaluate do"
            )
        if not self.labels:
            raise WeightsError(
                f"{source} was pre-trained without classes, so it names none: fine-tune it first, "
                f"by patchwords finetune DATA --weights {source}"
            )

    def for_inference(self, device: Device) -> Pretrained:
        """Return a copy on a device, packed for inference; it does not learn.

        For int8 (models/inference/int8.py), raises WeightsError where `patchwords calibrate` has left no
        ranges of these weights, and ConfigError for a model or a machine that cannot.
        """
        if device.int8:
            check_int8_support(self.model)
            ranges = load_activation_ranges(self.home, self.model)
            return replace(self, model=quantise_model(self.model, ranges))
        return replace(
            self, model=pack_for_inference(self.model.to(device.torch_device), device.bf16)
        )

    @torch.inference_mode()
    def scores(self, images: Tensor, device: Device | None = None) -> np.ndarray:
        """uint8 [B, C, H, W] -> float32 [B, classes], probabilities."""
        if device is None:
            device = Device(next(self.model.parameters()).device, bf16=False)
        with device.autocast():
            logits = self.model(self.preprocess.normalise(images.to(device.torch_device)))
        return logits.float().softmax(-1).cpu().numpy()


class Classifier(Protocol):
    """A model that scores classes: `Pretrained`, or an exported file."""

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    def scores(self, images: Tensor) -> np.ndarray:
        """uint8 [B, C, H, W] -> float32 [B, classes], probabilities."""
        ...


def stream_predictions(
    source: Classifier,
    examples: ImageDataset,
    top_k: int,
    *,
    batch_size: int = PREDICT_BATCH_SIZE,
    workers: int = 0,
    scores: Callable[[Tensor], np.ndarray] | None = None,
) -> Iterator[tuple[str, list[dict[str, Any]], str | None]]:
    """Classify images batch by batch; memory does not grow with their number.

    -> (name, best classes, None) of each image in turn, or (name, [], reason) of one that cannot
    be read. `scores` computes in place of `source.scores`. Raises WeightsError for scores of NaN.
    """
    compute = scores or source.scores
    for batch in load_eval_batches(examples, source.preprocess, batch_size, workers):
        for index, reason in batch.bad:
            yield examples.keys[index], [], reason
        if len(batch.indices):
            for index, row in zip(batch.indices.tolist(), compute(batch.images), strict=True):
                if not np.isfinite(row).all():
                    raise WeightsError(
                        f"{examples.keys[index]}: the model answers with numbers that are not finite: "
                        "its weights are damaged, or they overflow at this precision"
                    )
                yield examples.keys[index], label_top_k(row, source.labels, top_k), None


def label_top_k(scores: np.ndarray, labels: Sequence[str], top_k: int) -> list[dict[str, Any]]:
    """Name the best `top_k` of scores [classes]: {"label", "score"}, the best first."""
    best = np.argsort(-scores, kind="stable")[:top_k]
    return [{"label": labels[i], "score": float(scores[i])} for i in best.tolist()]
