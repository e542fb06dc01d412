"""`patchwords doctor DATA`: what is wrong with my data, before an hour of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from patchwords.cli.data.labels import LabelOptions
from patchwords.cli.format import make_console, print_lines
from patchwords.cli.options import CacheOptions
from patchwords.data.doctor.checks import CHECKS, DoctorReport, Finding, Severity
from patchwords.training.logs.progress import replace_unprintable, show_progress

if TYPE_CHECKING:
    from patchwords.data.dataset import DatasetSplits
    from patchwords.evaluation.probes.label_errors import LabelErrors


@dataclass(frozen=True)
class DoctorCommand:
    """Check every image of a data set and report what is wrong, before an hour of training.

    Errors: images that cannot be read or are truncated; the same file in two classes or in two
    splits; a class without images. Warnings: copies and look-alikes; images far smaller than the
    rest, or of a single colour; tiny or unbalanced classes. Notes: unusual images that are read
    correctly, such as CMYK, 16 bits, transparency, EXIF rotation, panoramas and animations.

    With --labels: images whose label looks wrong to a linear probe on the features of a model, each
    judged by a probe that has not seen it. This takes a pass of the model over all images.

    Of photos with masks also: a photo without a mask, a mask of another size, values outside the
    table of classes, masks saved as JPEG.

    Nothing is changed. Ten thousand photos take seconds.

    Exit code: 0 no errors (with --strict: no warnings either), 2 something to fix.

    Example: patchwords doctor photos/ --csv findings.csv

    Example: patchwords doctor photos/ --labels runs/pretrained --output labels
    """

    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """images: a folder with one folder per class, or with images/ and masks/, CSV, parquet, tar
    shards, hf:NAME or digits"""
    csv: Path | None = None
    """CSV file to write with every finding, a row per image; default: none"""
    overwrite: bool = False
    """overwrite an existing CSV, and the files in --output"""
    json: bool = False
    """print everything as JSON"""
    strict: bool = False
    """exit with code 2 for warnings, too"""
    near: int = 4
    """two images look alike if their 64-bit perceptual hashes differ in at most this number of
    bits, 0 to 16; fewer if all images are alike"""
    smallest: int = 32
    """warn about images whose short side has fewer pixels than this, if most are larger"""
    workers: int | None = None
    """processes that read images; 0: read in this process; default: one per CPU core"""
    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    label_column: str | None = None
    """column with the labels, in a CSV or parquet table; default: found by name and type"""
    check: LabelOptions = field(default_factory=LabelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)


def run_doctor(config: DoctorCommand) -> int:
    """Check the data, print the findings; -> the exit code."""
    from patchwords.data.doctor.diagnose import diagnose_dataset
    from patchwords.data.open import open_data
    from patchwords.files import check_csv_writable, claim_output_folder

    config.check.validate(config.cache)
    if config.csv is not None:
        check_csv_writable(config.csv, config.overwrite)
    claim_output_folder(config.check.output, config.overwrite)
    data = open_data(
        config.data,
        image_column=config.image_column,
        label_column=config.label_column,
        need_labels=False,
    )
    with show_progress(f"checking {data.source}") as progress:
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

        # File names that are not UTF-8 are written as their bytes.
        write_atomically(
            config.csv, format_findings_csv(findings).encode("utf-8", "surrogateescape")
        )
    errors = config.check.find(data, config.cache, config.workers)
    if config.json:
        print(format_findings_json(data, findings, exit_code, errors))
    else:
        print_findings(data, findings, exit_code, config.csv)
        if errors is not None:
            print_lines(make_console(), "", *config.check.describe(errors))
    return exit_code


def format_findings_csv(findings: DoctorReport) -> str:
    """Format a row per image and finding; images of one finding share a group number."""
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


def format_findings_json(
    data: DatasetSplits, findings: DoctorReport, exit_code: int, errors: LabelErrors | None
) -> str:
    """Format everything as JSON."""
    import json

    return json.dumps(
        {
            **({} if errors is None else {"labels": errors.to_dict()}),
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
                    "places": [image._asdict() for image in finding.places],
                }
                for finding in findings.findings
            ],
        },
        indent=1,
    )


SEVERITY_TITLES: dict[Severity, str] = {
    "error": "Errors: fix them before training",
    "warning": "Warnings: check them",
    "note": "Notes: good to know",
}
SEVERITY_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
MAX_EXAMPLES = 3  # findings of a kind that are shown
MAX_EXAMPLE_PATHS = 4  # images of a finding that are shown
MAX_LARGEST_CLASSES = 5  # classes that are shown, if there are more than both together
MAX_SMALLEST_CLASSES = 10
BAR_WIDTH = 24  # characters for the largest class


def print_findings(
    data: DatasetSplits, findings: DoctorReport, exit_code: int, csv: Path | None
) -> None:
    """Print the findings by severity, with the first examples of each kind."""
    console = Console(highlight=False)
    console.print(Text(format_headline(data, findings), style="bold"), soft_wrap=True)
    for line in (format_sizes(findings), *data.notes):
        if line:
            console.print(Text(replace_unprintable(line), style="dim"), soft_wrap=True)
    if data.classes:
        console.print()
        console.print(make_class_table(data, findings, "#" if console.options.ascii_only else "━"))
    for severity, title in SEVERITY_TITLES.items():
        if findings.of_severity(severity):
            console.print()
            console.print(Text(title, style=SEVERITY_STYLES[severity]))
        for kind in CHECKS:
            of_kind = findings.of_kind(kind)
            if of_kind and CHECKS[kind].severity == severity:
                print_findings_of_kind(console, kind, of_kind)
    console.print()
    console.print(format_verdict(findings, exit_code))
    if csv is not None:
        console.print(
            Text(f"Every image concerned is listed in {replace_unprintable(str(csv))}"),
            soft_wrap=True,
        )
    elif findings.findings:
        console.print(Text("Add --csv findings.csv for a list of every image concerned", "dim"))


def format_noun_count(number: int, noun: str) -> str:
    """1 image, 2,000 images, 3 classes."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def format_headline(data: DatasetSplits, findings: DoctorReport) -> str:
    splits = [f"{name} {sum(counts):,}" for name, counts in findings.counts.items()]
    per_split = f" ({', '.join(splits)})" if len(splits) > 1 else ""
    classes = (
        f" of {format_noun_count(len(data.classes), 'class')}" if data.classes else ", no labels"
    )
    return replace_unprintable(
        f"{data.source}: {format_noun_count(findings.images, 'image')}{classes}{per_split}"
    )


