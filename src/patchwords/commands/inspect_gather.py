"""All that `patchwords inspect` was asked for, in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from patchwords.commands import inspect_parts as parts
from patchwords.commands.inspect_nearest import NearestSearch, inspect_nearest
from patchwords.commands.inspect_parts import InspectionPart
from patchwords.commands.inspect_photos import PhotoReader
from patchwords.data.examples import ImageDataset, subsample_evenly
from patchwords.errors import ConfigError

if TYPE_CHECKING:
    from patchwords.commands.inspect import InspectCommand, InspectionPlan


def inspect_model(
    config: InspectCommand,
    photos: PhotoReader,
    examples: ImageDataset | None,
    plan: InspectionPlan | None,
    search: NearestSearch | None = None,
) -> InspectionPart:
    """All parts in one."""
    subject = photos.subject
    found = [parts.Part({"model": subject.name, "left_out": {}}), parts.of_filters(subject.model)]
    try:
        found.append(parts.of_positions(subject.model))
    except ConfigError as reason:  # of a ResNet, or of a ViT without positions
        found[0].results["left_out"]["positions"] = str(reason)
    if examples is not None and search is not None:
        found.append(inspect_nearest(search, photos, subsample_evenly(examples, config.photos)))
    if examples is not None and plan is not None:
        if plan.no_attention is not None:
            found[0].results["left_out"]["attention"] = plan.no_attention
        else:
            found += inspect_images(config, photos, examples, plan)
    return parts.united(found)


def inspect_images(
    config: InspectCommand, photos: PhotoReader, examples: ImageDataset, plan: InspectionPlan
) -> Iterator[InspectionPart]:
    """The parts that look at images, the quick ones first."""
    vit, labels = photos.attending(), photos.subject.source.labels
    names, pixels = photos.all(subsample_evenly(examples, config.photos))
    images = photos.normalised(pixels)
    yield parts.of_photos(vit, names, pixels, images, labels, plan.asked_class)
    yield parts.of_heads(
        vit, names[0], pixels[:1], images[:1], plan.layers, plan.heads, config.query
    )

    def batches(count: int, what: str) -> Iterator[Tensor]:
        chosen = subsample_evenly(examples, count)
        with show_inspection_progress(what, len(chosen)) as advance:
            for some, batch in photos.batches(chosen):
                yield photos.normalised(batch)
                advance(len(some))

    many = config.distance_images
    yield parts.of_distance(vit, batches(many, "attention distance"), photos.preprocess.image_size)
    yield parts.of_tokens(vit, batches(many, "tokens"))
    if labels and config.truth_images:
        truth = batches(config.truth_images, "deletion and insertion")
        yield parts.of_truth(vit, truth, config.baseline)
    elif not labels:
        why = "the model was pre-trained without classes, so there is no answer to explain"
        yield parts.Part({"left_out": {"truth": why, "gradient rollout": why}})


@contextlib.contextmanager
def show_inspection_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
