"""The house stands on its floors: a file imports only from its own floor or from those below."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "patchwords"
FLOORS = {
    "errors": 0,
    "noise": 0,
    "files": 0,
    "duration": 0,
    "device": 0,
    "distributed": 0,
    "model": 1,
    "data": 2,
    "weights": 3,
    "train": 4,
    "inspect": 5,
    "measure": 5,
    "evaluate": 6,
    "report": 7,
    "export": 8,
    "app": 8,
    "cli": 9,
    "commands": 9,
    "studies": 9,
}
FACADE = {"__init__", "__main__", "version"}  # what the user imports: it may name every floor
NAMES_THAT_SAY_NOTHING = {"utils", "util", "misc", "helpers", "helper", "common", "manager", "base"}
MOST_LINES = 300  # literal tables apart

FILES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> list[tuple[int, str]]:
    """(line, room) of every import of patchwords, those inside functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write it in full"
            module = node.module or ""
            names = [module]
            if module == "patchwords":
                names = [f"patchwords.{alias.name}" for alias in node.names]
        else:
            continue
        found += [
            (node.lineno, name.split(".")[1]) for name in names if name.startswith("patchwords.")
        ]
    return found


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in FILES} - FACADE <= set(FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_downwards(path: Path) -> None:
    here = room(path)
    if here in FACADE:
        return
    for line, there in imported_rooms(path):
        if there in FACADE:
            continue
        below = FLOORS[there] < FLOORS[here]
        same_room = there == here or FLOORS[there] == FLOORS[here] in {0, 9}
        assert below or same_room, (
            f"{path.relative_to(PACKAGE)}:{line} imports {there} (floor {FLOORS[there]}) "
            f"from floor {FLOORS[here]}"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_small_and_named_for_what_they_hold(path: Path) -> None:
    assert path.stem not in NAMES_THAT_SAY_NOTHING
    lines = path.read_text().count("\n")
    assert lines <= MOST_LINES, f"{path.relative_to(PACKAGE)} has {lines} lines; split it"
