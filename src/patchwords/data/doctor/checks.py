"""The doctor's checks as a table, and their findings as data.

Sizes: a finding concerns one image, several that belong together, or a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "note"]


class Check(NamedTuple):
    """One kind of finding."""

    severity: Severity
    meaning: str  # what it is and what to do, for the user


CHECKS: dict[str, Check] = {
    "unreadable": Check("error", "cannot be decoded: damaged, cut short, or not an image"),
    "contradiction": Check("error", "the same file in different classes: one label is wrong"),
    "leakage": Check("error", "the same file in different splits: held out, and trained on"),
    "empty-class": Check("error", "a class without a readable image to train on"),
    "one-image": Check("error", "a class of one image: none can be held out"),
    "one-class": Check("error", "one class only: there is nothing to tell apart"),
    "unlabelled": Check("error", "images without a label among others that have one"),
    "no-labels": Check("error", "no labels at all: only pretrain can learn from these images"),
    "no-mask": Check("error", "a photo without a mask: draw one, or take the photo away"),
    "mask-size": Check("error", "a mask of another size than its photo"),
    "mask-values": Check("error", "values or colours that the table of classes lacks"),
    "mask-lossy": Check("error", "a mask saved as JPEG: its classes are blurred; save it as PNG"),
    "mask-colours": Check("error", "a mask in RGB without a table of colours: add classes.csv"),
    "mask-unreadable": Check("error", "a mask that cannot be decoded"),
    "untrainable": Check("error", "finetune would not start"),
    "absent-class": Check("warning", "a class of the table that no training mask has"),
    "mask-empty": Check("warning", "a mask without a labelled pixel: it teaches nothing"),
    "wrapped": Check("warning", "the classes seem to be one folder further down"),
    "twin-class": Check("warning", "names that differ in case, blanks or Unicode form: one class?"),
    "stray": Check("warning", "images outside of the class folders: left out"),
    "near-contradiction": Check("warning", "look-alikes in different classes: check the labels"),
    "near-leakage": Check("warning", "look-alikes in different splits: the score will flatter"),
    "duplicate": Check("warning", "the same file more than once: keep one"),
    "near-duplicate": Check("warning", "look-alikes: resized or edited copies, or a burst"),
    "small": Check("warning", "far smaller than the rest: thumbnails by mistake?"),
    "blank": Check("warning", "one colour all over: nothing to see"),
    "tiny-class": Check("warning", "too few images to learn from: gather more, or merge classes"),
    "missing-class": Check("warning", "a class that these held-out images cannot judge"),
    "imbalance": Check("warning", "the largest class drowns the smallest: consider balancing"),
    "panorama": Check("note", "one side much longer: cropping or squashing will hurt"),
    "rotated": Check("note", "turned by an EXIF tag; read upright"),
    "cmyk": Check("note", "inks for print; converted to RGB"),
    "16-bit": Check("note", "more than 8 bits; scaled to 8"),
    "1-bit": Check("note", "black and white only; read as grey"),
    "palette": Check("note", "colours from a palette; converted to RGB"),
    "alpha": Check("note", "transparent; laid over white"),
    "frames": Check("note", "several frames or pages; the first is used"),
}


class FindingLocation(NamedTuple):
    """An image, or a whole class where the path is empty."""

    split: str
    label: str  # "" where there is none
    path: str = ""


@dataclass(frozen=True)
class Finding:
    """A finding, with every image that it concerns."""

    kind: str  # a row of CHECKS
    detail: str
    places: tuple[FindingLocation, ...]

    @property
    def severity(self) -> Severity:
        """The severity of the finding's kind."""
        return CHECKS[self.kind].severity

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the images concerned."""
        return tuple(place.path for place in self.places if place.path)


@dataclass(frozen=True)
class DoctorReport:
    """All findings, in the order of CHECKS, and statistics of the data."""

    findings: tuple[Finding, ...]
    images: int
    counts: dict[str, tuple[int, ...]]  # split -> images of each class, unreadable ones too
    sizes: dict[str, tuple[int, ...]]  # "width", "height" -> pixels at doctor.QUANTILES
    formats: dict[str, int]  # "JPEG", "PNG", ... -> readable images, the most common first
    seconds: float

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def of_severity(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)
