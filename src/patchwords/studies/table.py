"""The studies by name; each is a file of this folder, loaded when it is wanted."""

from __future__ import annotations

import importlib

from patchwords.errors import ConfigError, did_you_mean
from patchwords.studies.study import Study

STUDIES: dict[str, str] = {  # name -> module, in the order of the paper's appendix
    "axial": "axial",
    "compute": "compute",
    "data-size": "data_size",
    "flowers": "flowers",
    "head-type": "head_type",
    "inside": "inside",
    "masked-patches": "masked_patches",
    "mixers": "mixers",
    "optimizer": "optimizer",
    "position-embeddings": "position_embeddings",
    "resolution": "resolution",
    "robustness": "robustness",
    "shape": "shape",
    "speed": "inference_speed",
    "transfer": "transfer",
}


def find(name: str) -> Study:
    """Raises ConfigError for a name that is none."""
    if name not in STUDIES:
        near = did_you_mean(name, STUDIES)
        raise ConfigError(f"unknown study {name!r}{near or '; `patchwords studies` lists them'}")
    study: Study = importlib.import_module(f"patchwords.studies.{STUDIES[name]}").STUDY
    return study
