"""Inspection of a model at full size: numbers, arrays and figures for `patchwords inspect`.

Sizes: n images, B batch, C channels, H W image, L layers, K heads, h w grid.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset, concatenate_datasets
from patchwords.data.open import DATA_SOURCES, open_data, open_images
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.model_insight import IMAGE_BATCH, read_image_batches
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.results import format_html_table
from patchwords.files import claim_output_folder, write_atomically
from patchwords.interpret.attention import (
    QueryPatch,
    attention_maps,
    require_attention,
    token_similarity,
)
from patchwords.interpret.distance import attention_distance
from patchwords.interpret.faithfulness import (
    compute_curves_by_map,
    compute_saliency_maps,
    summarise_faithfulness,
)
from patchwords.interpret.filters import principal_filters
from patchwords.interpret.patch_features import (
    analyse_patch_components,
    compute_patch_features,
    compute_patch_similarity,
    find_nearest_patches,
    median_random_patch_similarity,
)
from patchwords.interpret.positions import position_similarity
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
from patchwords.report.figures.patches import draw_patch_components, draw_patch_similarity
from patchwords.report.format import format_against_random, pluralise
from patchwords.weights.pretrained import label_top_k

TOP_CLASSES = 5


def open_photos(sources: Sequence[str], image_column: str | None = None) -> ImageDataset:
    """Open files, folders and patterns, or all splits of one data source of another kind."""
    kinds = [source for name, source in DATA_SOURCES.items() if name != "folder"]
    if len(sources) == 1 and any(kind.matches(sources[0]) for kind in kinds):
        data = open_data(sources[0], image_column=image_column, need_labels=False)
        return concatenate_datasets(list(data.splits.values()))
    return open_images(sources)


@dataclass
class PhotoReader:
    """Reads photos as one model takes them, and records which cannot be read."""

    loaded: LoadedModel
    preprocess: Preprocess
    unreadable: dict[str, str] = field(default_factory=dict)  # path -> reason

    def batches(self, photos: ImageDataset) -> Iterator[tuple[list[str], Tensor]]:
        """Yield names and uint8 [B, C, H, W]; raise DataError if no photo can be read."""
        workers = self.loaded.workers_for(photos)
        empty = True
        for batch in read_image_batches(photos, self.preprocess, workers, self.unreadable):
            empty = False
            yield batch
        if empty:
            path, reason = next(iter(self.unreadable.items()))
            raise DataError(f"none of the images can be read; the first is {path}: {reason}")

    def read_all(self, photos: ImageDataset) -> tuple[list[str], Tensor]:
        """Read a few photos: names and uint8 [n, C, H, W]."""
        batches = list(self.batches(photos))
        names = [name for batch_names, _ in batches for name in batch_names]
        return names, torch.cat([pixels for _, pixels in batches])

    def normalise(self, pixels: Tensor) -> Tensor:
        """Convert uint8 [B, C, H, W] to the model's input, on its device."""
        return self.preprocess.normalise(pixels.to(self.loaded.device.torch_device))

    def require_attention(self) -> ViT:
        """Return the model as a ViT; raise ConfigError with its name if it has no attention."""
        try:
            return require_attention(self.loaded.model)
        except ConfigError as error:
            raise ConfigError(f"{self.loaded.name}: {error}") from error


