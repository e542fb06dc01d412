"""A study: a question of the paper, a grid of trials, a measurement, and claims.

A study is one file that states these as literal tables and two or three functions. Running the
grid, resuming, trimming, verdicts and the page are the same code for all studies.
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
Verb = Literal["finetune", "pretrain", "none"]  # how a trial trains; none: it only measures

TrialSettings = Mapping[str, Any]  # flat, by flag name
TrialMetrics = Mapping[str, float | None]  # results of a trial; None: it diverged
TrialGrid = Mapping[str, TrialSettings]  # trial name -> its own settings
ValuesByLabel = Mapping[str, Mapping[int, float | None]]  # label -> seed -> value

# Settings of a trial without a flag: the pre-training it starts from, and its verb where it differs
# from the others'. A trial that trains nothing may have any other settings.
ENCODER, VERB = "encoder", "verb"


@dataclass(frozen=True)
class Trial:
    """One training or one measurement, with its seed."""

    name: str
    seed: int
    settings: TrialSettings  # merged: the scale's and its own
    shared: bool = False  # a pre-training that other trials start from

    @property
    def folder(self) -> str:
        """Folder name: `2-D, every layer` with seed 1 is 2-d-every-layer-1."""
        return f"{slugify(self.name)}-{self.seed}"

    @property
    def title(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class DatasetSpec:
    """The data set that the author of a study had in mind."""

    description: str  # description
    count: int  # training images
    classes: int


@dataclass(frozen=True)
class Scale:
    """The grid at one size: its data, and the settings of each trial."""

    data: DatasetSpec | None  # required --data; None: nothing is trained
    verb: Verb  # default verb of a trial
    settings: TrialSettings  # of every trial
    grid: TrialGrid
    seeds: int
    time: str  # duration, human-readable
    transfer: DatasetSpec | None = None  # required --transfer
    tuned: bool = False  # trials train on --transfer, only their encoders on --data
    shots: int | None = None  # few-shot images per class of --transfer; None: evaluate on test
    encoders: TrialGrid = field(default_factory=dict)  # pre-trainings by name
    # text of a claim -> why this scale cannot test it, if no trial can be its control
    untested: Mapping[str, str] = field(default_factory=dict)

    @property
    def train_data(self) -> DatasetSpec:
        """Data that trials are trained on."""
        spec = self.transfer if self.tuned and self.transfer is not None else self.data
        assert spec is not None, "a scale without data trains nothing"
        return spec

    def list_trials(self, seeds: int, share: float = 1.0) -> list[Trial]:
        """List the trials seed by seed, so that an interrupted study has whole seeds.

        Args:
            share: factor of their steps.
        """
        return [
            Trial(
                name,
                seed,
                scale_step_settings({VERB: self.verb, **self.settings, **settings}, share),
            )
            for seed in range(seeds)
            for name, settings in self.grid.items()
        ]

    def list_pretrainings(self, seeds: int, share: float = 1.0) -> list[Trial]:
        """List the pre-trainings that trials start from, in the same order."""
        return [
            Trial(
                name, seed, scale_step_settings({VERB: "pretrain", **settings}, share), shared=True
            )
            for seed in range(seeds)
            for name, settings in self.encoders.items()
        ]


# Settings that count steps: they keep their share of the run.
STEP_SETTINGS = ("steps", "warmup_steps", "log_every", "eval_every", "save_every")


def scale_step_settings(settings: TrialSettings, share: float) -> TrialSettings:
    """Scale all settings that count steps.

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
    """Name, factor and format of a number on the page."""

    name: str  # unit of a value
    difference: str  # unit of a difference
    times: float = 1.0
    digits: int = 1


ACCURACY_UNIT = DisplayUnit("%", "points", 100.0)


