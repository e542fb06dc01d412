"""Insight into a trained model, for the report: small numbers and arrays in the run's folder.

Filters and position similarities now and at the start of training, attention distance, maps of a
few held-out images, and whether these maps explain the answers. Time is bounded: a part that would
take too long uses fewer images or is left out and named. `report.inspection` has the same analyses
at full size.

Sizes: n images, C channels, H W image, t tables, r c tiles down and across, h w grid.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchwords.data.dataset import ImageDataset, evenly_spaced_indices, subsample_evenly
from patchwords.data.loader import load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, PatchwordsError
from patchwords.evaluation.predictions import eval_mode
from patchwords.files import write_atomically
from patchwords.interpret.attention import extract_query_map
from patchwords.interpret.distance import attention_distance
from patchwords.interpret.faithfulness import compute_curves_by_map, summarise_faithfulness
from patchwords.interpret.filters import get_embedding_filters, principal_filters
from patchwords.interpret.positions import fit_position_structure, position_similarity
from patchwords.interpret.rollout import attention_rollout
from patchwords.models.build import Model, ModelConfig, build_model
from patchwords.models.init import make_initial_values
from patchwords.models.pretraining.mae import set_sincos_table
from patchwords.models.vit import ViT
from patchwords.training.config import ModelSettings
from patchwords.training.logs.run_folder import write_json
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained

INSIGHT_JSON, INSIGHT_NPZ = "insight.json", "insight.npz"
IMAGE_BATCH = 16
DISTANCE_IMAGES, FAITHFULNESS_IMAGES = 64, 16
MIN_IMAGES = 4  # of a mean
FAITHFULNESS_MAPS = ("rollout", "gradient rollout")
TIME_BUDGET_SECONDS = {"distance": 8.0, "maps": 6.0, "truth": 16.0}
FORWARD_PASSES_PER_IMAGE = {"distance": 3, "maps": 4, "truth": 75}  # about
NUM_POSITION_TILES = 7  # in each direction
MAX_GRID_PATCHES = 2048  # all pairs of patches are compared
MAX_PHOTO_SIDE = 192  # pixels of the longer side of a stored photo
# Of the initial weights only those that are compared with the trained ones are drawn again. Each
# parameter has its own generator, so they are exact, and the largest model takes no time.
COMPARED_PARAMETERS = re.compile(
    r"embed\.\w+|trunk\.(root\.\w+|layers\.0)\.\w+|positions\.\w+|.*\.relative\.\w+"
)


@dataclass(frozen=True)
class InitialWeights:
    """Weights that a run started from."""

    description: str  # "the initial weights of seed 0"
    model: Model | None  # has filters and positions only; None if they cannot be restored


def load_initial_weights(config: ModelConfig, settings: Mapping[str, Any]) -> InitialWeights:
    """Restore the initial weights of a run from its model config and its config.yaml."""
    weights = settings.get("weights")
    if not weights:
        seed = int(settings.get("seed", 0))
        model = redraw_initial_weights(config, seed)
        if settings.get("objective") == "mae" and isinstance(model, ViT):
            set_sincos_table(model)
        return InitialWeights(f"the initial weights of seed {seed}", model)
    overrides = {field.name: settings.get(field.name) for field in fields(ModelSettings)}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    overrides["image_size"] = config.image_size
    try:
        source = from_pretrained(weights, architecture=settings.get("model"), **overrides)
    except (PatchwordsError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        return InitialWeights(f"{weights}, which cannot be read any more ({reason})", None)
    return InitialWeights(str(weights), source.model)


def redraw_initial_weights(config: ModelConfig, seed: int) -> Model:
    """Build a model on the meta device with only the initial weights that are compared."""
    with torch.device("meta"):
        model = build_model(config)
    values = {
        name: make_initial_values(name, parameter.shape, config, seed)
        for name, parameter in model.named_parameters()
        if COMPARED_PARAMETERS.fullmatch(name)
    }
    model.load_state_dict(values, strict=False, assign=True)
    return model


@dataclass
class ModelInsight:
    """Results for insight.json and arrays for insight.npz, and why a part is missing."""

    results: dict[str, Any] = field(default_factory=lambda: {"left_out": {}})
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def leave_out(self, part: str, reason: object) -> None:
        """Record why a part is missing."""
        self.results["left_out"][part] = " ".join(str(reason).split())

    def leave_out_slow(self, part: str) -> None:
        """Record that a part did not fit into its time."""
        self.leave_out(part, "it would have taken too long on this machine")

    def write(self, folder: Path) -> None:
        """Write both files into a run's folder."""
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **self.arrays)
        write_atomically(folder / INSIGHT_NPZ, file.getvalue())
        write_json(folder / INSIGHT_JSON, self.results)


