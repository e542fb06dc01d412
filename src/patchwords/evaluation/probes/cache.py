"""Features of a frozen model, computed once: the next evaluation finds them on the disk.

    ~/.cache/patchwords/features/
      3f2a.../         one array, see feature_file
      .3f2a....lock    held by whoever fills, opens or removes it
      .room            held while arrays are removed

What was used longest ago is removed first where the cache would grow beyond its bound; to empty
it, delete the folder. Locks are the system's, so those of a killed process are gone with it.
Under torchrun all processes call `represent`, and each computes its blocks of rows.
Sizes: n images that could be read, R representation.
"""

from __future__ import annotations

import hashlib
import json
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
from patchwords.evaluation.probes.features import Features, ProbeSplit, build_batch_encoder
from patchwords.files import GIB, explain_write_error, file_lock
from patchwords.models.build import config_to_dict
from patchwords.version import __version__
from patchwords.weights.pretrained import digest_tensors

# What features are of: one digest of the weights, the preprocessing and the images.
#
# Labels are not part of it: the same images sorted otherwise have the same features.


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


DEFAULT_CACHE_BYTES = 16 * GIB
STORED_DTYPES: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(np.float16),
}

FeatureProgress = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True)
class FeatureCache:
    """Arrays of features in a folder, of at most `bound` bytes in all."""

    folder: Path
    bound: int = DEFAULT_CACHE_BYTES

    def represent(
        self,
        model: nn.Module,
        examples: ImageDataset,
        preprocess: Preprocess,
        device: Device,
        workers: int,
        progress: FeatureProgress | None = None,
    ) -> Features:
        """As `features.represent`, but from the disk where this was computed before.

        A pass that was killed goes on where it was. Of two programs that want the same features,
        the second waits for the first. With bf16 products the features are kept as float16, which
        has three bits more than bfloat16 and is NumPy's own. Raises ConfigError where the cache
        cannot be written or is too small.
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
                    lambda: self.begin(file, infer_feature_width(model, preprocess, device), about)
                )
                ask = FeaturePass(model, examples, preprocess, device, workers)
                run_on_all_processes(lambda: ask.fill(file, progress or (lambda done, total: None)))
                run_on_main_process(lambda: file.finish(about))
            values, bad = run_on_all_processes(file.read)
        unreadable = np.array([index for index, _ in bad], dtype=np.int64)
        indices = np.setdiff1d(np.arange(len(examples)), unreadable)
        return Features(indices, examples.labels[indices], values[indices] if bad else values, bad)

    def holds(
        self, model: nn.Module, examples: ImageDataset, preprocess: Preprocess, device: Device
    ) -> bool:
        """Whether the features of these images are there as a whole."""
        about = describe_feature_inputs(model, examples, preprocess, device.precision)
        return FeatureStore(self.folder / compute_cache_key(about)).is_whole

    def lock(self, file: FeatureStore, wait: bool = True) -> AbstractContextManager[bool]:
        """A context that holds the file's lock; with wait=False it says whether it does."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_write_error(error, self.folder) from error
        return file_lock(self.folder / f".{file.folder.name}.lock", wait)

    def begin(self, file: FeatureStore, width: int, about: dict[str, Any]) -> None:
        """With the file's lock held: make room, and an array to fill."""
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
        """Remove what was used longest ago and nobody holds, until `need` bytes more fit."""
        found = [path for path in self.folder.iterdir() if path.is_dir() and path != new.folder]
        sizes = {path: sum(f.stat().st_size for f in path.iterdir()) for path in found}
        total = sum(sizes.values())
        for path in sorted(found, key=last_used_ns):
            if total + need <= self.bound:
                break
            with self.lock(FeatureStore(path), wait=False) as mine:
                if mine:
                    FeatureStore(path).remove()
                    total -= sizes[path]


def last_used_ns(folder: Path) -> int:
    """Nanoseconds; of an array that was never finished, when it was begun."""
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

    def fill(self, file: FeatureStore, progress: FeatureProgress) -> None:
        """This process's blocks of the file, as far as they are not done."""
        here, count = get_world(), len(self.examples)
        blocks = [int(b) for b in file.blocks_left() if b % here.size == here.rank]
        spans = [range(b * BLOCK_ROWS, min((b + 1) * BLOCK_ROWS, count)) for b in blocks]
        places = np.array([place for span in spans for place in span], dtype=np.int64)
        chosen, ask = (
            self.examples.select(places),
            build_batch_encoder(self.model, self.preprocess, self.device),
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
                    values = to_stored_dtype(ask(images).cpu().numpy(), self.device.precision)
                    rows = np.zeros((len(span), values.shape[1]), values.dtype)
                    rows[places[batch.indices.numpy()] - span.start] = values
                filling.write(block, rows, bad)
                if here.is_main:
                    progress(min((total - len(file.blocks_left())) * BLOCK_ROWS, count), count)


def to_stored_dtype(values: np.ndarray, precision: str) -> np.ndarray:
    """float32 [n, R] as it is kept, float16 for bf16; DataError for what that cannot hold."""
    with np.errstate(over="ignore"):
        small = values.astype(STORED_DTYPES[precision])
    if np.isinf(small).any() and np.isfinite(values).all():
        raise DataError(
            f"features reach {np.abs(values).max():.3g}, more than 16 bits hold: use "
            "--precision fp32"
        )
    return small


def infer_feature_width(model: nn.Module, preprocess: Preprocess, device: Device) -> int:
    """R, by asking for one black image."""
    shape = (1, preprocess.channels, *preprocess.image_size)
    black = torch.zeros(shape, dtype=torch.uint8, device=device.torch_device)
    with eval_mode(model), device.autocast(), torch.inference_mode():
        return int(build_batch_encoder(model, preprocess, device)(black).shape[1])


def extract_uncached_features(
    model: nn.Module,
    examples: ImageDataset,
    preprocess: Preprocess,
    device: Device,
    workers: int,
    progress: FeatureProgress | None = None,
) -> Features:
    """What the cache would give, without one."""
    tell = progress or (lambda done, total: None)

    def told() -> Iterator[ImageBatch]:
        batches = load_eval_batches(examples, preprocess, BLOCK_ROWS, workers)
        for number, batch in enumerate(batches):
            tell(min(number * BLOCK_ROWS, len(examples)), len(examples))
            yield batch

    with eval_mode(model), device.autocast():
        ask = build_batch_encoder(model, preprocess, device)
        indices, labels, values, bad = collect_outputs(ask, told(), device.torch_device)
    return Features(indices, labels, to_stored_dtype(values, device.precision), bad)


# A frozen model as probes know it: features of what they learn from, and of the judging images.
#
# Sizes: N images to learn from, n to judge by, R representation.


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
