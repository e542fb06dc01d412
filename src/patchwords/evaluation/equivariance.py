"""Shift equivariance: the distance of f(g(x)) and g(f(x)), where g shifts an image.

A convolution commutes with shifts (by multiples of its stride, except at the border); the patch
embedding of a ViT does so only for multiples of P, and nothing in the encoder requires it. Logits,
which have no positions, should not change at all.

Images are shifted circularly: a function that commutes has an error of 0. Features shift by d h / H
positions for d pixels, interpolated linearly between two positions.

Sizes: B batch, C channels, H W image, c channels and h w positions of a feature map, S shifts.
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
STEM_MARGIN = 2  # border positions of a root or stem, which see the padding of its layers
SHIFT_AXES = {"rows": -2, "columns": -1}  # of [B, C, H, W]


@dataclass(frozen=True)
class ImageShift:
    """A circular shift of the image by pixels: down (rows) or right (columns)."""

    axis: str
    pixels: int


@dataclass(frozen=True)
class LayerOutput:
    """Output of f at a layer."""

    values: Tensor  # [B, c, h, w], or [B, c] without positions
    margin: int = 0  # positions on either side that see padding


def measure_shift_equivariance(
    models: Sequence[LoadedModel],
    examples: ImageDataset,
    shifts: Sequence[int],
    max_bad: float = 0.01,
    progress: NamedProgress = lambda what, done, total: None,
) -> list[dict[str, Any]]:
    """Measure equivariance -> rows {model, place, axis, pixels, error, same_answer, images}.

    `place` is the layer: "stem" (the root of a ResNet or hybrid, or a convolutional stem, without
    the positions that see its padding; the patch embedding of a ViT), "features" (the input of the
    head, as a map), or "logits", for which g(f(x)) is f(x). `error` is the root of the mean
    |f(g(x)) - g(f(x))|^2, relative to the variance of f over positions and images: 0 is exact, 1.41
    as different as unrelated features; None if all positions are at the border, or f is constant.
    `same_answer` is the share of images with an unchanged prediction.

    Labels do not matter. Under torchrun each process takes its share, and all return the same rows.
    Raises ConfigError for a shift that is not within the image.
    """
    rows = []
    for loaded in models:
        smallest = min(loaded.preprocess.image_size)
        for pixels in shifts:
            if not 0 < pixels < smallest:
                raise ConfigError(
                    f"a shift by {pixels} pixels: {loaded.name} sees images of {smallest} pixels; "
                    f"give 1 to {smallest - 1}"
                )
        wanted = [ImageShift(axis, pixels) for axis in SHIFT_AXES for pixels in shifts]
        sums = accumulate_shift_sums(loaded, examples, wanted, max_bad, progress)
        images = int(sums["logits"][-1])
        if not images:
            raise DataError("none of the images can be read; patchwords doctor says why")
        for name, numbers in sums.items():
            rows += build_shift_rows(loaded.name, name, numbers, wanted, images)
    return rows


def accumulate_shift_sums(
    loaded: LoadedModel,
    examples: ImageDataset,
    wanted: Sequence[ImageShift],
    max_bad: float,
    progress: NamedProgress,
) -> dict[str, Tensor]:
    """Sum `compute_shift_sums` over all images of all processes."""
    share = get_process_indices(examples)
    mine = examples.select(share)
    preprocess, device = loaded.preprocess, loaded.device.torch_device

    def ask() -> tuple[dict[str, Tensor], list[tuple[int, str]]]:
        blank = torch.zeros(1, preprocess.channels, *preprocess.image_size, device=device)
        # A process without images adds zeros of the same shape.
        sums = {
            name: numbers * 0 for name, numbers in compute_shift_sums(loaded, blank, wanted).items()
        }
        bad, done = [], 0
        for batch in load_eval_batches(mine, preprocess, BATCH_SIZE, loaded.workers_for(mine)):
            bad += [(share[index], reason) for index, reason in batch.bad]
            if len(batch.indices):
                images = preprocess.normalise(batch.images.to(device))
                for name, numbers in compute_shift_sums(loaded, images, wanted).items():
                    sums[name] += numbers
            done += len(batch.indices) + len(batch.bad)
            progress(loaded.name, done, len(mine))
        return sums, bad

    with eval_mode(loaded.model), torch.no_grad():
        sums, bad = run_on_all_processes(ask)
    unread = [(examples.keys[index], reason) for index, reason in all_gather_lists(bad)]
    check_bad_image_share(unread, len(examples), "images", max_bad)
    return {name: all_reduce_sum(numbers) for name, numbers in sums.items()}


def compute_shift_sums(
    loaded: LoadedModel, images: Tensor, wanted: Sequence[ImageShift]
) -> dict[str, Tensor]:
    """[B, C, H, W], normalised -> for each layer float64 [3 S + 1 + c + 1], sums over images.

    Per shift |f(g(x)) - g(f(x))|^2, the number of compared positions, and the number of images with
    an unchanged prediction; then `compute_feature_moments` of f(x).
    """
    with loaded.device.autocast():
        before = compute_layer_outputs(loaded.model, images)
        answers = before["logits"].values.argmax(-1)
        found: dict[str, list[Tensor]] = {name: [] for name in before}
        for shift in wanted:
            length = images.shape[SHIFT_AXES[shift.axis]]
            after = compute_layer_outputs(
                loaded.model, images.roll(shift.pixels, SHIFT_AXES[shift.axis])
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
    """[B, c, h, w] or [B, c] -> float64 [1 + c + 1]: sum |f|^2, sums of f, positions"""
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
    """Sum |f(g(x)) - g(f(x))|^2 and count positions; `length`: pixels along the axis."""
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
    )  # before and after; 1 except for rounding
    kept = far.nonzero().flatten()
    apart = (of_shifted - roll_interpolated(f, amount, axis)).index_select(axis, kept)
    return apart.double().square().sum(), apart.numel() // apart.shape[1]


def roll_interpolated(values: Tensor, amount: float, axis: int) -> Tensor:
    """Roll the values by a fractional number of positions, interpolated linearly."""
    whole = int(amount // 1)
    part = amount - whole
    near = values.roll(whole, axis)
    return near if part == 0 else (1 - part) * near + part * values.roll(whole + 1, axis)


def build_shift_rows(
    model: str, place: str, numbers: Tensor, wanted: Sequence[ImageShift], images: int
) -> list[dict[str, Any]]:
    """Build a row per shift from the sums of one layer over all images."""
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
