"""`patchwords index DATA`: an index of tar or parquet shards for streaming."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class IndexCommand:
    """Build an index of tar or parquet shards for streaming.

    Training builds the same index when it first opens the shards, and caches it on this machine. An
    index file spares every other machine that pass: put the file next to the shards and give its
    path or address as DATA. It holds names, labels, lengths and digests, but no pixels.

    DATA is a pattern: 'shards-{000..099}.tar', 'https://host/train-{000..999}.tar',
    's3://bucket/train-*.parquet'; join several patterns with ::

    Example: patchwords index 'https://host/train-{000..999}.tar' --output train.index.jsonl
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """tar or parquet shards, local or remote"""
    output: Path | None = None
    """index file to write, NAME.index.jsonl; default: keep the index in the cache only"""
    overwrite: bool = False
    """overwrite an existing file"""
    anew: bool = False
    """read every shard again, even if its index is cached"""
    cache_size: float = 64.0
    """local disk budget in GiB for remote shards"""
    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    label_column: str | None = None
    """column with the labels, in a CSV or parquet table; default: found by name and type"""


def run_index(config: IndexCommand) -> int:
    """Index the shards, write the index, print the number of images."""
    from patchwords.data.shards.index import INDEX_SUFFIX
    from patchwords.data.shards.stream import (
        format_index_lines,
        load_shard_indexes,
        open_shard_cache,
    )
    from patchwords.data.sources.tables import Columns
    from patchwords.errors import ConfigError
    from patchwords.files import check_csv_writable, write_atomically

    if not config.cache_size > 0:
        raise ConfigError(f"--cache-size {config.cache_size:g} must be greater than 0")
    if config.output is not None:
        check_csv_writable(config.output, config.overwrite, "--output")
        if not config.output.name.endswith(INDEX_SUFFIX):
            raise ConfigError(f"--output {config.output}: the name must end in {INDEX_SUFFIX}")
    columns = Columns(config.image_column, config.label_column, need_labels=False)
    indexes = load_shard_indexes(
        config.data, columns, open_shard_cache(config.cache_size), config.anew
    )
    images = sum(len(index.names) for index in indexes)
    gib = sum(index.bytes for index in indexes) / 2**30
    print(f"{config.data}: {images:,} images in {len(indexes):,} shards ({gib:,.2f} GiB)")
    if config.output is not None:
        write_atomically(config.output, "".join(format_index_lines(indexes, config.output.parent)))
        print(f"index: {config.output}")
    return 0
