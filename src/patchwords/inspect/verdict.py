"""Whether a kind of map tells more than chance: paired differences over images.

Sizes: n images, B batch, C channels, H W image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchwords.inspect.maps import compute_saliency_maps
from patchwords.inspect.truth import (
    FaithfulnessCurves,
    compute_faithfulness_curves,
    make_random_maps,
)
from patchwords.model.vit import ViT

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
