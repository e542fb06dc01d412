"""What the model of a run has learned, as numbers small enough to lie in the run's folder.

Filters and similarities of positions now and at the beginning; how far heads look, where the model
looks in a few held-out images, and whether these maps explain its answers. Time is bounded: what
a first look says would take too long is done on fewer images, or left out and named.

Sizes: n images, C channels, H W image, t tables, r c tiles down and across, h w grid.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchwords.data.examples import Examples, evenly, spread
from patchwords.data.loader import eval_batches
from patchwords.errors import ConfigError
from patchwords.evaluate.beginning import Beginning
from patchwords.evaluate.classify import evaluating
from patchwords.files import write_atomically
from patchwords.inspect.attention import seen_from
from patchwords.inspect.distance import attention_distance
from patchwords.inspect.filters import filters_of, principal_filters
from patchwords.inspect.positions import position_similarity
from patchwords.inspect.rollout import attention_rollout
from patchwords.inspect.structure import structure
from patchwords.inspect.verdict import curves_of_maps, judged
from patchwords.model.config import MIXERS_WITH_HEADS
from patchwords.model.family import Model
from patchwords.model.vit import ViT
from patchwords.train.run_folder import write_json
from patchwords.weights.pretrained import Pretrained

NUMBERS, ARRAYS = "insight.json", "insight.npz"
BATCH = 16
DISTANCE_IMAGES, TRUTH_IMAGES = 64, 16
LEAST_IMAGES = 4  # of a mean
KINDS = ("rollout", "gradient rollout")
SECONDS = {"distance": 8.0, "maps": 6.0, "truth": 16.0}  # each may take
PASSES = {"distance": 3, "maps": 4, "truth": 75}  # forward passes, about, that an image takes
TILES = 7  # of positions, each way
MOST_PLACES = 2048  # of a grid whose similarities are compared, pair by pair
SIDE = 192  # pixels of the longer side of a photo that is kept


@dataclass
class Insight:
    """What was found, and why a part was not: for insight.json and insight.npz."""

    results: dict[str, Any] = field(default_factory=lambda: {"left_out": {}})
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def leave_out(self, part: str, why: object) -> None:
        self.results["left_out"][part] = " ".join(str(why).split())

    def write(self, folder: Path) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **self.arrays)
        write_atomically(folder / ARRAYS, file.getvalue())
        write_json(folder / NUMBERS, self.results)


def look_inside(
    source: Pretrained, begun: Beginning, examples: Examples | None, shown: Sequence[str]
) -> Insight:
    """Everything, of a model on its device; `shown` are keys of examples that get maps.

    Without examples only what needs no image.
    """
    found = Insight()
    found.results["images"] = examples is not None  # else another look could say more
    found.results["beginning"] = {"words": begun.words, "there": begun.model is not None}
    with evaluating(source.model):
        look_at_filters(found, source.model, begun.model)
        look_at_positions(found, source.model, begun.model)
        look_at_images(found, source, examples, shown)
    return found


def look_at_filters(found: Insight, model: Model, before: Model | None) -> None:
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
        weights, old = (filters_of(one)[0].detach().double().cpu() for one in (model, before))
        results["explained_before"] = then.explained.tolist()
        results["moved"] = float((weights - old).norm() / old.norm())
        found.arrays["filters_before"] = then.components.astype(np.float16)
    found.results["filters"] = results
    return None


@torch.no_grad()
def look_at_positions(found: Insight, model: Model, before: Model | None) -> None:
    """The first and the last table of similarities, some tiles of each, now and before."""
    if not isinstance(model, ViT):
        return None
    if model.config.position == "none":
        return found.leave_out("positions", "the model has no position embeddings")
    if model.config.patches > MOST_PLACES:
        why = f"a grid of {model.config.patches:,} patches is too large to compare in pairs"
        return found.leave_out("positions", why)
    now = position_similarity(model)
    tables = sorted({0, len(now.values) - 1})
    rows, columns = (evenly(side, TILES) for side in now.values.shape[1:3])
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
        results[f"explained{side}"] = [asdict(structure(values[table])) for table in tables]
        tiles = values[np.ix_(tables, rows, columns)]  # [t, r, c, h, w]
        found.arrays[f"positions{side}"] = tiles.astype(np.float16)
    found.results["positions"] = results
    return None


def look_at_images(
    found: Insight, source: Pretrained, examples: Examples | None, shown: Sequence[str]
) -> None:
    """What needs attention, and images."""
    model = source.model
    if not isinstance(model, ViT):
        return found.leave_out("attention", "a ResNet has no patches that attend to one another")
    if model.config.mixer not in MIXERS_WITH_HEADS:
        return found.leave_out("attention", f"the mixer {model.config.mixer} has no attention")
    if examples is None:
        return found.leave_out("attention", "the held-out images were not at hand")
    device = model.embed.weight.device
    pixels = read(source, spread(examples, DISTANCE_IMAGES))
    if not len(pixels):
        return found.leave_out("attention", "none of the held-out images can be read")
    images = source.preprocess.normalise(pixels.to(device))
    found.results["image_size"] = list(images.shape[-2:])
    count = counter(model, images)
    look_far(found, model, images, count("distance", DISTANCE_IMAGES))
    if source.labels:
        if shown:
            look_where(found, source, model, examples, shown[: count("maps", len(shown))])
        look_whether(found, model, images, count("truth", TRUTH_IMAGES))
    return None


def counter(model: ViT, images: Tensor) -> Callable[[str, int], int]:
    """-> what says on how many images a part can be done in its time: `most`, fewer, or 0"""

    @torch.no_grad()
    def seconds(some: Tensor) -> float:
        begun = time.perf_counter()
        model(some).sum().item()  # waits for the device
        return (time.perf_counter() - begun) / len(some)

    seconds(images[:1])  # the first pass has more to do
    each = seconds(images[:2])

    def count(part: str, most: int) -> int:
        affordable = min(most, int(SECONDS[part] / (PASSES[part] * each)))
        return affordable if affordable >= min(most, LEAST_IMAGES) else 0

    return count


def look_far(found: Insight, model: ViT, images: Tensor, count: int) -> None:
    """Mean attention distance of every head"""
    if not count:
        return too_slow(found, "distance")
    chosen = images[evenly(len(images), count)]
    measured = attention_distance(model, chosen.split(BATCH))
    found.results["distance"] = {
        "images": len(measured.pixels),
        "pixels": measured.mean.tolist(),
        "standard_error": np.nan_to_num(measured.error).tolist(),
        "uniform": measured.uniform,
    }
    return None


def look_where(
    found: Insight, source: Pretrained, model: ViT, examples: Examples, shown: Sequence[str]
) -> None:
    """Attention Rollout over single images, and the images as the model sees them"""
    if not shown:
        return too_slow(found, "maps")
    place = {key: i for i, key in enumerate(examples.keys)}
    names, photos, maps = [], [], []
    for name in shown:
        pixels = read(source, examples.select([place[name]]))  # [1, C, H, W], or none
        if len(pixels):
            images = source.preprocess.normalise(pixels.to(model.embed.weight.device))
            rolled = attention_rollout(model, images)
            maps.append(seen_from(rolled, model.grid(images), model.config.prefix)[0].cpu().numpy())
            photos.append(small(pixels[0]))
            names.append(name)
    if not names:
        return found.leave_out("maps", "none of the images that were to be shown can be read")
    found.results["maps"] = {"paths": names, "class_token": model.config.prefix > 0}
    found.arrays["maps"] = np.stack(maps).astype(np.float32)
    found.arrays["photos"] = np.stack(photos)
    return None


def look_whether(found: Insight, model: ViT, images: Tensor, count: int) -> None:
    """Deletion and insertion curves, and whether they differ from those of random maps"""
    if not count:
        return too_slow(found, "truth")
    chosen = images[evenly(len(images), count)]
    curves = curves_of_maps(model, chosen.split(BATCH), kinds=KINDS)
    found.results["truth"] = {"images": len(chosen), "maps": judged(curves)}
    for name, truth in curves.items():
        found.arrays[f"deletion_{name}"] = truth.deletion.astype(np.float32)
        found.arrays[f"insertion_{name}"] = truth.insertion.astype(np.float32)
    return None


def too_slow(found: Insight, part: str) -> None:
    found.leave_out(part, "it would have taken too long on this machine")


def read(source: Pretrained, examples: Examples) -> Tensor:
    """uint8 [n, C, H, W] of those that can be read"""
    batches = eval_batches(examples, source.preprocess, BATCH)
    some = [batch.images for batch in batches if len(batch.indices)]
    return torch.cat(some) if some else torch.empty(0)


def small(pixels: Tensor) -> np.ndarray:
    """uint8 [C, H, W] -> [H', W', 3]: no larger than a page has use for, grey if not in colour"""
    image = pixels.permute(1, 2, 0).numpy()
    if image.shape[2] != 3:
        image = image.mean(axis=2, keepdims=True).astype(np.uint8).repeat(3, axis=2)
    picture = Image.fromarray(image)
    picture.thumbnail((SIDE, SIDE))
    return np.asarray(picture)