def format_sizes(findings: DoctorReport) -> str:
    """Formats and sizes, on one line."""
    parts = [f"{name} {number:,}" for name, number in findings.formats.items()]
    for side, pixels in findings.sizes.items():
        if pixels:
            least, _, median, _, most = pixels
            same = least == most
            parts.append(
                f"{side} {least}" if same else f"{side} {least} to {most}, median {median}"
            )
    return " · ".join(parts)


def make_class_table(data: DatasetSplits, findings: DoctorReport, bar_sign: str) -> Table:
    """Make a table of images per class and split; of many classes the largest and smallest."""
    import numpy as np

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class", overflow="fold")
    for split in findings.counts:
        table.add_column("images" if len(findings.counts) == 1 else split, justify="right")
    table.add_column("", no_wrap=True)
    counts = np.array(list(findings.counts.values()))  # [splits, classes]
    total = counts.sum(0)
    rows: list[int | None] = list(range(len(total)))
    if len(total) > MAX_LARGEST_CLASSES + MAX_SMALLEST_CLASSES:
        ranked = np.argsort(-total, kind="stable").tolist()
        rows = [*ranked[:MAX_LARGEST_CLASSES], None, *ranked[-MAX_SMALLEST_CLASSES:]]
    for label in rows:
        if label is None:
            more = len(total) - MAX_LARGEST_CLASSES - MAX_SMALLEST_CLASSES
            table.add_row(Text(f"... {more:,} more ...", "dim"))
            continue
        bar = bar_sign * int(np.ceil(BAR_WIDTH * total[label] / max(total.max(), 1)))
        numbers = [f"{number:,}" for number in counts[:, label]]
        table.add_row(Text(replace_unprintable(data.classes[label])), *numbers, Text(bar, "blue"))
    return table


def print_findings_of_kind(console: Console, kind: str, findings: tuple[Finding, ...]) -> None:
    severity, meaning = CHECKS[kind]
    title = (f"{len(findings):>6,} {kind}", SEVERITY_STYLES[severity])
    console.print(Text.assemble(title, f"  {meaning}"), soft_wrap=True)
    for finding in findings[:MAX_EXAMPLES]:
        console.print(
            Text(replace_unprintable(f"       {format_example(finding)}"), "dim"), soft_wrap=True
        )
    if len(findings) > MAX_EXAMPLES:
        console.print(Text(f"       ... and {len(findings) - MAX_EXAMPLES:,} more", "dim"))


def format_example(finding: Finding) -> str:
    names = finding.keys or tuple(image.label for image in finding.places)
    listed = ", ".join(names[:MAX_EXAMPLE_PATHS])
    if len(names) > MAX_EXAMPLE_PATHS:
        listed += f" and {len(names) - MAX_EXAMPLE_PATHS:,} more"
    return f"{listed}: {finding.detail}" if finding.detail else listed


def format_verdict(findings: DoctorReport, exit_code: int) -> Text:
    """Format the last line: the number of findings, and whether training can start."""
    parts: list[str | tuple[str, str]] = []
    for severity in SEVERITY_TITLES:
        number = len(findings.of_severity(severity))
        parts += [
            (format_noun_count(number, severity), SEVERITY_STYLES[severity] if number else "dim"),
            ", ",
        ]
    advice = "fix the errors before training" if exit_code else "ready to train"
    if exit_code and not findings.of_severity("error"):
        advice = "--strict: fix the warnings"
    return Text.assemble(*parts[:-1], f" in {findings.seconds:.1f} s: {advice}")
