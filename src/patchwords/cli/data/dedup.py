"""`patchwords dedup DATA --against TEST`: pre-training images that are in somebody's test set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from patchwords.data.doctor.dedup import Duplicates


@dataclass(frozen=True)
class DedupCommand:
    """Find the images to pre-train on that are in the test sets to be measured on later.

    They are the same file, or look-alikes: pictures whose perceptual hashes differ in at most
    --near of 64 bits, as those of an image that was resized, compressed again or brightened do.
    Of a test set that is divided, its test and validation images count.

    The list is a CSV: path and bytes of each image to leave out, the test image that it is most
    like, in which set, by how many bits, and whether the files are equal. Look at a few of its
    rows before trusting it, then train without these images: --exclude dedup.csv.

    Example: patchwords dedup photos/ --against flowers/ pets/ --output dedup.csv
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """the images to pre-train on: a folder, CSV, parquet, tar shards ..."""
    against: tuple[str, ...]
    """the sets that models will be measured on, each given as DATA is"""
    output: Path
    """the list to write"""
    near: int = 6
    """differing bits of 64 up to which images are look-alikes, 0 to 16"""
    overwrite: bool = False
    """write over an existing list"""
    json: bool = False
    """print the counts as JSON, and nothing else"""
    workers: int | None = None
    """processes that look at images; by default as many as there are processors, 0 for none"""
    image_column: str | None = None
    """column of DATA's images, where DATA is a table and it is not plain"""


def run_dedup(config: DedupCommand) -> int:
    """Compare, write the list, say what was found."""
    import json

    from patchwords.cli.data.doctor import show_progress
    from patchwords.data.doctor.dedup import find_duplicates, format_duplicates_csv
    from patchwords.data.open import open_data
    from patchwords.errors import ConfigError
    from patchwords.files import check_csv_writable, write_atomically

    check_csv_writable(config.output, config.overwrite, "--output")
    if not config.against:
        raise ConfigError("--against lacks a value: name the sets that models are measured on")
    if len({*config.against}) < len(config.against):
        raise ConfigError("--against names a set twice")
    data = open_data(config.data, image_column=config.image_column, need_labels=False)
    tests = [open_data(test, need_labels=False) for test in config.against]
    with show_progress(f"comparing {data.source}") as progress:
        found = find_duplicates(
            data, tests, near=config.near, workers=config.workers, progress=progress
        )
    # File names may hold bytes that are not UTF-8; they go out as they came in.
    write_atomically(config.output, format_duplicates_csv(found).encode("utf-8", "surrogateescape"))
    if config.json:
        print(json.dumps(summarise_duplicates(found, config.output)))
    else:
        print(describe_duplicates(found, config))
    return 0


def summarise_duplicates(found: Duplicates, output: Path) -> dict[str, object]:
    """What --json prints."""
    return {
        "images": len(found.examples),
        "to_leave_out": len(found.matches),
        "same_file": sum(match.same_file for match in found.matches),
        "by_distance": {
            str(bits): sum(match.distance == bits for match in found.matches)
            for bits in sorted({match.distance for match in found.matches})
        },
        "tests": {
            test: {"images": images, "with_a_double": found.found[test]}
            for test, images in found.compared.items()
        },
        "unreadable": found.unreadable,
        "compared_by_file_only": found.plain,
        "output": str(output),
    }


def describe_duplicates(found: Duplicates, config: DedupCommand) -> str:
    """The counts, and what to do with the list."""
    same = sum(match.same_file for match in found.matches)
    lines = [
        f"{config.data}: {len(found.matches):,} of {len(found.examples):,} images are in the test "
        f"sets: {same:,} as the same file, {len(found.matches) - same:,} at most {config.near} "
        "bits away"
    ]
    for test, images in found.compared.items():
        share = found.found[test] / max(images, 1)
        lines.append(f"  {test}: {found.found[test]:,} of {images:,} images ({share:.2%}) met")
    if found.unreadable:
        lines.append(
            f"  {found.unreadable:,} images cannot be read; `patchwords doctor` lists them"
        )
    if found.plain:
        lines.append(f"  {found.plain:,} images, too flat or too small, were compared by file only")
    lines.append(f"list: {config.output}; train without these by --exclude {config.output}")
    return "\n".join(lines)
