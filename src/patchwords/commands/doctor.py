"""`patchwords doctor DATA`: what is wrong with my data, before an hour of training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from patchwords.data.examples import DatasetSplits
    from patchwords.data.findings import DoctorReport


@dataclass(frozen=True)
class DoctorCommand:
    """Look at every image and say what is wrong, before an hour of training.

    Errors: images that cannot be read or are cut short; the same file in two classes or in two
    splits; a class without images. Warnings: copies and look-alikes; images far smaller than the
    rest, or of one colour; tiny or unbalanced classes. Notes: what is odd but read right all the
    same, such as CMYK, 16 bits, transparency, EXIF rotation, panoramas and animations.

    DATA is whatever the other commands take: a folder, a CSV, parquet, tar shards, hf:NAME,
    digits. Nothing is changed. Ten thousand photos take seconds.

    Exit code: 0 no errors (with --strict: no warnings either), 2 something to put right.

    Example: patchwords doctor photos/ --csv findings.csv
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """the images: a folder of class folders, or any other source"""
    csv: Path | None = None
    """write every finding here, a row per image"""
    overwrite: bool = False
    """write over an existing CSV"""
    json: bool = False
    """print everything as JSON, and nothing else"""
    strict: bool = False
    """let warnings, too, end with exit code 2"""
    near: int = 4
    """differing bits of 64 up to which images are look-alikes, 0 to 16; fewer if all are alike"""
    smallest: int = 32
    """shortest side in pixels below which an image is suspiciously small, if most are larger"""
    workers: int | None = None
    """processes that look at images; by default as many as there are processors, 0 for none"""
    image_column: str | None = None
    """column of the images, where DATA is a table and it is not plain"""
    label_column: str | None = None
    """column of the classes, likewise"""


def run_doctor(config: DoctorCommand) -> int:
    """Examine, tell, and return the exit code."""
    from patchwords.commands.doctor_summary import print_findings, show_progress
    from patchwords.data.doctor import diagnose_dataset
    from patchwords.data.open import open_data
    from patchwords.files import check_csv_writable

    if config.csv is not None:
        check_csv_writable(config.csv, config.overwrite)
    data = open_data(
        config.data,
        image_column=config.image_column,
        label_column=config.label_column,
        need_labels=False,
    )
    with show_progress(f"looking at {data.source}") as progress:
        findings = diagnose_dataset(
            data,
            workers=config.workers,
            near=config.near,
            smallest=config.smallest,
            progress=progress,
        )
    wrong = findings.of_severity("error") or (config.strict and findings.of_severity("warning"))
    exit_code = 2 if wrong else 0
    if config.csv is not None:
        from patchwords.files import write_atomically

        # File names may hold bytes that are not UTF-8; they go out as they came in.
        write_atomically(
            config.csv, format_findings_csv(findings).encode("utf-8", "surrogateescape")
        )
    if config.json:
        print(format_findings_json(data, findings, exit_code))
    else:
        print_findings(data, findings, exit_code, config.csv)
    return exit_code


def format_findings_csv(findings: DoctorReport) -> str:
    """A row per image and finding; images of one finding share the number of a group."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["kind", "severity", "split", "label", "path", "detail", "group"])
    for group, finding in enumerate(findings.findings):
        for split, label, path in finding.places:
            writer.writerow(
                [finding.kind, finding.severity, split, label, path, finding.detail, group]
            )
    return text.getvalue()


def format_findings_json(data: DatasetSplits, findings: DoctorReport, exit_code: int) -> str:
    """Everything, for a program to read."""
    import json

    return json.dumps(
        {
            "source": data.source,
            "kind": data.kind,
            "notes": data.notes,
            "images": findings.images,
            "counts": {
                split: dict(zip(data.classes, counts, strict=True))
                for split, counts in findings.counts.items()
            },
            "sizes": findings.sizes,
            "formats": findings.formats,
            "seconds": round(findings.seconds, 3),
            "exit_code": exit_code,
            "findings": [
                {
                    "kind": finding.kind,
                    "severity": finding.severity,
                    "detail": finding.detail,
                    "places": [place._asdict() for place in finding.places],
                }
                for finding in findings.findings
            ],
        },
        indent=1,
    )
