"""Resuming a run from its newest whole checkpoint, if that is of this model and these data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchwords.data.dataset import DatasetSplits
from patchwords.data.splits import fingerprint_dataset
from patchwords.errors import ConfigError
from patchwords.models.build import config_to_dict
from patchwords.training.config import FinetuneConfig
from patchwords.training.engine import checkpoint
from patchwords.training.engine.parallel import is_sharded
from patchwords.training.engine.state import TrainState
from patchwords.training.logs.display import Display
from patchwords.training.logs.run_folder import RunFolder
from patchwords.training.model_setup import InitialModel


def restore_latest_checkpoint(
    state: TrainState,
    start: InitialModel,
    folder: RunFolder,
    config: FinetuneConfig,
    data: DatasetSplits,
    display: Display,
    steps: int,
) -> int | None:
    """Load the newest whole checkpoint of a run; -> its step, None without one."""
    saved = checkpoint.load_latest_checkpoint(
        folder.checkpoints, display.say, lambda path: load_any_checkpoint(path, state)
    )
    if saved is None:
        display.say("the run was stopped before its first checkpoint: starting from the first step")
        return None
    shape, other = config_to_dict(start.model.config), saved["architecture"]
    if other != shape:
        differ = [name for name in shape | other if other.get(name) != shape.get(name)]
        raise ConfigError(
            f"{folder.checkpoints} is of another model: it differs in {', '.join(differ)}"
        )
    if saved["data"] != fingerprint_dataset(data):
        raise ConfigError(
            f"--resume: {config.data} is not as it was when the run began, so it cannot go on "
            "exactly; put the images back, or start a new run with --weights"
        )
    state.load_dict(saved)
    display.say(f"going on after step {state.step:,} of {steps:,}")
    return state.step


def load_any_checkpoint(path: Path, state: TrainState) -> dict[str, Any]:
    """Load a checkpoint folder, divided among processes as the state is."""
    if (path / "state.pt").exists() and not is_sharded(state.model):
        return checkpoint.load_checkpoint(path)
    from patchwords.training.engine import sharded_checkpoint as shares

    return shares.load_sharded_checkpoint(path, state)
