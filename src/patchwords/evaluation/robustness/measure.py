"""Accuracy of several models on the same images under perturbations.

Every image is decoded once per model; a batch then goes through all perturbations, levels and
seeds, so memory holds a single batch.
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
    """One point of one curve: perturbation, level, seed."""

    disturbance: str
    level: float
    seed: int | None  # None: no randomness
    prepared_on: str | None  # the model that the change was learned on
    change: PerturbationFn | None  # None: the clean images

    def apply(self, batch: PerturbationBatch) -> Tensor:
        """Apply the change -> [B, C, H, W] of 0..255."""
        if self.change is None:
            return batch.images
        return self.change(batch, self.level, self.seed or 0)


def measure_robustness(
    models: Sequence[LoadedModel],
    examples: ImageDataset,
    disturbances: Sequence[Perturbation],
    seeds: Sequence[int] = ROBUSTNESS_SEEDS,
    training: ImageDataset | None = None,
    max_bad: float = 0.01,
    progress: NamedProgress = lambda what, done, total: None,
) -> list[dict[str, Any]]:
    """Measure accuracy -> rows {model, disturbance, level, seed, prepared_on, accuracy, images}.

    Args:
        examples: labelled images that no model was trained on; a label's name must be one of each
            model's labels.
        training: images for perturbations that are learned.

    Per curve (a model, a perturbation, and the model it was learned on): the clean images first,
    then each level with each seed. `seed` is None for a perturbation without randomness. Under
    torchrun each process takes its share of the images, and all return the same rows. Raises
    ConfigError for a model named twice and for a perturbation that lacks training images, DataError
    if too many images cannot be read, or one has no label.
    """
    refuse_duplicate_models([loaded.name for loaded in models])
    if not len(examples) or int(examples.labels.min()) < 0:
        raise DataError("robustness needs images to judge by, each with a label")
    known = [map_to_model_labels(examples, loaded.source.labels, loaded.name) for loaded in models]
    prepared = run_on_all_processes(
        lambda: prepare_perturbations(models, disturbances, seeds, training, progress)
    )
    rows = []
    for loaded, labelled in zip(models, known, strict=True):
        conditions = list_conditions(loaded, disturbances, seeds, prepared)
        rows += measure_model_robustness(loaded, labelled, conditions, max_bad, progress)
    return rows


# (perturbation, model, seed) -> learned change
PreparedPerturbations = dict[tuple[str, str, int | None], PerturbationFn]


def prepare_perturbations(
    models: Sequence[LoadedModel],
    disturbances: Sequence[Perturbation],
    seeds: Sequence[int],
    training: ImageDataset | None,
    progress: NamedProgress,
) -> PreparedPerturbations:
    """Learn the perturbations that need it, on training images with each model's labels."""
    prepared: PreparedPerturbations = {}
    for disturbance in disturbances:
        if disturbance.prepare is None:
            continue
        if training is None or not len(training):
            raise ConfigError(
                f"{disturbance.name} is learned on training images, and there are none: give DATA "
                "that has some, or leave it out by --only"
            )
        for loaded in models:
            labelled = map_to_model_labels(training, loaded.source.labels, loaded.name)
            for seed in select_seeds(disturbance, seeds):
                with eval_mode(loaded.model):
                    change = disturbance.prepare(loaded, labelled, seed or 0, progress)
                prepared[disturbance.name, loaded.name, seed] = change
    return prepared


def select_seeds(disturbance: Perturbation, seeds: Sequence[int]) -> Sequence[int | None]:
    """Return the seeds that change the perturbation."""
    return seeds if disturbance.seeds else (None,)


def list_conditions(
    loaded: LoadedModel,
    disturbances: Sequence[Perturbation],
    seeds: Sequence[int],
    prepared: PreparedPerturbations,
) -> list[PerturbationCondition]:
    """List the conditions of a model, curve by curve, clean images first."""
    conditions = []
    for disturbance in disturbances:
        name = disturbance.name
        for maker in list_preparing_models(disturbance, loaded, prepared):
            conditions.append(PerturbationCondition(name, disturbance.clean, None, maker, None))
            for level in disturbance.levels_of(loaded):
                for seed in select_seeds(disturbance, seeds):
                    change = disturbance.change if maker is None else prepared[name, maker, seed]
                    conditions.append(PerturbationCondition(name, level, seed, maker, change))
    return conditions


def list_preparing_models(
    disturbance: Perturbation, loaded: LoadedModel, prepared: PreparedPerturbations
) -> list[str] | list[None]:
    """List the models whose learned perturbation this model meets."""
    if disturbance.prepare is None:
        return [None]
    if not disturbance.transfers:
        return [loaded.name]
    return [*dict.fromkeys(maker for made, maker, _ in prepared if made == disturbance.name)]


