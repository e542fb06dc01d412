"""Whether a kind of map tells more than chance: paired differences over images.

Sizes: n images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.inspect.truth import Truth


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
