"""Accuracy of models side by side on the same images, disturbed in several ways.

Every image is decoded once for each model; a batch then goes through all disturbances, levels and
seeds, so memory holds one batch, however many the images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import ImageBatch as Decoded
from patchwords.data.loader import check_bad_image_share, load_eval_batches
from patchwords.distributed import all_gather_lists, all_reduce_sum, run_on_all_processes
from patchwords.errors import ConfigError, DataError, did_you_mean
from patchwords.evaluation.held_out import get_process_indices, map_to_model_labels
from patchwords.evaluation.predictions import LoadedModel, eval_mode, refuse_duplicate_models
from patchwords.evaluation.robustness.attacks import ATTACK_PERTURBATIONS, PATCH_PERTURBATIONS
from patchwords.evaluation.robustness.corruptions import CORRUPTION_PERTURBATIONS
from patchwords.evaluation.robustness.occlusion import build_occlusions
from patchwords.evaluation.robustness.perturbation import (
    NamedProgress,
    Perturbation,
    PerturbationBatch,
    PerturbationFn,
)
from patchwords.evaluation.robustness.shuffling import TEXTURE_PERTURBATIONS, TILE_PERMUTATION
from patchwords.evaluation.statistics import compute_seed_statistics

BATCH_SIZE = 64
ROBUSTNESS_SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class PerturbationCondition:
    """One place on one curve."""

    disturbance: str
    level: float
    seed: int | None  # None: nothing was drawn
    prepared_on: str | None  # the subject that the change was learned on
    change: PerturbationFn | None  # None: the clean images

    def apply(self, batch: PerturbationBatch) -> Tensor:
        """-> [B, C, H, W] of 0..255"""
        if self.change is None:
            return batch.images
        return self.change(batch, self.level, self.seed or 0)


def measure_robustness(
    subjects: Sequence[LoadedModel],
    examples: ImageDataset,
    disturbances: Sequence[Perturbation],
    seeds: Sequence[int] = ROBUSTNESS_SEEDS,
    training: ImageDataset | None = None,
    max_bad: float = 0.01,
    progress: NamedProgress = lambda what, done, total: None,
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
    refuse_duplicate_models([subject.name for subject in subjects])
    if not len(examples) or int(examples.labels.min()) < 0:
        raise DataError("robustness needs images to judge by, each with a label")
    known = [
        map_to_model_labels(examples, subject.source.labels, subject.name) for subject in subjects
    ]
    prepared = run_on_all_processes(
        lambda: prepare_perturbations(subjects, disturbances, seeds, training, progress)
    )
    rows = []
    for subject, labelled in zip(subjects, known, strict=True):
        conditions = list_conditions(subject, disturbances, seeds, prepared)
        rows += measure_model_robustness(subject, labelled, conditions, max_bad, progress)
    return rows


# (disturbance, subject, seed) -> what was learned
PreparedPerturbations = dict[tuple[str, str, int | None], PerturbationFn]


def prepare_perturbations(
    subjects: Sequence[LoadedModel],
    disturbances: Sequence[Perturbation],
    seeds: Sequence[int],
    training: ImageDataset | None,
    progress: NamedProgress,
) -> PreparedPerturbations:
    """Learn what has to be learned, on the training images, as each subject names them."""
    prepared: PreparedPerturbations = {}
    for disturbance in disturbances:
        if disturbance.prepare is None:
            continue
        if training is None or not len(training):
            raise ConfigError(
                f"{disturbance.name} is learned on training images, and there are none: give DATA "
                "that has some, or leave it out by --only"
            )
        for subject in subjects:
            labelled = map_to_model_labels(training, subject.source.labels, subject.name)
            for seed in select_seeds(disturbance, seeds):
                with eval_mode(subject.model):
                    change = disturbance.prepare(subject, labelled, seed or 0, progress)
                prepared[disturbance.name, subject.name, seed] = change
    return prepared


def select_seeds(disturbance: Perturbation, seeds: Sequence[int]) -> Sequence[int | None]:
    """The seeds that make a difference."""
    return seeds if disturbance.seeds else (None,)


def list_conditions(
    subject: LoadedModel,
    disturbances: Sequence[Perturbation],
    seeds: Sequence[int],
    prepared: PreparedPerturbations,
) -> list[PerturbationCondition]:
    """All that a subject is asked, curve by curve, the clean images first."""
    found = []
    for disturbance in disturbances:
        name = disturbance.name
        for maker in list_preparing_models(disturbance, subject, prepared):
            found.append(PerturbationCondition(name, disturbance.clean, None, maker, None))
            for level in disturbance.levels_of(subject):
                for seed in select_seeds(disturbance, seeds):
                    change = disturbance.change if maker is None else prepared[name, maker, seed]
                    found.append(PerturbationCondition(name, level, seed, maker, change))
    return found


def list_preparing_models(
    disturbance: Perturbation, subject: LoadedModel, prepared: PreparedPerturbations
) -> list[str] | list[None]:
    """On whom the changes that this subject meets were learned: its own, and others' if asked."""
    if disturbance.prepare is None:
        return [None]
    if not disturbance.transfers:
        return [subject.name]
    return [*dict.fromkeys(maker for made, maker, _ in prepared if made == disturbance.name)]


