"""Ranges of activations beside the weights they are of: what int8 needs (model/ranges.py).

    model/
      model.safetensors
      ranges.safetensors   a range per block and place; in its header {"weights": a digest of them,
                           "images": how many the ranges were found on}

Written by `patchwords calibrate`, and good for these weights alone.
"""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch

from patchwords.errors import WeightsError
from patchwords.files import write_atomically
from patchwords.model.family import Model
from patchwords.model.ranges import ActivationRanges, list_range_shapes
from patchwords.weights.archive import read_safetensors
from patchwords.weights.digest import digest_tensors
from patchwords.weights.foreign import find_shape_mismatch
from patchwords.weights.guard import translate_read_errors

RANGES_FILE = "ranges.safetensors"


def save_activation_ranges(
    folder: Path, model: Model, ranges: ActivationRanges, images: int
) -> Path:
    """Write them into the model's folder; an older file is replaced atomically."""
    about = {"format": "pt", "weights": digest_tensors(model.state_dict()), "images": str(images)}
    dense = {name: value.contiguous() for name, value in ranges.items()}
    write_atomically(folder / RANGES_FILE, safetensors.torch.save(dense, metadata=about))
    return folder / RANGES_FILE


def load_activation_ranges(folder: Path | None, model: Model) -> ActivationRanges:
    """Those of this very model. Raises WeightsError in one line where there are none, or others."""
    if folder is None:
        raise WeightsError(
            "int8 needs the ranges of activations, which are kept in a model folder of "
            "patchwords: write one by patchwords convert SRC DST --to patchwords, then run "
            "patchwords calibrate DST DATA first"
        )
    path, run = folder / RANGES_FILE, find_run_folder(folder)
    if not path.is_file():
        raise WeightsError(
            f"{run} has no ranges of activations, which int8 needs: run patchwords calibrate "
            f"{run} first"
        )
    ranges = read_safetensors(path)
    with translate_read_errors(path), safetensors.safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
    if about.get("weights") != digest_tensors(model.state_dict()):
        raise WeightsError(
            f"{path} is of other weights than the model has now: run patchwords calibrate {run} "
            "again"
        )
    if (misfit := find_shape_mismatch(ranges, list_range_shapes(model))) is not None:
        name, wanted, found = misfit
        raise WeightsError(
            f"{path}: {name[:80]} should be {wanted}, and is {found}: run patchwords calibrate "
            f"{run} again"
        )
    if not all(value.isfinite().all() for value in ranges.values()):
        raise WeightsError(f"{path} is damaged: run patchwords calibrate {run} again")
    return {name: value.float() for name, value in ranges.items()}


def find_run_folder(folder: Path) -> Path:
    """The run that a model folder lies in, where it lies in one: what its user calls it."""
    run = folder.parent
    return run if folder.name == "model" and (run / "config.yaml").is_file() else folder
