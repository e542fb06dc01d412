"""What the model of a run has learned, as numbers small enough to lie in the run's folder.

Filters and similarities of positions now and at the beginning; how far heads look, where the model
looks in a few held-out images, and whether these maps explain its answers. Time is bounded: what
a first look says would take too long is done on fewer images, or left out and named.

Sizes: n images, C channels, H W image, t tables, r c tiles down and across, h w grid.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchwords.data.dataset import ImageDataset, evenly_spaced_indices, subsample_evenly
from patchwords.data.loader import load_eval_batches
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
from patchwords.models.config import MIXERS_WITH_HEADS
from patchwords.models.init import make_initial_values
from patchwords.models.vit import ViT
from patchwords.training.config import ModelSettings
from patchwords.training.logs.run_folder import write_json
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained

# The weights that a run began with: drawn again by its seed, or read again where they came from.
#
# Only what is compared with the end is drawn: filters, and position embeddings. Each parameter has a
# generator of its own, so they are what they were, and the largest model takes no time.


COMPARED_PARAMETERS = re.compile(
    r"embed\.\w+|trunk\.(root\.\w+|layers\.0)\.\w+|positions\.\w+|.*\.relative\.\w+"
)


@dataclass(frozen=True)
class InitialWeights:
    """Where a run began."""

    words: str  # for a person: "the initial weights of seed 0"
    model: Model | None  # good for filters and positions only; None where it cannot be had again


def load_initial_weights(config: ModelConfig, settings: Mapping[str, Any]) -> InitialWeights:
    """Of a run that ended with a model of this config; `settings` as in its config.yaml."""
    weights = settings.get("weights")
    if not weights:
        seed = int(settings.get("seed", 0))
        return InitialWeights(
            f"the initial weights of seed {seed}", redraw_initial_weights(config, seed)
        )
    asked = {field.name: settings.get(field.name) for field in fields(ModelSettings)}
    changes = {name: value for name, value in asked.items() if value is not None}
    changes["image_size"] = config.image_size
    try:
        source = from_pretrained(weights, architecture=settings.get("model"), **changes)
    except (PatchwordsError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        return InitialWeights(f"{weights}, which cannot be read any more ({reason})", None)
    return InitialWeights(str(weights), source.model)


def redraw_initial_weights(config: ModelConfig, seed: int) -> Model:
    """A model without weights, but for the initial ones that are compared."""
    with torch.device("meta"):
        model = build_model(config)
    values = {
        name: make_initial_values(name, parameter.shape, config, seed)
        for name, parameter in model.named_parameters()
        if COMPARED_PARAMETERS.fullmatch(name)
    }
    model.load_state_dict(values, strict=False, assign=True)
    return model


INSIGHT_JSON, INSIGHT_NPZ = "insight.json", "insight.npz"
BATCH_SIZE = 16
DISTANCE_IMAGES, FAITHFULNESS_IMAGES = 64, 16
MIN_IMAGES = 4  # of a mean
FAITHFULNESS_MAPS = ("rollout", "gradient rollout")
TIME_BUDGET_SECONDS = {"distance": 8.0, "maps": 6.0, "truth": 16.0}  # each may take
FORWARD_PASSES_PER_IMAGE = {
    "distance": 3,
    "maps": 4,
    "truth": 75,
}  # forward passes, about, that an image takes
NUM_POSITION_TILES = 7  # of positions, each way
MAX_GRID_PATCHES = 2048  # of a grid whose similarities are compared, pair by pair
MAX_PHOTO_SIDE = 192  # pixels of the longer side of a photo that is kept


@dataclass
class ModelInsight:
    """What was found, and why a part was not: for insight.json and insight.npz."""

    results: dict[str, Any] = field(default_factory=lambda: {"left_out": {}})
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def leave_out(self, part: str, why: object) -> None:
        self.results["left_out"][part] = " ".join(str(why).split())

    def write(self, folder: Path) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **self.arrays)
        write_atomically(folder / INSIGHT_NPZ, file.getvalue())
        write_json(folder / INSIGHT_JSON, self.results)


def analyse_model(
    source: Pretrained, begun: InitialWeights, examples: ImageDataset | None, shown: Sequence[str]
) -> ModelInsight:
    """Everything, of a model on its device; `shown` are keys of examples that get maps.

    Without examples only what needs no image.
    """
    found = ModelInsight()
    found.results["images"] = examples is not None  # else another look could say more
    found.results["beginning"] = {"words": begun.words, "there": begun.model is not None}
    with eval_mode(source.model):
        analyse_filters(found, source.model, begun.model)
        analyse_positions(found, source.model, begun.model)
        analyse_attention(found, source, examples, shown)
    return found


def analyse_filters(found: ModelInsight, model: Model, before: Model | None) -> None:
    """Principal components now and before, and how far the filters have moved."""
    try:
        now = principal_filters(model)
    except ConfigError as reason:
        return found.leave_out("filters", reason)
    results: dict[str, Any] = {"of": now.of, "filters": now.count}
    results["explained"] = now.explained.tolist()
    found.arrays["filters"] = now.components.astype(np.float16)
    if before is not None:
        then = principal_filters(before)
        weights, old = (
            get_embedding_filters(one)[0].detach().double().cpu() for one in (model, before)
        )
        results["explained_before"] = then.explained.tolist()
        results["moved"] = float((weights - old).norm() / old.norm())
        found.arrays["filters_before"] = then.components.astype(np.float16)
    found.results["filters"] = results
    return None


@torch.no_grad()
def analyse_positions(found: ModelInsight, model: Model, before: Model | None) -> None:
    """The first and the last table of similarities, some tiles of each, now and before."""
    if not isinstance(model, ViT):
        return None
    if model.config.position == "none":
        return found.leave_out("positions", "the model has no position embeddings")
    if model.config.patches > MAX_GRID_PATCHES:
        why = f"a grid of {model.config.patches:,} patches is too large to compare in pairs"
        return found.leave_out("positions", why)
    now = position_similarity(model)
    tables = sorted({0, len(now.values) - 1})
    rows, columns = (
        evenly_spaced_indices(side, NUM_POSITION_TILES) for side in now.values.shape[1:3]
    )
    learned = model.config.position != "sincos2d"
    results: dict[str, Any] = {
        "offsets": now.offsets,
        "learned": learned,
        "layers": [now.layers[table] for table in tables],
        "grid": list(now.values.shape[1:3]),
        "rows": rows,
        "columns": columns,
    }
    sides = {"": model} if before is None or not learned else {"": model, "_before": before}
    for side, one in sides.items():
        values = position_similarity(one).values
        results[f"explained{side}"] = [
            asdict(fit_position_structure(values[table])) for table in tables
        ]
        tiles = values[np.ix_(tables, rows, columns)]  # [t, r, c, h, w]
        found.arrays[f"positions{side}"] = tiles.astype(np.float16)
    found.results["positions"] = results
    return None


def analyse_attention(
    found: ModelInsight, source: Pretrained, examples: ImageDataset | None, shown: Sequence[str]
) -> None:
    """What needs attention, and images."""
    model = source.model
    if not isinstance(model, ViT):
        return found.leave_out("attention", "a ResNet has no patches that attend to one another")
    if model.config.mixer not in MIXERS_WITH_HEADS:
        return found.leave_out("attention", f"the mixer {model.config.mixer} has no attention")
    if examples is None:
        return found.leave_out("attention", "the held-out images were not at hand")
    device = model.patch_embed.weight.device
    pixels = read_model_inputs(source, subsample_evenly(examples, DISTANCE_IMAGES))
    if not len(pixels):
        return found.leave_out("attention", "none of the held-out images can be read")
    images = source.preprocess.normalise(pixels.to(device))
    found.results["image_size"] = list(images.shape[-2:])
    count = make_image_budget(model, images)
    analyse_attention_distance(found, model, images, count("distance", DISTANCE_IMAGES))
    if source.labels:
        if shown:
            analyse_attention_rollout(
                found, source, model, examples, shown[: count("maps", len(shown))]
            )
        analyse_faithfulness(found, model, images, count("truth", FAITHFULNESS_IMAGES))
    return None


def make_image_budget(model: ViT, images: Tensor) -> Callable[[str, int], int]:
    """-> what says on how many images a part can be done in its time: `most`, fewer, or 0"""

    @torch.no_grad()
    def seconds(some: Tensor) -> float:
        begun = time.perf_counter()
        model(some).sum().item()  # waits for the device
        return (time.perf_counter() - begun) / len(some)

    seconds(images[:1])  # the first pass has more to do
    each = seconds(images[:2])

    def count(part: str, most: int) -> int:
        affordable = min(
            most, int(TIME_BUDGET_SECONDS[part] / (FORWARD_PASSES_PER_IMAGE[part] * each))
        )
        return affordable if affordable >= min(most, MIN_IMAGES) else 0

    return count


def analyse_attention_distance(found: ModelInsight, model: ViT, images: Tensor, count: int) -> None:
    """Mean attention distance of every head"""
    if not count:
        return leave_out_slow_part(found, "distance")
    chosen = images[evenly_spaced_indices(len(images), count)]
    measured = attention_distance(model, chosen.split(BATCH_SIZE))
    found.results["distance"] = {
        "images": len(measured.pixels),
        "pixels": measured.mean.tolist(),
        "standard_error": np.nan_to_num(measured.error).tolist(),
        "uniform": measured.uniform,
    }
    return None


def analyse_attention_rollout(
    found: ModelInsight,
    source: Pretrained,
    model: ViT,
    examples: ImageDataset,
    shown: Sequence[str],
) -> None:
    """Attention Rollout over single images, and the images as the model sees them"""
    if not shown:
        return leave_out_slow_part(found, "maps")
    place = {key: i for i, key in enumerate(examples.keys)}
    names, photos, maps = [], [], []
    for name in shown:
        pixels = read_model_inputs(source, examples.select([place[name]]))  # [1, C, H, W], or none
        if len(pixels):
            images = source.preprocess.normalise(pixels.to(model.patch_embed.weight.device))
            rolled = attention_rollout(model, images)
            maps.append(
                extract_query_map(rolled, model.grid(images), model.config.num_prefix_tokens)[0]
                .cpu()
                .numpy()
            )
            photos.append(shrink_photo(pixels[0]))
            names.append(name)
    if not names:
        return found.leave_out("maps", "none of the images that were to be shown can be read")
    found.results["maps"] = {"paths": names, "class_token": model.config.num_prefix_tokens > 0}
    found.arrays["maps"] = np.stack(maps).astype(np.float32)
    found.arrays["photos"] = np.stack(photos)
    return None


def analyse_faithfulness(found: ModelInsight, model: ViT, images: Tensor, count: int) -> None:
    """Deletion and insertion curves, and whether they differ from those of random maps"""
    if not count:
        return leave_out_slow_part(found, "truth")
    chosen = images[evenly_spaced_indices(len(images), count)]
    curves = compute_curves_by_map(model, chosen.split(BATCH_SIZE), kinds=FAITHFULNESS_MAPS)
    found.results["truth"] = {"images": len(chosen), "maps": summarise_faithfulness(curves)}
    for name, truth in curves.items():
        found.arrays[f"deletion_{name}"] = truth.deletion.astype(np.float32)
        found.arrays[f"insertion_{name}"] = truth.insertion.astype(np.float32)
    return None


def leave_out_slow_part(found: ModelInsight, part: str) -> None:
    found.leave_out(part, "it would have taken too long on this machine")


def read_model_inputs(source: Pretrained, examples: ImageDataset) -> Tensor:
    """uint8 [n, C, H, W] of those that can be read"""
    batches = load_eval_batches(examples, source.preprocess, BATCH_SIZE)
    some = [batch.images for batch in batches if len(batch.indices)]
    return torch.cat(some) if some else torch.empty(0)


def shrink_photo(pixels: Tensor) -> np.ndarray:
    """uint8 [C, H, W] -> [H', W', 3]: no larger than a page has use for, grey if not in colour"""
    image = pixels.permute(1, 2, 0).numpy()
    if image.shape[2] != 3:
        image = image.mean(axis=2, keepdims=True).astype(np.uint8).repeat(3, axis=2)
    picture = Image.fromarray(image)
    picture.thumbnail((MAX_PHOTO_SIDE, MAX_PHOTO_SIDE))
    return np.asarray(picture)
