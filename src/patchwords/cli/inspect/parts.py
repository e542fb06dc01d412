"""What `patchwords inspect` finds, part by part: numbers, arrays and a figure of each.

Sizes: n images, L layers, K heads, h w grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset, concatenate_datasets
from patchwords.data.loader import load_eval_batches
from patchwords.data.open import DATA_SOURCES, open_data, open_images
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.interpret.attention import (
    QueryPatch,
    attention_maps,
    require_attention,
    token_similarity,
)
from patchwords.interpret.distance import attention_distance
from patchwords.interpret.faithfulness import (
    RANDOM_MAP,
    compute_curves_by_map,
    compute_saliency_maps,
    summarise_faithfulness,
)
from patchwords.interpret.filters import principal_filters
from patchwords.interpret.positions import fit_position_structure, position_similarity
from patchwords.models.build import Model
from patchwords.models.vit import ViT
from patchwords.report.figures.insight import (
    draw_attention_distance,
    draw_faithfulness,
    draw_filter_components,
    draw_position_similarity,
    draw_token_similarity,
)
from patchwords.report.figures.maps import PhotoAttention, draw_attention_maps, draw_head_maps
from patchwords.weights.pretrained import label_top_k

# The photos that `patchwords inspect` looks at: which ones, and their pixels.


PHOTO_BATCH_SIZE = 16


def open_photos(words: Sequence[str], image_column: str | None = None) -> ImageDataset:
    """Files, folders and globs as `predict` takes them, or one DATA of another kind, all splits."""
    kinds = [source for name, source in DATA_SOURCES.items() if name != "folder"]
    if len(words) == 1 and any(source.matches(words[0]) for source in kinds):
        data = open_data(words[0], image_column=image_column, need_labels=False)
        return concatenate_datasets(list(data.splits.values()))
    return open_images(words)


@dataclass
class PhotoReader:
    """Reads them batch by batch, and remembers which could not be read."""

    subject: LoadedModel
    preprocess: Preprocess
    bad: dict[str, str] = field(default_factory=dict)  # path -> reason

    def batches(self, examples: ImageDataset) -> Iterator[tuple[list[str], Tensor]]:
        """(names, uint8 [B, C, H, W]) of those that can be read; raises DataError for none."""
        workers = self.subject.workers_for(examples)
        some = False
        for batch in load_eval_batches(examples, self.preprocess, PHOTO_BATCH_SIZE, workers):
            self.bad |= {examples.keys[index]: reason for index, reason in batch.bad}
            if len(batch.indices):
                some = True
                yield [examples.keys[i] for i in batch.indices.tolist()], batch.images
        if not some:
            first, reason = next(iter(self.bad.items()))
            raise DataError(f"none of the images can be read; the first is {first}: {reason}")

    def attending(self) -> ViT:
        """The model; raises ConfigError, which names it, where it has no attention."""
        try:
            return require_attention(self.subject.model)
        except ConfigError as error:
            raise ConfigError(f"{self.subject.name}: {error}") from error

    def normalised(self, pixels: Tensor) -> Tensor:
        """uint8 [B, C, H, W] -> what the model takes, on its device"""
        return self.preprocess.normalise(pixels.to(self.subject.device.torch_device))

    def all(self, examples: ImageDataset) -> tuple[list[str], Tensor]:
        """Names and pixels of few"""
        read = list(self.batches(examples))
        return [name for names, _ in read for name in names], torch.cat([p for _, p in read])


TOP_CLASSES = 5


@dataclass(frozen=True)
class InspectionPart:
    """For results.json, arrays.npz and the folder."""

    results: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    figures: dict[str, bytes] = field(default_factory=dict)


def merge_parts(parts: Sequence[InspectionPart]) -> InspectionPart:
    """One part with all of them; what was left out, of all."""
    left_out = {
        name: why for part in parts for name, why in part.results.get("left_out", {}).items()
    }
    whole = InspectionPart()
    for part in parts:
        whole.results.update(part.results)
        whole.arrays.update(part.arrays)
        whole.figures.update(part.figures)
    whole.results["left_out"] = left_out
    return whole


def inspect_filters(model: Model) -> InspectionPart:
    found = principal_filters(model)
    results = {"of": found.of, "filters": found.count, "explained": found.explained.tolist()}
    arrays = {"filters": found.components, "filters_explained": found.explained}
    return InspectionPart({"filters": results}, arrays, draw_filter_components(found))


def inspect_positions(model: Model) -> InspectionPart:
    """Raises ConfigError for a model without position embeddings."""
    found = position_similarity(model)
    shares = [fit_position_structure(table) for table in found.values]
    tables = [
        {"layer": layer, **asdict(share)} for layer, share in zip(found.layers, shares, strict=True)
    ]
    results = {"kind": model.config.position, "offsets": found.offsets, "explained": tables}  # type: ignore[union-attr]
    arrays = {"position_similarity": found.values}
    return InspectionPart({"positions": results}, arrays, draw_position_similarity(found, shares))


def inspect_distance(
    model: ViT, batches: Iterable[Tensor], image_size: tuple[int, int]
) -> InspectionPart:
    found = attention_distance(model, batches)
    results = {
        "images": len(found.pixels),
        "image_size": list(image_size),
        "layers": list(found.layers),
        "pixels": found.mean.tolist(),
        "standard_error": array_to_json(found.error),
        "uniform": found.uniform,
    }
    arrays = {"attention_distance": found.pixels}
    return InspectionPart({"distance": results}, arrays, draw_attention_distance(found, image_size))


def inspect_photos(
    model: ViT,
    names: Sequence[str],
    pixels: Tensor,
    images: Tensor,
    labels: Sequence[str],
    asked: int | None,
) -> InspectionPart:
    """Answers and maps of a few photos, uint8 and as the model takes them, [n, C, H, W]."""
    scores = compute_probabilities(model, images) if labels else None
    classes = None
    if scores is not None:
        chosen = scores.argmax(axis=1) if asked is None else np.full(len(scores), asked)
        classes = torch.from_numpy(chosen).to(images.device)
    found = {name: grids.float().cpu().numpy() for name, grids in
             compute_saliency_maps(model, images, classes).items()}  # fmt: skip
    colour = pixels.permute(0, 2, 3, 1).numpy()  # [n, H, W, C]
    rows, gazes = [], []
    for i, name in enumerate(names):
        row: dict[str, Any] = {"path": name}
        answer = None
        if scores is not None and classes is not None:
            explained = int(classes[i])
            row["predictions"] = label_top_k(scores[i], labels, TOP_CLASSES)
            row["explained"] = labels[explained]
            answer = f"{labels[explained]} {scores[i, explained]:.0%}"
        rows.append(row)
        gazes.append(
            PhotoAttention(
                Path(name).name,
                pixels_to_rgb(colour[i]),
                answer,
                {k: v[i] for k, v in found.items()},
            )
        )
    arrays = {"photos": colour} | {format_array_key(name): values for name, values in found.items()}
    return InspectionPart(
        {"photos": rows}, arrays, draw_attention_maps(gazes, model.config.num_prefix_tokens)
    )


@torch.no_grad()
def compute_probabilities(model: ViT, images: Tensor) -> np.ndarray:
    """[n, C, H, W] -> probabilities [n, classes]"""
    logits = [model(some) for some in images.split(PHOTO_BATCH_SIZE)]
    return torch.cat(logits).float().softmax(-1).cpu().numpy()


def inspect_heads(
    model: ViT,
    name: str,
    pixels: Tensor,
    image: Tensor,
    layers: Sequence[int],
    heads: Sequence[int],
    query: QueryPatch,
) -> InspectionPart:
    """Single heads in one photo, [1, C, H, W]"""
    attention = attention_maps(model, image, layers, query)[0][:, list(heads)].float().cpu().numpy()
    gaze = PhotoAttention(
        Path(name).name, pixels_to_rgb(pixels[0].permute(1, 2, 0).numpy()), None, {}
    )
    figures = draw_head_maps(gaze, attention, layers, heads, model.config.num_prefix_tokens, query)
    results = {"path": name, "layers": list(layers), "heads": list(heads), "query": query}
    return InspectionPart({"heads": results}, {"heads": attention}, figures)


def inspect_tokens(model: ViT, batches: Iterable[Tensor]) -> InspectionPart:
    found = torch.cat([token_similarity(model, images).float().cpu() for images in batches]).numpy()
    results = {
        "images": len(found),
        "to": "class token" if model.config.num_prefix_tokens else "mean of the patches",
        "mean": found.mean(axis=(0, 2, 3)).tolist(),
    }
    figures = draw_token_similarity(found, model.config.num_prefix_tokens)
    return InspectionPart({"tokens": results}, {"token_similarity": found}, figures)


def inspect_faithfulness(model: ViT, batches: Iterable[Tensor], baseline: str) -> InspectionPart:
    """Curves of every kind of map, and of random ones."""
    curves = compute_curves_by_map(model, batches, baseline)
    images = len(curves[RANDOM_MAP].deletion)
    results = {"images": images, "baseline": baseline, "maps": summarise_faithfulness(curves)}
    arrays: dict[str, np.ndarray] = {}
    for name, truth in curves.items():
        arrays |= {
            f"deletion_{format_array_key(name)}": truth.deletion,
            f"insertion_{format_array_key(name)}": truth.insertion,
        }
    return InspectionPart({"truth": results}, arrays, draw_faithfulness(curves, baseline))


def pixels_to_rgb(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, C] -> [H, W, 3] of 0..1; grey where there are not three channels"""
    scaled = pixels.astype(np.float32) / 255
    return scaled if scaled.shape[2] == 3 else scaled.mean(2, keepdims=True).repeat(3, axis=2)


def array_to_json(array: np.ndarray) -> list[Any]:
    """For JSON, which has no NaN: None there"""
    return [
        array_to_json(row) if row.ndim else (float(row) if np.isfinite(row) else None)
        for row in array
    ]


def format_array_key(name: str) -> str:
    """A map's name in arrays.npz"""
    return name.replace(" ", "_")
