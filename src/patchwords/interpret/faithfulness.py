"""Does a map explain the model? Deletion and insertion curves (RISE, arXiv 1806.07421, Sec. 4.3).

Patches are taken away, the most important ones by the map first, and the probability of the class
that the model had answered is watched: of a true map it falls at once (a small area under the
deletion curve). Or they are put into an empty image: it rises at once (a large area under the
insertion curve). Random maps say what chance gives. RISE moves single pixels; here it is patches,
which are what a ViT sees. What stands where a patch is taken away is the mean colour of the image,
or the image blurred: no model was trained on either, so only differences between maps count.

Sizes: B batch, C channels, H W image, h w grid, N patches, S steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from patchwords.errors import ConfigError
from patchwords.interpret.attention import (
    attention_maps,
    extract_query_map,
    require_attention,
    require_vit,
)
from patchwords.interpret.rollout import attention_rollout, gradient_rollout
from patchwords.models.build import Model
from patchwords.models.checks import check_choice, check_count
from patchwords.models.vit import ViT
from patchwords.rng import torch_generator

NUM_CURVE_STEPS = 10
FILL_BASELINES = ("mean", "blur")


@dataclass(frozen=True)
class FaithfulnessCurves:
    """What became of each image's probability under one kind of map; float64."""

    deletion: np.ndarray  # [n, S + 1], of 0 to N patches taken away
    insertion: np.ndarray  # [n, S + 1], of 0 to N patches put in

    @property
    def areas(self) -> np.ndarray:
        """[n, 2]: under deletion and insertion, over the share of patches from 0 to 1"""
        return np.stack([area_under_curve(self.deletion), area_under_curve(self.insertion)], axis=1)

    @property
    def score(self) -> np.ndarray:
        """[n]: insertion less deletion; the larger, the truer"""
        return self.areas[:, 1] - self.areas[:, 0]


@torch.no_grad()
def compute_faithfulness_curves(
    model: Model,
    images: Tensor,
    maps: Mapping[str, Tensor],
    steps: int = NUM_CURVE_STEPS,
    baseline: str = "mean",
) -> dict[str, FaithfulnessCurves]:
    """Images [B, C, H, W] and maps [B, h, w] by name -> the curves of each.

    The class watched is the one answered for the whole image. Equal values of a map are ordered by
    chance, the same at every call. Raises ConfigError for a ResNet, whose images have no patches,
    for a map of another grid and for a baseline that is none of BASELINES.
    """
    vit = require_vit(model)
    check_count("steps", steps)
    check_choice("baseline", baseline, FILL_BASELINES)
    grid = vit.grid(images)
    empty = (
        fill_mean_colour(images) if baseline == "mean" else blur_images(images, vit.config.stride)
    )
    classes = vit(images).argmax(dim=-1)  # [B]
    watch = _ProbabilityTracker(vit, images, empty, classes)
    nothing, everything = (watch.seen(torch.full((len(images), *grid), kept)) for kept in (0, 1))
    curves = {}
    for name, values in maps.items():
        if values.shape != (len(images), *grid):
            raise ConfigError(
                f"map {name!r} of shape {list(values.shape)} is not [{len(images)}, {grid[0]}, "
                f"{grid[1]}], a number for each patch of each image"
            )
        rank = rank_patches(values)  # [B, h, w], 0 for the most important
        taken, put = [everything], [nothing]
        for step in range(1, steps):
            count = round(step * grid[0] * grid[1] / steps)
            taken.append(watch.seen(rank >= count))
            put.append(watch.seen(rank < count))
        curves[name] = FaithfulnessCurves(
            torch.stack([*taken, nothing], dim=1).double().cpu().numpy(),
            torch.stack([*put, everything], dim=1).double().cpu().numpy(),
        )
    return curves


@dataclass(frozen=True)
class _ProbabilityTracker:
    """The probability of each image's class while patches come and go."""

    vit: ViT
    images: Tensor  # [B, C, H, W]
    empty: Tensor  # [B, C, H, W], what stands where a patch is not
    classes: Tensor  # [B]

    def seen(self, kept: Tensor) -> Tensor:
        """[B, h, w], true where the patch is the image's own -> [B]"""
        height, width = self.images.shape[-2:]
        stride = self.vit.config.stride
        # After a ResNet the last patches may reach over the border, hence indices.
        rows = torch.arange(height) // stride
        columns = torch.arange(width) // stride
        mask = kept.bool().to(self.images.device)[:, rows][:, :, columns]  # [B, H, W]
        logits = self.vit(torch.where(mask[:, None], self.images, self.empty))
        probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        return probabilities.gather(1, self.classes[:, None])[:, 0]


def rank_patches(maps: Tensor) -> Tensor:
    """[B, h, w] -> int64 [B, h, w]: 0 for the largest; ties by chance"""
    flat = maps.flatten(1)  # [B, N]
    mixed = torch.randperm(flat.shape[1], generator=torch_generator(0, "ties")).to(flat.device)
    order = mixed[flat[:, mixed].argsort(dim=1, descending=True, stable=True)]  # [B, N]
    return order.argsort(dim=1).view(maps.shape)


