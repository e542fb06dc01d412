"""Settings by their flat names: values checked, files and recipes below them, runs continued.

The command line and the Python functions share all of this; what they have apart is how the
user's own settings are read: from flags, or from keyword arguments.
"""

from __future__ import annotations

import dataclasses
import numbers
import operator
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from patchwords.distributed import get_launch_id, get_restart_count
from patchwords.errors import ConfigError, did_you_mean
from patchwords.training.config import (
    CHANGEABLE_ON_RESUME,
    DURATION_FIELDS,
    check_setting_names,
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
from patchwords.training.recipes.plain import PLAIN, PLAIN_SETTINGS, is_plain, mark_plain
from patchwords.training.recipes.segmentation import name_segmentation_recipe

ConfigT = TypeVar("ConfigT")
SERIES_VERBS = ("sweep", "vtab")  # verbs that make several runs in a folder


def layer_settings(
    blank: ConfigT,
    parse: Callable[[ConfigT], ConfigT],
    parse_table: Callable[[Mapping[str, Any], ConfigT], ConfigT],
    file: Path | None = None,
) -> ConfigT:
    """Lay the user's settings over a file's over a recipe's over the defaults.

    On --resume they go over the run's config.yaml, where all of that has been decided.

    Args:
        blank: the defaults.
        parse: the user's own settings over given ones.
        parse_table: the settings of a YAML file over given ones.
        file: where `parse` does not name it as `config`.

    Raises ConfigError for a file with an unknown or a wrong setting, for an unknown recipe, and for
    a setting that a run to be continued was not started with.
    """
    given: Any = parse(blank)
    file = getattr(given, "config", file)
    default, in_file, named = blank, {} if file is None else read_config_yaml(file), None
    if not given.resume:
        refuse_recipe_conflict(given, in_file, file)
        default = apply_recipe_defaults(default, {**in_file, **collect_recipe_flags(given)})
        below = parse_settings_file(file, blank, parse_table) if file is not None else blank
        merged: Any = parse(below)
        if recipe := name_segmentation_recipe(merged):
            default = apply_recipe_defaults(default, {"recipe": recipe, "weights": merged.weights})
        elif (named := list_plain_names(blank, parse, parse_table, file)) is not None:
            default = apply_recipe_defaults(default, {"recipe": PLAIN})
            default = unflatten_config(default, {"balance": "auto"})
    if file is not None:
        default = parse_settings_file(file, default, parse_table)
        default = override_duration(default, flatten_config(given))
    if default != blank:
        given = parse(default)
    again = is_torchrun_restart(given.output)
    if not (given.resume or again):
        return given if named is None else mark_plain(given, named)
    if given.output is None:
        raise ConfigError("--resume: say which run to go on with by --output RUN")
    run = RunFolder(Path(given.output))
    if not run.config.is_file():
        raise ConfigError(f"--resume: {given.output} holds no run to go on with (no config.yaml)")
    stored = parse_settings_file(run.config, blank, parse_table)
    refuse_unnamed_mixer(stored, given, run)
    over = unflatten_config(stored, {name: flatten_config(default)[name] for name in in_file})
    now = flatten_config(parse(over))
    if again:
        now |= {"resume": True, "overwrite": False}
    first = {**flatten_config(blank), **read_requested_settings(run)}
    refuse_changed_settings(
        flatten_config(stored), first, now, given.output, suggest_new_run(given)
    )
    kept = {name: now[name] for name in (*CHANGEABLE_ON_RESUME, "data") if name in now}
    return unflatten_config(stored, kept)


def list_plain_names(
    blank: ConfigT,
    parse: Callable[[ConfigT], ConfigT],
    parse_table: Callable[[Mapping[str, Any], ConfigT], ConfigT],
    file: Path | None,
) -> list[str] | None:
    """List the PLAIN_SETTINGS that the user or the file names; None if the model is named, too.

    Named is what stays the same over other defaults.
    """

    def read_over(default: ConfigT) -> Any:
        below = default if file is None else parse_settings_file(file, default, parse_table)
        return parse(below)

    settings = read_over(blank)
    if not is_plain(settings):
        return None
    others = flatten_config(read_over(unflatten_config(blank, PLAIN_SETTINGS)))
    flat = flatten_config(settings)
    return [name for name in PLAIN_SETTINGS if flat[name] == others[name]]


def parse_settings_file(
    path: Path,
    default: ConfigT,
    parse_table: Callable[[Mapping[str, Any], ConfigT], ConfigT],
) -> ConfigT:
    """Lay the settings of a YAML file over `default`; errors name the file."""
    table = read_config_yaml(path)
    check_setting_names(default, table, where=str(path))
    try:
        return parse_table(table, default)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


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
    weights = None if given.weights == "none" else given.weights
    said = {"recipe": given.recipe.recipe, "weights": weights}
    return {name: value for name, value in said.items() if value is not None}


def apply_recipe_defaults(default: ConfigT, said: Mapping[str, Any]) -> ConfigT:
    """The defaults as the recipe has them, if there is one."""
    name = said.get("recipe")
    if name is None:
        return default
    return apply_recipe(default, str(name), from_weights=said.get("weights") is not None)  # type: ignore[type-var]


def refuse_recipe_conflict(given: Any, in_file: Mapping[str, Any], file: Path | None) -> None:
    """A file that says which recipe it is of has all of that recipe's settings, decided."""
    for name in ("recipe", "scale"):
        value = getattr(given.recipe, name)
        if name in in_file and value is not None and value != in_file[name]:
            raise ConfigError(
                f"--{name} {value}: {file} has {name} {in_file[name] or 'none'}, and the "
                "settings that follow from it; leave one of them out"
            )


def override_duration(default: ConfigT, said: Mapping[str, Any]) -> ConfigT:
    """--epochs on the command line wins over steps in a file, and so on."""
    if any(said[name] is not None for name in DURATION_FIELDS):
        default = unflatten_config(
            default, {name: None for name in DURATION_FIELDS if said[name] is None}
        )
    return default


def suggest_new_run(given: Any) -> str:
    """What to do with other settings: a run has weights to start from, a series of runs has not."""
    if given.verb in SERIES_VERBS:
        return "start again with another --output"
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


# Keyword arguments as settings: every value is brought to the type of its field, or refused.


NUMBER_WORDS = {float: "number", int: "whole number", str: "word", bool: "truth value"}


def apply_settings(default: ConfigT, settings: Mapping[str, Any]) -> ConfigT:
    """Replace fields of `default`, and of the groups in it, by settings of the same flat names.

    Raises ConfigError for an unknown name, with the nearest one, and for a value of another type.
    """
    check_setting_names(default, settings)
    hints = collect_field_types(default)
    return unflatten_config(
        default,
        {name: convert_setting(name, value, hints[name]) for name, value in settings.items()},
    )


def collect_field_types(config: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass and of the groups in it, by flat name."""
    flat: dict[str, Any] = {}
    hints = get_type_hints(type(config))
    for setting in dataclasses.fields(config):
        value = getattr(config, setting.name)
        if dataclasses.is_dataclass(value):
            flat |= collect_field_types(value)
        else:
            flat[setting.name] = hints[setting.name]
    return flat


def convert_setting(name: str, value: Any, hint: Any) -> Any:
    """A value in the form of its field's type, as the flag of this name would give it."""
    try:
        return convert_value(value, hint)
    except (TypeError, ValueError) as error:
        flag = f"--{name.replace('_', '-')}"
        choices = list_choices(hint)
        if isinstance(value, str) and choices:
            raise ConfigError(
                f"{flag} {value!r} is not a choice{did_you_mean(value, choices)}"
            ) from error
        raise ConfigError(f"{flag} {value!r}: expected {describe_type(hint)}") from error


def convert_value(value: Any, hint: Any) -> Any:
    """A value in the form of a type; raises TypeError or ValueError where it has none."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        for part in parts:
            try:
                return convert_value(value, part)
            except (TypeError, ValueError):
                continue
        raise TypeError
    if origin is Literal:
        if any(type(value) is type(choice) and value == choice for choice in parts):
            return value
        raise TypeError
    if origin is tuple:
        values = list(value) if isinstance(value, list | tuple) else [value]
        each = [parts[0]] * len(values) if parts[1:] == (...,) else list(parts)
        return tuple(convert_value(*pair) for pair in zip(values, each, strict=True))
    return _convert_plain(value, hint)


def _convert_plain(value: Any, hint: Any) -> Any:
    if hint is types.NoneType:
        if value is not None:
            raise TypeError
        return None
    if hint in {int, float} and isinstance(value, bool):
        raise TypeError
    if hint is float and isinstance(value, numbers.Real | str):
        return float(value)
    if hint is int:
        return int(value) if isinstance(value, str) else operator.index(value)
    if hint is str and isinstance(value, str | Path):
        return str(value)
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint is bool and isinstance(value, bool):
        return value
    raise TypeError


def list_choices(hint: Any) -> list[str]:
    """The words that a setting of this type can be."""
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if isinstance(choice, str)]
    if get_origin(hint) in {Union, types.UnionType}:
        parts = get_args(hint)
        return [] if str in parts else [word for part in parts for word in list_choices(part)]
    return []


def describe_type(hint: Any) -> str:
    """A type as an error names it.

    >>> describe_type(float | None), describe_type(tuple[float, float]), describe_type(tuple[int, ...])
    ('a number', 'two numbers', 'one or more whole numbers')
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        named = [describe_type(part) for part in parts if part is not types.NoneType]
        return " or ".join(named)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin is tuple and parts[1:] == (...,):
        return f"one or more {NUMBER_WORDS[parts[0]]}s"
    if origin is tuple and set(parts) == {parts[0]}:
        return f"two {NUMBER_WORDS[parts[0]]}s"
    if origin is tuple:
        return " and ".join(describe_type(part) for part in parts)
    return f"a {NUMBER_WORDS[hint]}" if hint in NUMBER_WORDS else "a path"
