"""What a study is: a question of the paper, a grid of cells, what is measured, what is claimed.

A study is one file that says all of this as literal tables and two or three functions; everything
else (running the grid, going on, trimming, verdicts, the page) is the same for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from patchwords.device import DeviceName, PrecisionName
from patchwords.training.logs.run_folder import RunFolder

if TYPE_CHECKING:
    from patchwords.studies.page_blocks import PageBlock


ScaleName = Literal["mini", "full"]
SCALES: tuple[ScaleName, ...] = ("mini", "full")
Verb = Literal["finetune", "pretrain", "none"]  # what a cell is: a training of a kind, or none

TrialSettings = Mapping[str, Any]  # of a training, flat, by the names of the flags
TrialMetrics = Mapping[str, float | None]  # what a cell comes to; None: it diverged
TrialGrid = Mapping[str, TrialSettings]  # cell -> what is its own
ValuesByLabel = Mapping[str, Mapping[int, float | None]]  # label -> seed -> value

# Settings of a cell that no flag has: the pre-training that it starts from, and what it is where
# it is not what the others are. A cell that is no training may have any others.
ENCODER, VERB = "encoder", "verb"


@dataclass(frozen=True)
class Trial:
    """One training, or one measurement."""

    name: str
    seed: int
    settings: TrialSettings  # all of them
    shared: bool = False  # a pre-training that others start from

    @property
    def folder(self) -> str:
        """The name of its folder: `2-D, every layer` with seed 1 is 2-d-every-layer-1."""
        return f"{slugify(self.name)}-{self.seed}"

    @property
    def words(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class DatasetSpec:
    """What a study learns from or is judged by, as its author meant it."""

    what: str  # in words
    count: int  # training images, for the cost
    classes: int


@dataclass(frozen=True)
class Scale:
    """The grid at one size: on which data, and how each cell is trained."""

    data: DatasetSpec | None  # what --data has to be; None: nothing is learned
    verb: Verb  # of every cell that does not say its own
    settings: TrialSettings  # of every cell
    grid: TrialGrid
    seeds: int
    time: str  # how long that takes, in words
    transfer: DatasetSpec | None = None  # what --transfer has to be
    tuned: bool = False  # cells are trained on --transfer, and only their encoders on --data
    shots: int | None = None  # judged by so many images of each class of --transfer; None: by test
    encoders: TrialGrid = field(
        default_factory=dict
    )  # pre-trainings that cells start from, by name
    # text of a claim -> why this scale cannot test it, where no cell can be its control
    untested: Mapping[str, str] = field(default_factory=dict)

    @property
    def learned(self) -> DatasetSpec:
        """What cells are trained on."""
        found = self.transfer if self.tuned and self.transfer is not None else self.data
        assert found is not None, "a scale without data trains nothing"
        return found

    def cells(self, seeds: int, share: float = 1.0) -> list[Trial]:
        """All cells of the first seed, then of the next: a study that is cut off has whole ones.

        With a share of their steps.
        """
        return [
            Trial(name, seed, scale_step_settings({VERB: self.verb, **self.settings, **own}, share))
            for seed in range(seeds)
            for name, own in self.grid.items()
        ]

    def pretrainings(self, seeds: int, share: float = 1.0) -> list[Trial]:
        """What has to be there before the cells, in the same order."""
        return [
            Trial(name, seed, scale_step_settings({VERB: "pretrain", **own}, share), shared=True)
            for seed in range(seeds)
            for name, own in self.encoders.items()
        ]


# What a run does every so many steps, or for so many: its share of the run stays.
STEP_SETTINGS = ("steps", "warmup_steps", "log_every", "eval_every", "save_every")


def scale_step_settings(settings: TrialSettings, share: float) -> TrialSettings:
    """With this share of the steps.

    >>> scale_step_settings({"steps": 3000, "warmup_steps": 300, "lr": 0.1}, 0.25)
    {'steps': 750, 'warmup_steps': 75, 'lr': 0.1}
    """
    if share == 1:
        return settings
    fewer = {
        name: max(1, round(settings[name] * share)) for name in STEP_SETTINGS if settings.get(name)
    }
    return {**settings, **fewer}


@dataclass(frozen=True)
class DisplayUnit:
    """How a number is told to a person."""

    name: str  # of a value
    difference: str  # of a difference of two
    times: float = 1.0
    digits: int = 1


ACCURACY_UNIT = DisplayUnit("%", "points", 100.0)


@dataclass(frozen=True)
class Contrast:
    """The mean of the labels in `more` less that of those in `less`, or less zero without any."""

    name: str  # "attention less no mixing"
    more: tuple[str, ...]
    less: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, as a difference; fixed before anything is run.

    The difference is the mean of the labels in `more` less that of those in `less`, or less zero
    where there are none. Without a margin the claim is that it is above zero; with one, that it is
    no further from zero. A claim about several things is judged in each of its `parts`, too. Its
    positive `controls` must lie above zero: what the claim is about then does something at all.
    """

    text: str
    paper: str  # what the paper has for it, with its place
    more: tuple[str, ...]
    less: tuple[str, ...]
    margin: float | None = None
    controls: tuple[Contrast, ...] = ()
    parts: tuple[Contrast, ...] = ()


