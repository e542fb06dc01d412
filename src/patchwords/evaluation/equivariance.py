"""Translation: how far f(g(x)) is from g(f(x)), where g shifts an image by some pixels.

A convolution is built to commute with shifts (by multiples of its stride, and but for the border);
the patch embedding of a ViT does so for multiples of P only, and nothing in the encoder asks for
it. Logits, which have no places, should not change at all.

Images are shifted in a circle, so that what leaves on one side enters on the other: a function
that commutes has an error of 0. Features shift by d h / H places for d pixels; between two places
they are interpolated linearly.

Sizes: B batch, C channels, H W image, c channels and h w places of a feature map, S shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import check_bad_image_share, load_eval_batches
from patchwords.distributed import all_gather_lists, all_reduce_sum, run_on_all_processes
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.held_out import get_process_indices
from patchwords.evaluation.predictions import LoadedModel, eval_mode
from patchwords.evaluation.robustness.perturbation import NamedProgress
from patchwords.models.build import Model
from patchwords.models.conv_stem import ConvStem
from patchwords.models.vit import ViT

BATCH_SIZE = 64
STEM_MARGIN = 2  # places of a root or a stem next to the border: they see the padding of its layers
SHIFT_AXES = {"rows": -2, "columns": -1}  # of [B, C, H, W]


@dataclass(frozen=True)
class ImageShift:
    """Of the image, by so many pixels: down (rows) or to the right (columns)."""

    axis: str
    pixels: int


@dataclass(frozen=True)
class LayerOutput:
    """Where f ends."""

    values: Tensor  # [B, c, h, w], or [B, c] without places
    margin: int = 0  # places on either side that see padding


def measure_shift_equivariance(
    subjects: Sequence[LoadedModel],
    examples: ImageDataset,
    shifts: Sequence[int],
    max_bad: float = 0.01,
    progress: NamedProgress = lambda what, done, total: None,
) -> list[dict[str, Any]]:
    """-> rows {model, place, axis, pixels, error, same_answer, images}.

    `place` is where f ends: "stem" (a ResNet's or a hybrid's root, or a convolutional stem, without
    the places that see its padding; a ViT's patch embedding), "features" (what the head is given,
    as a map), or "logits", for which g(f(x)) is f(x). `error` is the root of the mean
    |f(g(x)) - g(f(x))|^2, relative to
    the variance of f over places and images: 0 is exact, 1.41 as unlike as two that have nothing
    to do with one another; None where no place is far from the border, or f is constant.
    `same_answer` is the share of images whose likeliest class stays.

    Labels do not matter. Under torchrun each process takes its share, and all give the same rows.
    Raises ConfigError for a shift that is not within the image.
    """
    rows = []
    for subject in subjects:
        smallest = min(subject.preprocess.image_size)
        for pixels in shifts:
            if not 0 < pixels < smallest:
                raise ConfigError(
                    f"a shift by {pixels} pixels: {subject.name} sees images of {smallest} pixels; "
                    f"give 1 to {smallest - 1}"
                )
        wanted = [ImageShift(axis, pixels) for axis in SHIFT_AXES for pixels in shifts]
        sums = accumulate_shift_sums(subject, examples, wanted, max_bad, progress)
        images = int(sums["logits"][-1])
        if not images:
            raise DataError("none of the images can be read; patchwords doctor says why")
        for name, numbers in sums.items():
            rows += build_shift_rows(subject.name, name, numbers, wanted, images)
    return rows


def accumulate_shift_sums(
    subject: LoadedModel,
    examples: ImageDataset,
    wanted: Sequence[ImageShift],
    max_bad: float,
    progress: NamedProgress,
) -> dict[str, Tensor]:
    """`compute_shift_sums` over all images of all processes."""
    share = get_process_indices(examples)
    mine = examples.select(share)
    preprocess, device = subject.preprocess, subject.device.torch_device

    def ask() -> tuple[dict[str, Tensor], list[tuple[int, str]]]:
        blank = torch.zeros(1, preprocess.channels, *preprocess.image_size, device=device)
        # A process without images has zeros to add, as many as the others have numbers.
        sums = {
            name: numbers * 0
            for name, numbers in compute_shift_sums(subject, blank, wanted).items()
        }
        bad, done = [], 0
        for batch in load_eval_batches(mine, preprocess, BATCH_SIZE, subject.workers_for(mine)):
            bad += [(share[index], reason) for index, reason in batch.bad]
            if len(batch.indices):
                images = preprocess.normalise(batch.images.to(device))
                for name, numbers in compute_shift_sums(subject, images, wanted).items():
                    sums[name] += numbers
            done += len(batch.indices) + len(batch.bad)
            progress(subject.name, done, len(mine))
        return sums, bad

    with eval_mode(subject.model), torch.no_grad():
        sums, bad = run_on_all_processes(ask)
    unread = [(examples.keys[index], reason) for index, reason in all_gather_lists(bad)]
    check_bad_image_share(unread, len(examples), "images", max_bad)
    return {name: all_reduce_sum(numbers) for name, numbers in sums.items()}


def compute_shift_sums(
    subject: LoadedModel, images: Tensor, wanted: Sequence[ImageShift]
) -> dict[str, Tensor]:
    """[B, C, H, W], normalised -> of each place float64 [3 S + 1 + c + 1], sums over the images:

    |f(g(x)) - g(f(x))|^2 for each shift, how many places were compared, and how many images keep
    their likeliest class; then `compute_feature_moments` of f(x).
    """
    with subject.device.autocast():
        before = compute_layer_outputs(subject.model, images)
        answers = before["logits"].values.argmax(-1)
        found: dict[str, list[Tensor]] = {name: [] for name in before}
        for shift in wanted:
            length = images.shape[SHIFT_AXES[shift.axis]]
            after = compute_layer_outputs(
                subject.model, images.roll(shift.pixels, SHIFT_AXES[shift.axis])
            )
            same = (after["logits"].values.argmax(-1) == answers).sum()
            for name, place in after.items():
                error, count = compute_squared_error(before[name], place, shift, length)
                found[name].append(torch.stack([error, error.new_tensor(count), same.double()]))
    return {
        name: torch.cat(
            [torch.stack(found[name], 1).flatten(), compute_feature_moments(place.values)]
        ).cpu()
        for name, place in before.items()
    }


def compute_feature_moments(values: Tensor) -> Tensor:
    """[B, c, h, w] or [B, c] -> float64 [1 + c + 1]: sum of |f|^2, sums of f, how many places"""
    f = values.double().flatten(2) if values.ndim > 2 else values.double()[..., None]
    count = f.new_tensor([f.shape[0] * f.shape[2]])
    return torch.cat([f.square().sum()[None], f.sum((0, 2)), count])


def compute_layer_outputs(model: Model, images: Tensor) -> dict[str, LayerOutput]:
    """[B, C, H, W] -> the stem, the features and the logits"""
    features = model.forward_features(images)
    logits = LayerOutput(model.forward_head(features))
    if isinstance(model.trunk, ConvStem):
        stem = LayerOutput(model.trunk(images), STEM_MARGIN)
    elif model.trunk is not None:
        stem = LayerOutput(model.trunk.root(images), STEM_MARGIN)
    else:
        assert isinstance(model, ViT)
        stem = LayerOutput(model.patch_embed(images))
    if isinstance(model, ViT):
        patches = features[:, model.config.num_prefix_tokens :]  # [B, N, D]
        features = patches.transpose(1, 2).unflatten(2, model.grid(images))  # [B, D, h, w]
    return {"stem": stem, "features": LayerOutput(features), "logits": logits}


def compute_squared_error(
    before: LayerOutput, after: LayerOutput, shift: ImageShift, length: int
) -> tuple[Tensor, int]:
    """Sum of |f(g(x)) - g(f(x))|^2, and over how many places; `length`: pixels along the axis."""
    f, of_shifted = before.values.float(), after.values.float()
    if f.ndim == 2:
        return (of_shifted - f).double().square().sum(), len(f)
    axis = SHIFT_AXES[shift.axis]
    count = f.shape[axis]
    amount = shift.pixels * count / length
    inner = torch.ones(count, device=f.device)
    inner[: before.margin] = 0
    inner[count - before.margin :] = 0
    far = (
        inner * roll_interpolated(inner, amount, 0) > 0.999
    )  # before and after; 1 but for rounding
    kept = far.nonzero().flatten()
    apart = (of_shifted - roll_interpolated(f, amount, axis)).index_select(axis, kept)
    return apart.double().square().sum(), apart.numel() // apart.shape[1]


def roll_interpolated(values: Tensor, amount: float, axis: int) -> Tensor:
    """The values moved on in a circle by any number of places, interpolated linearly."""
    whole = int(amount // 1)
    part = amount - whole
    near = values.roll(whole, axis)
    return near if part == 0 else (1 - part) * near + part * values.roll(whole + 1, axis)


def build_shift_rows(
    model: str, place: str, numbers: Tensor, wanted: Sequence[ImageShift], images: int
) -> list[dict[str, Any]]:
    """The sums of `compute_shift_sums` of all images, of one place -> a row for each shift"""
    apart, compared, same, rest = numbers.split(
        [len(wanted)] * 3 + [len(numbers) - 3 * len(wanted)]
    )
    squares, sums, count = rest[0], rest[1:-1], rest[-1]
    variance = float(squares / count - (sums / count).square().sum())
    rows = []
    for i, shift in enumerate(wanted):
        known = compared[i] > 0 and variance > 0
        error = float((apart[i] / compared[i] / variance).sqrt()) if known else None
        rows.append(
            {
                "model": model,
                "place": place,
                "axis": shift.axis,
                "pixels": shift.pixels,
                "error": error,
                "same_answer": float(same[i]) / images,
                "images": images,
            }
        )
    return rows
