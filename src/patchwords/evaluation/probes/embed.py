"""Features of images written to a file that other programs open.

    features.npy, features.csv   an array [n, R] or [n, N, D], and path, split and label of each row
    features.parquet             columns path, split, label and features, a list of R or N * D numbers
    .features.npy.part/          while it is computed: see data/feature_store.py

Rows are the readable images in their order. Features are streamed through the part folder, so that
an interrupted pass resumes and memory does not grow with the number of images. Under torchrun all
processes call `write_embedding`, and each computes its blocks of rows.
Sizes: n readable images, N patches, D width, R numbers of an image.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patchwords.data.dataset import DatasetSplits, ImageDataset, concatenate_datasets
from patchwords.data.feature_store import FeatureStore
from patchwords.data.loader import check_bad_image_share
from patchwords.distributed import (
    broadcast_from_main,
    get_world,
    run_on_all_processes,
    run_on_main_process,
)
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.held_out import read_run_splits
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.probes.cache import (
    STORED_DTYPES,
    FeaturePass,
    FeatureProgress,
    compute_cache_key,
    describe_feature_inputs,
    infer_feature_shape,
)
from patchwords.evaluation.probes.features import TokenChoice, check_token_choice, is_run_data
from patchwords.files import (
    check_csv_writable,
    explain_write_error,
    file_lock,
    write_atomically,
)

SUFFIXES = (".npy", ".parquet")
MAX_CHUNK_BYTES = 32 << 20  # bytes of features that are copied at a time


@dataclass(frozen=True)
class EmbeddingFile:
    """A file of features that was written."""

    path: Path
    ids: Path | None  # CSV next to an .npy; a parquet has the ids itself
    model: str
    tokens: TokenChoice
    images: int
    shape: tuple[int, ...]  # of one image: (R,) or (N, D)
    dtype: str
    skipped: tuple[tuple[str, str], ...]  # (path, reason) of images that cannot be read

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "output": str(self.path),
            "ids": None if self.ids is None else str(self.ids),
            "model": self.model,
            "tokens": self.tokens,
            "images": self.images,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def check_embedding_output(output: Path, overwrite: bool) -> Path | None:
    """Raise ConfigError for a name that cannot be written; -> the CSV next to an .npy."""
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--output {output}: let its name end in .npy or .parquet")
    check_csv_writable(output, overwrite, "--output")
    if output.suffix.lower() == ".parquet":
        return None
    ids = output.with_suffix(".csv")
    check_csv_writable(ids, overwrite, "--output also writes its ids:")
    return ids


def list_embedded_images(
    data: DatasetSplits, folder: Path | None
) -> tuple[ImageDataset, np.ndarray]:
    """List all images of the data, and the split of each.

    Splits are those of the model's run in `folder`, if it was on these images, else the data's own.
    """
    recorded = {} if folder is None else read_run_splits(folder, data)
    examples = concatenate_datasets(list(data.splits.values()))
    names = [name for name, part in data.splits.items() for _ in range(len(part))]
    if recorded and is_run_data(data, recorded):
        places = zip(examples.keys, examples.sizes.tolist(), strict=True)
        names = [recorded.get(place, name) for place, name in zip(places, names, strict=True)]
    return examples, np.array(names)


def write_embedding(
    loaded: LoadedModel,
    examples: ImageDataset,
    splits: np.ndarray,
    output: Path,
    *,
    tokens: TokenChoice = "classifier",
    max_bad: float = 0.01,
    overwrite: bool = False,
    progress: FeatureProgress | None = None,
) -> EmbeddingFile:
    """Compute the features of all examples and write them; splits: a name for each.

    Raises ConfigError if the file exists or is being written, DataError for too many bad images.
    """
    ids = run_on_all_processes(lambda: check_embedding_output(output, overwrite))
    check_token_choice(loaded.model, tokens)
    part = output.with_name(f".{output.name}.part")
    with ExitStack() as held:
        run_on_main_process(lambda: held.enter_context(lock_part_folder(part, output)))
        store, shape = fill_store(loaded, examples, part, tokens, progress)
        values, bad = run_on_all_processes(store.read)
        skipped = tuple((examples.keys[index], reason) for index, reason in bad)
        check_bad_image_share(skipped, len(examples), "images", max_bad)
        kept = np.setdiff1d(np.arange(len(examples)), [index for index, _ in bad])
        if not len(kept):
            raise DataError(f"none of the images can be read; the first is {': '.join(skipped[0])}")
        rows = EmbeddingRows(values, kept.astype(np.int64), shape, examples, splits)
        written = EmbeddingFile(
            output, ids, loaded.name, tokens, len(kept), shape, str(values.dtype), skipped
        )
        run_on_main_process(lambda: rows.write(written))
    run_on_main_process(lambda: shutil.rmtree(part, ignore_errors=True))
    return written


def lock_part_folder(part: Path, output: Path) -> ExitStack:
    """Make the part folder and hold its lock; ConfigError if another program writes the file."""
    try:
        part.mkdir(exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, output) from error
    held = ExitStack()
    if not held.enter_context(file_lock(part / ".lock", wait=False)):
        held.close()
        raise ConfigError(f"--output {output} is being written by another program")
    return held


def fill_store(
    loaded: LoadedModel,
    examples: ImageDataset,
    part: Path,
    tokens: TokenChoice,
    progress: FeatureProgress | None,
) -> tuple[FeatureStore, tuple[int, ...]]:
    """Compute what is missing of the features in the part folder; -> them, and the shape of one.

    A part that was begun for other weights, images or tokens is removed.
    """
    model, preprocess, device = loaded.model, loaded.preprocess, loaded.device
    about: dict[str, Any] = broadcast_from_main(
        {**describe_feature_inputs(model, examples, preprocess, device.precision), "tokens": tokens}
        if get_world().is_main
        else {}
    )
    shape = infer_feature_shape(model, preprocess, device, tokens)
    store = FeatureStore(part / compute_cache_key(about))

    def begin() -> None:
        for other in part.iterdir():
            if other.is_dir() and other != store.folder:
                shutil.rmtree(other, ignore_errors=True)
        store.begin(len(examples), math.prod(shape), STORED_DTYPES[device.precision])

    if not broadcast_from_main(store.is_whole):
        run_on_main_process(begin)
        workers = loaded.workers_for(examples)
        features = FeaturePass(model, examples, preprocess, device, workers, tokens)
        run_on_all_processes(lambda: features.fill(store, progress or (lambda done, total: None)))
        run_on_main_process(lambda: store.finish(about))
    return store, shape


@dataclass(frozen=True)
class EmbeddingRows:
    """Rows of a file of features, read from the store in chunks."""

    values: np.ndarray  # memory-mapped, a row for each example
    kept: np.ndarray  # int64 [n], positions of the readable examples
    shape: tuple[int, ...]
    examples: ImageDataset
    splits: np.ndarray

    def write(self, file: EmbeddingFile) -> None:
        """Write the features and their ids; each file appears when it is complete."""
        if file.ids is None:
            replace_when_complete(file.path, lambda part: self.write_parquet(part, file))
            return
        replace_when_complete(file.path, self.write_npy)
        write_atomically(file.ids, self.format_ids().encode("utf-8", "surrogateescape"))

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield positions of a few readable examples at a time."""
        rows = max(1, MAX_CHUNK_BYTES // self.values[:1].nbytes)
        for start in range(0, len(self.kept), rows):
            yield self.kept[start : start + rows]

    def describe(self, index: int) -> tuple[str, str, str]:
        """Describe an example: path, split and label, "" without one."""
        label = int(self.examples.labels[index])
        name = self.examples.classes[label] if label >= 0 else ""
        return self.examples.keys[index], str(self.splits[index]), name

    def write_npy(self, path: Path) -> None:
        """Write [n, R] or [n, N, D]."""
        dtype = self.values.dtype.str
        header = {"descr": dtype, "fortran_order": False, "shape": (len(self.kept), *self.shape)}
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for positions in self.chunks():
                file.write(self.values[positions].tobytes())
            file.flush()
            os.fsync(file.fileno())

    def format_ids(self) -> str:
        """Format path, split and label of each row as CSV."""
        text = io.StringIO(newline="")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["row", "path", "split", "label"])
        for row, index in enumerate(self.kept.tolist()):
            rows.writerow([row, *self.describe(index)])
        return text.getvalue()

    def write_parquet(self, path: Path, file: EmbeddingFile) -> None:
        """Write columns path, split, label, features; float32, as few readers take halves."""
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        numbers = pyarrow.list_(pyarrow.float32(), math.prod(self.shape))
        columns = [(name, pyarrow.string()) for name in ("path", "split", "label")]
        about = {"model": file.model, "tokens": file.tokens, "shape": list(self.shape)}
        metadata = {"patchwords": json.dumps(about)}
        schema = pyarrow.schema([*columns, ("features", numbers)], metadata=metadata)
        with ParquetWriter(path, schema) as writer:
            for positions in self.chunks():
                ids = zip(*map(self.describe, positions.tolist()), strict=True)
                texts = [pyarrow.array(list(map(make_valid_utf8, column))) for column in ids]
                flat = pyarrow.array(self.values[positions].astype(np.float32).reshape(-1))
                lists = pyarrow.FixedSizeListArray.from_arrays(flat, math.prod(self.shape))
                writer.write_table(pyarrow.Table.from_arrays([*texts, lists], schema=schema))


def make_valid_utf8(text: str) -> str:
    """Replace the bytes of a file name that are not UTF-8, which parquet cannot hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def replace_when_complete(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file under another name and rename it; ConfigError if it cannot be written."""
    part = path.with_name(f".{path.name}.tmp")
    try:
        write(part)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise explain_write_error(error, path) from error
