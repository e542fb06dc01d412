"""A run made ready for its next step: settings resolved, folder claimed, state in place."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from patchwords.data.examples import ALL, TRAIN, Data
from patchwords.data.exclude import exclude
from patchwords.data.open import open_data
from patchwords.data.prefetch import refuse_small_cache
from patchwords.data.split import divide, fingerprint, write_splits
from patchwords.data.workers import useful_workers
from patchwords.device import Device, choose_device
from patchwords.errors import ConfigError, DataError
from patchwords.files import write_atomically
from patchwords.model.family import config_to_dict
from patchwords.train import checkpoint
from patchwords.train.aim import Aim
from patchwords.train.average import Average
from patchwords.train.config import FinetuneConfig
from patchwords.train.introduce import introduce
from patchwords.train.memory import choose_micro_batch
from patchwords.train.optimizer import build_optimizer, freeze
from patchwords.train.plan import Plan, plan_of
from patchwords.train.probe import fewshot_images
from patchwords.train.progress import Display
from patchwords.train.recipes import fill
from patchwords.train.run_folder import (
    RunFolder,
    claim,
    describe_data,
    describe_environment,
    free_name,
    read_asked,
    refuse_harm,
    refuse_taken,
    write_json,
)
from patchwords.train.settings import not_default, to_yaml
from patchwords.train.start import (
    DEFAULT_MODEL,
    Start,
    choose_family,
    choose_model_name,
    load_origin,
    prepare_start,
)
from patchwords.train.step import State


@dataclass(frozen=True)
class Job:
    """A run that is ready for its next step."""

    config: FinetuneConfig  # every setting resolved
    data: Data
    start: Start
    plan: Plan
    device: Device
    folder: RunFolder
    state: State
    resumed_at: int | None  # step of the checkpoint that the run goes on from
    aim: Aim

    @property
    def workers(self) -> int:
        asked = self.config.machine.workers
        return (
            asked
            if asked is not None
            else useful_workers(self.data.splits[TRAIN], self.device.type == "cuda")
        )

    @property
    def going_on(self) -> str:
        """The command that goes on with the run."""
        config, folder = self.config, str(self.folder.path)
        return shlex.join(["patchwords", config.verb, config.data, "--output", folder, "--resume"])


def prepare(config: FinetuneConfig, display: Display, aim: Aim) -> Job:
    """Resolve and show every setting; write down what the run is, or find where it stopped."""
    config.check()
    asked = config
    if config.output is not None:  # before the data are opened: that may take a while
        output = Path(config.output)
        refuse_taken(RunFolder(output), resume=config.resume, overwrite=config.overwrite)
    device = choose_device(config.machine.device, config.machine.precision)
    data = load_data(config, need_labels=aim.objective_name == "supervised")
    fewshot_images(config, data)  # refuses what cannot be measured
    origin = load_origin(config)
    config, choices = fill(
        config,
        images=len(data.splits[TRAIN]),
        from_weights=origin is not None and config.verb == "finetune",
        model=choose_model_name(config, origin),
        family=choose_family(config, origin),
        objective=aim.objective_name,
    )
    config, settled = aim.settle(config, data, origin)
    start, more = prepare_start(config, data, origin, aim.classes(data))
    output = Path(config.output) if config.output else default_output(config.data, start.name)
    refuse_harm(output, Path(config.data), Path(config.weights) if config.weights else None)
    plan = plan_of(config, len(data.splits[TRAIN]))
    state = build_state(config, plan, start, device, aim)
    config = resolve(config, plan, start, device, state, output)
    folder = claim(output, resume=config.resume, overwrite=config.overwrite)
    resumed_at = restore(state, start, folder, config, data, display) if config.resume else None
    if resumed_at is None:
        introduce(config, start, data, device, [*settled, *choices, *more], display)
        write_record(folder, config, asked, data, device)
    return Job(config, data, start, plan, device, folder, state, resumed_at, aim)


def load_data(config: FinetuneConfig, need_labels: bool = True) -> Data:
    """Open the source and hold images out."""
    settings = config.data_settings
    data = open_data(
        config.data,
        image_column=settings.image_column,
        label_column=settings.label_column,
        classes=settings.classes,
        need_labels=need_labels,
        cache_size=settings.cache_size,
    )
    if settings.exclude is not None:
        data = exclude(data, settings.exclude)
    for examples in data.splits.values():
        refuse_small_cache(examples, settings.shuffle_shards)
    if not {ALL, TRAIN} & data.splits.keys():
        raise DataError(f"{data.source}: has images for {', '.join(data.splits)}, none for train")
    data = divide(data, seed=config.seed, validation=settings.validation, test=settings.test)
    if not any(len(part) for name, part in data.splits.items() if name != TRAIN):
        raise DataError(
            f"{data.source}: no image is held out to measure the model on; raise --test or "
            "--validation, or add images that are not copies of others"
        )
    return data


def default_output(data: str, model: str) -> Path:
    """runs/DATA-MODEL, with a number where that is taken."""
    model = model.split(" with ", maxsplit=1)[0]
    stem = Path(data.removeprefix("hf:").rstrip("/")).stem or "data"
    return free_name(Path("runs") / f"{stem}-{model.replace('/', '-')}")


def build_state(
    config: FinetuneConfig, plan: Plan, start: Start, device: Device, aim: Aim
) -> State:
    """The model on its device, with an optimizer for the weights that learn."""
    shape, recipe = start.model.config, config.recipe
    start.model.to(device.torch_device)
    model = aim.learner(start, config)
    freeze(model, recipe.train, shape)
    return State(
        model=model,
        optimizer=build_optimizer(model, plan, shape, recipe.layer_decay),
        average=Average(model, recipe.ema) if recipe.ema else None,
        micro_batch=choose_micro_batch(shape, plan.batch_size, device, config.machine.grad_accum),
    )


def resolve(
    config: FinetuneConfig, plan: Plan, start: Start, device: Device, state: State, output: Path
) -> FinetuneConfig:
    """The config as it will be written down: what was left to the program, decided."""
    machine = replace(
        config.machine,
        device=device.type,
        precision=device.precision,
        grad_accum=-(-plan.batch_size // state.micro_batch),
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


def restore(
    state: State,
    start: Start,
    folder: RunFolder,
    config: FinetuneConfig,
    data: Data,
    display: Display,
) -> int | None:
    """Load the newest whole checkpoint of a run that goes on; -> its step, None without one."""
    saved = checkpoint.load_latest(folder.checkpoints, display.say)
    if saved is None:
        display.say("the run was stopped before its first checkpoint: starting from the first step")
        return None
    shape, other = config_to_dict(start.model.config), saved["architecture"]
    if other != shape:
        differ = [name for name in shape | other if other.get(name) != shape.get(name)]
        raise ConfigError(
            f"{folder.checkpoints} is of another model: it differs in {', '.join(differ)}"
        )
    if saved["data"] != fingerprint(data):
        raise ConfigError(
            f"--resume: {config.data} is not as it was when the run began, so it cannot go on "
            "exactly; put the images back, or start a new run with --weights"
        )
    state.load_dict(saved)
    display.say(f"going on after step {state.step:,} of {config.recipe.steps:,}")
    return state.step


def write_record(
    folder: RunFolder, config: FinetuneConfig, asked: FinetuneConfig, data: Data, device: Device
) -> None:
    """What the run is, written before it starts."""
    write_splits(folder.splits, data)
    write_json(folder.data, describe_data(data, {}))
    about = {"source": data.source, "kind": data.kind, "fingerprint": fingerprint(data)}
    record = describe_environment(device.describe(), about)
    record["started"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    # What was asked for at first, so that the same command can go on with the run.
    record["asked"] = read_asked(folder) if config.resume else not_default(asked)
    write_json(folder.environment, record)
    write_atomically(folder.config, to_yaml(config))  # last: it marks a run that can go on