def make_random_maps(count: int, grid: tuple[int, int], seed: int = 0) -> Tensor:
    """-> [count, h, w], what chance would say"""
    draws = [torch.rand(grid, generator=torch_generator(seed, "map", i)) for i in range(count)]
    return torch.stack(draws)


def fill_mean_colour(images: Tensor) -> Tensor:
    """[B, C, H, W] -> the same shape, each image in its own mean colour"""
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


def blur_images(images: Tensor, sigma: float) -> Tensor:
    """[B, C, H, W] -> the same shape, by a Gaussian of this deviation in pixels; edges repeat"""
    radius = round(3 * sigma)
    place = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    weights = torch.exp(-(place**2) / (2 * sigma**2))
    weights = weights / weights.sum()
    channels = images.shape[1]
    for axis in (2, 3):
        shape = (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
        margin = (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0)
        kernel = weights.view(shape).expand(channels, -1, -1, -1)
        images = conv2d(pad(images, margin, mode="replicate"), kernel, groups=channels)
    return images


def area_under_curve(curve: np.ndarray) -> np.ndarray:
    """[n, S + 1] -> [n], by trapezoids, the axis from 0 to 1: a mean probability"""
    return ((curve[:, :-1] + curve[:, 1:]) / 2).mean(axis=1)


# The maps of a photo that are compared with one another: one number for each patch.
#
# Sizes: B batch, C channels, H W image, h w grid.


def compute_saliency_maps(
    model: Model, images: Tensor, classes: Tensor | None = None
) -> dict[str, Tensor]:
    """[B, C, H, W] -> [B, h, w] by name, from the class token, or the mean over patches without it.

    "last layer" is the mean of its heads. "gradient rollout" is there if `classes` says, for each
    image, for which one. Raises ConfigError where there is no attention.
    """
    vit = require_attention(model)
    grid, prefix = vit.grid(images), vit.config.num_prefix_tokens
    maps = {
        "last layer": attention_maps(vit, images, [-1])[:, 0].mean(dim=1),
        "rollout": extract_query_map(attention_rollout(vit, images), grid, prefix),
    }
    if classes is not None:
        weighed = gradient_rollout(vit, images, classes)
        maps["gradient rollout"] = extract_query_map(weighed, grid, prefix)
    return maps


# Whether a kind of map tells more than chance: paired differences over images.
#
# Sizes: n images, B batch, C channels, H W image.


RANDOM_MAP = "random"


def compute_curves_by_map(
    model: ViT, batches: Iterable[Tensor], baseline: str = "mean", kinds: Sequence[str] = ()
) -> dict[str, FaithfulnessCurves]:
    """Deletion and insertion by every kind of map (none named: all), and by random ones.

    Images as the model takes them, [B, C, H, W] each. The class explained is the one answered.
    """
    gathered: dict[str, list[FaithfulnessCurves]] = {}
    done = 0
    for images in batches:
        with torch.no_grad():
            classes = model(images).argmax(-1)
        found = compute_saliency_maps(model, images, classes)
        maps = {name: found[name] for name in kinds or found}
        chance = make_random_maps(done + len(images), model.grid(images))[done:]
        maps[RANDOM_MAP] = chance.to(images.device)
        for name, truth in compute_faithfulness_curves(
            model, images, maps, baseline=baseline
        ).items():
            gathered.setdefault(name, []).append(truth)
        done += len(images)
    return {
        name: FaithfulnessCurves(
            np.concatenate([part.deletion for part in parts]),
            np.concatenate([part.insertion for part in parts]),
        )
        for name, parts in gathered.items()
    }


def summarise_faithfulness(curves: Mapping[str, FaithfulnessCurves]) -> dict[str, dict[str, Any]]:
    """Areas under the curves of each kind of map, and how they stand beside random ones."""
    maps = {}
    for name, truth in curves.items():
        areas: dict[str, Any] = {
            kind: mean_and_standard_error(truth.areas[:, i])
            for i, kind in enumerate(("deletion", "insertion"))
        }
        beside = (
            {}
            if name == RANDOM_MAP
            else {"beside_random": compare_with_random_maps(truth, curves[RANDOM_MAP])}
        )
        maps[name] = areas | beside
    return maps


def mean_and_standard_error(values: np.ndarray) -> dict[str, float | None]:
    """[n] -> {"mean", "standard_error"}, the second None for a single image"""
    n = len(values)
    error = float(values.std(ddof=1) / n**0.5) if n > 1 else None
    return {"mean": float(values.mean()), "standard_error": error}


def compare_with_random_maps(
    truth: FaithfulnessCurves, chance: FaithfulnessCurves
) -> dict[str, Any]:
    """Insertion less deletion, less that of random maps of the same images, image by image.

    -> {"mean", "standard_error", "low", "high", "truer"}: the ends of the 95 % interval by
    Student's t, and whether all of it lies above 0; None for a single image.
    """
    from scipy.stats import t

    gain = truth.score - chance.score
    n = len(gain)
    found: dict[str, Any] = mean_and_standard_error(gain)
    if n < 2:
        return found | {"low": None, "high": None, "truer": None}
    wide = float(t.ppf(0.975, n - 1)) * found["standard_error"]
    low, high = found["mean"] - wide, found["mean"] + wide
    return found | {"low": low, "high": high, "truer": bool(low > 0)}
