"""Accuracy of models side by side on the same images, disturbed in several ways.

Every image is decoded once for each model; a batch then goes through all disturbances, levels and
seeds, so memory holds one batch, however many the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from patchwords.data.bad import refuse_too_many_bad
from patchwords.data.examples import Examples
from patchwords.data.loader import Batch as Decoded
from patchwords.data.loader import eval_batches
from patchwords.distributed import concatenate, sum_over, together
from patchwords.errors import ConfigError, DataError
from patchwords.evaluate.classify import evaluating
from patchwords.evaluate.held_out import as_model_knows, own_share
from patchwords.evaluate.robustness.disturbance import Batch, Change, Disturbance, Progress
from patchwords.evaluate.subject import Subject, refuse_twice

BATCH = 64
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Condition:
    """One place on one curve."""

    disturbance: str
    level: float
    seed: int | None  # None: nothing was drawn
    prepared_on: str | None  # the subject that the change was learned on
    change: Change | None  # None: the clean images

    def apply(self, batch: Batch) -> Tensor:
        """-> [B, C, H, W] of 0..255"""
        if self.change is None:
            return batch.images
        return self.change(batch, self.level, self.seed or 0)


def measure_robustness(
    subjects: Sequence[Subject],
    examples: Examples,
    disturbances: Sequence[Disturbance],
    seeds: Sequence[int] = SEEDS,
    training: Examples | None = None,
    max_bad: float = 0.01,
    progress: Progress = lambda what, done, total: None,
) -> list[dict[str, Any]]:
    """-> rows {model, disturbance, level, seed, prepared_on, accuracy, images}.

    Args:
        examples: labelled images that no subject was trained on; a label's name must be one of
            each subject's labels.
        training: images that disturbances which must be learned may learn from.

    For each curve (a subject and a disturbance, and on whom it was learned): the clean images
    first, then each level with each seed.
    `seed` is None where a disturbance has nothing random. Under torchrun each process takes its
    share of the images, and all give the same rows.
    Raises ConfigError for a subject named twice and for a disturbance that lacks training images,
    DataError where too many images cannot be read, or one has no label.
    """
    refuse_twice([subject.name for subject in subjects])
    if not len(examples) or int(examples.labels.min()) < 0:
        raise DataError("robustness needs images to judge by, each with a label")
    known = [as_model_knows(examples, subject.source.labels, subject.name) for subject in subjects]
    prepared = together(lambda: prepare(subjects, disturbances, seeds, training, progress))
    rows = []
    for subject, labelled in zip(subjects, known, strict=True):
        conditions = list_conditions(subject, disturbances, seeds, prepared)
        rows += measure_subject(subject, labelled, conditions, max_bad, progress)
    return rows


# (disturbance, subject, seed) -> what was learned
Prepared = dict[tuple[str, str, int | None], Change]


def prepare(
    subjects: Sequence[Subject],
    disturbances: Sequence[Disturbance],
    seeds: Sequence[int],
    training: Examples | None,
    progress: Progress,
) -> Prepared:
    """Learn what has to be learned, on the training images, as each subject names them."""
    prepared: Prepared = {}
    for disturbance in disturbances:
        if disturbance.prepare is None:
            continue
        if training is None or not len(training):
            raise ConfigError(
                f"{disturbance.name} is learned on training images, and there are none: give DATA "
                "that has some, or leave it out by --only"
            )
        for subject in subjects:
            labelled = as_model_knows(training, subject.source.labels, subject.name)
            for seed in seeds_of(disturbance, seeds):
                with evaluating(subject.model):
                    change = disturbance.prepare(subject, labelled, seed or 0, progress)
                prepared[disturbance.name, subject.name, seed] = change
    return prepared


def seeds_of(disturbance: Disturbance, seeds: Sequence[int]) -> Sequence[int | None]:
    """The seeds that make a difference."""
    return seeds if disturbance.seeds else (None,)


def list_conditions(
    subject: Subject,
    disturbances: Sequence[Disturbance],
    seeds: Sequence[int],
    prepared: Prepared,
) -> list[Condition]:
    """All that a subject is asked, curve by curve, the clean images first."""
    found = []
    for disturbance in disturbances:
        name = disturbance.name
        for maker in makers_of(disturbance, subject, prepared):
            found.append(Condition(name, disturbance.clean, None, maker, None))
            for level in disturbance.levels_of(subject):
                for seed in seeds_of(disturbance, seeds):
                    change = disturbance.change if maker is None else prepared[name, maker, seed]
                    found.append(Condition(name, level, seed, maker, change))
    return found


def makers_of(
    disturbance: Disturbance, subject: Subject, prepared: Prepared
) -> list[str] | list[None]:
    """On whom the changes that this subject meets were learned: its own, and others' if asked."""
    if disturbance.prepare is None:
        return [None]
    if not disturbance.transfers:
        return [subject.name]
    return [*dict.fromkeys(maker for made, maker, _ in prepared if made == disturbance.name)]


