"""Where settings come from: --recipe and --config give defaults, --resume continues a run's.

A run that torchrun restarts after a process died (--max-restarts) continues as with --resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from patchwords.cli.flags import parse_command
from patchwords.distributed import get_launch_id, get_restart_count
from patchwords.errors import ConfigError
from patchwords.training.config import (
    CHANGEABLE_ON_RESUME,
    DURATION_FIELDS,
    flatten_config,
    read_config_yaml,
    unflatten_config,
)
from patchwords.training.logs.run_folder import (
    RunFolder,
    read_launch_command,
    read_requested_settings,
)
from patchwords.training.recipes import apply_recipe

Command = TypeVar("Command")
SERIES_VERBS = ("sweep", "vtab")  # verbs that make several runs in a folder


def parse_with_files(command: type[Command], words: Sequence[str], program: str) -> Command:
    """The command line over --config over --recipe over the defaults.

    On --resume it goes over the run's config.yaml, where all of that has been decided. Raises
    ConfigError for a file with an unknown or a wrong setting, for an unknown recipe, and for a
    setting on the command line that a run to be continued was not started with.
    """
    given: Any = parse_command(command, words, program)
    default = command()
    in_file = {} if given.config is None else read_config_yaml(given.config)
    if not given.resume:
        refuse_recipe_conflict(given, in_file)
        default = apply_recipe_defaults(default, {**in_file, **collect_recipe_flags(given)})
    if given.config is not None:
        default = parse_config_file(command, given.config, program, default)
        default = override_duration(default, flatten_config(given))
    if default != command():
        given = parse_command(command, words, program, default)
    again = is_torchrun_restart(given.output)
    if not (given.resume or again):
        return given
    if given.output is None:
        raise ConfigError("--resume: say which run to go on with by --output RUN")
    run = RunFolder(Path(given.output))
    if not run.config.is_file():
        raise ConfigError(f"--resume: {given.output} holds no run to go on with (no config.yaml)")
    stored = parse_config_file(command, run.config, program)
    refuse_unnamed_mixer(stored, given, run)
    over = unflatten_config(stored, {name: flatten_config(default)[name] for name in in_file})
    now = flatten_config(parse_command(command, words, program, over))
    if again:
        now |= {"resume": True, "overwrite": False}
    asked = {**flatten_config(command()), **read_requested_settings(run)}
    refuse_changed_settings(
        flatten_config(stored), asked, now, given.output, suggest_new_run(given)
    )
    return unflatten_config(stored, {name: now[name] for name in (*CHANGEABLE_ON_RESUME, "data")})


def refuse_unnamed_mixer(stored: Any, given: Any, run: RunFolder) -> None:
    """Raise for a run with a mixer from outside the package that this command does not name."""
    mixer, named = (
        command.model_settings.mixer if hasattr(command, "model_settings") else None
        for command in (stored, given)
    )
    if mixer and ":" in mixer and mixer != named:
        raise ConfigError(
            f"--resume: {run.config} names code from outside of patchwords: --mixer {mixer} on "
            "the command line allows to run it"
        )


def is_torchrun_restart(output: str | None) -> bool:
    """Whether torchrun has restarted this run after one of its processes died."""
    if not get_restart_count() or output is None:
        return False
    run = RunFolder(Path(output))
    return run.config.is_file() and read_launch_command(run) == get_launch_id()


def collect_recipe_flags(given: Any) -> dict[str, Any]:
    """What the command line says that decides which settings a recipe gives."""
    said = {"recipe": given.recipe.recipe, "weights": given.weights}
    return {name: value for name, value in said.items() if value is not None}


def apply_recipe_defaults(default: Command, said: Mapping[str, Any]) -> Command:
    """The defaults as the recipe has them, if there is one."""
    name = said.get("recipe")
    if name is None:
        return default
    return apply_recipe(default, str(name), from_weights=said.get("weights") is not None)  # type: ignore[type-var]


def refuse_recipe_conflict(given: Any, in_file: Mapping[str, Any]) -> None:
    """A file that says which recipe it is of has all of that recipe's settings, decided."""
    for name in ("recipe", "scale"):
        value = getattr(given.recipe, name)
        if name in in_file and value is not None and value != in_file[name]:
            raise ConfigError(
                f"--{name} {value}: {given.config} has {name} {in_file[name] or 'none'}, and the "
                "settings that follow from it; leave one of them out"
            )


def parse_config_file(
    command: type[Command], path: Path, program: str, default: Command | None = None
) -> Command:
    """A YAML table of settings over `default`, checked as the flags of the same names are."""
    table = read_config_yaml(path)
    unflatten_config(
        command(), table, where=str(path)
    )  # names first: the message can name the file
    try:
        return parse_command(command, settings_to_arguments(table), program, default)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def override_duration(default: Command, said: Mapping[str, Any]) -> Command:
    """--epochs on the command line wins over steps in a file, and so on."""
    if any(said[name] is not None for name in DURATION_FIELDS):
        default = unflatten_config(
            default, {name: None for name in DURATION_FIELDS if said[name] is None}
        )
    return default


def settings_to_arguments(table: Mapping[str, Any]) -> list[str]:
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


def suggest_new_run(given: Any) -> str:
    """What to do with other settings: a run has weights to start from, a series of runs has not."""
    if given.verb in SERIES_VERBS:
        return "start anew in another --output"
    return f"start a new run with --weights {given.output}"


def refuse_changed_settings(
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
        if name in CHANGEABLE_ON_RESUME or value == stored[name] or plain == asked[name]:
            continue
        if name == "data" and Path(value).resolve() == Path(stored[name]).resolve():
            continue
        flag = name if name == "data" else f"--{name.replace('_', '-')}"
        then = asked[name] if stored[name] is None else stored[name]
        was = f"without {flag}" if then is None else f"with {flag} {format_flag_value(then)}"
        raise ConfigError(
            f"--resume: {run} was started {was}, not with {format_flag_value(value)}; leave it out, or "
            f"{otherwise}"
        )


def format_flag_value(value: Any) -> str:
    """A value as it is written on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
