"""What features are of: one digest of the weights, the preprocessing and the images.

Labels are not part of it: the same images sorted otherwise have the same features.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from torch import nn

from patchwords.data.examples import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.model.family import config_to_dict
from patchwords.version import __version__
from patchwords.weights.digest import digest_tensors

CACHE_FORMAT = 1  # raised when the files of the cache, or what is computed, change
MAX_FULLY_HASHED_BYTES = 256 << 20  # bytes of images that are all read to tell them apart
NUM_HASHED_IMAGES = 1000  # images that are read of larger data


def describe_feature_inputs(
    model: nn.Module, examples: ImageDataset, preprocess: Preprocess, precision: str
) -> dict[str, Any]:
    """All that the features depend on, as plain values; `compute_cache_key` makes a name of it."""
    return {
        "format": CACHE_FORMAT,
        "version": __version__,
        "model": config_to_dict(model.config),  # type: ignore[arg-type]
        "weights": digest_weights(model),
        "preprocess": preprocess.to_dict(),
        "precision": precision,
        "images": len(examples),
        "fingerprint": digest_images(examples),
    }


def compute_cache_key(about: dict[str, Any]) -> str:
    """32 letters that no other description has."""
    text = json.dumps(about, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_weights(model: nn.Module) -> str:
    """Of all its parameters and buffers."""
    return digest_tensors(model.state_dict())


def digest_images(examples: ImageDataset) -> str:
    """Of these images in this order: every name and length, and what is in them.

    Up to 256 MiB all of them are read; of more, 1,000 that stand evenly in the list, as to read
    everything again would take as long as some models do. Images in shards elsewhere have digests.
    """
    found = hashlib.blake2b(digest_size=16)
    for key, size in zip(examples.keys, examples.sizes.tolist(), strict=True):
        found.update(f"{key!r} {size}\n".encode())
    if examples.digests is not None:
        found.update(np.ascontiguousarray(examples.digests).data)
        return found.hexdigest()
    places = np.arange(len(examples))
    if examples.sizes.sum() > MAX_FULLY_HASHED_BYTES and len(places) > NUM_HASHED_IMAGES:
        places = np.linspace(0, len(places) - 1, NUM_HASHED_IMAGES).round().astype(np.int64)
    for place in places.tolist():
        try:
            found.update(hashlib.blake2b(examples.read(place), digest_size=16).digest())
        except OSError:  # it is named as bad by whoever decodes it
            found.update(b"unreadable")
    return found.hexdigest()
