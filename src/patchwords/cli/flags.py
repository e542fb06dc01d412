"""Flags of a command: read from its dataclass, parsed by tyro, refused in one line.

A field is a flag, its docstring the flag's help; a field whose default is another dataclass is a
section of flags. Two class variables speak for a whole section: `section` is its title, and
`unset` says what the program does where a value is None ("from the recipe").
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from patchwords.errors import ConfigError, did_you_mean

METAVARS = {int: "INT", float: "FLOAT", str: "NAME", Path: "PATH"}
METAVARS_BY_FIELD = {
    **dict.fromkeys(("output", "cache"), "FOLDER"),
    **dict.fromkeys(("config", "csv", "exclude", "explore", "labels", "real"), "FILE"),
    **dict.fromkeys(("data", "transfer", "nearest"), "DATA"),
    "host": "ADDRESS",
    "train": "LAYERS",
}  # of flags whose type says too little
KINDS = {int: "whole number", float: "number", str: "word", Path: "path"}
REQUIRED = dataclasses.MISSING


@dataclass(frozen=True)
class Flag:
    """One field of a command, as the command line has it."""

    field: str
    name: str  # --image-size, or DATA for a positional argument
    kind: Any  # the type without None
    default: Any
    text: str  # the docstring of the field
    unset: str | None  # what None means in its section
    metavar: str
    positional: bool


def list_sections(command: type) -> list[tuple[str, list[Flag]]]:
    """The flags of a command by section: those of its own, then those of its groups."""
    texts = read_field_docstrings(command)
    hints = get_type_hints(command, include_extras=True)
    flags: list[Flag] = []
    groups: list[tuple[str, list[Flag]]] = []
    for field in dataclasses.fields(command):
        factory = field.default_factory
        if isinstance(factory, type) and dataclasses.is_dataclass(factory):
            groups += list_sections(factory)
        else:
            flags.append(
                make_flag(field, hints[field.name], texts, getattr(command, "unset", None))
            )
    return [(getattr(command, "section", "Options"), flags), *groups]


def make_flag(
    field: dataclasses.Field[Any], hint: Any, texts: dict[str, str], unset: str | None
) -> Flag:
    extras: tuple[Any, ...] = ()
    while get_origin(hint) is Annotated:
        hint, extras = get_args(hint)[0], extras + get_args(hint)[1:]
    options = [option for option in split_union(hint) if option is not type(None)]
    kind = options[0] if len(options) == 1 else Union[tuple(options)]  # noqa: UP007
    positional = any("Positional" in str(extra) for extra in extras)
    flag = f"--{field.name.replace('_', '-')}"
    given = [extra.metavar for extra in extras if getattr(extra, "metavar", None)]
    metavar = given[0] if given else METAVARS_BY_FIELD.get(field.name) or format_metavar(kind)
    name = (given[0] if given else field.name.upper()) if positional else flag
    text = texts.get(field.name, "")
    return Flag(field.name, name, kind, field.default, text, unset, metavar, positional)


def split_union(hint: Any) -> tuple[Any, ...]:
    is_union = get_origin(hint) in {Union, types.UnionType}
    return get_args(hint) if is_union else (hint,)


def format_metavar(kind: Any) -> str:
    """The value of a flag in its help.

    >>> format_metavar(tuple[int, ...]), format_metavar(Literal["auto"] | float)
    ('INT [INT ...]', 'auto|FLOAT')
    """
    options = split_union(kind)
    if len(options) > 1:
        return "|".join(format_metavar(option).strip("{}") for option in options)
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        if rest == [...]:
            return f"{format_metavar(first)} [{format_metavar(first)} ...]"
        return " ".join(map(format_metavar, get_args(kind)))
    return METAVARS.get(kind, "")


def describe_kind(kind: Any) -> str:
    """The values of a flag, for an error message.

    >>> describe_kind(tuple[float, float]), describe_kind(Literal["auto"] | int)
    ('two numbers', 'auto or a whole number')
    """
    options = split_union(kind)
    if len(options) > 1:
        return " or ".join(map(describe_kind, options))
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        if rest == [...]:
            return f"one or more {KINDS[first]}s"
        if rest == [first]:
            return f"two {KINDS[first]}s"
        return " and ".join(map(describe_kind, get_args(kind)))
    return f"a {KINDS[kind]}" if kind in KINDS else "no value"


def read_field_docstrings(command: type) -> dict[str, str]:
    """The string literal after each field of a dataclass, base classes included."""
    texts: dict[str, str] = {}
    for base in reversed(command.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for statement, following in itertools.pairwise(definition.body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                texts[statement.target.id] = " ".join(str(following.value.value).split())
    return texts


def list_flags(command: type) -> list[Flag]:
    """All flags and positional arguments of a command."""
    return [flag for _, flags in list_sections(command) for flag in flags]


def list_flag_names(command: type) -> list[str]:
    """The names that a mistyped flag may have meant."""
    flags = [flag.name for flag in list_flags(command) if not flag.positional]
    return ["--help", "--debug", *flags]


def parse_command(command: type, words: Sequence[str], program: str, default: Any = None) -> Any:
    """Build the dataclass of a command from its command line; raises ConfigError in one line.

    Fields without a value in `words` keep that of `default`.
    """
    import tyro

    with refuse_in_one_line(command, words, program):
        return tyro.cli(
            command,
            prog=program,
            args=list(words),
            config=(tyro.conf.OmitArgPrefixes,),
            **({} if default is None else {"default": default}),
        )


@contextlib.contextmanager
def refuse_in_one_line(command: type, words: Sequence[str], program: str) -> Iterator[None]:
    """Raise tyro's parse errors as ConfigError, in our words if this tyro lets us see them."""
    try:
        from tyro._errors import on_parse_error  # private: pyproject pins the releases we tested

        explain = make_error_hook(command, words, program)
    except ImportError:
        with condense_message(program):
            yield
        return
    with on_parse_error(explain):
        yield


