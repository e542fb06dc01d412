"""A frozen model as probes know it: features of what they learn from, and of the judging images.

Sizes: N images to learn from, n to judge by, R representation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchwords.data.bad import check_bad_image_share
from patchwords.data.examples import ImageDataset
from patchwords.distributed import get_world
from patchwords.errors import ConfigError, DataError
from patchwords.evaluate.feature_cache import (
    FeatureCache,
    FeatureProgress,
    extract_uncached_features,
)
from patchwords.evaluate.features import Features
from patchwords.evaluate.subject import LoadedModel
from patchwords.evaluate.train_test import ProbeSplit

FeatureExtractor = Callable[[ImageDataset], Features]  # `build_feature_extractor` gives one


@dataclass(frozen=True)
class ProbeFeatures:
    """All that a probe asks for."""

    pair: ProbeSplit
    train: Features  # [N, R]
    test: Features  # [n, R]
    skipped: tuple[tuple[str, str], ...]  # (path, reason) of images that cannot be read

    def describe(self) -> dict[str, Any]:
        """Which images these are, for the results."""
        return {
            "divided": self.pair.origin,
            "classes": list(self.pair.train.classes),
            "train": len(self.train.labels),
            "test": len(self.test.labels),
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def build_feature_extractor(
    subject: LoadedModel, cache: FeatureCache | None, progress: FeatureProgress | None = None
) -> FeatureExtractor:
    """-> what gives the features of examples, from the cache where there is one."""
    if cache is None and get_world().size > 1:
        raise ConfigError(
            "--cache none: several processes put their features together in the cache; leave this "
            "out, or start one process"
        )

    def ask(examples: ImageDataset) -> Features:
        of = subject.model, examples, subject.preprocess, subject.device
        workers = subject.workers_for(examples)
        if cache is None:
            return extract_uncached_features(*of, workers, progress)
        return cache.represent(*of, workers, progress)

    return ask


def extract_probe_features(
    ask: FeatureExtractor, pair: ProbeSplit, max_bad: float = 0.01
) -> ProbeFeatures:
    """Features of both parts; raises DataError where more than a share `max_bad` is unreadable."""
    train, test = ask(pair.train), ask(pair.test)
    skipped = []
    for name, part, found in (("train", pair.train, train), ("test", pair.test, test)):
        bad = [(part.keys[index], reason) for index, reason in found.bad]
        check_bad_image_share(bad, len(part), f"images of {name}", max_bad)
        if not len(found.labels):
            raise DataError(f"none of the images of {name} can be read")
        skipped += bad
    return ProbeFeatures(pair, train, test, tuple(skipped))


def require_finite_features(features: np.ndarray) -> None:
    """Raise DataError where a feature is not a finite number."""
    if not np.isfinite(features).all():
        raise DataError("the model's features are not finite numbers: it has diverged")
