"""The settings of a run: agreed on by all processes, checked early, written down as resolved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from patchwords.data.sampler import check_batch_divisible
from patchwords.device import Device, choose_device
from patchwords.distributed import all_gather_objects, get_world, join_process_group, may_restart
from patchwords.errors import ConfigError
from patchwords.training.config import FinetuneConfig
from patchwords.training.engine.state import TrainState
from patchwords.training.logs.run_folder import RunFolder, check_run_folder_available
from patchwords.training.model_setup import DEFAULT_MODEL, InitialModel
from patchwords.training.plan import TrainingPlan

FinetuneConfigT = TypeVar("FinetuneConfigT", bound=FinetuneConfig)


@contextmanager
def share_config_across_processes(config: FinetuneConfigT) -> Iterator[FinetuneConfigT]:
    """The settings that all processes go by, which inside can talk to one another.

    Where torchrun restarts them after one has died, only those of its machine may know that they
    resume the run: then theirs are the settings.
    """
    device = choose_device(config.machine.device, config.machine.precision)
    with join_process_group(device.type == "cuda"):
        configs = all_gather_objects(config)
        yield next((other for other in configs if other.resume), configs[0])


def check_before_opening_data(config: FinetuneConfig) -> None:
    """Raise ConfigError before the data are opened, which may take a while."""
    if config.recipe.batch_size is not None:
        check_batch_divisible(config.recipe.batch_size, get_world().size)
    if config.output is not None:
        output = RunFolder(Path(config.output))
        check_run_folder_available(output, resume=config.resume, overwrite=config.overwrite)
    elif may_restart():
        raise ConfigError(
            "--max-restarts: say --output, so that a restart finds the run that it goes on with"
        )


def resolve_config(
    config: FinetuneConfig,
    plan: TrainingPlan,
    start: InitialModel,
    device: Device,
    state: TrainState,
    output: Path,
) -> FinetuneConfig:
    """The config as it will be written down: with everything that the program has chosen."""
    machine = replace(
        config.machine,
        device=device.type,
        precision="bf16" if device.bf16 else "fp32",
        grad_accum=-(-(plan.batch_size // get_world().size) // state.micro_batch),
    )
    return replace(
        config,
        # As spelled: timm's names imply numerics, and another shape is in settings of its own.
        model=config.model or (start.name if config.weights else DEFAULT_MODEL),
        output=str(output),
        resize=start.preprocess.resize,
        crop_fraction=start.preprocess.crop_fraction,
        model_settings=replace(config.model_settings, image_size=start.model.config.image_size),
        machine=machine,
    )