@dataclass(repr=False)
class Inspection:
    """Results for results.json, arrays for arrays.npz, and figures by file name."""

    results: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    figures: dict[str, bytes] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)  # path of an image -> reason
    page: Path | None = None  # of the explorer
    page_content: str = ""

    @classmethod
    def start(cls, model: str, unreadable: dict[str, str] | None = None) -> Inspection:
        """Start an inspection of the model of this name."""
        return cls(
            {"model": model, "left_out": {}}, unreadable={} if unreadable is None else unreadable
        )

    def add(
        self,
        part: str,
        results: Any,
        arrays: dict[str, np.ndarray],
        figures: dict[str, bytes],
    ) -> None:
        """Add one part of the inspection."""
        self.results[part] = results
        self.arrays |= arrays
        self.figures |= figures

    def leave_out(self, part: str, reason: object) -> None:
        """Record why a part is missing."""
        self.results["left_out"][part] = str(reason)

    def add_page(self, page: Path, content: str) -> None:
        """Add the explorer page that was written, and what it holds."""
        self.results["page"] = str(page)
        self.page, self.page_content = page, content

    def __getitem__(self, part: str) -> Any:
        return self.results[part]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return dict(self.results)

    def describe(self) -> list[str]:
        """Describe the main numbers, and whether the maps explain the predictions, in lines."""
        return format_inspection_lines(self.results)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write results.json, arrays.npz and the figures to a new folder; -> the folder."""
        path = Path(folder)
        claim_output_folder(path, overwrite)
        text = json.dumps(self.results, indent=2, ensure_ascii=False)
        write_atomically(path / "results.json", text + "\n")
        arrays = io.BytesIO()
        np.savez_compressed(arrays, allow_pickle=False, **self.arrays)
        write_atomically(path / "arrays.npz", arrays.getvalue())
        for name, content in self.figures.items():
            write_atomically(path / name, content)
        return path

    def __repr__(self) -> str:
        return "\n".join([f"inspection of {self.results['model']}", *self.describe()])

    def _repr_html_(self) -> str:
        rows = [line.partition(":")[::2] for line in self.describe()]
        pictures = [
            f'<figure><figcaption>{name[:-4]}</figcaption><img alt="{name[:-4]}" '
            f'src="data:image/png;base64,{base64.b64encode(content).decode()}"></figure>'
            for name, content in self.figures.items()
            if name.endswith(".png")
        ]
        table = format_html_table(f"inspection of {self.results['model']}", ("", ""), rows)
        return table + "".join(pictures)


def inspect_filters(inspection: Inspection, model: Model) -> None:
    """Add the principal components of the first layer's filters."""
    filters = principal_filters(model)
    arrays = {"filters": filters.components, "filters_explained": filters.explained}
    inspection.add("filters", filters.to_dict(), arrays, draw_filter_components(filters))


def inspect_positions(inspection: Inspection, model: Model) -> None:
    """Add the similarity of position embeddings, or why there is none."""
    try:
        similarity = position_similarity(model)
    except ConfigError as error:  # a ResNet, or a ViT without positions
        return inspection.leave_out("positions", error)
    structures = similarity.structures()
    results = {
        "kind": model.config.position,  # type: ignore[union-attr]
        "offsets": similarity.offsets,
        "explained": [
            {"layer": layer, **asdict(structure)}
            for layer, structure in zip(similarity.layers, structures, strict=True)
        ],
    }
    arrays = {"position_similarity": similarity.values}
    figures = draw_position_similarity(similarity, structures)
    return inspection.add("positions", results, arrays, figures)


def inspect_distance(
    inspection: Inspection, model: ViT, batches: Iterable[Tensor], image_size: tuple[int, int]
) -> None:
    """Add the mean attention distance of every head."""
    distances = attention_distance(model, batches)
    results = {"image_size": list(image_size), **distances.to_dict()}
    arrays = {"attention_distance": distances.pixels}
    inspection.add("distance", results, arrays, draw_attention_distance(distances, image_size))


def inspect_photos(
    inspection: Inspection,
    photos: PhotoReader,
    names: Sequence[str],
    pixels: Tensor,
    target_class: int | None,
) -> None:
    """Add answers and saliency maps of a few photos, uint8 [n, C, H, W].

    Maps explain `target_class`; default: the model's answer for each photo.
    """
    model, labels = photos.require_attention(), photos.loaded.source.labels
    images = photos.normalise(pixels)
    scores = targets = None
    if labels:
        scores = compute_probabilities(model, images)
        answers = scores.argmax(axis=1)
        targets = answers if target_class is None else np.full_like(answers, target_class)
    classes = None if targets is None else torch.from_numpy(targets).to(images.device)
    maps = {
        name: values.float().cpu().numpy()
        for name, values in compute_saliency_maps(model, images, classes).items()
    }
    rows, tiles = [], []
    for i, name in enumerate(names):
        row: dict[str, Any] = {"path": name}
        title = None
        if scores is not None and targets is not None:
            label = labels[targets[i]]
            row |= {"predictions": label_top_k(scores[i], labels, TOP_CLASSES), "explained": label}
            title = f"{label} {scores[i, targets[i]]:.0%}"
        rows.append(row)
        photo_maps = {kind: values[i] for kind, values in maps.items()}
        tiles.append(PhotoAttention(Path(name).name, pixels_to_rgb(pixels[i]), title, photo_maps))
    arrays = {format_array_key(kind): values for kind, values in maps.items()}
    arrays = {"photos": pixels.permute(0, 2, 3, 1).numpy()} | arrays
    inspection.add("photos", rows, arrays, draw_attention_maps(tiles, model.config.has_class_token))


