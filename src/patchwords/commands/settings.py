"""Where settings come from: --recipe and --config give defaults, --resume goes on with a run's.

What torchrun starts anew after a process died (--max-restarts) goes on as if told to --resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from patchwords.cli import parse
from patchwords.distributed import launch, restarts
from patchwords.errors import ConfigError
from patchwords.train.config import DURATIONS
from patchwords.train.named_recipe import preset
from patchwords.train.run_folder import RunFolder, read_asked, read_launch
from patchwords.train.settings import FREE_ON_RESUME, flatten, read_yaml, unflatten

Command = TypeVar("Command")
SERIES = ("sweep", "vtab")  # verbs that make several runs in a folder


def parse_with_files(command: type[Command], words: Sequence[str], program: str) -> Command:
    """The command line over --config over --recipe over the defaults.

    On --resume it goes over the run's config.yaml, where all of that has been decided. Raises
    ConfigError for a file with an unknown or a wrong setting, for an unknown recipe, and for a
    setting on the command line that a run to be continued was not started with.
    """
    given: Any = parse(command, words, program)
    default = command()
    in_file = {} if given.config is None else read_yaml(given.config)
    if not given.resume:
        refuse_decided(given, in_file)
        default = with_recipe(default, {**in_file, **said_of_recipe(given)})
    if given.config is not None:
        default = from_file(command, given.config, program, default)
        default = forget_other_duration(default, flatten(given))
    if default != command():
        given = parse(command, words, program, default)
    again = restarted(given.output)
    if not (given.resume or again):
        return given
    if given.output is None:
        raise ConfigError("--resume: say which run to go on with by --output RUN")
    run = RunFolder(Path(given.output))
    if not run.config.is_file():
        raise ConfigError(f"--resume: {given.output} holds no run to go on with (no config.yaml)")
    stored = from_file(command, run.config, program)
    over = unflatten(stored, {name: flatten(default)[name] for name in in_file})
    now = flatten(parse(command, words, program, over))
    if again:
        now |= {"resume": True, "overwrite": False}
    asked = {**flatten(command()), **read_asked(run)}
    refuse_changes(flatten(stored), asked, now, given.output, instead(given))
    return unflatten(stored, {name: now[name] for name in (*FREE_ON_RESUME, "data")})


def restarted(output: str | None) -> bool:
    """Whether torchrun has started this very run anew, after one of its processes died."""
    if not restarts() or output is None:
        return False
    run = RunFolder(Path(output))
    return run.config.is_file() and read_launch(run) == launch()


def said_of_recipe(given: Any) -> dict[str, Any]:
    """What the command line says that decides which settings a recipe gives."""
    said = {"recipe": given.recipe.recipe, "weights": given.weights}
    return {name: value for name, value in said.items() if value is not None}


def with_recipe(default: Command, said: Mapping[str, Any]) -> Command:
    """The defaults as the recipe has them, if there is one."""
    name = said.get("recipe")
    if name is None:
        return default
    return preset(default, str(name), from_weights=said.get("weights") is not None)  # type: ignore[type-var]


def refuse_decided(given: Any, in_file: Mapping[str, Any]) -> None:
    """A file that says which recipe it is of has all of that recipe's settings, decided."""
    for name in ("recipe", "scale"):
        value = getattr(given.recipe, name)
        if name in in_file and value is not None and value != in_file[name]:
            raise ConfigError(
                f"--{name} {value}: {given.config} has {name} {in_file[name] or 'none'}, and the "
                "settings that follow from it; leave one of them out"
            )


def from_file(
    command: type[Command], path: Path, program: str, default: Command | None = None
) -> Command:
    """A YAML table of settings over `default`, checked as the flags of the same names are."""
    table = read_yaml(path)
    unflatten(command(), table, where=str(path))  # names first: the message can name the file
    try:
        return parse(command, as_words(table), program, default)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def forget_other_duration(default: Command, said: Mapping[str, Any]) -> Command:
    """--epochs on the command line wins over steps in a file, and so on."""
    if any(said[name] is not None for name in DURATIONS):
        default = unflatten(default, {name: None for name in DURATIONS if said[name] is None})
    return default


def as_words(table: Mapping[str, Any]) -> list[str]:
    """The command line that says what the table says."""
    words: list[str] = []
    for name, value in table.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "data":
            words.insert(0, str(value))
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return words


def instead(given: Any) -> str:
    """What to do with other settings: a run has weights to start from, a series of runs has not."""
    if given.verb in SERIES:
        return "start anew in another --output"
    return f"start a new run with --weights {given.output}"


def refuse_changes(
    stored: Mapping[str, Any],
    asked: Mapping[str, Any],
    now: Mapping[str, Any],
    run: str,
    otherwise: str,
) -> None:
    """Going on exactly means with the very settings that the run began with.

    They may be said as they were said then (--epochs 3) or as they are stored (--steps 300).
    """
    for name, value in now.items():
        plain = list(value) if isinstance(value, tuple) else value
        if name in FREE_ON_RESUME or value == stored[name] or plain == asked[name]:
            continue
        if name == "data" and Path(value).resolve() == Path(stored[name]).resolve():
            continue
        flag = name if name == "data" else f"--{name.replace('_', '-')}"
        then = asked[name] if stored[name] is None else stored[name]
        was = f"without {flag}" if then is None else f"with {flag} {as_said(then)}"
        raise ConfigError(
            f"--resume: {run} was started {was}, not with {as_said(value)}; leave it out, or "
            f"{otherwise}"
        )


def as_said(value: Any) -> str:
    """A value as it is written on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