def analyse_model(
    source: Pretrained,
    initial: InitialWeights,
    examples: ImageDataset | None,
    map_keys: Sequence[str],
) -> ModelInsight:
    """Analyse a model on its device; the examples with `map_keys` get attention maps.

    Without examples only the parts that need no images.
    """
    insight = ModelInsight()
    insight.results["images"] = examples is not None  # else a later analysis could show more
    insight.results["beginning"] = {
        "words": initial.description,
        "there": initial.model is not None,
    }
    with eval_mode(source.model):
        analyse_filters(insight, source.model, initial.model)
        analyse_positions(insight, source.model, initial.model)
        analyse_attention(insight, source, examples, map_keys)
    return insight


def analyse_filters(insight: ModelInsight, model: Model, initial: Model | None) -> None:
    """Add the principal components now and at the start, and how far the filters moved."""
    try:
        filters = principal_filters(model)
    except ConfigError as reason:
        return insight.leave_out("filters", reason)
    results = filters.to_dict()
    insight.arrays["filters"] = filters.components.astype(np.float16)
    if initial is not None:
        before = principal_filters(initial)
        weights, start = (
            get_embedding_filters(version)[0].detach().cpu().double()
            for version in (model, initial)
        )
        results["explained_before"] = before.explained.tolist()
        results["moved"] = float((weights - start).norm() / start.norm())
        insight.arrays["filters_before"] = before.components.astype(np.float16)
    insight.results["filters"] = results
    return None


@torch.no_grad()
def analyse_positions(insight: ModelInsight, model: Model, initial: Model | None) -> None:
    """Add some tiles of the first and last similarity table, now and at the start."""
    if not isinstance(model, ViT):
        return None
    if model.config.position == "none":
        return insight.leave_out("positions", "the model has no position embeddings")
    if model.config.patches > MAX_GRID_PATCHES:
        reason = f"a grid of {model.config.patches:,} patches is too large to compare in pairs"
        return insight.leave_out("positions", reason)
    similarity = position_similarity(model)
    h, w = similarity.values.shape[1:3]
    tables = sorted({0, len(similarity.values) - 1})
    rows, columns = (evenly_spaced_indices(side, NUM_POSITION_TILES) for side in (h, w))
    learned = model.config.position != "sincos2d"
    results: dict[str, Any] = {
        "offsets": similarity.offsets,
        "learned": learned,
        "layers": [similarity.layers[table] for table in tables],
        "grid": [h, w],
        "rows": rows,
        "columns": columns,
    }
    versions = {"": similarity.values}
    if initial is not None and learned:
        versions["_before"] = position_similarity(initial).values
    for suffix, values in versions.items():
        structures = [fit_position_structure(values[table]) for table in tables]
        results[f"explained{suffix}"] = [asdict(structure) for structure in structures]
        tiles = values[np.ix_(tables, rows, columns)]  # [t, r, c, h, w]
        insight.arrays[f"positions{suffix}"] = tiles.astype(np.float16)
    insight.results["positions"] = results
    return None


def analyse_attention(
    insight: ModelInsight,
    source: Pretrained,
    examples: ImageDataset | None,
    map_keys: Sequence[str],
) -> None:
    """Add the parts that need attention and images."""
    model = source.model
    if not isinstance(model, ViT):
        return insight.leave_out("attention", "a ResNet has no patches that attend to one another")
    if not model.config.mixer_traits.has_heads:
        return insight.leave_out("attention", f"the mixer {model.config.mixer} has no attention")
    if examples is None:
        return insight.leave_out("attention", "the held-out images were not available")
    device = model.patch_embed.weight.device
    pixels = read_model_inputs(source, subsample_evenly(examples, DISTANCE_IMAGES))
    if not len(pixels):
        return insight.leave_out("attention", "none of the held-out images can be read")
    images = source.preprocess.normalise(pixels.to(device))
    insight.results["image_size"] = list(images.shape[-2:])
    budget = make_image_budget(model, images)
    analyse_attention_distance(insight, model, images, budget("distance", DISTANCE_IMAGES))
    if source.labels:
        if map_keys:
            keys = map_keys[: budget("maps", len(map_keys))]
            analyse_attention_rollout(insight, source, model, examples, keys)
        analyse_faithfulness(insight, model, images, budget("truth", FAITHFULNESS_IMAGES))
    return None


