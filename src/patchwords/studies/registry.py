"""Registry of studies by name; each is a file of `paper/`, imported on request."""

from __future__ import annotations

import importlib

from patchwords.errors import ConfigError, did_you_mean
from patchwords.studies.study import Study

STUDIES = (
    "axial",
    "compute",
    "data-size",
    "flowers",
    "head-type",
    "inside",
    "masked-patches",
    "mixers",
    "optimizer",
    "position-embeddings",
    "resolution",
    "robustness",
    "shape",
    "speed",
    "transfer",
)


def load_study(name: str) -> Study:
    """Load a study; raise ConfigError for an unknown name."""
    if name not in STUDIES:
        near = did_you_mean(name, STUDIES)
        raise ConfigError(f"unknown study {name!r}{near or '; `patchwords study` lists them'}")
    module = importlib.import_module(f"patchwords.studies.paper.{name.replace('-', '_')}")
    study: Study = module.STUDY
    return study