@torch.no_grad()
def compute_probabilities(model: ViT, images: Tensor) -> np.ndarray:
    """Compute class probabilities of images [n, C, H, W] -> [n, classes]."""
    logits = [model(batch) for batch in images.split(IMAGE_BATCH)]
    return torch.cat(logits).float().softmax(-1).cpu().numpy()


def inspect_heads(
    inspection: Inspection,
    photos: PhotoReader,
    name: str,
    pixels: Tensor,
    layers: Sequence[int],
    heads: Sequence[int],
    query: QueryPatch,
) -> None:
    """Add the attention of single heads in one photo, uint8 [C, H, W]."""
    model = photos.require_attention()
    maps = attention_maps(model, photos.normalise(pixels[None]), layers, query)[0]  # [L, K, h, w]
    attention = maps[:, list(heads)].float().cpu().numpy()
    photo = PhotoAttention(Path(name).name, pixels_to_rgb(pixels), None, {})
    figures = draw_head_maps(photo, attention, layers, heads, model.config.has_class_token, query)
    results = {"path": name, "layers": list(layers), "heads": list(heads), "query": query}
    inspection.add("heads", results, {"heads": attention}, figures)


def inspect_patches(
    inspection: Inspection,
    photos: PhotoReader,
    names: Sequence[str],
    pixels: Tensor,
    query: QueryPatch,
) -> None:
    """Add components of the patch tokens of photos, uint8 [n, C, H, W], and similarity to one.

    The patch is `query` of the first photo; default: the one in the middle.
    """
    features = compute_patch_features(photos.loaded.model, photos.normalise(pixels))  # [n, h, w, D]
    rows, columns = features.shape[1:3]
    patch = (rows // 2, columns // 2) if query is None else query
    components = analyse_patch_components(features)
    similarity = compute_patch_similarity(features, 0, patch)  # [n, h, w]
    marked = [patch, *find_nearest_patches(similarity)[1:]]
    by_chance = median_random_patch_similarity(features)
    shares = components.foreground.mean((1, 2)).tolist()
    results = {
        "grid": [rows, columns],
        "first_share": components.first_share,
        "colour_shares": list(components.colour_shares),
        "photos": [
            {"path": name, "foreground": share, "patch": place, "similarity": values[place].item()}
            for name, share, place, values in zip(names, shares, marked, similarity, strict=True)
        ],
        "by_chance": by_chance,
    }
    arrays = {
        "patch_component": components.first,
        "patch_colours": components.colours,
        "patch_similarity": similarity,
    }
    short = [Path(name).name for name in names]
    pictures = [pixels_to_rgb(photo) for photo in pixels]
    figures = draw_patch_components(short, pictures, components)
    figures = {
        **figures,
        **draw_patch_similarity(short, pictures, similarity, marked, by_chance),
    }
    inspection.add("patches", results, arrays, figures)


def inspect_tokens(inspection: Inspection, model: ViT, batches: Iterable[Tensor]) -> None:
    """Add the similarity of the patch tokens to the class token, by layer."""
    parts = [token_similarity(model, images).float().cpu() for images in batches]
    similarity = torch.cat(parts).numpy()  # [n, L, h, w]
    results = {
        "images": len(similarity),
        "to": "class token" if model.config.has_class_token else "mean of the patches",
        "mean": similarity.mean(axis=(0, 2, 3)).tolist(),
    }
    figures = draw_token_similarity(similarity, model.config.has_class_token)
    inspection.add("tokens", results, {"token_similarity": similarity}, figures)


def inspect_faithfulness(
    inspection: Inspection, model: ViT, batches: Iterable[Tensor], baseline: str
) -> None:
    """Add deletion and insertion curves of every kind of map, and of random maps."""
    curves = compute_curves_by_map(model, batches, baseline)
    results = {"baseline": baseline, **summarise_faithfulness(curves)}
    arrays: dict[str, np.ndarray] = {}
    for name, curve in curves.items():
        key = format_array_key(name)
        arrays |= {f"deletion_{key}": curve.deletion, f"insertion_{key}": curve.insertion}
    inspection.add("truth", results, arrays, draw_faithfulness(curves, baseline))


def pixels_to_rgb(pixels: Tensor) -> np.ndarray:
    """Convert uint8 [C, H, W] to [H, W, 3] of 0..1, grey unless it has three channels."""
    scaled = pixels.permute(1, 2, 0).numpy().astype(np.float32) / 255
    return scaled if scaled.shape[2] == 3 else scaled.mean(2, keepdims=True).repeat(3, axis=2)


def format_array_key(name: str) -> str:
    """Format a map's name as its key in arrays.npz."""
    return name.replace(" ", "_")


# The results in lines.


def format_inspection_lines(results: dict[str, Any]) -> list[str]:
    """Format the main numbers, and whether the maps explain the predictions."""
    filters = results["filters"]
    lines = [
        f"filters: the first {len(filters['explained'])} principal components hold "
        f"{sum(filters['explained']):.0%} of the variance of {filters['filters']} filters of the "
        f"{filters['of']}"
    ]
    if "positions" in results:
        lines += [
            format_positions(table, results)
            for table in first_and_last(results["positions"]["explained"])
        ]
    if "nearest" in results:
        lines.append(format_nearest(results["nearest"]))
    if "distance" in results:
        lines += format_distance(results["distance"])
    if "patches" in results:
        patches = results["patches"]
        chance = patches["by_chance"]
        lines.append(
            f"patches: the first component separates {patches['first_share']:.0%} of the variance of "
            f"{pluralise(len(patches['photos']), 'photo')}"
            + ("" if chance is None else f"; two patches by chance have a cosine of {chance:.2f}")
        )
    if "tokens" in results:
        tokens = results["tokens"]
        lines.append(
            f"tokens: cosine similarity to the {tokens['to']} {tokens['mean'][0]:.2f} after the "
            f"first layer, {tokens['mean'][-1]:.2f} after the last"
        )
    if "truth" in results:
        lines += format_faithfulness(results["truth"])
    lines += [f"left out: {part}: {reason}" for part, reason in results["left_out"].items()]
    return lines


def first_and_last(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return tables if len(tables) == 1 else [tables[0], tables[-1]]


def format_positions(table: dict[str, Any], results: dict[str, Any]) -> str:
    many = len(results["positions"]["explained"]) > 1
    return (
        f"positions{' of layer ' + str(table['layer']) if many else ''}: similarity is explained "
        f"by rows {table['rows']:.0%}, columns {table['columns']:.0%}, both in sum "
        f"{table['rows_and_columns']:.0%}, distance {table['distance']:.0%}"
    )


def format_nearest(nearest: dict[str, Any]) -> str:
    best = [photo["nearest"][0]["similarity"] for photo in nearest["photos"]]
    images, chance = pluralise(nearest["images"], "image"), nearest["by_chance"]
    return (
        f"nearest to {pluralise(len(best), 'photo')} among {images} of {nearest['data']} "
        f"({nearest['origin']}): cosines {min(best):.3f} to {max(best):.3f}"
        + ("" if chance is None else f"; two images by chance {chance:.3f}")
    )


def format_distance(distance: dict[str, Any]) -> list[str]:
    first, last = distance["pixels"][0], distance["pixels"][-1]
    return [
        f"attention distance over {pluralise(distance['images'], 'image')}: heads of the first layer "
        f"{min(first):.3g} to {max(first):.3g} pixels, of the last {min(last):.3g} to "
        f"{max(last):.3g}; uniform attention would be {distance['uniform']:.3g}"
    ]


def format_faithfulness(truth: dict[str, Any]) -> list[str]:
    lines = [
        f"do the maps explain the predictions? over {pluralise(truth['images'], 'image')}, area under "
        "insertion minus deletion, compared with random maps:"
    ]
    for name, areas in truth["maps"].items():
        if comparison := areas.get("beside_random"):
            lines.append(f"  {name}: {format_against_random(comparison)}")
    return lines
