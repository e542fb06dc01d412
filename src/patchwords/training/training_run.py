"""A run that is ready for its next step, and how to go on with it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from patchwords.data.dataset import TRAIN, DatasetSplits
from patchwords.data.loader import choose_num_workers
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.training.config import FinetuneConfig
from patchwords.training.engine.countdown import TimeBudget
from patchwords.training.engine.state import TrainState
from patchwords.training.inputs.frozen import FrozenBackbone, build_frozen_backbone
from patchwords.training.logs.run_folder import RunFolder
from patchwords.training.logs.run_record import format_launch_prefix
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import Objective
from patchwords.training.plan import TrainingPlan


@dataclass(frozen=True)
class TrainingRun:
    """Everything that a training run is made of."""

    config: FinetuneConfig  # every setting resolved
    data: DatasetSplits
    start: InitialModel
    objective: Objective
    plan: TrainingPlan
    device: Device
    folder: RunFolder
    state: TrainState
    resumed_at: int | None  # step of the checkpoint that the run goes on from
    budget: TimeBudget | None = None  # of a run with a time
    begun: float = 0.0  # perf_counter at the start of the command

    @property
    def workers(self) -> int:
        """Processes that decode images."""
        if self.config.machine.workers is not None:
            return self.config.machine.workers
        cuda = self.device.type == "cuda"
        return choose_num_workers(self.data.splits[TRAIN], cuda, get_world().local_size)

    @property
    def front(self) -> FrozenBackbone | None:
        """The frozen layers, where their activations are cached; else None."""
        cached = self.config.machine.frozen == "cache"
        return build_frozen_backbone(self.start.model, self.config.recipe.train) if cached else None

    @property
    def going_on(self) -> str:
        """The command that goes on with the run."""
        config, folder = self.config, str(self.folder.path)
        words = ["patchwords", config.verb, config.data, "--output", folder, "--resume"]
        return format_launch_prefix(get_world()) + shlex.join(words)
