"""What a ViT has learned, as numbers: Figures 6, 7, 10, 11 and 14 of a model at one time.

Attention distances are told as shares of that of a head which looks at all patches alike.

Sizes: D filters, C channels, P side of a patch, L layers, K heads, n images.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchwords.studies.bench import StudyContext
from patchwords.studies.paper.trained import load_encoder_data, load_encoder_model
from patchwords.studies.study import Trial, TrialMetrics

DISTANCE_IMAGES, ROLLOUT_IMAGES, ACCURACY_IMAGES = (
    128,
    64,
    2000,
)  # images: of distances as in Appendix D.7, of maps, of accuracy
PHOTOS_SHOWN = 4
BATCH = 32
ARRAYS_FILE = "inside.npz"  # in the folder of a cell: what its pictures are drawn from


def measure_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """Of the cell's encoder or, where it says so, of the weights that this one began with.

    The arrays that pictures are drawn from are written into the cell's folder.
    """
    from patchwords.data.examples import subsample_evenly
    from patchwords.evaluate import held_out
    from patchwords.evaluate.insight import read_model_inputs
    from patchwords.inspect.distance import attention_distance
    from patchwords.inspect.filters import get_embedding_filters
    from patchwords.inspect.positions import position_similarity
    from patchwords.inspect.structure import fit_position_structure
    from patchwords.model.initialise import init_weights

    subject = load_encoder_model(cell, bench)
    if subject is None:
        return {"accuracy": None}
    model, preprocess, device = subject.model, subject.preprocess, subject.device
    if not cell.settings["trained"]:
        init_weights(model, cell.seed)
    _, examples = held_out.final_split(load_encoder_data(cell, bench))
    pixels = read_model_inputs(subject.source, subsample_evenly(examples, DISTANCE_IMAGES))
    images = preprocess.normalise(pixels.to(device.torch_device))
    similarity = position_similarity(model).values[0]
    shares = fit_position_structure(similarity)
    measured = attention_distance(model, images.split(BATCH))
    judged = subsample_evenly(examples, ACCURACY_IMAGES)
    found = held_out.measure(model, judged, preprocess, device, subject.workers_for(judged))
    save_stage_arrays(
        bench.place(cell), model, similarity, pixels[:PHOTOS_SHOWN], images[:PHOTOS_SHOWN]
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
    """[D, C, P, P] -> the share of their variance in the lower half of frequencies, each way.

    By the discrete cosine transform of every channel, the mean filter taken away, as for principal
    components. It is a quarter where weights are drawn independently.
    """
    from scipy.fft import dctn

    own = filters - filters.mean(axis=0)
    energy = dctn(own, axes=(2, 3), norm="ortho") ** 2
    half = filters.shape[-1] // 2
    return float(energy[..., :half, :half].sum() / energy.sum())


def name_head_distances(distances: np.ndarray) -> dict[str, float]:
    """[L, K] -> {"layer 1, head 1": ...}, in each layer the nearest head first"""
    return {
        f"layer {layer}, head {place}": float(value)
        for layer, row in enumerate(np.sort(distances, axis=1), start=1)
        for place, value in enumerate(row, start=1)
    }


def parse_head_distances(numbers: Mapping[str, Any]) -> np.ndarray:
    """What `name_head_distances` was given, each row sorted: [L, K]"""
    rows: dict[str, list[float]] = {}
    for name, value in numbers.items():
        if name.startswith("layer "):
            rows.setdefault(name.partition(",")[0], []).append(value)
    return np.array(list(rows.values()))


def measure_rollout_gain(model: Any, images: torch.Tensor) -> float:
    """[n, C, H, W] -> by how much rollout's maps are truer than random ones, a mean over images.

    Truer: the answer's probability falls sooner where the most important patches are taken away
    first, and rises sooner where they are put in first (`inspect.truth`).
    """
    from patchwords.inspect.verdict import RANDOM_MAP, compute_curves_by_map

    curves = compute_curves_by_map(model, images.split(BATCH), kinds=("rollout",))
    return float((curves["rollout"].score - curves[RANDOM_MAP].score).mean())


def save_stage_arrays(
    place: Path, model: Any, similarity: np.ndarray, pixels: torch.Tensor, images: torch.Tensor
) -> None:
    """Principal filters, similarities of positions, and rollout from the class token in photos."""
    from patchwords.files import write_atomically
    from patchwords.inspect.attention import extract_query_map
    from patchwords.inspect.filters import principal_filters
    from patchwords.inspect.rollout import attention_rollout

    rolled = attention_rollout(model, images)
    arrays = {
        "filters": principal_filters(model).components,
        "positions": similarity,
        "photos": pixels.permute(0, 2, 3, 1).numpy(),
        "maps": extract_query_map(rolled, model.grid(images), model.config.prefix).cpu().numpy(),
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    write_atomically(place / ARRAYS_FILE, file.getvalue())
