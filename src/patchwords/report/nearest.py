"""Search for the training images that are nearest to photos, in a model's features.

Sizes: n photos, N images searched, k nearest, R representation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.model_insight import IMAGE_BATCH
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.probes.cache import FeatureCache, build_feature_extractor
from patchwords.evaluation.probes.features import Features
from patchwords.evaluation.probes.knn import (
    find_nearest_images,
    median_random_similarity,
    subsample_examples,
)
from patchwords.report.figures.insight import (
    NearestImage,
    PhotoNeighbours,
    SearchSummary,
    draw_nearest_images,
)
from patchwords.report.inspection import Inspection, PhotoReader, pixels_to_rgb
from patchwords.report.inspection_settings import NearestOptions
from patchwords.report.run_data import DataRequest
from patchwords.training.logs.progress import show_progress


@dataclass(frozen=True)
class NearestSearch:
    """The training images to search, not read yet."""

    data: str
    origin: str  # which of its images
    examples: ImageDataset
    of: int  # images before a subset was drawn
    k: int
    cache: FeatureCache | None


def open_nearest_search(
    options: NearestOptions, cache: FeatureCache | None, source: str
) -> NearestSearch:
    """Find the training images, not read yet.

    Raises DataError for data without training images, ConfigError if the model of that name does
    not record its data.
    """
    source_data = options.nearest[0] if options.nearest else None
    columns = options.nearest_image_column, options.nearest_label_column
    request = DataRequest(source, "--nearest", source_data, *columns)
    data = request.open()
    if data is None:
        raise ConfigError(
            f"--nearest: {source} does not record its training images; give them: --nearest DATA"
        )
    examples, origin = request.select_training(data)
    subset = subsample_examples(examples, options.nearest_images)
    return NearestSearch(data.source, origin, subset, len(examples), options.nearest_k, cache)


def inspect_nearest(
    inspection: Inspection, search: NearestSearch, photos: PhotoReader, examples: ImageDataset
) -> None:
    """Add the nearest training images of a few photos; raise DataError if none can be read."""
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
