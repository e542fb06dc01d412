"""A run made ready for its next step: settings resolved, folder claimed, state in place."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from patchwords.data.examples import ALL, TRAIN, VALIDATION, Data
from patchwords.data.exclude import exclude
from patchwords.data.open import open_data
from patchwords.data.plan import refuse_uneven
from patchwords.data.prefetch import refuse_small_cache
from patchwords.data.split import divide, fingerprint, join_validation, write_splits
from patchwords.data.subset import keep_training_images
from patchwords.data.workers import useful_workers
from patchwords.device import Device, choose_device
from patchwords.distributed import World, by_main, from_main, launch, may_restart, together, world
from patchwords.errors import ConfigError, DataError
from patchwords.files import write_atomically
from patchwords.train.aim import Aim
from patchwords.train.average import Average
from patchwords.train.config import FinetuneConfig
from patchwords.train.front import Front, front_of
from patchwords.train.front_choice import settle_frozen
from patchwords.train.introduce import introduce
from patchwords.train.machine import settle_machine
from patchwords.train.memory import choose_micro_batch
from patchwords.train.optimizer import build_optimizer, freeze
from patchwords.train.parallel import checkpoint_activations, compile_layers, wrap
from patchwords.train.plan import Plan, plan_of
from patchwords.train.probe import fewshot_images
from patchwords.train.progress import Display
from patchwords.train.recipes import Choice, fill
from patchwords.train.restore import restore
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
from patchwords.train.sharding import shard
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
            else useful_workers(
                self.data.splits[TRAIN], self.device.type == "cuda", world().local_size
            )
        )

    @property
    def front(self) -> Front | None:
        """The frozen layers, where what they give is kept; None where each step computes it."""
        kept = self.config.machine.frozen == "cache"
        return front_of(self.start.model, self.config.recipe.train) if kept else None

    @property
    def going_on(self) -> str:
        """The command that goes on with the run."""
        config, folder = self.config, str(self.folder.path)
        words = ["patchwords", config.verb, config.data, "--output", folder, "--resume"]
        return start_words(world()) + shlex.join(words)


def start_words(here: World) -> str:
    """What stands before the command where it is started as several processes."""
    if here.size == 1:
        return ""
    nodes = "" if here.size == here.local_size else "... "  # what says where the others are
    return f"torchrun {nodes}--nproc-per-node {here.local_size} -m "


def prepare(config: FinetuneConfig, display: Display, aim: Aim) -> Job:
    """Resolve and show every setting; write down what the run is, or find where it stopped.

    All processes come to the same decisions; the main one claims the folder and writes.
    """
    config.check()
    asked = config
    by_main(lambda: refuse_early(asked))
    device = choose_device(config.machine.device, config.machine.precision)
    config, data, start, choices = together(lambda: decide(asked, aim))
    output = from_main(Path(config.output or default_output(config.data, start.name)))
    refuse_harm(output, Path(config.data), Path(config.weights) if config.weights else None)
    plan = plan_of(config, len(data.splits[TRAIN]))
    config, of_machine = settle_machine(config, device, plan.steps)
    state = build_state(config, plan, start, device, aim)
    held = len(data.splits.get(VALIDATION, ()))
    config, of_frozen = settle_frozen(config, plan, start, device, output, held)
    done = resolve(config, plan, start, device, state, output)
    by_main(lambda: claim(output, resume=done.resume, overwrite=done.overwrite))
    folder, resumed_at = RunFolder(output), None
    if done.resume:
        resumed_at = together(lambda: restore(state, start, folder, done, data, display))
    if resumed_at is None:
        introduce(done, start, data, device, [*choices, *of_machine, *of_frozen], display)
        by_main(lambda: write_record(folder, done, asked, data, device))
    return Job(done, data, start, plan, device, folder, state, resumed_at, aim)


def refuse_early(config: FinetuneConfig) -> None:
    """Raise ConfigError before the data are opened, which may take a while."""
    if config.recipe.batch_size is not None:
        refuse_uneven(config.recipe.batch_size, world().size)
    if config.output is not None:
        output = RunFolder(Path(config.output))
        refuse_taken(output, resume=config.resume, overwrite=config.overwrite)
    elif may_restart():
        raise ConfigError(
            "--max-restarts: say --output, so that a restart finds the run that it goes on with"
        )


def decide(config: FinetuneConfig, aim: Aim) -> tuple[FinetuneConfig, Data, Start, list[Choice]]:
    """The recipe filled in, the data open, the model built; and why each setting is as it is."""
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
    assert config.recipe.batch_size is not None
    refuse_uneven(config.recipe.batch_size, world().size)
    config, settled = aim.settle(config, data, origin)
    start, more = prepare_start(config, data, origin, aim.classes(data))
    return config, data, start, [*settled, *choices, *more]


def load_data(config: FinetuneConfig, need_labels: bool = True) -> Data:
    """Open the source and hold images out."""
    settings = config.data_settings
    data = open_data(
        config.data,
        image_column=settings.image_column,
        label_column=settings.label_column,
        classes=settings.classes,
        need_labels=need_labels,
        unseen_classes=settings.unseen_classes,
        cache_size=settings.cache_size,
    )
    if settings.exclude is not None:
        data = exclude(data, settings.exclude)
    for examples in data.splits.values():
        refuse_small_cache(examples, settings.shuffle_shards)
    if not {ALL, TRAIN} & data.splits.keys():
        raise DataError(f"{data.source}: has images for {', '.join(data.splits)}, none for train")
    if settings.join_validation:
        data = join_validation(data)
    seed = config.seed if settings.split_seed is None else settings.split_seed
    data = divide(
        data,
        seed=seed,
        validation=settings.validation,
        test=settings.test,
        most_validation=settings.most_validation,
    )
    if not any(len(part) for name, part in data.splits.items() if name != TRAIN):
        raise DataError(
            f"{data.source}: no image is held out to measure the model on; raise --test or "
            "--validation, or add images that are not copies of others"
        )
    if settings.train_images is not None:
        every_class = need_labels and not settings.unseen_classes
        data = keep_training_images(data, settings.train_images, seed, every_class)
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
    shape, recipe, machine, here = start.model.config, config.recipe, config.machine, world()
    start.model.to(device.torch_device)
    model = aim.learner(start, config)
    freeze(model, recipe.train, shape)
    if machine.checkpoint_activations:
        checkpoint_activations(model)
    if machine.compile == "yes":
        compile_layers(model)
    sharded = machine.parallel == "fsdp" and here.size > 1
    if sharded:
        shard(model, device, here)
    return State(
        model=model,
        optimizer=build_optimizer(model, plan, shape, recipe.layer_decay),
        average=Average(model, recipe.ema) if recipe.ema else None,
        micro_batch=choose_micro_batch(
            shape,
            plan.batch_size // here.size,
            device,
            machine.grad_accum,
            machine.checkpoint_activations,
        ),
        wrapped=None if sharded else wrap(model, here),
    )


def resolve(
    config: FinetuneConfig, plan: Plan, start: Start, device: Device, state: State, output: Path
) -> FinetuneConfig:
    """The config as it will be written down: what was left to the program, decided."""
    machine = replace(
        config.machine,
        device=device.type,
        precision="bf16" if device.bf16 else "fp32",
        grad_accum=-(-(plan.batch_size // world().size) // state.micro_batch),
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


def write_record(
    folder: RunFolder, config: FinetuneConfig, asked: FinetuneConfig, data: Data, device: Device
) -> None:
    """What the run is, written before it starts."""
    write_splits(folder.splits, data)
    write_json(folder.data, describe_data(data, {}))
    about = {"source": data.source, "kind": data.kind, "fingerprint": fingerprint(data)}
    write_settings(folder, config, asked, about, device)


def write_settings(
    folder: RunFolder,
    config: FinetuneConfig,
    asked: FinetuneConfig,
    about: Mapping[str, str],
    device: Device,
) -> None:
    """The settings, as asked for and as decided, and what they meet; `about` is the data."""
    record = describe_environment(device.describe(), about)
    record["processes"] = world().size
    record["launch"] = launch()  # by which a restart knows its own run
    record["started"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    # What was asked for at first, so that the same command can go on with the run.
    record["asked"] = read_asked(folder) if config.resume else not_default(asked)
    write_json(folder.environment, record)
    write_atomically(folder.config, to_yaml(config))  # last: it marks a run that can go on
