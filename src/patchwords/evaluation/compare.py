"""Paired comparison of two models on the same images, and predictions of several models.

Differences are the second model minus the first: above zero the second is better. A metric `x`
comes with its 95 % interval as `x_low` and `x_high`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import read_pixels
from patchwords.data.loader import check_bad_image_share, load_batches
from patchwords.data.preprocess import Preprocess
from patchwords.data.sampler import SampleKey
from patchwords.distributed import all_gather_objects, run_on_all_processes
from patchwords.errors import DataError
from patchwords.evaluation.held_out import EVAL_BATCH_SIZE, get_process_indices, map_to_model_labels
from patchwords.evaluation.metrics import (
    bootstrap_macro_f1,
    macro_f1,
    percentile_interval,
    wilson_interval,
)
from patchwords.evaluation.predictions import LabelledPredictions, LoadedModel, collect_outputs
from patchwords.evaluation.statistics import PairedCounts, accuracy_difference, mcnemar_test

if TYPE_CHECKING:
    from patchwords.data.loader import ImageBatch


DISAGREEMENT_COLUMNS = (  # columns of a disagreement
    *("path", "label", "prediction_a", "probability_a", "prediction_b", "probability_b", "right"),
)


def compare_predictions(
    a: LabelledPredictions, b: LabelledPredictions, seed: int = 0
) -> dict[str, Any]:
    """Compare two models on the same images (`match_predictions`), JSON-able.

    `pairs` counts the images that both, one or none has right; `mcnemar` has the p of equal
    accuracies; `agreement` is how often both predict the same, right or wrong; `per_class` has the
    recalls. Macro F1 and its difference are bootstrapped: both models get the same resampled
    images.
    """
    labels, answers = a.labels, np.stack([a.predicted, b.predicted])  # [n], [2, n]
    pairs = PairedCounts.of(a.right, b.right)
    exact, mid = mcnemar_test(pairs)
    f1 = macro_f1(labels, answers, len(a.classes))  # [2]
    drawn = bootstrap_macro_f1(labels, answers, len(a.classes), seed=seed)  # [R, 2]
    ends = [  # per model, as in `evaluate`
        percentile_interval(
            bootstrap_macro_f1(labels, predicted[None], len(a.classes), seed=seed)[:, 0]
        )
        for predicted in answers
    ]
    same = int((a.predicted == b.predicted).sum())
    return {
        "images": len(a),
        "a": {
            "name": a.name,
            **build_interval_entry(
                "accuracy", pairs.a / pairs.n, *wilson_interval(pairs.a, pairs.n)
            ),
            **build_interval_entry("macro_f1", float(f1[0]), *ends[0]),
        },
        "b": {
            "name": b.name,
            **build_interval_entry(
                "accuracy", pairs.b / pairs.n, *wilson_interval(pairs.b, pairs.n)
            ),
            **build_interval_entry("macro_f1", float(f1[1]), *ends[1]),
        },
        "difference": {
            **build_interval_entry("accuracy", *accuracy_difference(pairs)),
            **build_interval_entry(
                "macro_f1", float(f1[1] - f1[0]), *percentile_interval(drawn @ [-1, 1])
            ),
        },
        "pairs": pairs.to_dict(),
        "mcnemar": {"exact_p": exact, "mid_p": mid},
        **build_interval_entry("agreement", same / pairs.n, *wilson_interval(same, pairs.n)),
        "per_class": compare_per_class(a, b),
    }


def compare_per_class(a: LabelledPredictions, b: LabelledPredictions) -> list[dict[str, Any]]:
    """Compare recalls: a row per class among the images."""
    rows = []
    for label in np.flatnonzero(np.bincount(a.labels, minlength=len(a.classes))).tolist():
        inside = a.labels == label
        pairs = PairedCounts.of(a.right[inside], b.right[inside])
        rows.append(
            {
                "class": a.classes[label],
                "support": pairs.n,
                **build_interval_entry(
                    "recall_a", pairs.a / pairs.n, *wilson_interval(pairs.a, pairs.n)
                ),
                **build_interval_entry(
                    "recall_b", pairs.b / pairs.n, *wilson_interval(pairs.b, pairs.n)
                ),
                **build_interval_entry("difference", *accuracy_difference(pairs)),
            }
        )
    return rows


def list_disagreements(a: LabelledPredictions, b: LabelledPredictions) -> list[dict[str, Any]]:
    """List the images with different predictions, the most confident ones first.

    They are ordered by the smaller of the two probabilities.
    """
    right_a, right_b = a.right, b.right
    other = np.flatnonzero(a.predicted != b.predicted)
    sure = np.minimum(a.probability, b.probability)[other]
    return [
        {
            "path": a.keys[i],
            "label": a.classes[a.labels[i]],
            "prediction_a": a.classes[a.predicted[i]],
            "probability_a": round(float(a.probability[i]), 6),
            "prediction_b": b.classes[b.predicted[i]],
            "probability_b": round(float(b.probability[i]), 6),
            "right": "a" if right_a[i] else "b" if right_b[i] else "neither",
        }
        for i in other[np.argsort(-sure, kind="stable")].tolist()
    ]


def build_interval_entry(name: str, value: float, low: float, high: float) -> dict[str, float]:
    """Build the entries of a metric and its 95 % interval."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


