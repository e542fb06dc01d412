"""The weights that a run began with: drawn again by its seed, or read again where they came from.

Only what is compared with the end is drawn: filters, and position embeddings. Each parameter has a
generator of its own, so they are what they were, and the largest model takes no time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from patchwords.errors import PatchwordsError
from patchwords.model.family import Model, ModelConfig, build_model
from patchwords.model.initialise import make_initial_values
from patchwords.train.config import ModelSettings
from patchwords.weights.store import from_pretrained

COMPARED_PARAMETERS = re.compile(
    r"embed\.\w+|trunk\.root\.\w+\.\w+|positions\.\w+|.*\.relative\.\w+"
)


@dataclass(frozen=True)
class InitialWeights:
    """Where a run began."""

    words: str  # for a person: "the initial weights of seed 0"
    model: Model | None  # good for filters and positions only; None where it cannot be had again


def load_initial_weights(config: ModelConfig, settings: Mapping[str, Any]) -> InitialWeights:
    """Of a run that ended with a model of this config; `settings` as in its config.yaml."""
    weights = settings.get("weights")
    if not weights:
        seed = int(settings.get("seed", 0))
        return InitialWeights(
            f"the initial weights of seed {seed}", redraw_initial_weights(config, seed)
        )
    asked = {field.name: settings.get(field.name) for field in fields(ModelSettings)}
    changes = {name: value for name, value in asked.items() if value is not None}
    changes["image_size"] = config.image_size
    try:
        source = from_pretrained(weights, architecture=settings.get("model"), **changes)
    except (PatchwordsError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        return InitialWeights(f"{weights}, which cannot be read any more ({reason})", None)
    return InitialWeights(str(weights), source.model)


def redraw_initial_weights(config: ModelConfig, seed: int) -> Model:
    """A model without weights, but for the initial ones that are compared."""
    with torch.device("meta"):
        model = build_model(config)
    values = {
        name: make_initial_values(name, parameter.shape, config, seed)
        for name, parameter in model.named_parameters()
        if COMPARED_PARAMETERS.fullmatch(name)
    }
    model.load_state_dict(values, strict=False, assign=True)
    return model
