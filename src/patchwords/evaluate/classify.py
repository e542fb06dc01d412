"""Run a classifier over a split: batches in, probabilities out; and write them down.

Sizes: B batch, C channels, H W image, n images that could be read. Nothing here draws a random
number, and every module gets its training mode back, so evaluation leaves training untouched.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from patchwords.data.examples import ImageDataset
from patchwords.device import choose_device
from patchwords.errors import ConfigError, did_you_mean
from patchwords.files import write_atomically
from patchwords.model.family import Model
from patchwords.model.fast import pack_for_inference

if TYPE_CHECKING:
    from patchwords.data.loader import ImageBatch
    from patchwords.data.preprocess import Preprocess

PREDICTION_PRECISIONS = ("fp32", "bf16", "int8")
MAX_PROBABILITY_COLUMNS = 100  # with more classes, predictions.csv leaves out the column per class


@dataclass(frozen=True)
class Predictions:
    """What a model says of the images that could be read, and which could not be."""

    indices: np.ndarray  # [n] int64, position in the examples
    labels: np.ndarray  # [n] int64, -1 = no label
    probabilities: np.ndarray  # [n, classes] float32
    bad: list[tuple[int, str]]  # (position in the examples, reason)


def predict_probabilities(
    model: torch.nn.Module,
    batches: Iterable[ImageBatch],
    preprocess: Preprocess,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
) -> Predictions:
    """Probabilities of every readable image, in the order of the batches.

    With int8 the model is one that has been made for it (`Pretrained.for_inference`).
    """
    if precision not in PREDICTION_PRECISIONS:
        raise ConfigError(
            f"unknown precision {precision!r}{did_you_mean(precision, PREDICTION_PRECISIONS)}"
        )
    device = torch.device(device)
    chosen = choose_device(device.type, precision)  # type: ignore[arg-type]
    fast = model if chosen.int8 else pack_for_inference(cast(Model, model), chosen.bf16)

    def ask(images: Tensor) -> Tensor:
        return fast(preprocess.normalise(images)).float().softmax(-1)  # softmax in float32

    with eval_mode(model), chosen.autocast():
        return Predictions(*collect_outputs(ask, batches, device))


def collect_outputs(
    ask: Callable[[Tensor], Tensor], batches: Iterable[ImageBatch], device: torch.device
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, str]]]:
    """What `ask` makes of every readable image, uint8 [B, C, H, W] -> [B, V], batch by batch.

    -> positions in the examples [n], labels [n], values [n, V], and which images could not be read.
    """
    indices, labels, values = [], [], []
    bad: list[tuple[int, str]] = []
    with torch.inference_mode():
        for batch in batches:
            bad += batch.bad
            if not len(batch.indices):  # nothing in it could be read
                continue
            values.append(ask(batch.images.to(device, non_blocking=True)).cpu().numpy())
            indices.append(batch.indices.numpy())
            labels.append(batch.labels.numpy())
    nothing = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([nothing, *indices]),
        np.concatenate([nothing, *labels]),
        np.concatenate(values or [np.empty((0, 0), dtype=np.float32)]),
        bad,
    )


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """eval() for a while; afterwards each module is as it was (a frozen part may stay in eval)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def write_predictions(
    path: Path | str, examples: ImageDataset, predictions: Predictions, classes: Sequence[str]
) -> None:
    """predictions.csv: path, label, prediction, probability, correct and a column p:<class> each.

    An image without a label has neither label nor correct.
    """
    columns = [f"p:{name}" for name in classes] if len(classes) <= MAX_PROBABILITY_COLUMNS else []
    file = io.StringIO(newline="")
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["path", "label", "prediction", "probability", "correct", *columns])
    for index, label, row in zip(
        predictions.indices.tolist(),
        predictions.labels.tolist(),
        predictions.probabilities,
        strict=True,
    ):
        best = int(row.argmax())
        rows.writerow(
            [
                examples.keys[index],
                classes[label] if label >= 0 else "",
                classes[best],
                f"{row[best]:.6f}",
                ("true" if best == label else "false") if label >= 0 else "",
                *(f"{p:.6f}" for p in (row if columns else ())),
            ]
        )
    # a file name that is not UTF-8 is written as the bytes that it is
    write_atomically(Path(path), file.getvalue().encode("utf-8", "surrogateescape"))
