"""What a study is: a question of the paper, a grid of cells, what is measured, what is claimed.

A study is one file that says all of this as literal tables and two or three functions; everything
else (running the grid, going on, trimming, verdicts, the page) is the same for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from patchwords.studies.bench import Bench

ScaleName = Literal["mini", "full"]
SCALES: tuple[ScaleName, ...] = ("mini", "full")

Settings = Mapping[str, Any]  # of a training, flat, by the names of the flags
Numbers = Mapping[str, float | None]  # what a cell comes to; None: it diverged
Grid = Mapping[str, Settings]  # cell -> what is its own
Table = Mapping[str, Mapping[int, float | None]]  # label -> seed -> value


@dataclass(frozen=True)
class Cell:
    """One training, or one measurement."""

    name: str
    seed: int
    settings: Settings  # all of them

    @property
    def folder(self) -> str:
        """The name of its folder: `2-D, every layer` with seed 1 is 2-d-every-layer-1."""
        return f"{slug(self.name)}-{self.seed}"

    @property
    def words(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Scale:
    """The grid at one size: on which data, and how each cell is trained."""

    needs: str  # what --data has to be, in words
    images: int  # training images of that data, for the cost
    classes: int
    verb: Literal["finetune", "pretrain"]
    settings: Settings  # of every cell
    grid: Grid
    seeds: int
    time: str  # how long that takes, in words
    shots: int | None = None  # judged by so many images of each class of --transfer; None: by test
    transfer: str | None = None  # what --transfer has to be, in words

    def cells(self, seeds: int, changes: Settings) -> list[Cell]:
        """All cells of the first seed, then of the next: a study that is cut off has whole ones."""
        return [
            Cell(name, seed, {**self.settings, **own, **changes})
            for seed in range(seeds)
            for name, own in self.grid.items()
        ]


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, as a difference; fixed before anything is run.

    The difference is the mean of the labels in `more` less that of those in `less`. Without a
    margin the claim is that it is above zero; with one, that it is no further from zero.
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


def everything(grid: Grid, validation: Mapping[str, Sequence[float | None]]) -> dict[str, str]:
    """Every cell under its own name: nothing is chosen."""
    return {name: name for name in grid}


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper, to be measured again."""

    name: str
    version: int  # raised with any change that makes old results something else
    title: str
    question: str
    source: str  # table or figure, and appendix
    quantity: str  # what the numbers are
    note: str  # what to know before comparing
    paper: Mapping[str, float]  # label -> the number as printed
    paper_quantity: str  # what the paper's numbers are, or why there are none
    scales: Mapping[ScaleName, Scale]
    claims: tuple[Claim, ...]
    measure: Measure
    judge: Measure  # by images that chose nothing; its "accuracy" is what claims are about
    draw: Callable[[Mapping[str, Any]], dict[str, bytes]]  # results.json -> files
    choose: Choose = everything
    # Rows and columns of the paper's table, where the labels are `ROW, COLUMN`.
    layout: tuple[tuple[str, ...], tuple[str, ...]] | None = None


def slug(name: str) -> str:
    """A name as a file can have it.

    >>> slug("2-D, every layer"), slug("GAP, lr 0.0003")
    ('2-d-every-layer', 'gap-lr-0.0003')
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
