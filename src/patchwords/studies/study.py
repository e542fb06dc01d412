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

if TYPE_CHECKING:
    from patchwords.studies.bench import Bench
    from patchwords.studies.contents import Piece

ScaleName = Literal["mini", "full"]
SCALES: tuple[ScaleName, ...] = ("mini", "full")
Verb = Literal["finetune", "pretrain", "none"]  # what a cell is: a training of a kind, or none

Settings = Mapping[str, Any]  # of a training, flat, by the names of the flags
Numbers = Mapping[str, float | None]  # what a cell comes to; None: it diverged
Grid = Mapping[str, Settings]  # cell -> what is its own
Table = Mapping[str, Mapping[int, float | None]]  # label -> seed -> value

# Settings of a cell that no flag has: the pre-training that it starts from, and what it is where
# it is not what the others are. A cell that is no training may have any others.
ENCODER, VERB = "encoder", "verb"


@dataclass(frozen=True)
class Cell:
    """One training, or one measurement."""

    name: str
    seed: int
    settings: Settings  # all of them
    shared: bool = False  # a pre-training that others start from

    @property
    def folder(self) -> str:
        """The name of its folder: `2-D, every layer` with seed 1 is 2-d-every-layer-1."""
        return f"{slug(self.name)}-{self.seed}"

    @property
    def words(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Images:
    """What a study learns from or is judged by, as its author meant it."""

    what: str  # in words
    count: int  # training images, for the cost
    classes: int


@dataclass(frozen=True)
class Scale:
    """The grid at one size: on which data, and how each cell is trained."""

    data: Images | None  # what --data has to be; None: nothing is learned
    verb: Verb  # of every cell that does not say its own
    settings: Settings  # of every cell
    grid: Grid
    seeds: int
    time: str  # how long that takes, in words
    transfer: Images | None = None  # what --transfer has to be
    tuned: bool = False  # cells are trained on --transfer, and only their encoders on --data
    shots: int | None = None  # judged by so many images of each class of --transfer; None: by test
    encoders: Grid = field(default_factory=dict)  # pre-trainings that cells start from, by name

    @property
    def learned(self) -> Images:
        """What cells are trained on."""
        found = self.transfer if self.tuned and self.transfer is not None else self.data
        assert found is not None, "a scale without data trains nothing"
        return found

    def cells(self, seeds: int, share: float = 1.0) -> list[Cell]:
        """All cells of the first seed, then of the next: a study that is cut off has whole ones.

        With a share of their steps.
        """
        return [
            Cell(name, seed, shortened({VERB: self.verb, **self.settings, **own}, share))
            for seed in range(seeds)
            for name, own in self.grid.items()
        ]

    def pretrainings(self, seeds: int, share: float = 1.0) -> list[Cell]:
        """What has to be there before the cells, in the same order."""
        return [
            Cell(name, seed, shortened({VERB: "pretrain", **own}, share), shared=True)
            for seed in range(seeds)
            for name, own in self.encoders.items()
        ]


# What a run does every so many steps, or for so many: its share of the run stays.
BY_STEP = ("steps", "warmup_steps", "log_every", "eval_every", "save_every")


def shortened(settings: Settings, share: float) -> Settings:
    """With this share of the steps.

    >>> shortened({"steps": 3000, "warmup_steps": 300, "lr": 0.1}, 0.25)
    {'steps': 750, 'warmup_steps': 75, 'lr': 0.1}
    """
    if share == 1:
        return settings
    fewer = {name: max(1, round(settings[name] * share)) for name in BY_STEP if settings.get(name)}
    return {**settings, **fewer}


@dataclass(frozen=True)
class Unit:
    """How a number is told to a person."""

    name: str  # of a value
    difference: str  # of a difference of two
    times: float = 1.0
    digits: int = 1


ACCURACY = Unit("%", "points", 100.0)


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, as a difference; fixed before anything is run.

    The difference is the mean of the labels in `more` less that of those in `less`, or less zero
    where there are none. Without a margin the claim is that it is above zero; with one, that it is
    no further from zero.
    """

    text: str
    paper: str  # what the paper has for it, with its place
    more: tuple[str, ...]
    less: tuple[str, ...]
    margin: float | None = None


# (grid, cell -> validation accuracy of its seeds) -> label -> cell
Choose = Callable[[Grid, Mapping[str, Sequence[float | None]]], dict[str, str]]
# (cell, where) -> its numbers
Measure = Callable[[Cell, "Bench"], Numbers]


# (label -> cell, cell -> its numbers, of one seed) -> label -> value
Read = Callable[[Mapping[str, str], Mapping[str, Numbers]], Mapping[str, float | None]]


def everything(grid: Grid, validation: Mapping[str, Sequence[float | None]]) -> dict[str, str]:
    """Every cell under its own name: nothing is chosen."""
    return {name: name for name in grid}


def accuracies(labels: Mapping[str, str], found: Mapping[str, Numbers]) -> dict[str, float | None]:
    """The accuracy of every label's cell."""
    return {label: found[name].get("accuracy") for label, name in labels.items()}


def nothing_kept(folder: Path, results: Mapping[str, Any]) -> dict[str, bytes]:
    """A study all of whose figures are drawn from its numbers."""
    return {}


def none_of_its_own(results: Mapping[str, Any]) -> Sequence[Piece]:
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
    measure: Measure
    draw: Callable[[Mapping[str, Any]], dict[str, bytes]]  # results.json -> files
    # (folder of the study, results.json) -> files: pictures of what cells keep in their folders
    draw_kept: Callable[[Path, Mapping[str, Any]], dict[str, bytes]] = nothing_kept
    judge: Measure | None = None  # by images that chose nothing
    timed: bool = False  # what it measures is time: one cell after the other, in one process
    choose: Choose = everything
    read: Read = accuracies  # what claims are about
    units: Mapping[str, Unit] = field(default_factory=dict)  # of labels that are no accuracies
    tables: Callable[[Mapping[str, Any]], Sequence[Piece]] = none_of_its_own
    # Rows and columns of the paper's table, where the labels are `ROW, COLUMN`.
    layout: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    def unit(self, label: str) -> Unit:
        return self.units.get(label, ACCURACY)


def slug(name: str) -> str:
    """A name as a file can have it.

    >>> slug("2-D, every layer"), slug("GAP, lr 0.0003")
    ('2-d-every-layer', 'gap-lr-0.0003')
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