# (grid, cell -> validation accuracy of its seeds) -> label -> cell
ChooseTrials = Callable[[TrialGrid, Mapping[str, Sequence[float | None]]], dict[str, str]]
# (cell, where) -> its numbers
MeasureTrial = Callable[[Trial, "StudyContext"], TrialMetrics]


# (label -> cell, cell -> its numbers, of one seed) -> label -> value
ComputeValues = Callable[
    [Mapping[str, str], Mapping[str, TrialMetrics]], Mapping[str, float | None]
]


def choose_every_trial(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]]
) -> dict[str, str]:
    """Every cell under its own name: nothing is chosen."""
    return {name: name for name in grid}


def collect_accuracies(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """The accuracy of every label's cell."""
    return {label: found[name].get("accuracy") for label, name in labels.items()}


def draw_no_stored_figures(folder: Path, results: Mapping[str, Any]) -> dict[str, bytes]:
    """A study all of whose figures are drawn from its numbers."""
    return {}


def build_no_tables(results: Mapping[str, Any]) -> Sequence[PageBlock]:
    """A study whose page has no other tables than every page."""
    return ()


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper, to be measured again."""

    name: str
    version: int  # raised with any change that makes old results something else
    title: str
    question: str
    source: str  # table or figure, and appendix
    quantity: str  # what the numbers are, with their unit
    note: str  # what to know before comparing
    paper: Mapping[str, float]  # label -> the number as printed
    paper_quantity: str  # what the paper's numbers are, or why there are none
    scales: Mapping[ScaleName, Scale]
    claims: tuple[Claim, ...]
    measure: MeasureTrial
    draw: Callable[[Mapping[str, Any]], dict[str, bytes]]  # results.json -> files
    # (folder of the study, results.json) -> files: pictures of what cells keep in their folders
    draw_kept: Callable[[Path, Mapping[str, Any]], dict[str, bytes]] = draw_no_stored_figures
    judge: MeasureTrial | None = None  # by images that chose nothing
    timed: bool = False  # what it measures is time: one cell after the other, in one process
    choose: ChooseTrials = choose_every_trial
    read: ComputeValues = collect_accuracies  # what claims are about
    units: Mapping[str, DisplayUnit] = field(
        default_factory=dict
    )  # of labels that are no accuracies
    tables: Callable[[Mapping[str, Any]], Sequence[PageBlock]] = build_no_tables
    # Rows and columns of the paper's table, where the labels are `ROW, COLUMN`.
    layout: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    def unit(self, label: str) -> DisplayUnit:
        return self.units.get(label, ACCURACY_UNIT)


def slugify(name: str) -> str:
    """A name as a file can have it.

    >>> slugify("2-D, every layer"), slugify("GAP, lr 0.0003")
    ('2-d-every-layer', 'gap-lr-0.0003')
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


# Where the cells of a study are carried out: their folders, their data, their machine.


RESULT_FILE, TEST_RESULT_FILE = "result.json", "judged.json"  # in the folder of a cell


@dataclass(frozen=True)
class StudyContext:
    """What a cell needs beside itself; it travels to other processes."""

    folder: Path  # of the study
    scale: Scale
    data: str | None
    transfer: str | None = None
    device: DeviceName = "auto"
    precision: PrecisionName = "auto"

    def place(self, cell: Trial) -> Path:
        """The folder of a cell."""
        return self.folder / ("shared" if cell.shared else "cells") / cell.folder

    def run(self, cell: Trial) -> Path:
        """The run folder of a cell that is a training."""
        return self.place(cell) / "run"

    def encoder(self, cell: Trial) -> Path:
        """The model of the pre-training that a cell starts from."""
        name = cell.settings[ENCODER]
        return RunFolder(self.run(Trial(name, cell.seed, {}, shared=True))).model

    @property
    def shared(self) -> Path:
        """What several cells use, made by whoever needs it: pre-trained encoders, features."""
        return self.folder / "shared"
