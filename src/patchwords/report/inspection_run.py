"""Run of an inspection: its plan, checked against the model, and its parts in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset, subsample_evenly
from patchwords.errors import ConfigError, did_you_mean
from patchwords.interpret.attention import check_heads, find_patch_index
from patchwords.models.checks import check_layer_indices
from patchwords.report.inspection import (
    Inspection,
    PhotoReader,
    inspect_distance,
    inspect_faithfulness,
    inspect_filters,
    inspect_heads,
    inspect_patches,
    inspect_photos,
    inspect_positions,
    inspect_tokens,
)
from patchwords.report.inspection_settings import InspectionSettings
from patchwords.report.nearest import NearestSearch, inspect_nearest
from patchwords.training.logs.progress import show_progress


@dataclass(frozen=True)
class InspectionPlan:
    """The checked settings of an inspection."""

    layers: list[int]
    heads: list[int]
    class_index: int | None
    no_attention: str | None = None  # why the model has no attention maps


def plan_inspection(settings: InspectionSettings, photos: PhotoReader) -> InspectionPlan:
    """Check the settings against the model; raises ConfigError for what it cannot do.

    A model without attention can only find the nearest images.
    """
    try:
        vit = photos.require_attention()
    except ConfigError as error:
        only_nearest = settings.near.nearest is not None and settings.page.explore is None
        if only_nearest and not settings.list_attention_flags():
            return InspectionPlan([], [], None, str(error))
        raise
    height, width = photos.preprocess.image_size
    grid = vit.grid(torch.empty(1, vit.config.channels, height, width))
    if settings.query is not None:
        find_patch_index(settings.query, grid)
    count, labels = vit.config.layers, photos.loaded.source.labels
    layers = check_layer_indices(list(settings.layers), count) or sorted({0, count // 2, count - 1})
    heads = check_heads(settings.heads, vit.config.heads) or list(range(vit.config.heads))
    if settings.class_name is None:
        return InspectionPlan(layers, heads, None)
    if settings.class_name not in labels:
        hint = (
            did_you_mean(settings.class_name, labels) if labels else "; it was trained without any"
        )
        raise ConfigError(
            f"--class-name {settings.class_name!r}: the model has no such class{hint}"
        )
    return InspectionPlan(layers, heads, labels.index(settings.class_name))


def inspect_model(
    settings: InspectionSettings,
    photos: PhotoReader,
    examples: ImageDataset | None,
    plan: InspectionPlan | None,
    search: NearestSearch | None = None,
) -> Inspection:
    """Run every part of the inspection, the parts that need no images first."""
    inspection = Inspection.start(photos.loaded.name, photos.unreadable)
    inspect_filters(inspection, photos.loaded.model)
    inspect_positions(inspection, photos.loaded.model)
    if examples is None or plan is None:
        return inspection
    if search is not None:
        chosen = subsample_evenly(examples, settings.photos)
        inspect_nearest(inspection, search, photos, chosen)
    if plan.no_attention is not None:
        inspection.leave_out("attention", plan.no_attention)
    else:
        inspect_images(inspection, settings, photos, examples, plan)
    return inspection


def inspect_images(
    inspection: Inspection,
    settings: InspectionSettings,
    photos: PhotoReader,
    examples: ImageDataset,
    plan: InspectionPlan,
) -> None:
    """Run the parts that need images and attention, the quick ones first."""
    vit = photos.require_attention()
    names, pixels = photos.read_all(subsample_evenly(examples, settings.photos))
    inspect_photos(inspection, photos, names, pixels, plan.class_index)
    inspect_heads(inspection, photos, names[0], pixels[0], plan.layers, plan.heads, settings.query)
    inspect_patches(inspection, photos, names, pixels, settings.query)

    def batches(count: int, title: str) -> Iterator[Tensor]:
        chosen = subsample_evenly(examples, count)
        with show_progress(title) as progress:
            done = 0
            for batch_names, batch in photos.batches(chosen):
                yield photos.normalise(batch)
                done += len(batch_names)
                progress(done, len(chosen))

    distance_batches = batches(settings.distance_images, "attention distance")
    inspect_distance(inspection, vit, distance_batches, photos.preprocess.image_size)
    inspect_tokens(inspection, vit, batches(settings.distance_images, "tokens"))
    if not photos.loaded.source.labels:
        reason = "the model was pre-trained without classes, so there is no answer to explain"
        inspection.leave_out("truth", reason)
        inspection.leave_out("gradient rollout", reason)
    elif settings.truth_images:
        truth_batches = batches(settings.truth_images, "deletion and insertion")
        inspect_faithfulness(inspection, vit, truth_batches, settings.baseline)
