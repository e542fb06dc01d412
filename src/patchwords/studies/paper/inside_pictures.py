"""What is inside a ViT: measurements and figures over training, and images per stage."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchwords.studies.paper.setups import load_encoder_data, load_encoder_model
from patchwords.studies.study import StudyContext, Trial, TrialMetrics

# Measurements of one model: Figures 6, 7, 10, 11 and 14 as numbers.
#
# Attention distances are relative to that of uniform attention.
#
# Sizes: D filters, C channels, P side of a patch, L layers, K heads, n images.


DISTANCE_IMAGES, ROLLOUT_IMAGES, ACCURACY_IMAGES = (
    128,
    64,
    2000,
)  # images for distances (Appendix D.7), maps, accuracy
PHOTOS_SHOWN = 4
BATCH = 32
ARRAYS_FILE = "inside.npz"  # arrays of the figures, in the folder of a trial


def measure_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Measure the trial's encoder or, if the trial says so, its initial weights.

    The arrays of the figures are written into the trial's folder.
    """
    from patchwords.data.dataset import subsample_evenly
    from patchwords.evaluation import held_out
    from patchwords.evaluation.model_insight import read_model_inputs
    from patchwords.interpret.distance import attention_distance
    from patchwords.interpret.filters import get_embedding_filters
    from patchwords.interpret.positions import fit_position_structure, position_similarity
    from patchwords.models.init import init_weights

    loaded = load_encoder_model(trial, context)
    if loaded is None:
        return {"accuracy": None}
    model, preprocess, device = loaded.model, loaded.preprocess, loaded.device
    if not trial.settings["trained"]:
        init_weights(model, trial.seed)
    _, examples = held_out.choose_final_split(load_encoder_data(trial, context))
    pixels = read_model_inputs(loaded.source, subsample_evenly(examples, DISTANCE_IMAGES))
    images = preprocess.normalise(pixels.to(device.torch_device))
    similarity = position_similarity(model).values[0]
    shares = fit_position_structure(similarity)
    measured = attention_distance(model, images.split(BATCH))
    judged = subsample_evenly(examples, ACCURACY_IMAGES)
    found = held_out.evaluate_classifier(
        model, judged, preprocess, device, loaded.workers_for(judged)
    )
    save_stage_arrays(
        context.trial_folder(trial), model, similarity, pixels[:PHOTOS_SHOWN], images[:PHOTOS_SHOWN]
    )
    return {
        "accuracy": found["accuracy"],
        "low frequencies": compute_low_frequency_share(
            get_embedding_filters(model)[0].detach().cpu().double().numpy()
        ),
        "by distance": shares.distance,
        "by rows and columns": shares.rows_and_columns,
        **name_head_distances(measured.mean / measured.uniform),
        "rollout": measure_rollout_gain(model, images[:ROLLOUT_IMAGES]),
        "test images": len(judged),
    }


def compute_low_frequency_share(filters: np.ndarray) -> float:
    """[D, C, P, P] -> variance share of the lower half of frequencies in both directions.

    By the discrete cosine transform of every channel after subtraction of the mean filter, as for
    principal components. Independent weights have a quarter.
    """
    from scipy.fft import dctn

    own = filters - filters.mean(axis=0)
    energy = dctn(own, axes=(2, 3), norm="ortho") ** 2
    half = filters.shape[-1] // 2
    return float(energy[..., :half, :half].sum() / energy.sum())


def name_head_distances(distances: np.ndarray) -> dict[str, float]:
    """[L, K] -> {"layer 1, head 1": ...}, heads of a layer sorted by distance."""
    return {
        f"layer {layer}, head {place}": float(value)
        for layer, row in enumerate(np.sort(distances, axis=1), start=1)
        for place, value in enumerate(row, start=1)
    }


def parse_head_distances(numbers: Mapping[str, Any]) -> np.ndarray:
    """Parse what `name_head_distances` returned -> [L, K], rows sorted."""
    rows: dict[str, list[float]] = {}
    for name, value in numbers.items():
        if name.startswith("layer "):
            rows.setdefault(name.partition(",")[0], []).append(value)
    return np.array(list(rows.values()))


def measure_rollout_gain(model: Any, images: torch.Tensor) -> float:
    """[n, C, H, W] -> how much more faithful rollout is than random maps, mean over images.

    Faithful: the probability of the prediction falls sooner if the most important patches are
    deleted first, and rises sooner if they are inserted first (`interpret/faithfulness.py`).
    """
    from patchwords.interpret.faithfulness import RANDOM_MAP, compute_curves_by_map

    curves = compute_curves_by_map(model, images.split(BATCH), kinds=("rollout",))
    return float((curves["rollout"].score - curves[RANDOM_MAP].score).mean())


def save_stage_arrays(
    place: Path, model: Any, similarity: np.ndarray, pixels: torch.Tensor, images: torch.Tensor
) -> None:
    """Save principal filters, position similarities and class-token rollout of photos."""
    from patchwords.files import write_atomically
    from patchwords.interpret.attention import extract_query_map
    from patchwords.interpret.filters import principal_filters
    from patchwords.interpret.rollout import attention_rollout

    rolled = attention_rollout(model, images)
    arrays = {
        "filters": principal_filters(model).components,
        "positions": similarity,
        "photos": pixels.permute(0, 2, 3, 1).numpy(),
        "maps": extract_query_map(rolled, model.grid(images), model.config.num_prefix_tokens)
        .cpu()
        .numpy(),
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    write_atomically(place / ARRAYS_FILE, file.getvalue())


# Stages of a training.


STAGES = {
    "untrained": 0.0,
    "1 %": 0.01,
    "10 %": 0.1,
    "30 %": 0.3,
    "100 %": 1.0,
}  # share of the steps
UNTRAINED, LAST = "untrained", "100 %"


COMPONENTS_SHOWN = 14  # principal components in a row; Figure 7 has 28
PANELS = {  # title -> rows of the table, by short name
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
    """Draw all rows of the table over training, and Figure 11 per stage."""
    from patchwords.report.figures.plots import Panel, draw_panels
    from patchwords.report.format import pluralise

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
    by_depth = draw_panels(depth, far, "inside-distance") if depth else {}  # empty: all diverged
    return {**draw_panels(panels, caption, "inside"), **by_depth}


def build_stage_curves(values: Mapping[str, Sequence[Any]], rows: Mapping[str, str]) -> list[Any]:
    """Build a curve per row, and a level line of the untrained value."""
    from patchwords.report.figures.plots import Curve

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
    """Build curves over layers of the nearest, mean and farthest head, per stage.

    Empty if every training diverged.
    """
    from patchwords.report.figures.plots import Curve, Panel

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
    """Draw filters, positions and rollout per stage, for the first complete seed."""
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
    """Draw the filters (Figure 7, left) per stage."""
    from patchwords.report.figures.maps import GridTile, draw_image_grid
    from patchwords.report.figures.mosaic import component_to_rgb

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
    """Draw the position similarities (Figure 7, centre) per stage."""
    from patchwords.report.figures.maps import GridTile, draw_image_grid
    from patchwords.report.figures.mosaic import apply_colour_map, make_position_mosaic

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
    """Draw rollout in photos (Figures 6 and 14) per stage."""
    from patchwords.report.figures.maps import GridTile, draw_image_grid, overlay_map

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
