"""Metrics of masks: one confusion matrix over all pixels of a split.

mIoU is the mean over classes of TP / (TP + FP + FN), never a mean over images. Its interval comes
from resampling images, not pixels: neighbouring pixels are no independent draws.

Sizes: n images, K classes, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from patchwords.data.sources.mask_table import IGNORE
from patchwords.errors import DataError
from patchwords.evaluation.metrics import percentile_interval
from patchwords.rng import numpy_generator

BOOTSTRAP_RESAMPLES = 1000


def count_confusion(truth: np.ndarray, answer: np.ndarray, classes: int) -> np.ndarray:
    """Count pixels by true (row) and predicted class (column), int64 [K, K]; IGNORE is left out."""
    labelled = truth != IGNORE
    pairs = truth[labelled].astype(np.int64) * classes + answer[labelled]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


@dataclass
class PixelCounts:
    """Pixels counted over images: in all by pairs of classes, and for each image by class."""

    classes: int
    confusion: np.ndarray = field(init=False)  # int64 [K, K]
    keys: list[str] = field(default_factory=list)  # [n] names of the images
    # [n] of int64 [3, K]: right, true and predicted pixels of each class
    per_image: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.confusion = np.zeros((self.classes, self.classes), np.int64)

    def add(self, key: str, truth: np.ndarray, answer: np.ndarray) -> None:
        """Count an image: class indices uint8 [h, w] of its mask and of the answer."""
        counts = count_confusion(truth, answer, self.classes)
        self.confusion += counts
        self.keys.append(key)
        self.per_image.append(np.stack([counts.diagonal(), counts.sum(1), counts.sum(0)]))

    def merge(self, other: PixelCounts) -> None:
        """Add the counts of another share of the images."""
        self.confusion = self.confusion + other.confusion
        self.keys += other.keys
        self.per_image += other.per_image

    def image_ious(self) -> np.ndarray:
        """Compute the mIoU of each image over the classes in it, [n]; NaN without a label."""
        if not self.per_image:
            return np.empty(0)
        return mean_iou(np.stack(self.per_image, axis=2))


def class_ious(counts: np.ndarray) -> np.ndarray:
    """[3, K, ...] right, true and predicted pixels -> IoU [K, ...]; NaN for an empty union."""
    right, true, predicted = counts
    union = true + predicted - right
    return np.divide(right, union, out=np.full(union.shape, np.nan), where=union > 0)


def mean_iou(counts: np.ndarray) -> np.ndarray:
    """[3, K, ...] -> the mean IoU over the classes with a union, [...]"""
    ious = class_ious(counts)
    known = ~np.isnan(ious)
    total = np.where(known, ious, 0.0).sum(0)
    number = known.sum(0)
    return np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)


def bootstrap_counts(
    per_image: np.ndarray, resamples: int = BOOTSTRAP_RESAMPLES, seed: int = 0
) -> np.ndarray:
    """Resample images with replacement: int64 [n, 3, K] -> float64 [3, K, R]."""
    n = len(per_image)
    draws = numpy_generator(seed, "bootstrap", "images").multinomial(
        n, np.full(n, 1 / n), size=resamples
    )  # [R, n]
    drawn = draws.astype(np.float64) @ per_image.reshape(n, -1).astype(np.float64)  # [R, 3 K]
    return np.moveaxis(drawn.reshape(resamples, *per_image.shape[1:]), 0, -1)


def compute_mask_metrics(pixels: PixelCounts, classes: Sequence[str]) -> dict[str, Any]:
    """Compute mIoU, IoU of each class and pixel accuracy, each with its 95 % interval."""
    total = int(pixels.confusion.sum())
    if not total:
        raise DataError("no labelled pixel to evaluate on; patchwords doctor says why")
    per_image = np.stack(pixels.per_image)  # [n, 3, K]
    counts, drawn = per_image.sum(0), bootstrap_counts(per_image)
    ious, drawn_ious = class_ious(counts), class_ious(drawn)
    right, true, predicted = counts
    drawn_accuracy = drawn[0].sum(0) / np.maximum(drawn[1].sum(0), 1)
    rows = []
    for k, name in enumerate(classes):
        known = drawn_ious[k][~np.isnan(drawn_ious[k])]
        low, high = percentile_interval(known) if true[k] and len(known) else (None, None)
        rows.append(
            {
                "class": name,
                "iou": None if np.isnan(ious[k]) else float(ious[k]),
                "iou_low": low,
                "iou_high": high,
                "recall": float(right[k] / true[k]) if true[k] else None,
                "precision": float(right[k] / predicted[k]) if predicted[k] else None,
                "share": float(true[k] / total),
            }
        )
    return {
        "images": len(per_image),
        "pixels": total,
        "miou": with_interval(float(mean_iou(counts)), mean_iou(drawn)),
        "pixel_accuracy": with_interval(float(right.sum() / total), drawn_accuracy),
        "mean_recall": float(np.mean([row["recall"] for row in rows if row["recall"] is not None])),
        "baseline": baseline_miou(true),
        "per_class": rows,
        "confusion": pixels.confusion.tolist(),
    }


def with_interval(value: float, drawn: np.ndarray) -> dict[str, float]:
    """Combine a value with the percentile interval of its resamples."""
    low, high = percentile_interval(drawn[~np.isnan(drawn)])
    return {"value": value, "low": low, "high": high}


def baseline_miou(true: np.ndarray) -> float:
    """Compute the mIoU of always answering the most frequent class, of true pixels [K]."""
    return float(true.max() / true.sum() / max(1, int((true > 0).sum())))