def measure_subject(
    subject: Subject,
    examples: Examples,
    conditions: Sequence[Condition],
    max_bad: float,
    progress: Progress,
) -> list[dict[str, Any]]:
    """A row for each condition, summed over the shares of all processes."""
    share = own_share(examples)
    mine = examples.select(share)

    def ask() -> tuple[Tensor, int, list[tuple[int, str]]]:
        right = torch.zeros(len(conditions), dtype=torch.int64)
        done, bad = 0, []
        workers = subject.workers_for(mine)
        with evaluating(subject.model), torch.no_grad():
            for decoded in eval_batches(mine, subject.preprocess, BATCH, workers):
                bad += [(share[index], reason) for index, reason in decoded.bad]
                if len(decoded.indices):
                    batch = as_batch(decoded, share, subject)
                    right += count_right(batch, conditions)
                    done += len(batch.indices)
                progress(subject.name, done + len(bad), len(mine))
        return right, done, bad

    right, done, bad = together(ask)
    unread = [(examples.keys[index], reason) for index, reason in concatenate(bad)]
    refuse_too_many_bad(unread, len(examples), "images", max_bad)
    *counts, images = sum_over(torch.cat([right, torch.tensor([done])])).tolist()
    if not images:
        raise DataError("none of the images can be read; patchwords doctor says why")
    return [
        {
            "model": subject.name,
            "disturbance": condition.disturbance,
            "level": condition.level,
            "seed": condition.seed,
            "prepared_on": condition.prepared_on,
            "accuracy": count / images,
            "images": images,
        }
        for condition, count in zip(conditions, counts, strict=True)
    ]


def as_batch(decoded: Decoded, share: range, subject: Subject) -> Batch:
    """What the loader gives, on the subject's device, with places in all the examples."""
    device = subject.device.torch_device
    places = [share[index] for index in decoded.indices.tolist()]
    return Batch(decoded.images.to(device), decoded.labels.to(device), places, subject)


def count_right(batch: Batch, conditions: Sequence[Condition]) -> Tensor:
    """int64 [conditions], images whose likeliest class is their label; the clean ones once."""
    counts: list[int] = []
    clean: int | None = None
    for condition in conditions:
        if condition.change is None and clean is not None:
            counts.append(clean)
            continue
        counts.append(right_answers(batch, condition.apply(batch)))
        if condition.change is None:
            clean = counts[-1]
    return torch.tensor(counts)


def right_answers(batch: Batch, images: Tensor) -> int:
    """Of [B, C, H, W] of 0..255, as the subject sees them, in the subject's precision."""
    subject = batch.subject
    with subject.device.autocast():
        logits = subject.model(subject.preprocess.normalise(images))  # [B, classes]
    return int((logits.argmax(-1) == batch.labels).sum())
