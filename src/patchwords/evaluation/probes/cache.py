"""Disk cache of the features of frozen models.

    ~/.cache/patchwords/features/
      3f2a.../         one array, see data/feature_store.py
      .3f2a....lock    held while the array is filled, opened or removed
      .room            held while arrays are removed

The least recently used arrays are removed when the cache would exceed its bound; to empty it,
delete the folder. Locks end with their process. Under torchrun all processes call `represent`, and
each computes its blocks of rows.
Sizes: n readable images, N training images, R representation.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchwords.data.dataset import ImageDataset
from patchwords.data.feature_store import BLOCK_ROWS, FeatureStore
from patchwords.data.loader import ImageBatch, check_bad_image_share, load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import (
    broadcast_from_main,
    get_world,
    run_on_all_processes,
    run_on_main_process,
)
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.predictions import LoadedModel, collect_outputs, eval_mode
from patchwords.evaluation.probes.defaults import DEFAULT_CACHE_GIB
from patchwords.evaluation.probes.features import (
    Features,
    ProbeSplit,
    TokenChoice,
    build_batch_encoder,
)
from patchwords.files import GIB, cache_folder, explain_write_error, file_lock
from patchwords.models.build import config_to_dict
from patchwords.version import __version__
from patchwords.weights.pretrained import digest_tensors

# The cache key: a digest of weights, preprocessing and images. Labels are not part of it: the same
# images in other classes have the same features.


FEATURE_CACHE_FOLDER = "features"  # in the cache folder
CACHE_FORMAT = 1  # raised when files or features change
MAX_FULLY_HASHED_BYTES = 256 << 20  # bytes of images up to which all are hashed
NUM_HASHED_IMAGES = 1000  # images hashed in larger data


def describe_feature_inputs(
    model: nn.Module, examples: ImageDataset, preprocess: Preprocess, precision: str
) -> dict[str, Any]:
    """Describe everything that features depend on; `compute_cache_key` digests it."""
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
    """Digest a description to 32 letters."""
    text = json.dumps(about, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_weights(model: nn.Module) -> str:
    """Digest all parameters and buffers."""
    return digest_tensors(model.state_dict())


def digest_images(examples: ImageDataset) -> str:
    """Digest images in their order: names, lengths and contents.

    Contents are all read up to 256 MiB; above that, those of 1,000 evenly spaced images, as reading
    everything would take as long as some models do. Images in remote shards have digests.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key, size in zip(examples.keys, examples.sizes.tolist(), strict=True):
        digest.update(f"{key!r} {size}\n".encode())
    if examples.digests is not None:
        digest.update(np.ascontiguousarray(examples.digests).data)
        return digest.hexdigest()
    places = np.arange(len(examples))
    if examples.sizes.sum() > MAX_FULLY_HASHED_BYTES and len(places) > NUM_HASHED_IMAGES:
        places = np.linspace(0, len(places) - 1, NUM_HASHED_IMAGES).round().astype(np.int64)
    for place in places.tolist():
        try:
            digest.update(hashlib.blake2b(examples.read(place), digest_size=16).digest())
        except OSError:  # decoding names it as bad
            digest.update(b"unreadable")
    return digest.hexdigest()


STORED_DTYPES: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(np.float16),
}

FeatureProgress = Callable[[int, int], None]  # images done, total


