"""Rows over seeds become points: mean and spread at each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.evaluate.spread import compute_seed_statistics


def summarise_robustness(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `measure_robustness` -> points, in the order of the rows.

    A point is {model, disturbance, prepared_on, level, mean, std, lowest, highest, seeds, images};
    `std` is None where there is one seed, or none.
    """
    values: dict[tuple[Any, ...], list[float]] = {}
    images: dict[tuple[Any, ...], int] = {}
    for row in rows:
        place = row["model"], row["disturbance"], row["prepared_on"], row["level"]
        values.setdefault(place, []).append(row["accuracy"])
        images[place] = row["images"]
    points = []
    for place, found in values.items():
        over = compute_seed_statistics(found)
        points.append(
            {
                **dict(zip(("model", "disturbance", "prepared_on", "level"), place, strict=True)),
                "mean": over.mean,
                "std": over.std,
                "lowest": min(found),
                "highest": max(found),
                "seeds": over.n,
                "images": images[place],
            }
        )
    return points
