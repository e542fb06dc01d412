"""What every reader of weights gives, whatever the file they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.model.family import ModelConfig


@dataclass(frozen=True)
class LoadedWeights:
    """A model in parts, under our names; `adapt.load` puts it together."""

    config: ModelConfig
    weights: dict[str, Tensor]  # complete: those of `build(config)`, by name and shape
    labels: tuple[str, ...]
    preprocess: Preprocess
    architecture: str | None = None  # canonical name, where the sizes have one
    home: Path | None = None  # the model folder of ours, where it came from one
    notes: tuple[str, ...] = ()  # what a person should know: a head of zeros, keys left aside