@dataclass(frozen=True)
class FeatureCache:
    """Arrays of features in a folder, of at most `bound` bytes in total."""

    folder: Path
    bound: int = int(DEFAULT_CACHE_GIB * GIB)

    def represent(
        self,
        model: nn.Module,
        examples: ImageDataset,
        preprocess: Preprocess,
        device: Device,
        workers: int,
        progress: FeatureProgress | None = None,
    ) -> Features:
        """Extract features, or read them from disk if they were computed before.

        An interrupted pass is resumed. Of two programs that want the same features, the second
        waits for the first. With bf16 products the features are stored as float16, which has three
        bits more than bfloat16 and is native to NumPy. Raises ConfigError if the cache cannot be
        written or is too small.
        """
        about: dict[str, Any] = broadcast_from_main(
            run_on_all_processes(
                lambda: (
                    describe_feature_inputs(model, examples, preprocess, device.precision)
                    if get_world().is_main
                    else {}
                )
            )
        )
        file = FeatureStore(self.folder / compute_cache_key(about))
        with ExitStack() as held:
            run_on_main_process(lambda: held.enter_context(self.lock(file)))
            if not broadcast_from_main(file.is_whole):
                run_on_main_process(
                    lambda: self.begin(
                        file, math.prod(infer_feature_shape(model, preprocess, device)), about
                    )
                )
                features_pass = FeaturePass(model, examples, preprocess, device, workers)
                run_on_all_processes(
                    lambda: features_pass.fill(file, progress or (lambda done, total: None))
                )
                run_on_main_process(lambda: file.finish(about))
            values, bad = run_on_all_processes(file.read)
        unreadable = np.array([index for index, _ in bad], dtype=np.int64)
        indices = np.setdiff1d(np.arange(len(examples)), unreadable)
        return Features(indices, examples.labels[indices], values[indices] if bad else values, bad)

    def holds(
        self, model: nn.Module, examples: ImageDataset, preprocess: Preprocess, device: Device
    ) -> bool:
        """Whether the cache has the complete features of these images."""
        about = describe_feature_inputs(model, examples, preprocess, device.precision)
        return FeatureStore(self.folder / compute_cache_key(about)).is_whole

    def lock(self, file: FeatureStore, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold the array's lock; with wait=False the context gives whether it is held."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_write_error(error, self.folder) from error
        return file_lock(self.folder / f".{file.folder.name}.lock", wait)

    def begin(self, file: FeatureStore, width: int, about: dict[str, Any]) -> None:
        """Make room and create an array to fill; the caller holds its lock."""
        dtype = STORED_DTYPES[about["precision"]]
        need = about["images"] * width * dtype.itemsize
        if need > self.bound:
            raise ConfigError(
                f"features of {about['images']:,} images take {need / GIB:.1f} GiB, the cache may "
                f"take {self.bound / GIB:g}: raise --cache-size, or say --cache none"
            )
        with file_lock(self.folder / ".room"):
            self.make_room(need, file)
            file.begin(about["images"], width, dtype)

    def make_room(self, need: int, new: FeatureStore) -> None:
        """Remove the least recently used arrays that nothing holds, until `need` bytes fit."""
        folders = [path for path in self.folder.iterdir() if path.is_dir() and path != new.folder]
        sizes = {path: sum(f.stat().st_size for f in path.iterdir()) for path in folders}
        total = sum(sizes.values())
        for path in sorted(folders, key=last_used_ns):
            if total + need <= self.bound:
                break
            with self.lock(FeatureStore(path), wait=False) as acquired:
                if acquired:
                    FeatureStore(path).remove()
                    total -= sizes[path]


def open_feature_cache(folder: str | None, size: float) -> FeatureCache | None:
    """Open the cache in a folder, by default the user's, of at most `size` GiB; None for "none"."""
    if not size > 0:
        raise ConfigError(f"--cache-size {size:g} must be more than 0 GiB")
    if folder == "none":
        return None
    path = cache_folder() / FEATURE_CACHE_FOLDER if folder is None else Path(folder)
    return FeatureCache(path.absolute(), int(size * GIB))


def last_used_ns(folder: Path) -> int:
    """Return when an array was last used, or created if it was never finished, in ns."""
    about = FeatureStore(folder).about
    return (about if about.is_file() else folder).stat().st_mtime_ns


@dataclass(frozen=True)
class FeaturePass:
    """One pass of a model over images."""

    model: nn.Module
    examples: ImageDataset
    preprocess: Preprocess
    device: Device
    workers: int
    tokens: TokenChoice = "classifier"

    def fill(self, file: FeatureStore, progress: FeatureProgress) -> None:
        """Fill this process's blocks of the array that are not done."""
        world, count = get_world(), len(self.examples)
        blocks = [int(b) for b in file.blocks_left() if b % world.size == world.rank]
        spans = [range(b * BLOCK_ROWS, min((b + 1) * BLOCK_ROWS, count)) for b in blocks]
        places = np.array([place for span in spans for place in span], dtype=np.int64)
        chosen, encode = (
            self.examples.select(places),
            build_batch_encoder(self.model, self.preprocess, self.device, self.tokens),
        )
        total = -(-count // BLOCK_ROWS)
        with (
            file.filling() as filling,
            eval_mode(self.model),
            self.device.autocast(),
            torch.inference_mode(),
        ):
            batches = load_eval_batches(chosen, self.preprocess, BLOCK_ROWS, self.workers)
            for block, span, batch in zip(blocks, spans, batches, strict=True):
                bad = [(int(places[index]), reason) for index, reason in batch.bad]
                rows = None
                if len(batch.indices):
                    images = batch.images.to(self.device.torch_device, non_blocking=True)
                    features = encode(images).flatten(1).cpu().numpy()  # [B, R]
                    values = to_stored_dtype(features, self.device.precision)
                    rows = np.zeros((len(span), values.shape[1]), values.dtype)
                    rows[places[batch.indices.numpy()] - span.start] = values
                filling.write(block, rows, bad)
                if world.is_main:
                    progress(min((total - len(file.blocks_left())) * BLOCK_ROWS, count), count)


def to_stored_dtype(values: np.ndarray, precision: str) -> np.ndarray:
    """Convert float32 [n, R] to the stored type, float16 for bf16; DataError on overflow."""
    with np.errstate(over="ignore"):
        small = values.astype(STORED_DTYPES[precision])
    if np.isinf(small).any() and np.isfinite(values).all():
        raise DataError(
            f"features reach {np.abs(values).max():.3g}, more than 16 bits hold: use "
            "--precision fp32"
        )
    return small


def infer_feature_shape(
    model: nn.Module,
    preprocess: Preprocess,
    device: Device,
    tokens: TokenChoice = "classifier",
) -> tuple[int, ...]:
    """Infer (R,) or (N, D) from one black image."""
    shape = (1, preprocess.channels, *preprocess.image_size)
    black = torch.zeros(shape, dtype=torch.uint8, device=device.torch_device)
    with eval_mode(model), device.autocast(), torch.inference_mode():
        return tuple(build_batch_encoder(model, preprocess, device, tokens)(black).shape[1:])


def extract_uncached_features(
    model: nn.Module,
    examples: ImageDataset,
    preprocess: Preprocess,
    device: Device,
    workers: int,
    progress: FeatureProgress | None = None,
) -> Features:
    """Extract features without a cache."""
    report = progress or (lambda done, total: None)

    def iterate_batches() -> Iterator[ImageBatch]:
        batches = load_eval_batches(examples, preprocess, BLOCK_ROWS, workers)
        for number, batch in enumerate(batches):
            report(min(number * BLOCK_ROWS, len(examples)), len(examples))
            yield batch

    with eval_mode(model), device.autocast():
        encode = build_batch_encoder(model, preprocess, device)
        indices, labels, values, bad = collect_outputs(
            encode, iterate_batches(), device.torch_device
        )
    return Features(indices, labels, to_stored_dtype(values, device.precision), bad)


# Features of the training and test images of a probe.


FeatureExtractor = Callable[[ImageDataset], Features]  # see `build_feature_extractor`


@dataclass(frozen=True)
class ProbeFeatures:
    """Features of the training and test images of a probe."""

    split: ProbeSplit
    train: Features  # [N, R]
    test: Features  # [n, R]
    skipped: tuple[tuple[str, str], ...]  # (path, reason) of images that cannot be read

    def describe(self) -> dict[str, Any]:
        """Describe the images, for the results."""
        return {
            "divided": self.split.origin,
            "classes": list(self.split.train.classes),
            "train": len(self.train.labels),
            "test": len(self.test.labels),
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def build_feature_extractor(
    loaded: LoadedModel, cache: FeatureCache | None, progress: FeatureProgress | None = None
) -> FeatureExtractor:
    """Build a function that extracts features of examples, cached if there is a cache."""
    if cache is None and get_world().size > 1:
        raise ConfigError(
            "--cache none: several processes put their features together in the cache; leave this "
            "out, or start one process"
        )

    def extract(examples: ImageDataset) -> Features:
        inputs = loaded.model, examples, loaded.preprocess, loaded.device
        workers = loaded.workers_for(examples)
        if cache is None:
            return extract_uncached_features(*inputs, workers, progress)
        return cache.represent(*inputs, workers, progress)

    return extract


def extract_probe_features(
    extract: FeatureExtractor, split: ProbeSplit, max_bad: float = 0.01
) -> ProbeFeatures:
    """Extract features of train and test; raise DataError for too many unreadable images."""
    train, test = extract(split.train), extract(split.test)
    skipped = []
    for name, part, features in (("train", split.train, train), ("test", split.test, test)):
        bad = [(part.keys[index], reason) for index, reason in features.bad]
        check_bad_image_share(bad, len(part), f"images of {name}", max_bad)
        if not len(features.labels):
            raise DataError(f"none of the images of {name} can be read")
        skipped += bad
    return ProbeFeatures(split, train, test, tuple(skipped))


def require_finite_features(features: np.ndarray) -> None:
    """Raise DataError where a feature is not a finite number."""
    if not np.isfinite(features).all():
        raise DataError("the model's features are not finite numbers: it has diverged")
