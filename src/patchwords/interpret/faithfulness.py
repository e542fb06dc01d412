"""Faithfulness of saliency maps: deletion and insertion curves (RISE, arXiv 1806.07421, Sec. 4.3).

Deletion removes patches, the most important by the map first, and measures the probability of the
class that the model answered for the whole image: for a faithful map it falls at once (small area
under the curve). Insertion adds them to an empty image: it rises at once (large area). Random maps
give the level of chance. RISE moves single pixels, this module patches, the units of a ViT. A
removed patch is replaced by the image's mean colour or by the blurred image: no model was trained
on either, so only differences between maps count.

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
RANDOM_MAP = "random"


@dataclass(frozen=True)
class FaithfulnessCurves:
    """Probability of each image's class under deletion and insertion by one kind of map."""

    deletion: np.ndarray  # [n, S + 1] float64, 0 to N patches removed
    insertion: np.ndarray  # [n, S + 1] float64, 0 to N patches added

    @property
    def areas(self) -> np.ndarray:
        """Return the areas under deletion and insertion over the share of patches, [n, 2]."""
        return np.stack([area_under_curve(self.deletion), area_under_curve(self.insertion)], axis=1)

    @property
    def score(self) -> np.ndarray:
        """Return insertion minus deletion, [n]: larger is more faithful."""
        return self.areas[:, 1] - self.areas[:, 0]


@torch.no_grad()
def compute_faithfulness_curves(
    model: Model,
    images: Tensor,
    maps: Mapping[str, Tensor],
    steps: int = NUM_CURVE_STEPS,
    baseline: str = "mean",
) -> dict[str, FaithfulnessCurves]:
    """Compute the curves of each map [B, h, w] of images [B, C, H, W].

    Ties within a map are ordered by chance, the same at every call. Raises ConfigError for a
    ResNet, which has no patches, for a map of another grid and for an unknown baseline.
    """
    vit = require_vit(model)
    check_count("steps", steps)
    check_choice("baseline", baseline, FILL_BASELINES)
    grid = vit.grid(images)
    empty = (
        fill_mean_colour(images) if baseline == "mean" else blur_images(images, vit.config.stride)
    )
    classes = vit(images).argmax(dim=-1)  # [B]
    tracker = _ProbabilityTracker(vit, images, empty, classes)
    none, every = (tracker.measure(torch.full((len(images), *grid), kept)) for kept in (0, 1))
    curves = {}
    for name, values in maps.items():
        if values.shape != (len(images), *grid):
            raise ConfigError(
                f"map {name!r} of shape {list(values.shape)} is not [{len(images)}, {grid[0]}, "
                f"{grid[1]}], a number for each patch of each image"
            )
        rank = rank_patches(values)  # [B, h, w], 0 for the most important
        deletion, insertion = [every], [none]
        for step in range(1, steps):
            count = round(step * grid[0] * grid[1] / steps)
            deletion.append(tracker.measure(rank >= count))
            insertion.append(tracker.measure(rank < count))
        curves[name] = FaithfulnessCurves(
            torch.stack([*deletion, none], dim=1).cpu().double().numpy(),
            torch.stack([*insertion, every], dim=1).cpu().double().numpy(),
        )
    return curves


@dataclass(frozen=True)
class _ProbabilityTracker:
    """Measures the probability of each image's class with some patches removed."""

    vit: ViT
    images: Tensor  # [B, C, H, W]
    empty: Tensor  # [B, C, H, W], replaces removed patches
    classes: Tensor  # [B]

    def measure(self, kept: Tensor) -> Tensor:
        """Return probabilities [B] of the images with only the kept patches, [B, h, w]."""
        height, width = self.images.shape[-2:]
        stride = self.vit.config.stride
        # Patches after a ResNet trunk may extend past the border, hence indices.
        rows = torch.arange(height) // stride
        columns = torch.arange(width) // stride
        mask = kept.bool().to(self.images.device)[:, rows][:, :, columns]  # [B, H, W]
        logits = self.vit(torch.where(mask[:, None], self.images, self.empty))
        probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        return probabilities.gather(1, self.classes[:, None])[:, 0]


def rank_patches(maps: Tensor) -> Tensor:
    """Rank the patches, 0 for the largest, ties by chance: -> int64 [B, h, w]."""
    flat = maps.flatten(1)  # [B, N]
    mixed = torch.randperm(flat.shape[1], generator=torch_generator(0, "ties")).to(flat.device)
    order = mixed[flat[:, mixed].argsort(dim=1, descending=True, stable=True)]  # [B, N]
    return order.argsort(dim=1).view(maps.shape)


