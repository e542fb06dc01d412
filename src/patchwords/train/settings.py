"""A run's settings as one flat table, and back: what config.yaml holds and --config takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from patchwords.errors import ConfigError, did_you_mean

ConfigT = TypeVar("Config")

# How a run is started and where it goes says nothing about what it computes: not in config.yaml.
UNSAVED_SETTINGS = ("output", "resume", "overwrite", "config", "json")
# What may differ when a run goes on: it changes where and how fast, not what is computed.
CHANGEABLE_ON_RESUME = {
    *UNSAVED_SETTINGS,
    *("workers", "device", "parallel", "checkpoint_activations", "cache_size", "frozen"),
}


def flatten_config(config: Any) -> dict[str, Any]:
    """The fields of a dataclass and of the groups in it, in order; no two have the same name."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        entries = flatten_config(value) if dataclasses.is_dataclass(value) else {field.name: value}
        assert not entries.keys() & flat.keys(), entries.keys() & flat.keys()
        flat.update(entries)
    return flat


def unflatten_config(default: ConfigT, settings: Mapping[str, Any], where: str = "") -> ConfigT:
    """`default` with these fields replaced; raises ConfigError for a name that it has not."""
    known = flatten_config(default)
    for name in settings:
        if name not in known:
            place = f"{where}: " if where else ""
            raise ConfigError(f"{place}unknown setting {name!r}{did_you_mean(name, known)}")
    return _replace_fields(default, settings)


def _replace_fields(default: ConfigT, settings: Mapping[str, Any]) -> ConfigT:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(default):  # type: ignore[arg-type]
        value = getattr(default, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = _replace_fields(value, settings)
        elif field.name in settings:
            new = settings[field.name]
            changes[field.name] = tuple(new) if isinstance(new, list) else new
    return dataclasses.replace(default, **changes)  # type: ignore[type-var]


def collect_changed_settings(config: Any) -> dict[str, Any]:
    """The settings that somebody made, but for those of NOT_KEPT; lists for tuples."""
    default = flatten_config(type(config)())
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in flatten_config(config).items()
        if name not in UNSAVED_SETTINGS and value != default[name]
    }


def config_to_yaml(config: Any) -> str:
    """The settings, one a line, in the order of the help."""
    flat = {
        name: value
        for name, value in flatten_config(config).items()
        if name not in UNSAVED_SETTINGS
    }
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in flat.items()}
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, allow_unicode=True)


def read_config_yaml(path: Path) -> dict[str, Any]:
    """The table in a YAML file; raises ConfigError where there is none."""
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not YAML: {reason}") from error
    if table is None:
        return {}
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise ConfigError(f"{path} must hold settings as 'name: value' lines")
    for name, value in table.items():
        if isinstance(value, dict):
            raise ConfigError(f"{path}: {name} holds a table, where a setting has one value")
    return {name.replace("-", "_"): value for name, value in table.items()}
