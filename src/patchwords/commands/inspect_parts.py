"""What `patchwords inspect` finds, part by part: numbers, arrays and a figure of each.

Sizes: n images, L layers, K heads, h w grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchwords.commands.inspect_photos import BATCH
from patchwords.inspect.attention import Query, attention_maps
from patchwords.inspect.distance import attention_distance
from patchwords.inspect.filters import principal_filters
from patchwords.inspect.maps import maps_of
from patchwords.inspect.positions import position_similarity
from patchwords.inspect.structure import structure
from patchwords.inspect.tokens import token_similarity
from patchwords.inspect.verdict import RANDOM, curves_of_maps, judged
from patchwords.model.family import Model
from patchwords.model.vit import ViT
from patchwords.report.gazes import Gaze, draw_heads, draw_maps
from patchwords.report.insight import (
    draw_distance,
    draw_filters,
    draw_positions,
    draw_tokens,
    draw_truth,
)
from patchwords.weights.pretrained import name_best

TOP = 5


@dataclass(frozen=True)
class Part:
    """For results.json, arrays.npz and the folder."""

    results: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    figures: dict[str, bytes] = field(default_factory=dict)


def united(parts: Sequence[Part]) -> Part:
    """One part with all of them; what was left out, of all."""
    left_out = {
        name: why for part in parts for name, why in part.results.get("left_out", {}).items()
    }
    whole = Part()
    for part in parts:
        whole.results.update(part.results)
        whole.arrays.update(part.arrays)
        whole.figures.update(part.figures)
    whole.results["left_out"] = left_out
    return whole


def of_filters(model: Model) -> Part:
    found = principal_filters(model)
    results = {"of": found.of, "filters": found.count, "explained": found.explained.tolist()}
    arrays = {"filters": found.components, "filters_explained": found.explained}
    return Part({"filters": results}, arrays, draw_filters(found))


def of_positions(model: Model) -> Part:
    """Raises ConfigError for a model without position embeddings."""
    found = position_similarity(model)
    shares = [structure(table) for table in found.values]
    tables = [
        {"layer": layer, **asdict(share)} for layer, share in zip(found.layers, shares, strict=True)
    ]
    results = {"kind": model.config.position, "offsets": found.offsets, "explained": tables}  # type: ignore[union-attr]
    arrays = {"position_similarity": found.values}
    return Part({"positions": results}, arrays, draw_positions(found, shares))


def of_distance(model: ViT, batches: Iterable[Tensor], image_size: tuple[int, int]) -> Part:
    found = attention_distance(model, batches)
    results = {
        "images": len(found.pixels),
        "image_size": list(image_size),
        "layers": list(found.layers),
        "pixels": found.mean.tolist(),
        "standard_error": numbers(found.error),
        "uniform": found.uniform,
    }
    arrays = {"attention_distance": found.pixels}
    return Part({"distance": results}, arrays, draw_distance(found, image_size))


def of_photos(
    model: ViT,
    names: Sequence[str],
    pixels: Tensor,
    images: Tensor,
    labels: Sequence[str],
    asked: int | None,
) -> Part:
    """Answers and maps of a few photos, uint8 and as the model takes them, [n, C, H, W]."""
    scores = answers(model, images) if labels else None
    classes = None
    if scores is not None:
        chosen = scores.argmax(axis=1) if asked is None else np.full(len(scores), asked)
        classes = torch.from_numpy(chosen).to(images.device)
    found = {name: grids.float().cpu().numpy() for name, grids in
             maps_of(model, images, classes).items()}  # fmt: skip
    colour = pixels.permute(0, 2, 3, 1).numpy()  # [n, H, W, C]
    rows, gazes = [], []
    for i, name in enumerate(names):
        row: dict[str, Any] = {"path": name}
        answer = None
        if scores is not None and classes is not None:
            explained = int(classes[i])
            row["predictions"] = name_best(scores[i], labels, TOP)
            row["explained"] = labels[explained]
            answer = f"{labels[explained]} {scores[i, explained]:.0%}"
        rows.append(row)
        gazes.append(
            Gaze(Path(name).name, picture(colour[i]), answer, {k: v[i] for k, v in found.items()})
        )
    arrays = {"photos": colour} | {key(name): values for name, values in found.items()}
    return Part({"photos": rows}, arrays, draw_maps(gazes, model.config.prefix))


@torch.no_grad()
def answers(model: ViT, images: Tensor) -> np.ndarray:
    """[n, C, H, W] -> probabilities [n, classes]"""
    logits = [model(some) for some in images.split(BATCH)]
    return torch.cat(logits).float().softmax(-1).cpu().numpy()


def of_heads(
    model: ViT,
    name: str,
    pixels: Tensor,
    image: Tensor,
    layers: Sequence[int],
    heads: Sequence[int],
    query: Query,
) -> Part:
    """Single heads in one photo, [1, C, H, W]"""
    attention = attention_maps(model, image, layers, query)[0][:, list(heads)].float().cpu().numpy()
    gaze = Gaze(Path(name).name, picture(pixels[0].permute(1, 2, 0).numpy()), None, {})
    figures = draw_heads(gaze, attention, layers, heads, model.config.prefix, query)
    results = {"path": name, "layers": list(layers), "heads": list(heads), "query": query}
    return Part({"heads": results}, {"heads": attention}, figures)


def of_tokens(model: ViT, batches: Iterable[Tensor]) -> Part:
    found = torch.cat([token_similarity(model, images).float().cpu() for images in batches]).numpy()
    results = {
        "images": len(found),
        "to": "class token" if model.config.prefix else "mean of the patches",
        "mean": found.mean(axis=(0, 2, 3)).tolist(),
    }
    figures = draw_tokens(found, model.config.prefix)
    return Part({"tokens": results}, {"token_similarity": found}, figures)


def of_truth(model: ViT, batches: Iterable[Tensor], baseline: str) -> Part:
    """Curves of every kind of map, and of random ones."""
    curves = curves_of_maps(model, batches, baseline)
    images = len(curves[RANDOM].deletion)
    results = {"images": images, "baseline": baseline, "maps": judged(curves)}
    arrays: dict[str, np.ndarray] = {}
    for name, truth in curves.items():
        arrays |= {
            f"deletion_{key(name)}": truth.deletion,
            f"insertion_{key(name)}": truth.insertion,
        }
    return Part({"truth": results}, arrays, draw_truth(curves, baseline))


def picture(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, C] -> [H, W, 3] of 0..1; grey where there are not three channels"""
    scaled = pixels.astype(np.float32) / 255
    return scaled if scaled.shape[2] == 3 else scaled.mean(2, keepdims=True).repeat(3, axis=2)


def numbers(array: np.ndarray) -> list[Any]:
    """For JSON, which has no NaN: None there"""
    return [
        numbers(row) if row.ndim else (float(row) if np.isfinite(row) else None) for row in array
    ]


def key(name: str) -> str:
    """A map's name in arrays.npz"""
    return name.replace(" ", "_")
