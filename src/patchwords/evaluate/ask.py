"""Several models are asked about the same images, each of which is read once.

Sizes: B batch, C channels, H W image of a model, n images, m models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from patchwords.data.bad import check_bad_image_share
from patchwords.data.decode import EncodedImage
from patchwords.data.examples import ImageDataset
from patchwords.data.loader import load_batches
from patchwords.data.plan import SampleKey
from patchwords.data.preprocess import Preprocess
from patchwords.distributed import all_gather_objects, run_on_all_processes
from patchwords.errors import DataError
from patchwords.evaluate.answers import LabelledPredictions
from patchwords.evaluate.classify import collect_outputs
from patchwords.evaluate.held_out import EVAL_BATCH_SIZE, get_process_indices, map_to_model_labels
from patchwords.evaluate.subject import LoadedModel

if TYPE_CHECKING:
    from patchwords.data.loader import ImageBatch

ImageProgress = Callable[[int, int], None]  # images done, of how many


@dataclass(frozen=True)
class PackedPreprocess:
    """An image as several models want it, one after the other in a single row of bytes.

    The loader moves one array for an image; so it moves them all, for a single read.
    """

    wanted: tuple[Preprocess, ...]

    @property
    def preprocess(self) -> Preprocess:
        """The strip's own size: one row, one channel."""
        return Preprocess((1, sum(map(count_image_bytes, self.wanted))), channels=1)

    def __call__(self, data: bytes, epoch: int, sample: int, repeat: int) -> np.ndarray:
        views = [one(EncodedImage(data).pixels(one.smallest)).reshape(-1) for one in self.wanted]
        return np.concatenate(views)[None, :, None]  # [1, bytes, 1]

    def cut(self, strips: Tensor) -> dict[Preprocess, Tensor]:
        """uint8 [B, 1, 1, bytes] -> uint8 [B, C, H, W] as each is wanted."""
        parts = strips.flatten(1).split([*map(count_image_bytes, self.wanted)], dim=1)
        return {
            one: part.reshape(-1, *one.image_size, one.channels).permute(0, 3, 1, 2)
            for one, part in zip(self.wanted, parts, strict=True)
        }


def count_image_bytes(preprocess: Preprocess) -> int:
    """Bytes of an image."""
    return preprocess.image_size[0] * preprocess.image_size[1] * preprocess.channels


def predict_with_models(
    subjects: Sequence[LoadedModel],
    examples: ImageDataset,
    max_bad: float = 0.0,
    progress: ImageProgress | None = None,
) -> list[LabelledPredictions]:
    """What each subject says of the examples, whose labels it knows by name.

    All subjects are on the device of the first; each has its own precision. Of several processes
    each asks about its share, and each gets every answer. Raises DataError for an image without a
    label, where more than a share `max_bad` of the images cannot be read, and where a model's
    answers are not finite.
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
    """The same batches; whoever follows is told of each."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch.indices) + len(batch.bad)
        if progress is not None:
            progress(done, images)


def build_labelled_predictions(
    subject: LoadedModel, examples: ImageDataset, probability: np.ndarray, predicted: np.ndarray
) -> LabelledPredictions:
    """[n], [n] -> the answers, with the examples' labels found among the model's."""
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
