"""`patchwords dedup DATA --against TEST`: training images that are also in a test set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from patchwords.data.doctor.dedup import Duplicates


@dataclass(frozen=True)
class DedupCommand:
    """List the training images that are also in a test set, as the same file or as a look-alike.

    Look-alikes are images whose perceptual hashes differ in at most --near of 64 bits: resized,
    recompressed or brightened copies. If a test set has splits, its test and validation images are
    compared.

    The list is a CSV with a row per image to leave out: its path and bytes, the most similar test
    image and its set, the number of differing bits, and whether the files are equal. Check a few
    rows, then train without these images: --exclude dedup.csv.

    Example: patchwords dedup photos/ --against flowers/ pets/ --output dedup.csv
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """training images: a folder, CSV, parquet, tar shards, hf:NAME or digits"""
    against: tuple[str, ...]
    """test sets to compare with, each given like DATA"""
    output: Path
    """CSV file to write"""
    near: int = 6
    """two images look alike if their 64-bit perceptual hashes differ in at most this number of
    bits, 0 to 16"""
    overwrite: bool = False
    """overwrite an existing file"""
    json: bool = False
    """print the counts as JSON"""
    workers: int | None = None
    """processes that read images; 0: read in this process; default: one per CPU core"""
    image_column: str | None = None
    """column with DATA's images, in a CSV or parquet table; default: duplicates by name and type"""


def run_dedup(config: DedupCommand) -> int:
    """Compare the images, write the list, print the counts."""
    import json

    from patchwords.data.doctor.dedup import find_duplicates, format_duplicates_csv
    from patchwords.data.open import open_data
    from patchwords.errors import ConfigError
    from patchwords.files import check_csv_writable, write_atomically
    from patchwords.training.logs.progress import show_progress

    check_csv_writable(config.output, config.overwrite, "--output")
    if not config.against:
        raise ConfigError("--against lacks a value: give one or more test sets")
    if len({*config.against}) < len(config.against):
        raise ConfigError("--against has the same set twice")
    data = open_data(config.data, image_column=config.image_column, need_labels=False)
    tests = [open_data(test, need_labels=False) for test in config.against]
    with show_progress(f"comparing {data.source}") as progress:
        duplicates = find_duplicates(
            data, tests, near=config.near, workers=config.workers, progress=progress
        )
    # File names that are not UTF-8 are written as their bytes.
    write_atomically(
        config.output, format_duplicates_csv(duplicates).encode("utf-8", "surrogateescape")
    )
    if config.json:
        print(json.dumps(summarise_duplicates(duplicates, config.output)))
    else:
        print(describe_duplicates(duplicates, config))
    return 0


def summarise_duplicates(duplicates: Duplicates, output: Path) -> dict[str, object]:
    """Make what --json prints."""
    return {
        "images": len(duplicates.examples),
        "to_leave_out": len(duplicates.matches),
        "same_file": sum(match.same_file for match in duplicates.matches),
        "by_distance": {
            str(bits): sum(match.distance == bits for match in duplicates.matches)
            for bits in sorted({match.distance for match in duplicates.matches})
        },
        "tests": {
            test: {"images": images, "with_a_double": duplicates.found[test]}
            for test, images in duplicates.compared.items()
        },
        "unreadable": duplicates.unreadable,
        "compared_by_file_only": duplicates.plain,
        "output": str(output),
    }


def describe_duplicates(duplicates: Duplicates, config: DedupCommand) -> str:
    """Describe the counts, and what to do with the list."""
    same = sum(match.same_file for match in duplicates.matches)
    lines = [
        f"{config.data}: {len(duplicates.matches):,} of {len(duplicates.examples):,} images are in the test "
        f"sets: {same:,} as the same file, {len(duplicates.matches) - same:,} at most {config.near} "
        "bits away"
    ]
    for test, images in duplicates.compared.items():
        share = duplicates.found[test] / max(images, 1)
        lines.append(
            f"  {test}: {duplicates.found[test]:,} of {images:,} images ({share:.2%}) found"
        )
    if duplicates.unreadable:
        lines.append(
            f"  {duplicates.unreadable:,} images cannot be read; `patchwords doctor` lists them"
        )
    if duplicates.plain:
        lines.append(
            f"  {duplicates.plain:,} images, too uniform or too small, were compared by file only"
        )
    lines.append(f"list: {config.output}; train without these by --exclude {config.output}")
    return "\n".join(lines)
