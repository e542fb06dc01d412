"""The cells of a study, one after the other, shared out among all who work in its folder.

A cell belongs to whoever holds its lock, which is the system's: that of a killed process is gone
with it, and the next one that comes by goes on with the cell. So any number of processes may work
in one folder, started together or by hand, on machines that share a file system with locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from patchwords.data.shard_cache import locked
from patchwords.files import explain
from patchwords.studies.bench import JUDGED, MEASURED, Bench
from patchwords.studies.record import read_numbers, write_numbers
from patchwords.studies.study import Cell, Numbers, Study
from patchwords.studies.training import measure_training

Stage = Literal["measure", "judge"]
FILES: dict[Stage, str] = {"measure": MEASURED, "judge": JUDGED}
POLL = 0.5  # seconds between two looks at cells that others are at

Tell = Callable[[str], None]


def carry_out(
    study: Study, encoders: Sequence[Cell], cells: Sequence[Cell], bench: Bench, tell: Tell
) -> None:
    """Pre-train, measure every cell, choose by what all came to, and judge what was chosen."""
    work_through(study, encoders, bench, "measure", tell)
    work_through(study, cells, bench, "measure", tell)
    work_through(study, chosen(study, cells, bench), bench, "judge", tell)


def chosen(study: Study, cells: Sequence[Cell], bench: Bench) -> list[Cell]:
    """The cells that are judged, once all are measured."""
    if study.judge is None:
        return []
    names = set(labels_of(study, cells, bench).values())
    return [cell for cell in cells if cell.name in names]


def labels_of(study: Study, cells: Sequence[Cell], bench: Bench) -> dict[str, str]:
    """Label -> cell, by validation accuracy alone."""
    return study.choose(bench.scale.grid, validation_of(collect(cells, bench, "measure")))


def validation_of(found: Mapping[tuple[str, int], Numbers]) -> dict[str, list[float | None]]:
    """Cell -> its validation accuracy, seed by seed."""
    table: dict[str, list[float | None]] = {}
    for (name, _), numbers in sorted(found.items(), key=lambda item: item[0][1]):
        table.setdefault(name, []).append(numbers.get("validation"))
    return table


def work_through(
    study: Study, cells: Sequence[Cell], bench: Bench, stage: Stage, tell: Tell
) -> None:
    """Do every cell that is neither done nor being done; then wait for those that others are at."""

    def count(line: str) -> None:
        done = sum((bench.place(cell) / FILES[stage]).is_file() for cell in cells)
        word = "pre-trained" if cells[0].shared else f"{stage}d"
        tell(f"{word} {done} of {len(cells)}: {line}")

    left = list(cells)
    while left:
        others = [cell for cell in left if not attempt(study, cell, bench, stage, count)]
        if others:
            time.sleep(POLL)
        left = others


def attempt(study: Study, cell: Cell, bench: Bench, stage: Stage, tell: Tell) -> bool:
    """Do the cell unless somebody else is at it; -> whether it is done."""
    place = bench.place(cell)
    file = place / FILES[stage]
    if file.is_file():
        return True
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, place) from error
    with locked(place / ".lock", wait=False) as mine:
        if not mine:
            return False
        if not file.is_file():
            start = time.monotonic()
            numbers = dict(do(study, cell, bench, stage))
            write_numbers(file, numbers)
            tell(in_words(cell, numbers, time.monotonic() - start))
    return True


def do(study: Study, cell: Cell, bench: Bench, stage: Stage) -> Numbers:
    """The numbers of one cell in one stage; what diverged has no accuracy to be judged."""
    if cell.shared:
        return measure_training(cell, bench)
    if stage == "measure":
        return study.measure(cell, bench)
    assert study.judge is not None
    measured = read_numbers(bench.place(cell) / MEASURED) or {}
    return {"accuracy": None} if measured.get("diverged") else study.judge(cell, bench)


def collect(cells: Sequence[Cell], bench: Bench, stage: Stage) -> dict[tuple[str, int], Numbers]:
    """(name, seed) -> the numbers of every cell that is done."""
    found: dict[tuple[str, int], Numbers] = {}
    for cell in cells:
        numbers = read_numbers(bench.place(cell) / FILES[stage])
        if numbers is not None:
            found[cell.name, cell.seed] = numbers
    return found


def in_words(cell: Cell, numbers: Numbers, seconds: float) -> str:
    """A finished cell, for a person."""
    if numbers.get("diverged"):
        return f"{cell.words}: diverged"
    shown = (
        f"{word} {numbers[key]:.1%}"
        for key, word in (("validation", "validation"), ("accuracy", "accuracy"))
        if numbers.get(key) is not None
    )
    return f"{cell.words}: {', '.join((*shown, f'{seconds:.0f} s'))}"