def make_random_maps(count: int, grid: tuple[int, int], seed: int = 0) -> Tensor:
    """Draw random maps [count, h, w], the same for each index at every call."""
    draws = [torch.rand(grid, generator=torch_generator(seed, "map", i)) for i in range(count)]
    return torch.stack(draws)


def fill_mean_colour(images: Tensor) -> Tensor:
    """Fill each image [B, C, H, W] with its mean colour."""
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


def blur_images(images: Tensor, sigma: float) -> Tensor:
    """Blur images by a Gaussian of deviation `sigma` pixels; edges are repeated."""
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
    """Integrate curves [n, S + 1] over 0 to 1 by trapezoids -> [n]."""
    return ((curve[:, :-1] + curve[:, 1:]) / 2).mean(axis=1)


def compute_saliency_maps(
    model: Model, images: Tensor, classes: Tensor | None = None
) -> dict[str, Tensor]:
    """Compute every kind of map of images [B, C, H, W]: name -> [B, h, w].

    "last layer" is the mean of its heads. "gradient rollout" needs `classes`, one per image. Maps
    are seen from the class token, or from the mean over the patches without one. Raises ConfigError
    where the model has no attention.
    """
    vit = require_attention(model)
    grid, prefix = vit.grid(images), vit.config.num_prefix_tokens
    class_token = vit.config.has_class_token
    maps = {
        "last layer": attention_maps(vit, images, [-1])[:, 0].mean(dim=1),
        "rollout": extract_query_map(
            attention_rollout(vit, images), grid, prefix, class_token=class_token
        ),
    }
    if classes is not None:
        relevance = gradient_rollout(vit, images, classes)
        maps["gradient rollout"] = extract_query_map(
            relevance, grid, prefix, class_token=class_token
        )
    return maps


def compute_curves_by_map(
    model: ViT, batches: Iterable[Tensor], baseline: str = "mean", kinds: Sequence[str] = ()
) -> dict[str, FaithfulnessCurves]:
    """Compute the curves of every kind of map, and of random maps, over batches of images.

    `kinds` defaults to all; batches are normalised images [B, C, H, W]. The class explained is the
    model's answer.
    """
    parts_by_map: dict[str, list[FaithfulnessCurves]] = {}
    count = 0
    for images in batches:
        with torch.no_grad():
            classes = model(images).argmax(-1)
        every_map = compute_saliency_maps(model, images, classes)
        maps = {name: every_map[name] for name in kinds or every_map}
        random = make_random_maps(count + len(images), model.grid(images))[count:]
        maps[RANDOM_MAP] = random.to(images.device)
        curves = compute_faithfulness_curves(model, images, maps, baseline=baseline)
        for name, part in curves.items():
            parts_by_map.setdefault(name, []).append(part)
        count += len(images)
    return {
        name: FaithfulnessCurves(
            np.concatenate([part.deletion for part in parts]),
            np.concatenate([part.insertion for part in parts]),
        )
        for name, parts in parts_by_map.items()
    }


def summarise_faithfulness(curves: Mapping[str, FaithfulnessCurves]) -> dict[str, Any]:
    """Summarise the areas under the curves of each map, and their difference from random maps."""
    maps: dict[str, dict[str, Any]] = {}
    for name, curve in curves.items():
        deletion, insertion = curve.areas.T
        maps[name] = {
            "deletion": mean_and_standard_error(deletion),
            "insertion": mean_and_standard_error(insertion),
        }
        if name != RANDOM_MAP:
            maps[name]["beside_random"] = compare_with_random_maps(curve, curves[RANDOM_MAP])
    return {"images": len(curves[RANDOM_MAP].deletion), "maps": maps}


def mean_and_standard_error(values: np.ndarray) -> dict[str, float | None]:
    """Return {"mean", "standard_error"} of values [n]; the error of a single one is None."""
    n = len(values)
    error = float(values.std(ddof=1) / n**0.5) if n > 1 else None
    return {"mean": float(values.mean()), "standard_error": error}


def compare_with_random_maps(
    curves: FaithfulnessCurves, random: FaithfulnessCurves
) -> dict[str, Any]:
    """Compare a map's scores with those of random maps of the same images, image by image.

    Returns {"mean", "standard_error", "low", "high", "truer"}: the mean difference, its 95 %
    interval by Student's t, and whether the interval is above 0; None for a single image.
    """
    from scipy.stats import t

    gain = curves.score - random.score
    n = len(gain)
    summary: dict[str, Any] = mean_and_standard_error(gain)
    if n < 2:
        return summary | {"low": None, "high": None, "truer": None}
    margin = float(t.ppf(0.975, n - 1)) * summary["standard_error"]
    low, high = summary["mean"] - margin, summary["mean"] + margin
    return summary | {"low": low, "high": high, "truer": bool(low > 0)}
