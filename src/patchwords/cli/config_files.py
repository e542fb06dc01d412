"""The flags of a training over a file's settings: how a command line is read with --config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from patchwords.cli.flags import parse_command
from patchwords.training.setting_layers import layer_settings

Command = TypeVar("Command")


def parse_with_files(command: type[Command], words: Sequence[str], program: str) -> Command:
    """The command line over --config over --recipe over the defaults; see `layer_settings`."""
    return layer_settings(
        command(),
        lambda default: parse_command(command, words, program, default),
        lambda table, default: parse_table(command, table, program, default),
    )


def parse_table(
    command: type[Command], table: Mapping[str, Any], program: str, default: Command
) -> Command:
    """Settings by name as the command line that says them, read as such."""
    return parse_command(command, settings_to_arguments(table), program, default)


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
