"""Model folders: weights, architecture, labels and preprocessing, together.

    model/
      model.safetensors   the tensors, under our names
      config.json         {"format", "version", "architecture", "model", "labels", "preprocess"}
      decoder.safetensors of a backbone with a task, which config.json then has under "task"

A run folder holds one as `model/`. A model that was pre-trained without classes has no labels, and
a head of zeros for one class.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, WeightsError
from patchwords.models.build import ModelConfig, config_from_dict, config_to_dict
from patchwords.weights.convert import (
    CONFIG_FILE,
    PARSE_ERRORS,
    TENSORS_FILE,
    LoadedWeights,
    validate_tensors,
    write_tensors,
)
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.safe_load import read_safetensors

FOLDER_FORMAT, FOLDER_VERSION = "patchwords", 2
RENAMED_TENSORS = {
    1: {"positions": "positions.table"}
}  # version -> its names of what is called otherwise


def write_model_folder(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a model folder; there are never notes for the user.

    Existing files are replaced atomically.
    """
    card: dict[str, Any] = {
        "format": FOLDER_FORMAT,
        "version": FOLDER_VERSION,
        "architecture": pretrained.architecture,
        "model": config_to_dict(pretrained.model.config),
        "labels": list(pretrained.labels),
        "preprocess": pretrained.preprocess.to_dict(),
    }
    if pretrained.task is not None:
        card["task"] = dict(pretrained.task)
    write_tensors(folder, pretrained.model.state_dict(), {CONFIG_FILE: card})
    return []


def read_model_folder(folder: Path) -> LoadedWeights:
    """Read a folder that `write_model_folder` wrote. Raises WeightsError in one line."""
    for name in (CONFIG_FILE, TENSORS_FILE):
        if not (folder / name).is_file():
            raise WeightsError(f"{folder} is no model folder: it lacks {name}")
    card = _read_card(folder / CONFIG_FILE)
    return LoadedWeights(
        config=card.config,
        weights=_read_weights(folder / TENSORS_FILE, card),
        labels=card.labels,
        preprocess=card.preprocess,
        architecture=card.architecture,
        home=folder,
        task=card.task,
    )


@dataclass(frozen=True)
class ModelCard:
    """Read config.json."""

    version: int
    architecture: str | None
    config: ModelConfig
    labels: tuple[str, ...]
    preprocess: Preprocess
    task: dict[str, Any] | None = None


def _read_card(path: Path) -> ModelCard:
    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if table.get("format") != FOLDER_FORMAT:
            raise WeightsError(
                f"{path} was not written by patchwords (format {table.get('format')!r})"
            )
        if table["version"] > FOLDER_VERSION:
            raise WeightsError(f"{path} is of a newer patchwords (version {table['version']})")
        missing = {"model", "labels", "preprocess"} - table.keys()
        if missing:
            raise WeightsError(f"{path} lacks {', '.join(sorted(missing))}")
        card = ModelCard(
            table["version"],
            table.get("architecture"),
            config_from_dict(table["model"]),
            tuple(table["labels"]),
            Preprocess.from_dict(table["preprocess"]),
            dict(table["task"]) if table.get("task") is not None else None,
        )
    except WeightsError:
        raise
    except ConfigError as error:
        raise WeightsError(f"{path}: {error}") from error
    except (OSError, *PARSE_ERRORS) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    if len(card.labels) != card.config.num_classes and (card.labels or card.config.num_classes > 1):
        raise WeightsError(
            f"{path} has {len(card.labels)} labels for {card.config.num_classes} classes"
        )
    return card


def _read_weights(path: Path, card: ModelCard) -> dict[str, Tensor]:
    """Read the tensors, which must fit the config by name and shape; in float32 or more."""
    weights = read_safetensors(path)
    renamed = RENAMED_TENSORS.get(card.version, {})
    weights = {renamed.get(name, name): value for name, value in weights.items()}
    return validate_tensors(weights, card.config, path)
