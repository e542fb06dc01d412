"""`patchwords inspect SRC IMAGES --nearest DATA`: the training images most like each photo.

Sizes: n photos, N images searched, k nearest, R representation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from patchwords.cli.options import CacheOptions

if TYPE_CHECKING:
    from patchwords.data.dataset import ImageDataset
    from patchwords.evaluation.predictions import LoadedModel
    from patchwords.evaluation.probes.cache import FeatureCache
    from patchwords.evaluation.probes.features import Features
    from patchwords.report.figures.insight import NearestImage
    from patchwords.report.inspection import Inspection, PhotoReader

MAX_NEAREST_IMAGES = 20  # neighbours that a row of the figure has room for


@dataclass(frozen=True)
class NearestOptions:
    """Search for the nearest training images."""

    section: ClassVar[str] = "Nearest images"

    nearest: tuple[str, ...] | None = None
    """find the nearest training images in this DATA, by the features that `patchwords knn` uses;
    without a value: in the data that SRC was trained on; default: off"""
    nearest_k: int = 6
    """nearest images per photo, up to 20"""
    nearest_images: int = 20_000
    """number of training images to search; of more, a random subset"""
    nearest_image_column: str | None = None
    """column with the images, if --nearest is a CSV or parquet table; default: found by name and
    type"""
    nearest_label_column: str | None = None
    """column with the labels, if --nearest is a CSV or parquet table; default: found by name and
    type"""


@dataclass(frozen=True)
class NearestSearch:
    """The training images to search, not read yet."""

    data: str
    origin: str  # which of its images
    examples: ImageDataset
    of: int  # images before a subset was drawn
    k: int
    cache: FeatureCache | None


def check_nearest_options(
    config: NearestOptions, cache: CacheOptions, images: bool, output: bool
) -> None:
    """Refuse contradictory flags before model and data are opened."""
    from patchwords.errors import ConfigError

    if config.nearest is None:
        if config != NearestOptions() or cache != CacheOptions():
            raise ConfigError("--nearest-... and --cache need --nearest")
        return
    if not images:
        raise ConfigError("--nearest needs images: give them after SRC")
    if not output:
        raise ConfigError("--nearest writes a figure and numbers: add --output FOLDER")
    if len(config.nearest) > 1:
        raise ConfigError(
            f"--nearest {' '.join(config.nearest)}: give one source of data there, and photos after SRC"
        )
    if not 1 <= config.nearest_k <= MAX_NEAREST_IMAGES:
        raise ConfigError(f"--nearest-k {config.nearest_k} must be from 1 to {MAX_NEAREST_IMAGES}")
    if config.nearest_images < 1:
        raise ConfigError(f"--nearest-images {config.nearest_images} must be at least 1")


def open_nearest_search(
    config: NearestOptions, cache: CacheOptions, source: str
) -> NearestSearch | None:
    """Find the training images, not read yet; None without --nearest.

    Raises DataError for data without training images, ConfigError if SRC does not record its data.
    """
    from patchwords.cli.options import DataRequest
    from patchwords.errors import ConfigError
    from patchwords.evaluation.probes.knn import subsample_examples

    if config.nearest is None:
        return None
    feature_cache, source_data = cache.open(), config.nearest[0] if config.nearest else None
    columns = config.nearest_image_column, config.nearest_label_column
    request = DataRequest(source, "--nearest", source_data, *columns)
    data = request.open()
    if data is None:
        raise ConfigError(
            f"--nearest: {source} does not record its training images; give them: --nearest DATA"
        )
    examples, origin = request.select_training(data)
    subset = subsample_examples(examples, config.nearest_images)
    return NearestSearch(
        data.source, origin, subset, len(examples), config.nearest_k, feature_cache
    )


def inspect_nearest(
    inspection: Inspection, search: NearestSearch, photos: PhotoReader, examples: ImageDataset
) -> None:
    """Add the nearest training images of a few photos; raise DataError if none can be read."""
    from patchwords.evaluation.probes.cache import build_feature_extractor
    from patchwords.evaluation.probes.knn import find_nearest_images, median_random_similarity
    from patchwords.report.figures.insight import (
        PhotoNeighbours,
        SearchSummary,
        draw_nearest_images,
    )
    from patchwords.report.inspection import pixels_to_rgb

    names, pixels = photos.read_all(examples)
    subject = resize_subject(photos)
    queries = build_feature_extractor(subject, None)(examples).values  # [n, R]
    features = compute_search_features(search, subject)
    cosines, rows = find_nearest_images(
        queries, features.values, search.k, subject.device.torch_device
    )
    indices = features.indices[rows]  # [n, k], in the examples of the search
    searched = SearchSummary(
        search.data,
        search.origin,
        images=len(features.values),
        skipped=len(features.bad),
        of=search.of,
        asked=search.k,
        by_chance=median_random_similarity(features.values),
    )
    neighbours = load_neighbours(search.examples, indices, cosines, photos)
    rows_of_photos = [
        PhotoNeighbours(name, pixels_to_rgb(photo), row)
        for name, photo, row in zip(names, pixels, neighbours, strict=True)
    ]
    table = [
        {"path": photo.path, "nearest": [describe_neighbour(image) for image in photo.neighbours]}
        for photo in rows_of_photos
    ]
    results = {**asdict(searched), "k": indices.shape[1], "photos": table}
    arrays = {"nearest_similarity": cosines, "nearest_places": indices}
    inspection.add("nearest", results, arrays, draw_nearest_images(rows_of_photos, searched))


def resize_subject(photos: PhotoReader) -> LoadedModel:
    """Set the model's image size to that of the photos."""
    source = replace(photos.loaded.source, preprocess=photos.preprocess)
    return replace(photos.loaded, source=source)