@dataclass(frozen=True)
class Contrast:
    """The mean of labels `more` minus the mean of labels `less`; minus 0 without `less`."""

    name: str  # "attention less no mixing"
    more: tuple[str, ...]
    less: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of the paper as a difference of labels, fixed before the run.

    The difference is the mean of the labels in `more` minus the mean of those in `less`, or minus 0
    without `less`. Without a margin the claim is that it is above 0; with a margin, that it is no
    further from 0. A claim about several things is also judged in each of its `parts`. Its positive
    `controls` must be above 0: they show that the treatment has an effect at all.
    """

    text: str
    paper: str  # the paper's evidence, with its place
    more: tuple[str, ...]
    less: tuple[str, ...]
    margin: float | None = None
    controls: tuple[Contrast, ...] = ()
    parts: tuple[Contrast, ...] = ()


# (grid, trial -> validation accuracy per seed) -> label -> trial
ChooseTrials = Callable[[TrialGrid, Mapping[str, Sequence[float | None]]], dict[str, str]]
# (trial, context) -> metrics
MeasureTrial = Callable[[Trial, "StudyContext"], TrialMetrics]


# (label -> trial, trial -> metrics) of one seed -> label -> value
ComputeValues = Callable[
    [Mapping[str, str], Mapping[str, TrialMetrics]], Mapping[str, float | None]
]


def choose_every_trial(
    grid: TrialGrid, validation: Mapping[str, Sequence[float | None]]
) -> dict[str, str]:
    """Label every trial by its own name: no choice."""
    return {name: name for name in grid}


def collect_accuracies(
    labels: Mapping[str, str], metrics: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Collect the accuracy of every label's trial."""
    return {label: metrics[name].get("accuracy") for label, name in labels.items()}


def draw_no_stored_figures(folder: Path, results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw no figure from files of trials: the default."""
    return {}


def build_no_tables(results: Mapping[str, Any]) -> Sequence[PageBlock]:
    """Add no tables to the page: the default."""
    return ()


@dataclass(frozen=True)
class Study:
    """A reproduction of one table or figure of the paper."""

    name: str
    version: int  # raised when a change makes old results incomparable
    title: str
    question: str
    source: str  # table or figure, and appendix
    quantity: str  # the measured quantity, with its unit
    note: str  # caveats of the comparison
    paper: Mapping[str, float]  # label -> number as printed
    paper_quantity: str  # the paper's quantity, or why it has no numbers
    scales: Mapping[ScaleName, Scale]
    claims: tuple[Claim, ...]
    measure_trial: MeasureTrial
    draw_figures: Callable[[Mapping[str, Any]], dict[str, bytes]]  # results.json -> files
    # (folder of the study, results.json) -> files, from what trials keep in their folders
    draw_stored_figures: Callable[[Path, Mapping[str, Any]], dict[str, bytes]] = (
        draw_no_stored_figures
    )
    evaluate_trial: MeasureTrial | None = (
        None  # evaluates a chosen trial on images that chose nothing
    )
    timed: bool = False  # measures time: one trial after the other, in one process
    choose_trials: ChooseTrials = choose_every_trial
    compute_values: ComputeValues = collect_accuracies  # values that claims compare
    units: Mapping[str, DisplayUnit] = field(
        default_factory=dict
    )  # of labels that are not accuracies
    build_tables: Callable[[Mapping[str, Any]], Sequence[PageBlock]] = build_no_tables
    # Rows and columns of the paper's table, where the labels are `ROW, COLUMN`.
    layout: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    def unit(self, label: str) -> DisplayUnit:
        return self.units.get(label, ACCURACY_UNIT)


def slugify(name: str) -> str:
    """Convert a name to a file name.

    >>> slugify("2-D, every layer"), slugify("GAP, lr 0.0003")
    ('2-d-every-layer', 'gap-lr-0.0003')
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


RESULT_FILE, TEST_RESULT_FILE = "result.json", "judged.json"  # in the folder of a trial


@dataclass(frozen=True)
class StudyContext:
    """Folders, data and device of a study; it is pickled to worker processes."""

    folder: Path  # folder of the study
    scale: Scale
    data: str | None
    transfer: str | None = None
    device: DeviceName = "auto"
    precision: PrecisionName = "auto"

    def trial_folder(self, trial: Trial) -> Path:
        """Return the folder of a trial."""
        return self.folder / ("shared" if trial.shared else "cells") / trial.folder

    def run_folder(self, trial: Trial) -> Path:
        """Return the run folder of a trial that trains."""
        return self.trial_folder(trial) / "run"

    def encoder(self, trial: Trial) -> Path:
        """Return the model folder of the pre-training that a trial starts from."""
        name = trial.settings[ENCODER]
        return RunFolder(self.run_folder(Trial(name, trial.seed, {}, shared=True))).model

    @property
    def shared_folder(self) -> Path:
        """Folder of what several trials use: pre-trained encoders, features."""
        return self.folder / "shared"
