"""Going on with a run: the newest whole checkpoint, of this model and these data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchwords.data.examples import DatasetSplits
from patchwords.data.split import fingerprint_dataset
from patchwords.errors import ConfigError
from patchwords.model.family import config_to_dict
from patchwords.train import checkpoint
from patchwords.train.config import FinetuneConfig
from patchwords.train.progress import Display
from patchwords.train.run_folder import RunFolder
from patchwords.train.sharding import is_sharded
from patchwords.train.start import InitialModel
from patchwords.train.step import TrainState


def restore_latest_checkpoint(
    state: TrainState,
    start: InitialModel,
    folder: RunFolder,
    config: FinetuneConfig,
    data: DatasetSplits,
    display: Display,
) -> int | None:
    """Load the newest whole checkpoint of a run that goes on; -> its step, None without one."""
    saved = checkpoint.load_latest(
        folder.checkpoints, display.say, lambda found: load_any_checkpoint(found, state)
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
    display.say(f"going on after step {state.step:,} of {config.recipe.steps:,}")
    return state.step


def load_any_checkpoint(found: Path, state: TrainState) -> dict[str, Any]:
    """What is in one checkpoint folder, divided among processes as the state is."""
    if (found / "state.pt").exists() and not is_sharded(state.model):
        return checkpoint.load(found)
    from patchwords.train import shares

    return shares.read(found, state)
