"""A model with what it needs to answer for photos: its preprocessing and the names of classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from patchwords.data.decode import decode_image, to_rgb
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.errors import DataError, WeightsError
from patchwords.model.family import Model
from patchwords.model.fast import pack_for_inference
from patchwords.model.int8 import check_int8_support, quantise_model
from patchwords.weights.ranges import load_activation_ranges

if TYPE_CHECKING:
    ImageLike = str | Path | bytes | Image.Image | np.ndarray

PREDICT_BATCH_SIZE = 32


@dataclass(frozen=True)
class Pretrained:
    """What `from_pretrained` gives; `predict` is the whole way from photos to named scores."""

    model: Model
    preprocess: Preprocess
    labels: tuple[str, ...]  # none: pre-trained without classes
    architecture: str | None = None  # the name that the model was created by
    changes: tuple[str, ...] = ()  # what loading reset or resized, for a person
    home: Path | None = None  # the model folder of ours that it was read from

    def predict(self, images: ImageLike | Sequence[ImageLike], top_k: int = 5) -> list[Any]:
        """The best `top_k` classes of an image, or of each of several.

        An image is a path, encoded bytes, a PIL image, or a uint8 array [H, W, 3]. One image gives
        `[{"label": ..., "score": ...}, ...]`, best first, as transformers' pipeline does; a
        sequence of images gives a list of such lists. Raises DataError for one that cannot be read,
        and WeightsError where the model was pre-trained without classes.
        """
        self.require_classes("RUN")
        single = isinstance(images, str | Path | bytes | np.ndarray) or hasattr(images, "convert")
        several: Iterable[ImageLike] = [images] if single else images  # type: ignore[list-item,assignment]
        pixels = [self.preprocess(self._open(image)) for image in several]  # each [H, W, C] uint8
        answers = []
        for start in range(0, len(pixels), PREDICT_BATCH_SIZE):
            stack = np.stack(pixels[start : start + PREDICT_BATCH_SIZE])  # [B, H, W, C]
            batch = torch.from_numpy(stack).permute(0, 3, 1, 2)  # [B, C, H, W]
            answers += [self.name(row, top_k) for row in self.scores(batch)]
        return answers[0] if single else answers

    def require_classes(self, source: str) -> None:
        """Raise WeightsError where there is no class to tell apart."""
        if not self.labels:
            raise WeightsError(
                f"{source} was pre-trained without classes, so it names none: fine-tune it first, "
                f"by patchwords finetune DATA --weights {source}"
            )

    def for_inference(self, device: Device) -> Pretrained:
        """The same on that device, made fast; its model does not learn (model/fast.py).

        For int8 (model/int8.py), raises WeightsError where `patchwords calibrate` has left no
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

    def name(self, scores: np.ndarray, top_k: int) -> list[dict[str, Any]]:
        """[classes] -> the best `top_k`, named."""
        return label_top_k(scores, self.labels, top_k)

    def _open(self, image: ImageLike) -> Image.Image:
        if isinstance(image, str | Path):
            path = Path(image)
            try:
                image = path.read_bytes()
            except OSError as error:
                raise DataError(f"{path}: {error.strerror or error}") from error
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise DataError(
                    f"an array of {image.dtype} {list(image.shape)} is not an image: give uint8 "
                    "[height, width, 3]"
                )
            return Image.fromarray(image)
        if isinstance(image, bytes):
            return decode_image(image, self.preprocess.smallest)
        if not hasattr(image, "convert"):
            raise DataError(
                f"a {type(image).__name__} is not an image: give a path, encoded bytes, a PIL "
                "image, or a uint8 array [height, width, 3]"
            )
        try:
            return to_rgb(ImageOps.exif_transpose(image))
        except OSError as error:  # PIL reads the pixels only now
            raise DataError(f"a PIL image cannot be read: {error}") from error


def label_top_k(scores: np.ndarray, labels: Sequence[str], top_k: int) -> list[dict[str, Any]]:
    """[classes] -> the best `top_k`, named: {"label", "score"}, the likeliest first."""
    best = np.argsort(-scores, kind="stable")[:top_k]
    return [{"label": labels[i], "score": float(scores[i])} for i in best.tolist()]
