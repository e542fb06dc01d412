"""Whether a kind of map tells more than chance: paired differences over images.

Sizes: n images, B batch, C channels, H W image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchwords.inspect.maps import maps_of
from patchwords.inspect.truth import Truth, random_maps, truth_curves
from patchwords.model.vit import ViT

RANDOM = "random"


def curves_of_maps(
    model: ViT, batches: Iterable[Tensor], baseline: str = "mean", kinds: Sequence[str] = ()
) -> dict[str, Truth]:
    """Deletion and insertion by every kind of map (none named: all), and by random ones.

    Images as the model takes them, [B, C, H, W] each. The class explained is the one answered.
    """
    gathered: dict[str, list[Truth]] = {}
    done = 0
    for images in batches:
        with torch.no_grad():
            classes = model(images).argmax(-1)
        found = maps_of(model, images, classes)
        maps = {name: found[name] for name in kinds or found}
        chance = random_maps(done + len(images), model.grid(images))[done:]
        maps[RANDOM] = chance.to(images.device)
        for name, truth in truth_curves(model, images, maps, baseline=baseline).items():
            gathered.setdefault(name, []).append(truth)
        done += len(images)
    return {
        name: Truth(
            np.concatenate([part.deletion for part in parts]),
            np.concatenate([part.insertion for part in parts]),
        )
        for name, parts in gathered.items()
    }


def judged(curves: Mapping[str, Truth]) -> dict[str, dict[str, Any]]:
    """Areas under the curves of each kind of map, and how they stand beside random ones."""
    maps = {}
    for name, truth in curves.items():
        areas: dict[str, Any] = {
            kind: mean_and_error(truth.areas[:, i])
            for i, kind in enumerate(("deletion", "insertion"))
        }
        beside = {} if name == RANDOM else {"beside_random": against_random(truth, curves[RANDOM])}
        maps[name] = areas | beside
    return maps


def mean_and_error(values: np.ndarray) -> dict[str, float | None]:
    """[n] -> {"mean", "standard_error"}, the second None for a single image"""
    n = len(values)
    error = float(values.std(ddof=1) / n**0.5) if n > 1 else None
    return {"mean": float(values.mean()), "standard_error": error}


def against_random(truth: Truth, chance: Truth) -> dict[str, Any]:
    """Insertion less deletion, less that of random maps of the same images, image by image.

    -> {"mean", "standard_error", "low", "high", "truer"}: the ends of the 95 % interval by
    Student's t, and whether all of it lies above 0; None for a single image.
    """
    from scipy.stats import t

    gain = truth.score - chance.score
    n = len(gain)
    found: dict[str, Any] = mean_and_error(gain)
    if n < 2:
        return found | {"low": None, "high": None, "truer": None}
    wide = float(t.ppf(0.975, n - 1)) * found["standard_error"]
    low, high = found["mean"] - wide, found["mean"] + wide
    return found | {"low": low, "high": high, "truer": bool(low > 0)}
