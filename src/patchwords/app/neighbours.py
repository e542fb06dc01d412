"""The training photos that are nearest to a photo in the model's own features.

Their features are computed in the background, or come from the disk where they were computed
before; until then the page says how far it is. Nearest is by the cosine.
Sizes: n photos that could be read, R representation.
"""

from __future__ import annotations

import base64
import io
import threading
from functools import lru_cache
from typing import Any

import numpy as np

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import decode_image
from patchwords.errors import DataError, PatchwordsError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.probes.cache import FeatureCache, build_feature_extractor
from patchwords.evaluation.probes.knn import MAX_SEARCHED_IMAGES, normalise_rows, subsample_examples

MAX_NEIGHBOURS = 6
NEIGHBOUR_THUMBNAIL_SIDE = 160  # pixels of a thumbnail's longer side
NEIGHBOUR_LOSSLESS_SIDE = 64  # images up to this size are kept as they are


class AppStopped(Exception):
    """The app ends before all features are there."""


class NeighbourSearch:
    """Looks for the nearest among examples. A thread of its own computes their features.

    Args:
        examples: the training photos, labelled or not; None: there are none, `reason` says why.
        cache: where features are kept; None: nowhere.
    """

    def __init__(
        self,
        subject: LoadedModel,
        examples: ImageDataset | None,
        cache: FeatureCache | None = None,
        reason: str = "",
    ) -> None:
        self.subject, self.cache = subject, cache
        self.of = 0 if examples is None else len(examples)
        self.examples = (
            None if examples is None else subsample_examples(examples, MAX_SEARCHED_IMAGES)
        )
        self.done = 0
        self.reason = reason  # why there are none, for a person
        self.values: np.ndarray | None = None  # [n, R], of length 1
        self.places = np.empty(0, dtype=np.int64)  # [n], positions in the examples
        self.stopping = threading.Event()
        self.thumbnail = lru_cache(maxsize=512)(self.draw)
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin in the background."""
        if self.examples is not None:
            self.thread = threading.Thread(target=self.prepare, name="neighbours", daemon=True)
            self.thread.start()

    def close(self) -> None:
        """What is done is kept where there is a cache."""
        self.stopping.set()
        if self.thread is not None:
            self.thread.join(timeout=5)

    def state(self) -> dict[str, Any]:
        """For the page: whether they are there, and else how far, or why not."""
        if self.examples is None or self.reason:
            return {"state": "none", "reason": self.reason}
        counts = {"photos": len(self.examples), "of": self.of}
        if self.values is None:
            return {"state": "preparing", "done": self.done, **counts}
        return {"state": "ready", **counts}

    def nearest(self, features: np.ndarray) -> list[dict[str, Any]]:
        """[R] -> the nearest photos, the nearest first: label, similarity and a picture."""
        examples, values = self.examples, self.values
        if examples is None or values is None:
            return []
        # `evaluate.nearest` makes all rows unit for each search; a page cannot wait for that
        cosines = values @ normalise_rows(features[None])[0]  # [n]
        best = np.argsort(-cosines, kind="stable")[:MAX_NEIGHBOURS]
        found = []
        for row in best.tolist():
            place = int(self.places[row])
            label = int(examples.labels[place])
            found.append(
                {
                    "label": examples.classes[label] if label >= 0 else None,
                    "similarity": round(float(cosines[row]), 4),
                    "picture": self.thumbnail(place),
                }
            )
        return found

    def prepare(self) -> None:
        """Runs in the thread."""
        assert self.examples is not None

        def progress(done: int, total: int) -> None:
            self.done = done
            if self.stopping.is_set():
                raise AppStopped

        try:
            features = build_feature_extractor(self.subject, self.cache, progress)(self.examples)
            if not len(features.indices):
                raise DataError("none of the photos can be read")
            self.places = features.indices
            self.values = normalise_rows(features.values)
        except AppStopped:
            pass
        except (PatchwordsError, OSError) as error:
            self.reason = " ".join(str(error).split())

    def draw(self, place: int) -> str | None:
        """A thumbnail as a data URL; None where the photo is gone."""
        assert self.examples is not None
        try:
            image = decode_image(self.examples.read(place), smallest=NEIGHBOUR_THUMBNAIL_SIDE)
        except (OSError, DataError):
            return None
        return encode_data_url(np.asarray(image), NEIGHBOUR_THUMBNAIL_SIDE)


def encode_data_url(pixels: np.ndarray, side: int | None = None) -> str:
    """uint8 [H, W, 1 or 3] -> a data URL: exact, or a JPEG where it has to be made smaller."""
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    exact = side is None or max(image.size) <= NEIGHBOUR_LOSSLESS_SIDE
    if exact:
        image.save(file, "PNG", compress_level=1)
    else:
        image.thumbnail((side or NEIGHBOUR_THUMBNAIL_SIDE, side or NEIGHBOUR_THUMBNAIL_SIDE))
        image.save(file, "JPEG", quality=82)
    kind = "png" if exact else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
