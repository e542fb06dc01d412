"""The figures of what is inside a ViT: numbers over the training, and pictures at each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from patchwords.studies.paper.inside_measure import ARRAYS_FILE, parse_head_distances
from patchwords.studies.paper.inside_stages import LAST, STAGES, UNTRAINED

COMPONENTS_SHOWN = 14  # principal components in a row; Figure 7 has 28
PANELS = {  # title -> rows of the table, in short
    "Filters": {"in low frequencies": "filters, in low frequencies"},
    "Position embeddings": {
        "by rows and columns": "positions, by rows and columns",
        "by distance": "positions, by distance",
    },
    "First layer": {
        "farthest head": "first layer, farthest head",
        "nearest head": "first layer, nearest head",
    },
    "Attention distance": {"deeper half, farther by": "deeper half, farther by"},
    "Rollout": {"truer than random maps by": "rollout, truer than random maps by"},
    "Test images": {"accuracy": "accuracy"},
}
PANEL_UNITS = {
    "Filters": "% of variance",
    "Position embeddings": "% of variance explained",
    "First layer": "distance, % of everywhere alike",
    "Attention distance": "% of everywhere alike",
    "Rollout": "points of probability",
    "Test images": "%",
}


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """All rows of the table over the training; Figure 11 at each stage."""
    from patchwords.report.curves import Panel, draw_panels
    from patchwords.report.words import pluralise

    values = {one["label"]: one["values"] for one in results["labels"]}
    ticks = [100 * share for share in STAGES.values() if share]
    panels = []
    for title, rows in PANELS.items():
        curves = build_stage_curves(values, rows)
        panels.append(
            Panel(
                title, "share of the training, %", PANEL_UNITS[title], curves, True, x_ticks=ticks
            )
        )
    seeds = pluralise(results["seeds"], "seed")
    bands = "; bands reach from the lowest to the highest" if results["seeds"] > 1 else ""
    caption = (
        f"What the table has, over the training: mean over {seeds}{bands}. Level lines: the same "
        "before it."
    )
    far = (
        f"Figures 7 (right) and 11 at each stage, mean over {seeds}. 100 % is the distance of a "
        "head that looks at all patches alike. The class token is left out."
    )
    depth = build_depth_panels(results)
    by_depth = draw_panels(depth, far, "inside-distance") if depth else {}  # none: all diverged
    return {**draw_panels(panels, caption, "inside"), **by_depth}


def build_stage_curves(values: Mapping[str, Sequence[Any]], rows: Mapping[str, str]) -> list[Any]:
    """A curve of each row, and a level one of what it was before."""
    from patchwords.report.curves import Curve

    x = [100 * share for share in STAGES.values() if share]
    found = []
    for label, row in rows.items():
        stages = [
            [100 * value for value in values[f"{row}, {stage}"] if value is not None]
            for stage in STAGES
        ]
        if not all(stages):
            continue  # diverged
        mean, low, high = ([f(some) for some in stages] for f in (average_values, min, max))
        found.append(Curve(label, x, mean[1:], low[1:], high[1:]))
        found.append(Curve(f"{label}, {UNTRAINED}", x, [mean[0]] * len(x)))
    return found


def average_values(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def build_depth_panels(results: Mapping[str, Any]) -> list[Any]:
    """Nearest head, mean of the heads and farthest head of every layer; a curve for each stage.

    None where every training diverged.
    """
    from patchwords.report.curves import Curve, Panel

    found: dict[str, list[Any]] = {"Nearest head": [], "Mean of the heads": [], "Farthest head": []}
    layers: list[int] = []
    for stage in STAGES:
        of_stage = (one for one in results["cells"] if one["name"] == stage)
        alive = [parse_head_distances(one) for one in of_stage if one["accuracy"] is not None]
        if not alive:
            continue
        mean = 100 * np.mean(alive, axis=0)  # [L, K]
        layers = list(range(1, len(mean) + 1))
        for title, line in zip(found, (mean[:, 0], mean.mean(1), mean[:, -1]), strict=True):
            found[title].append(Curve(stage, layers, line.tolist()))
    ticks = layers[:: max(1, len(layers) // 8)]
    return [
        Panel(title, "layer", "attention distance, %", curves, x_ticks=ticks)
        for title, curves in found.items()
        if curves
    ]


def draw_stored_figures(folder: Path, results: Mapping[str, Any]) -> dict[str, bytes]:
    """Filters, positions and rollout at each stage of the first seed that has all of them."""
    for seed in range(results["seeds"]):
        stages = {
            one["name"]: folder / one["folder"] / ARRAYS_FILE
            for one in results["cells"]
            if one["seed"] == seed
        }
        if stages and all(path.is_file() for path in stages.values()):
            kept = {}
            for stage, path in stages.items():
                with np.load(path) as arrays:
                    kept[stage] = {name: arrays[name] for name in arrays.files}
            return {
                **draw_stage_filters(kept, seed),
                **draw_stage_positions(kept, seed),
                **draw_stage_rollout(kept, seed),
            }
    return {}


StageArrays = Mapping[str, Mapping[str, np.ndarray]]  # stage -> its arrays


def draw_stage_filters(kept: StageArrays, seed: int) -> dict[str, bytes]:
    """Figure 7, left"""
    from patchwords.report.mosaic import component_to_rgb
    from patchwords.report.sheet import GridTile, draw_image_grid

    rows = [
        [
            GridTile(component_to_rgb(one), stage if i == 0 else "")
            for i, one in enumerate(arrays["filters"][:COMPONENTS_SHOWN])
        ]
        for stage, arrays in kept.items()
    ]
    caption = (
        f"Figure 7, left, at each stage of seed {seed}: the first {len(rows[0])} principal "
        "components of the filters of the patch embedding. Mid-grey is 0, each on its own scale."
    )
    return draw_image_grid(rows, caption, "inside-filters", side=0.6)


def draw_stage_positions(kept: StageArrays, seed: int) -> dict[str, bytes]:
    """Figure 7, centre"""
    from patchwords.report.mosaic import apply_colour_map, make_position_mosaic
    from patchwords.report.sheet import GridTile, draw_image_grid

    low = min(0.0, *(float(arrays["positions"].min()) for arrays in kept.values()))
    row = [
        GridTile(
            np.nan_to_num(
                apply_colour_map(make_position_mosaic(arrays["positions"])[0], low), nan=1.0
            ),
            stage,
        )
        for stage, arrays in kept.items()
    ]
    caption = (
        f"Figure 7, centre, at each stage of seed {seed}: each tile is the cosine similarity of "
        "the position embedding of one patch with that of every other. All have one scale, from "
        f"{low:.2f} (dark) to 1 (bright)."
    )
    return draw_image_grid([row], caption, "inside-positions", side=2.0)


def draw_stage_rollout(kept: StageArrays, seed: int) -> dict[str, bytes]:
    """Figures 6 and 14"""
    from patchwords.report.sheet import GridTile, draw_image_grid, overlay_map

    photos = kept[LAST]["photos"].astype(np.float32) / 255  # [n, H, W, 3]
    rows = []
    for i, photo in enumerate(photos):
        row = [GridTile(photo, "photo")]
        for stage, arrays in kept.items():
            row.append(GridTile(overlay_map(photo, arrays["maps"][i]), stage))
        rows.append(row)
    caption = (
        f"Figures 6 and 14 at each stage of seed {seed}: test images through Attention Rollout, "
        "from the class token to the pixels. Bright is much; each map has its own scale."
    )
    return draw_image_grid(rows, caption, "inside-rollout", side=1.1)