def measure_model_robustness(
    subject: LoadedModel,
    examples: ImageDataset,
    conditions: Sequence[PerturbationCondition],
    max_bad: float,
    progress: NamedProgress,
) -> list[dict[str, Any]]:
    """A row for each condition, summed over the shares of all processes."""
    share = get_process_indices(examples)
    mine = examples.select(share)

    def ask() -> tuple[Tensor, int, list[tuple[int, str]]]:
        right = torch.zeros(len(conditions), dtype=torch.int64)
        done, bad = 0, []
        workers = subject.workers_for(mine)
        with eval_mode(subject.model), torch.no_grad():
            for decoded in load_eval_batches(mine, subject.preprocess, BATCH_SIZE, workers):
                bad += [(share[index], reason) for index, reason in decoded.bad]
                if len(decoded.indices):
                    batch = build_perturbation_batch(decoded, share, subject)
                    right += count_correct_by_condition(batch, conditions)
                    done += len(batch.indices)
                progress(subject.name, done + len(bad), len(mine))
        return right, done, bad

    right, done, bad = run_on_all_processes(ask)
    unread = [(examples.keys[index], reason) for index, reason in all_gather_lists(bad)]
    check_bad_image_share(unread, len(examples), "images", max_bad)
    *counts, images = all_reduce_sum(torch.cat([right, torch.tensor([done])])).tolist()
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


def build_perturbation_batch(
    decoded: Decoded, share: range, subject: LoadedModel
) -> PerturbationBatch:
    """What the loader gives, on the subject's device, with places in all the examples."""
    device = subject.device.torch_device
    places = [share[index] for index in decoded.indices.tolist()]
    return PerturbationBatch(decoded.images.to(device), decoded.targets.to(device), places, subject)


def count_correct_by_condition(
    batch: PerturbationBatch, conditions: Sequence[PerturbationCondition]
) -> Tensor:
    """int64 [conditions], images whose likeliest class is their label; the clean ones once."""
    counts: list[int] = []
    clean: int | None = None
    for condition in conditions:
        if condition.change is None and clean is not None:
            counts.append(clean)
            continue
        counts.append(count_correct_predictions(batch, condition.apply(batch)))
        if condition.change is None:
            clean = counts[-1]
    return torch.tensor(counts)


def count_correct_predictions(batch: PerturbationBatch, images: Tensor) -> int:
    """Of [B, C, H, W] of 0..255, as the subject sees them, in the subject's precision."""
    subject = batch.subject
    with subject.device.autocast():
        logits = subject.model(subject.preprocess.normalise(images))  # [B, classes]
    return int((logits.argmax(-1) == batch.labels).sum())


# Rows over seeds become points: mean and spread at each level.


def summarise_robustness(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `measure_robustness` -> points, in the order of the rows.

    A point is {model, disturbance, prepared_on, level, mean, std, lowest, highest, seeds, images};
    `std` is None where there is one seed, or none.
    """
    values: dict[tuple[Any, ...], list[float]] = {}
    images: dict[tuple[Any, ...], int] = {}
    for row in rows:
        place = row["model"], row["disturbance"], row["prepared_on"], row["level"]
        values.setdefault(place, []).append(row["accuracy"])
        images[place] = row["images"]
    points = []
    for place, found in values.items():
        over = compute_seed_statistics(found)
        points.append(
            {
                **dict(zip(("model", "disturbance", "prepared_on", "level"), place, strict=True)),
                "mean": over.mean,
                "std": over.std,
                "lowest": min(found),
                "highest": max(found),
                "seeds": over.n,
                "images": images[place],
            }
        )
    return points


# The disturbances by name, in the order in which they are measured and drawn.


def list_perturbations(
    grid: int | None = None, saliency: LoadedModel | None = None
) -> dict[str, Perturbation]:
    """By name; `grid` and `saliency` are those of `build_occlusions`."""
    found = (
        *build_occlusions(grid, saliency),
        TILE_PERMUTATION,
        *TEXTURE_PERTURBATIONS,
        *CORRUPTION_PERTURBATIONS,
        *ATTACK_PERTURBATIONS,
        *PATCH_PERTURBATIONS,
    )
    return {disturbance.name: disturbance for disturbance in found}


PERTURBATIONS = list_perturbations()
ALL_PERTURBATIONS = "all"
PERTURBATION_FAMILIES = tuple(dict.fromkeys(found.family for found in PERTURBATIONS.values()))


def choose_perturbations(
    names: Sequence[str] = (), grid: int | None = None, saliency: LoadedModel | None = None
) -> list[Perturbation]:
    """Those of these names and families, in the table's order.

    None named: those that are usual; "all": every one, the costly ones too. Raises ConfigError
    for a name that nothing has.
    """
    known = [ALL_PERTURBATIONS, *PERTURBATION_FAMILIES, *PERTURBATIONS]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown disturbance {name!r}{did_you_mean(name, known)}")
    found = list_perturbations(grid, saliency).values()
    if not names:
        return [each for each in found if each.usual]
    return [each for each in found if {each.name, each.family, ALL_PERTURBATIONS} & {*names}]