# Predictions of several models; each image is read once.
#
# Sizes: B batch, C channels, H W image of a model, n images, m models.


ImageProgress = Callable[[int, int], None]  # images done, total


@dataclass(frozen=True)
class PackedPreprocess:
    """An image preprocessed for several models, packed in a single row of bytes.

    The loader moves one array per image, and each image is read and decoded once.
    """

    wanted: tuple[Preprocess, ...]

    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """The strip's own size: one row, one channel."""
        return 1, sum(map(count_image_bytes, self.wanted)), 1

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int) -> np.ndarray:
        pixels = read_pixels(data)  # [h, w, 3]
        views = [one.resize_and_crop(pixels).reshape(-1) for one in self.wanted]
        return np.concatenate(views)[None, :, None]  # [1, bytes, 1]

    def cut(self, strips: Tensor) -> dict[Preprocess, Tensor]:
        """uint8 [B, 1, 1, bytes] -> uint8 [B, C, H, W] by preprocessing."""
        parts = strips.flatten(1).split([*map(count_image_bytes, self.wanted)], dim=1)
        return {
            one: part.reshape(-1, *one.image_size, one.channels).permute(0, 3, 1, 2)
            for one, part in zip(self.wanted, parts, strict=True)
        }


def count_image_bytes(preprocess: Preprocess) -> int:
    """Count the bytes of an image."""
    return preprocess.image_size[0] * preprocess.image_size[1] * preprocess.channels


def predict_with_models(
    subjects: Sequence[LoadedModel],
    examples: ImageDataset,
    max_bad: float = 0.0,
    progress: ImageProgress | None = None,
) -> list[LabelledPredictions]:
    """Predict the examples with each model; labels are matched by name.

    All models are on the device of the first; each has its own precision. Each of several processes
    predicts its share and gets all predictions. Raises DataError for an image without a label, if
    more than a share `max_bad` of the images cannot be read, or if an output is not finite.
    """
    bare = np.flatnonzero(examples.labels < 0)
    if len(bare):
        raise DataError(
            f"{examples.keys[int(bare[0])]} has no label ({len(bare):,} such images); a comparison "
            "needs one for every image"
        )
    strip = PackedPreprocess(tuple(dict.fromkeys(subject.preprocess for subject in subjects)))
    device, workers = subjects[0].device, subjects[0].workers_for(examples)

    def answer(strips: Tensor) -> Tensor:
        """-> float32 [B, 2 m], of each model the probability of its answer, and the answer"""
        images = strip.cut(strips)
        columns: list[Tensor] = []
        for subject in subjects:
            view = subject.preprocess
            with subject.device.autocast():
                logits = subject.model(view.normalise(images[view])).float()
            columns += (best.float() for best in logits.softmax(-1).max(-1))
        return torch.stack(columns, dim=1)

    def ask_share() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, str]]]:
        share = get_process_indices(examples)
        plan = [
            [SampleKey(0, i) for i in share[s : s + EVAL_BATCH_SIZE]]
            for s in range(0, len(share), EVAL_BATCH_SIZE)
        ]
        batches = iterate_with_progress(
            load_batches(examples, strip, plan, workers), len(share), progress
        )
        return collect_outputs(answer, batches, device.torch_device)

    shares = all_gather_objects(run_on_all_processes(ask_share))
    bad = sorted(one for *_, some in shares for one in some)
    named = [(examples.keys[place], reason) for place, reason in bad]
    check_bad_image_share(named, len(examples), "images", max_bad)
    places = np.concatenate([places for places, *_ in shares])
    if not len(places):
        raise DataError("no image to compare by: none of them can be read")
    values = np.concatenate([values for _, _, values, _ in shares if len(values)])  # [n, 2 m]
    order = np.argsort(places)
    asked, values = examples.select(places[order]), values[order]
    return [
        build_labelled_predictions(subject, asked, values[:, 2 * i], values[:, 2 * i + 1])
        for i, subject in enumerate(subjects)
    ]


def iterate_with_progress(
    batches: Iterator[ImageBatch], images: int, progress: ImageProgress | None
) -> Iterator[ImageBatch]:
    """Iterate over the batches and report progress after each."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch.indices) + len(batch.bad)
        if progress is not None:
            progress(done, images)


def build_labelled_predictions(
    subject: LoadedModel, examples: ImageDataset, probability: np.ndarray, predicted: np.ndarray
) -> LabelledPredictions:
    """[n], [n] -> predictions, with the examples' labels matched to the model's."""
    broken = np.flatnonzero(~np.isfinite(probability))
    if len(broken):
        raise DataError(
            f"{subject.name} answers {examples.keys[int(broken[0])]} (and {len(broken) - 1} more) "
            "with numbers that are not finite: its weights are damaged, or its training diverged"
        )
    known = map_to_model_labels(examples, subject.source.labels, subject.name)
    return LabelledPredictions(
        name=subject.name,
        classes=known.classes,
        keys=known.keys,
        labels=known.labels,
        predicted=predicted.astype(np.int64),
        probability=probability.astype(np.float64),
    )