def measure_model_robustness(
    loaded: LoadedModel,
    examples: ImageDataset,
    conditions: Sequence[PerturbationCondition],
    max_bad: float,
    progress: NamedProgress,
) -> list[dict[str, Any]]:
    """Measure all conditions of a model -> a row each, reduced over all processes."""
    share = get_process_indices(examples)
    mine = examples.select(share)

    def ask() -> tuple[Tensor, int, list[tuple[int, str]]]:
        right = torch.zeros(len(conditions), dtype=torch.int64)
        done, bad = 0, []
        workers = loaded.workers_for(mine)
        with eval_mode(loaded.model), torch.no_grad():
            for decoded in load_eval_batches(mine, loaded.preprocess, BATCH_SIZE, workers):
                bad += [(share[index], reason) for index, reason in decoded.bad]
                if len(decoded.indices):
                    batch = build_perturbation_batch(decoded, share, loaded)
                    right += count_correct_by_condition(batch, conditions)
                    done += len(batch.indices)
                progress(loaded.name, done + len(bad), len(mine))
        return right, done, bad

    right, done, bad = run_on_all_processes(ask)
    unread = [(examples.keys[index], reason) for index, reason in all_gather_lists(bad)]
    check_bad_image_share(unread, len(examples), "images", max_bad)
    *counts, images = all_reduce_sum(torch.cat([right, torch.tensor([done])])).tolist()
    if not images:
        raise DataError("none of the images can be read; patchwords doctor says why")
    return [
        {
            "model": loaded.name,
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
    decoded: Decoded, share: range, loaded: LoadedModel
) -> PerturbationBatch:
    """Move a loader batch to the model's device, with positions in all examples."""
    device = loaded.device.torch_device
    places = [share[index] for index in decoded.indices.tolist()]
    return PerturbationBatch(decoded.images.to(device), decoded.targets.to(device), places, loaded)


def count_correct_by_condition(
    batch: PerturbationBatch, conditions: Sequence[PerturbationCondition]
) -> Tensor:
    """Count correct predictions per condition -> int64 [conditions]; clean images once."""
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
    """Count correct predictions of [B, C, H, W] of 0..255, in the model's precision."""
    loaded = batch.loaded
    with loaded.device.autocast():
        logits = loaded.model(loaded.preprocess.normalise(images))  # [B, classes]
    return int((logits.argmax(-1) == batch.labels).sum())


# Summary over seeds: mean and spread at each level.


def summarise_robustness(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Summarise rows of `measure_robustness` over seeds, in the order of the rows.

    A point is {model, disturbance, prepared_on, level, mean, std, lowest, highest, seeds, images};
    `std` is None with one seed or without randomness.
    """
    values: dict[tuple[Any, ...], list[float]] = {}
    images: dict[tuple[Any, ...], int] = {}
    for row in rows:
        place = row["model"], row["disturbance"], row["prepared_on"], row["level"]
        values.setdefault(place, []).append(row["accuracy"])
        images[place] = row["images"]
    points = []
    for place, groups in values.items():
        over = compute_seed_statistics(groups)
        points.append(
            {
                **dict(zip(("model", "disturbance", "prepared_on", "level"), place, strict=True)),
                "mean": over.mean,
                "std": over.std,
                "lowest": min(groups),
                "highest": max(groups),
                "seeds": over.n,
                "images": images[place],
            }
        )
    return points


# The table of perturbations, in the order of measurement and figures.


def list_perturbations(
    grid: int | None = None, saliency: LoadedModel | None = None
) -> dict[str, Perturbation]:
    """List all perturbations by name; for `grid` and `saliency` see `build_occlusions`."""
    perturbations = (
        *build_occlusions(grid, saliency),
        TILE_PERMUTATION,
        *TEXTURE_PERTURBATIONS,
        *CORRUPTION_PERTURBATIONS,
        *ATTACK_PERTURBATIONS,
        *PATCH_PERTURBATIONS,
    )
    return {disturbance.name: disturbance for disturbance in perturbations}


PERTURBATIONS = list_perturbations()
ALL_PERTURBATIONS = "all"
PERTURBATION_FAMILIES = tuple(dict.fromkeys(found.family for found in PERTURBATIONS.values()))


def choose_perturbations(
    names: Sequence[str] = (), grid: int | None = None, saliency: LoadedModel | None = None
) -> list[Perturbation]:
    """Choose perturbations by name or family, in the table's order.

    Default: the usual ones; "all": every one, including the expensive ones. Raises ConfigError for
    an unknown name.
    """
    known = [ALL_PERTURBATIONS, *PERTURBATION_FAMILIES, *PERTURBATIONS]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown disturbance {name!r}{did_you_mean(name, known)}")
    chosen = list_perturbations(grid, saliency).values()
    if not names:
        return [each for each in chosen if each.usual]
    return [each for each in chosen if {each.name, each.family, ALL_PERTURBATIONS} & {*names}]