@contextlib.contextmanager
def condense_message(program: str) -> Iterator[None]:
    """Raise the box that tyro prints on stderr as one line."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as end:
        if not end.code:
            raise
        message = " ".join(re.sub(r"[─│╭╰╮╯]", " ", printed.getvalue()).split())
        raise ConfigError(f"{message} (see {program} --help)") from end


def make_error_hook(command: type, words: Sequence[str], program: str) -> Callable[[Any], None]:
    """A hook for tyro that raises ConfigError, which names the flag and what it takes."""
    from tyro._errors import (
        BadValue,
        InstantiationFailure,
        InvalidChoice,
        MissingArgs,
        ParseErrorEvent,
        UnrecognizedArgs,
    )

    flags = {flag.field: flag for flag in list_flags(command)}
    see = f" (see {program} --help)"

    def explain(event: ParseErrorEvent) -> None:
        if isinstance(event, UnrecognizedArgs):
            raise ConfigError(describe_unknown_words(event.tokens, command) + see)
        if isinstance(event, InvalidChoice):
            flag = flags[event.argument.field.intern_name]
            near = did_you_mean(event.value, event.choices)
            raise ConfigError(f"{flag.name} {event.value!r} is not a choice{near}")
        if isinstance(event, MissingArgs):
            names = [flags[part.arg.field.intern_name].name for part in event.missing_arguments]
            raise ConfigError(f"{program}: missing {', '.join(names)}{see}")
        if isinstance(event, BadValue | InstantiationFailure):
            if event.argument is None:
                raise ConfigError(f"{program}: {' '.join(event.message.split())}{see}")
            flag = flags[event.argument.field.intern_name]
            values = "".join(f" {value!r}" for value in list_values(flag.name, words))
            raise ConfigError(f"{flag.name}{values}: expected {describe_kind(flag.kind)}{see}")

    return explain


def list_values(flag: str, words: Sequence[str]) -> list[str]:
    """The words that follow a flag on the command line."""
    for index, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return [word.partition("=")[2]]
        if word == flag:
            rest = words[index + 1 :]
            return list(itertools.takewhile(lambda value: not value.startswith("--"), rest))
    return []


def describe_unknown_words(words: Sequence[str], command: type) -> str:
    flag = next((word for word in words if word.startswith("-")), None)
    if flag is None:
        return f"did not expect {' '.join(words)!r}"
    name = flag.split("=")[0]
    field = name.strip("-").replace("-", "_")
    if any(other.positional and other.field == field for other in list_flags(command)):
        return f"unknown flag {name}; {name.strip('-').upper()} is given without a flag"
    return f"unknown flag {flag}{did_you_mean(name, list_flag_names(command))}"