def compute_search_features(search: NearestSearch, subject: LoadedModel) -> Features:
    """Compute or load the features to search; raises DataError if no image can be read."""
    from patchwords.errors import DataError
    from patchwords.evaluation.probes.cache import build_feature_extractor
    from patchwords.training.logs.progress import show_progress

    with show_progress("computing features") as progress:
        features = build_feature_extractor(subject, search.cache, progress)(search.examples)
    if not len(features.indices):
        key, reason = search.examples.keys[features.bad[0][0]], features.bad[0][1]
        raise DataError(
            f"{search.data}: none of its training images can be read; the first is {key}: {reason}"
        )
    return features


def load_neighbours(
    examples: ImageDataset, indices: np.ndarray, cosines: np.ndarray, photos: PhotoReader
) -> list[list[NearestImage]]:
    """Look up [n, k] indices of the examples: name, picture and label of each."""
    from patchwords.report.figures.insight import NearestImage

    pictures = load_neighbour_pictures(examples, np.unique(indices), photos)

    def describe(index: int, cosine: float) -> NearestImage:
        label = int(examples.labels[index])
        name = examples.classes[label] if label >= 0 else None
        return NearestImage(examples.keys[index], pictures.get(index), name, cosine)

    return [
        [describe(*pair) for pair in zip(*row, strict=True)]
        for row in zip(indices.tolist(), cosines.tolist(), strict=True)
    ]


def load_neighbour_pictures(
    examples: ImageDataset, indices: np.ndarray, photos: PhotoReader
) -> dict[int, np.ndarray]:
    """Load [H, W, 3] of each image that can still be read, as the model sees it."""
    from patchwords.data.loader import load_eval_batches
    from patchwords.evaluation.model_insight import IMAGE_BATCH
    from patchwords.report.inspection import pixels_to_rgb

    return {
        int(indices[index]): pixels_to_rgb(pixels)
        for batch in load_eval_batches(examples.select(indices), photos.preprocess, IMAGE_BATCH)
        for index, pixels in zip(batch.indices.tolist(), batch.images, strict=True)
    }


def describe_neighbour(neighbour: NearestImage) -> dict[str, Any]:
    """Describe a neighbour for results.json."""
    return {
        "path": neighbour.path,
        "label": neighbour.label,
        "similarity": round(neighbour.similarity, 4),
    }
