"""Shard indexes: name, label, offset, length and digest of each image.

An index of many shards is a text file, FOLDER.index.jsonl, with a JSON object per line: next to the
shards, or anywhere, it saves a training one pass over all their bytes.

Sizes: n images of the shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from patchwords.data.shards.tar import index_tar
from patchwords.data.sources.tables import Columns, find_image_column, read_class_names
from patchwords.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

INDEX_SUFFIX = ".index.jsonl"
PARQUET_BATCH_ROWS = 256  # of a parquet that are in memory at once


@dataclass(frozen=True)
class ShardIndex:
    """The index of one shard, in parallel lists of n."""

    shard: str  # address or path; in a file, relative to the file's folder if it can be
    bytes: int  # of the shard
    names: list[str]  # in the tar; in a parquet the number of the row
    labels: list[str | None]
    offsets: list[int]  # in the tar, or in the images of a parquet written one after the other
    sizes: list[int]
    digests: list[int]  # 64 bits of each encoded image
    column: str | None = None  # of a parquet: where the images are
    classes: list[str] | None = None  # in order, where the schema of a parquet has them
    aside: list[str] = field(
        default_factory=list
    )  # members that are no images, or labels without an image
    ended: bool = True  # whether a tar has its end mark

    @property
    def packed(self) -> int:
        """Bytes that the shard takes in the cache: a parquet is unpacked for random order."""
        return self.bytes if self.column is None else sum(self.sizes)

    def to_line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_index_line(where: str, line: str) -> ShardIndex:
    """Parse what `to_line` wrote; raises DataError if it is damaged."""
    try:
        index = ShardIndex(**json.loads(line))
        lists = (index.labels, index.offsets, index.sizes, index.digests)
        if any(len(values) != len(index.names) for values in lists):
            raise ValueError("its lists differ in length")
        return index
    except (ValueError, TypeError) as fault:
        raise DataError(
            f"{where}: not an index of shards, or a damaged one ({fault}); write it again by "
            "`patchwords index`"
        ) from fault


def index_shard(shard: str, file: BinaryIO, columns: Columns) -> ShardIndex:
    """Index a shard in one pass; raises DataError if it is damaged or cut short."""
    if shard.lower().endswith((".parquet", ".pq")):
        return _index_parquet(shard, file, columns)
    samples, ended = index_tar(shard, file)
    images = {key: sample for key, sample in samples.items() if sample.image is not None}
    aside = [name for sample in samples.values() for name in sample.extra]
    aside += [f"{key} (a label without an image)" for key in samples if key not in images]
    offsets = [sample.image.offset_data for sample in images.values() if sample.image]
    sizes = [sample.image.size for sample in images.values() if sample.image]
    digests = []
    for offset, size in zip(offsets, sizes, strict=True):
        file.seek(offset)
        digests.append(digest64(file.read(size)))
    return ShardIndex(
        shard=shard,
        bytes=file.seek(0, 2),
        names=[sample.image.name for sample in images.values() if sample.image],
        labels=[sample.label for sample in images.values()],
        offsets=offsets,
        sizes=sizes,
        digests=digests,
        aside=aside,
        ended=ended,
    )


def digest64(data: bytes) -> int:
    """Return a 64-bit digest: among 10^8 images, two meet by chance with p = 0.0003."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def extract_parquet_images(shard: str, source: BinaryIO, column: str, target: BinaryIO) -> None:
    """Write the images of a parquet one after the other, in the order of its rows."""
    for image in _iterate_images(shard, _open_parquet_file(shard, source), column):
        target.write(image)


def _index_parquet(shard: str, file: BinaryIO, columns: Columns) -> ShardIndex:
    from datasets import Dataset
    from datasets.table import InMemoryTable

    table = _open_parquet_file(shard, file)
    empty = Dataset(InMemoryTable(table.schema_arrow.empty_table()))
    column = find_image_column(shard, empty, columns.image)
    plain = [name for name in empty.features if name != column]
    rest = Dataset(InMemoryTable(table.read(columns=plain)))  # labels, and no images
    labels, classes = read_class_names(shard, rest, columns)
    sizes, digests = [], []
    for image in _iterate_images(shard, table, column):
        sizes.append(len(image))
        digests.append(digest64(image))
    ends = np.cumsum(sizes, dtype=np.int64)
    return ShardIndex(
        shard=shard,
        bytes=file.seek(0, 2),
        names=[str(row) for row in range(len(sizes))],
        labels=labels or [None] * len(sizes),
        offsets=(ends - sizes).tolist(),
        sizes=sizes,
        digests=digests,
        column=column,
        classes=classes,
    )


def _open_parquet_file(shard: str, file: BinaryIO) -> ParquetFile:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as fault:
        raise DataError(
            f"{shard}: not a parquet file, or one cut short: {_first_line(fault)}"
        ) from fault


def _iterate_images(shard: str, table: ParquetFile, column: str) -> Iterator[bytes]:
    """Read the encoded image of every row; empty if a row has none."""
    import pyarrow

    try:
        for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=[column]):
            for cell in batch.column(0).to_pylist():
                yield (cell["bytes"] if isinstance(cell, dict) else cell) or b""
    except (pyarrow.ArrowException, OSError) as fault:
        raise DataError(f"{shard}: damaged: {_first_line(fault)}") from fault


def _first_line(fault: Exception) -> str:
    return str(fault).splitlines()[0]