def make_image_budget(model: ViT, images: Tensor) -> Callable[[str, int], int]:
    """Time the model; return a function from (part, maximum) to the images within its time."""

    @torch.no_grad()
    def time_per_image(batch: Tensor) -> float:
        start = time.perf_counter()
        model(batch).sum().item()  # waits for the device
        return (time.perf_counter() - start) / len(batch)

    time_per_image(images[:1])  # the first pass includes set-up
    seconds = time_per_image(images[:2])

    def count_affordable(part: str, maximum: int) -> int:
        per_image = FORWARD_PASSES_PER_IMAGE[part] * seconds
        affordable = min(maximum, int(TIME_BUDGET_SECONDS[part] / per_image))
        return affordable if affordable >= min(maximum, MIN_IMAGES) else 0

    return count_affordable


def analyse_attention_distance(
    insight: ModelInsight, model: ViT, images: Tensor, count: int
) -> None:
    """Add the mean attention distance of every head."""
    if not count:
        return insight.leave_out_slow("distance")
    chosen = images[evenly_spaced_indices(len(images), count)]
    distances = attention_distance(model, chosen.split(IMAGE_BATCH))
    results = distances.to_dict()
    del results["layers"]  # all of them
    results["standard_error"] = np.nan_to_num(distances.error).tolist()
    insight.results["distance"] = results
    return None


def analyse_attention_rollout(
    insight: ModelInsight,
    source: Pretrained,
    model: ViT,
    examples: ImageDataset,
    keys: Sequence[str],
) -> None:
    """Add Attention Rollout maps of single images, and the images as the model sees them."""
    if not keys:
        return insight.leave_out_slow("maps")
    index = {key: i for i, key in enumerate(examples.keys)}
    paths, photos, maps = [], [], []
    for key in keys:
        pixels = read_model_inputs(source, examples.select([index[key]]))  # [0 or 1, C, H, W]
        if len(pixels):
            images = source.preprocess.normalise(pixels.to(model.patch_embed.weight.device))
            rollout = attention_rollout(model, images)
            grid_map = extract_query_map(
                rollout,
                model.grid(images),
                model.config.num_prefix_tokens,
                class_token=model.config.has_class_token,
            )
            maps.append(grid_map[0].cpu().numpy())
            photos.append(shrink_photo(pixels[0]))
            paths.append(key)
    if not paths:
        return insight.leave_out("maps", "none of the images that were to be shown can be read")
    insight.results["maps"] = {"paths": paths, "class_token": model.config.has_class_token}
    insight.arrays["maps"] = np.stack(maps).astype(np.float32)
    insight.arrays["photos"] = np.stack(photos)
    return None


def analyse_faithfulness(insight: ModelInsight, model: ViT, images: Tensor, count: int) -> None:
    """Add deletion and insertion curves, and their difference from those of random maps."""
    if not count:
        return insight.leave_out_slow("truth")
    chosen = images[evenly_spaced_indices(len(images), count)]
    curves = compute_curves_by_map(model, chosen.split(IMAGE_BATCH), kinds=FAITHFULNESS_MAPS)
    insight.results["truth"] = summarise_faithfulness(curves)
    for name, curve in curves.items():
        insight.arrays[f"deletion_{name}"] = curve.deletion.astype(np.float32)
        insight.arrays[f"insertion_{name}"] = curve.insertion.astype(np.float32)
    return None


def read_image_batches(
    examples: ImageDataset,
    preprocess: Preprocess,
    workers: int = 0,
    unreadable: dict[str, str] | None = None,
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield keys and uint8 [B, C, H, W] of readable images; add the others to `unreadable`."""
    for batch in load_eval_batches(examples, preprocess, IMAGE_BATCH, workers):
        if unreadable is not None:
            unreadable |= {examples.keys[index]: reason for index, reason in batch.bad}
        if len(batch.indices):
            yield [examples.keys[index] for index in batch.indices.tolist()], batch.images


def read_model_inputs(source: Pretrained, examples: ImageDataset) -> Tensor:
    """Read the images that can be read: uint8 [n, C, H, W], empty if there are none."""
    batches = [pixels for _, pixels in read_image_batches(examples, source.preprocess)]
    return torch.cat(batches) if batches else torch.empty(0)


def shrink_photo(pixels: Tensor) -> np.ndarray:
    """Shrink uint8 [C, H, W] to a thumbnail [H', W', 3], grey unless it has three channels."""
    image = pixels.permute(1, 2, 0).numpy()
    if image.shape[2] != 3:
        image = image.mean(axis=2, keepdims=True).astype(np.uint8).repeat(3, axis=2)
    picture = Image.fromarray(image)
    picture.thumbnail((MAX_PHOTO_SIDE, MAX_PHOTO_SIDE))
    return np.asarray(picture)
