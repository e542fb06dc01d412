"""The shape of the house: floors, sizes, cycles (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "patchwords"
FLOORS = {
    **dict.fromkeys(
        ("errors", "rng", "files", "device", "processes", "distributed", "download", "version"), 0
    ),
    "models": 1,
    "data": 2,
    "planning": 2,
    "weights": 3,
    "training": 4,
    "interpret": 5,
    "evaluation": 6,
    "benchmark": 6,
    "report": 7,
    "export": 7,
    "app": 7,
    "tasks": 8,
    "api": 8,
    "studies": 8.5,
    "cli": 9,
}
FACADE = {"__init__", "__main__"}  # what the user imports may name every floor
NAMES_THAT_SAY_NOTHING = {"utils", "util", "misc", "helpers", "helper", "common", "manager", "base"}
MAX_LINES = 600
MAX_FUNCTION_LINES = 70
MAX_FILES = {"studies/paper": 24}  # one file a study
MAX_FILES_DEFAULT = 13

FILES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in FILES}


@cache
def imports(path: Path) -> tuple[tuple[int, str, bool], ...]:
    """(line, module, whether at the top level) of each import of patchwords, lazy ones included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in top_level(tree)}
    rows = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write it in full"
            names = []
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.append(full if full in modules() else node.module or "")
        else:
            continue
        rows += [
            (node.lineno, name, id(node) in top) for name in names if name.startswith("patchwords.")
        ]
    return tuple(rows)


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run on import, and those under TYPE_CHECKING."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in FILES} - FACADE <= set(FLOORS)


def test_imports_run_downwards() -> None:
    upward = []
    for path in FILES:
        if room(path) in FACADE:
            continue
        for line, name, _ in imports(path):
            target = name.split(".")[1]
            if target in FACADE or target == room(path):
                continue
            same_floor = FLOORS[target] == FLOORS[room(path)] in {0, 6, 8}
            if FLOORS[target] > FLOORS[room(path)] or (
                FLOORS[target] == FLOORS[room(path)] and not same_floor
            ):
                upward.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert upward == []


def test_there_is_no_cycle_even_for_types() -> None:
    graph = {
        module_name(path): {
            name for _, name, top in imports(path) if top and name != module_name(path)
        }
        for path in FILES
        if room(path) not in FACADE
    }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(f"these import one another: {error.args[1]}") from None


def test_files_have_a_size_and_a_name_that_says_something() -> None:
    wrong = []
    for path in FILES:
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES or path.stem in NAMES_THAT_SAY_NOTHING:
            wrong.append(f"{path.relative_to(PACKAGE)}: {lines} lines")
    assert wrong == []


def test_functions_fit_a_screen() -> None:
    long = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(PACKAGE)}: {node.name} has {lines} lines")
    assert long == []


def test_folders_hold_few_files() -> None:
    full = []
    for folder in {path.parent for path in FILES}:
        name = str(folder.relative_to(PACKAGE))
        files = [p for p in folder.glob("*.py") if p.stat().st_size]
        if len(files) > MAX_FILES.get(name, MAX_FILES_DEFAULT):
            full.append(f"{name} has {len(files)} files")
    assert full == []
