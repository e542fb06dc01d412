"""Search for the training photos that are nearest in the model's features, by cosine.

Features of the training photos are computed in the background, or read from the cache; until then
the page shows the progress.

Sizes: n readable photos, R representation.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import decode_image, encode_image_url
from patchwords.errors import DataError, PatchwordsError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.probes.cache import FeatureCache, build_feature_extractor
from patchwords.evaluation.probes.knn import MAX_SEARCHED_IMAGES, normalise_rows, subsample_examples

MAX_NEIGHBOURS = 6
THUMBNAIL_SIDE = 160  # pixels of the longer side


class AppStopped(Exception):
    """The app stops before all features are computed."""


class NeighbourSearch:
    """Finds the nearest training photos; a background thread computes their features.

    Args:
        examples: the training photos, labelled or not; None: none, `reason` says why.
        cache: the feature cache; default: none.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        examples: ImageDataset | None,
        cache: FeatureCache | None = None,
        reason: str = "",
    ) -> None:
        self.loaded, self.cache = loaded, cache
        self.total = 0 if examples is None else len(examples)
        self.examples = (
            None if examples is None else subsample_examples(examples, MAX_SEARCHED_IMAGES)
        )
        self.done = 0
        self.reason = reason  # why there are no photos
        self.values: np.ndarray | None = None  # [n, R], of length 1
        self.indices = np.empty(0, dtype=np.int64)  # [n], in the examples
        self.stopping = threading.Event()
        self.thumbnail = lru_cache(maxsize=512)(self.make_thumbnail)
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Start computing features in the background."""
        if self.examples is not None:
            self.thread = threading.Thread(
                target=self.compute_features, name="neighbours", daemon=True
            )
            self.thread.start()

    def close(self) -> None:
        """Stop; what is computed stays in the cache."""
        self.stopping.set()
        if self.thread is not None:
            self.thread.join(timeout=5)

    def state(self) -> dict[str, Any]:
        """Describe for the page whether the search is ready, its progress, or why there is none."""
        if self.examples is None or self.reason:
            return {"state": "none", "reason": self.reason}
        counts = {"photos": len(self.examples), "of": self.total}
        if self.values is None:
            return {"state": "preparing", "done": self.done, **counts}
        return {"state": "ready", **counts}

    def nearest(self, features: np.ndarray) -> list[dict[str, Any]]:
        """Find the photos nearest to features [R], with label, similarity and picture."""
        examples, values = self.examples, self.values
        if examples is None or values is None:
            return []
        # the rows are normalised once: `find_nearest_images` would do so for every search
        cosines = values @ normalise_rows(features[None])[0]  # [n]
        best = np.argsort(-cosines, kind="stable")[:MAX_NEIGHBOURS]
        photos = []
        for row in best.tolist():
            index = int(self.indices[row])
            label = int(examples.labels[index])
            photos.append(
                {
                    "label": examples.classes[label] if label >= 0 else None,
                    "similarity": round(float(cosines[row]), 4),
                    "picture": self.thumbnail(index),
                }
            )
        return photos

    def compute_features(self) -> None:
        """Compute the features of all photos; runs in the thread."""
        assert self.examples is not None

        def progress(done: int, total: int) -> None:
            self.done = done
            if self.stopping.is_set():
                raise AppStopped

        try:
            features = build_feature_extractor(self.loaded, self.cache, progress)(self.examples)
            if not len(features.indices):
                raise DataError("none of the photos can be read")
            self.indices = features.indices
            self.values = normalise_rows(features.values)
        except AppStopped:
            pass
        except (PatchwordsError, OSError) as error:
            self.reason = " ".join(str(error).split())

    def make_thumbnail(self, index: int) -> str | None:
        """Make a thumbnail as a data URL; None if the photo cannot be read."""
        assert self.examples is not None
        try:
            image = decode_image(self.examples.read(index), smallest=THUMBNAIL_SIDE)
        except (OSError, DataError):
            return None
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        return encode_image_url(image)
