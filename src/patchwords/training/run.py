"""A run made ready for its next step: settings resolved, folder claimed, state in place."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from patchwords.data.dataset import ALL, TRAIN, VALIDATION, DatasetSplits, ImageDataset
from patchwords.data.loader import choose_num_workers
from patchwords.data.open import open_data
from patchwords.data.sampler import check_batch_divisible
from patchwords.data.shards.stream import check_shard_cache_size
from patchwords.data.splits import (
    draw_shots,
    exclude_listed_images,
    fingerprint_dataset,
    join_validation,
    split_dataset,
    subsample_training_images,
    write_splits,
)
from patchwords.device import Device, choose_device
from patchwords.distributed import (
    World,
    broadcast_from_main,
    get_launch_id,
    get_world,
    may_restart,
    run_on_all_processes,
    run_on_main_process,
)
from patchwords.errors import ConfigError, DataError
from patchwords.files import write_atomically
from patchwords.models.build import config_to_dict
from patchwords.planning.memory import choose_micro_batch
from patchwords.rng import numpy_generator
from patchwords.training.config import FinetuneConfig, collect_changed_settings, config_to_yaml
from patchwords.training.engine import checkpoint
from patchwords.training.engine.optimizer import build_optimizer, freeze_layers
from patchwords.training.engine.parallel import (
    checkpoint_activations,
    compile_layers,
    is_sharded,
    shard_model,
    wrap_ddp,
)
from patchwords.training.engine.step import EMA, TrainState
from patchwords.training.inputs.frozen import (
    FrozenBackbone,
    build_frozen_backbone,
    resolve_frozen_mode,
)
from patchwords.training.logs.display import Display, show_run_settings
from patchwords.training.logs.run_folder import (
    RunFolder,
    check_output_overlap,
    check_run_folder_available,
    claim_run_folder,
    describe_data,
    describe_environment,
    find_free_path,
    read_requested_settings,
    write_json,
)
from patchwords.training.model_setup import (
    DEFAULT_MODEL,
    InitialModel,
    build_initial_model,
    choose_model_family,
    choose_model_name,
    load_starting_weights,
)
from patchwords.training.objectives import Aim
from patchwords.training.plan import (
    ResolvedSetting,
    TrainingPlan,
    build_training_plan,
    resolve_machine_settings,
)
from patchwords.training.recipes import fill_recipe_settings

# Going on with a run: the newest whole checkpoint, of this model and these data.


def restore_latest_checkpoint(
    state: TrainState,
    start: InitialModel,
    folder: RunFolder,
    config: FinetuneConfig,
    data: DatasetSplits,
    display: Display,
) -> int | None:
    """Load the newest whole checkpoint of a run that goes on; -> its step, None without one."""
    saved = checkpoint.load_latest_checkpoint(
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
        return checkpoint.load_checkpoint(found)
    from patchwords.training.engine import sharded_checkpoint as shares

    return shares.load_sharded_checkpoint(found, state)


# The images of the live few-shot metric: drawn once, the same whenever the run goes on.


MAX_FEWSHOT_VALIDATION = 2_000  # images: then the standard error of the accuracy is 1.1 % at most


def select_fewshot_images(
    config: FinetuneConfig, data: DatasetSplits
) -> tuple[ImageDataset, ImageDataset] | None:
    """(a few images of each class of train, up to 2,000 of validation); None where not asked for.

    Raises ConfigError or DataError in one line where the data have no labels, a class has too few
    images, or nothing is held out.
    """
    machine = config.machine
    if machine.fewshot_every is None:
        return None
    train, held_out = data.splits[TRAIN], data.splits.get(VALIDATION)
    if held_out is None or not len(held_out):
        raise ConfigError(
            "--fewshot-every needs validation images to judge by, and there are none; raise "
            "--validation"
        )
    try:
        drawn = draw_shots(train.labels, machine.fewshot_shots, config.seed, train.classes)
    except DataError as error:
        raise DataError(f"--fewshot-every: {error}") from error
    generator = numpy_generator(config.seed, "fewshot", "held out")
    judges = np.sort(generator.permutation(len(held_out))[:MAX_FEWSHOT_VALIDATION])
    return train.select(drawn), held_out.select(judges)


@dataclass(frozen=True)
class TrainingRun:
    """A run that is ready for its next step."""

    config: FinetuneConfig  # every setting resolved
    data: DatasetSplits
    start: InitialModel
    plan: TrainingPlan
    device: Device
    folder: RunFolder
    state: TrainState
    resumed_at: int | None  # step of the checkpoint that the run goes on from
    aim: Aim

    @property
    def workers(self) -> int:
        asked = self.config.machine.workers
        return (
            asked
            if asked is not None
            else choose_num_workers(
                self.data.splits[TRAIN], self.device.type == "cuda", get_world().local_size
            )
        )

    @property
    def front(self) -> FrozenBackbone | None:
        """The frozen layers, where what they give is kept; None where each step computes it."""
        kept = self.config.machine.frozen == "cache"
        return build_frozen_backbone(self.start.model, self.config.recipe.train) if kept else None

    @property
    def going_on(self) -> str:
        """The command that goes on with the run."""
        config, folder = self.config, str(self.folder.path)
        words = ["patchwords", config.verb, config.data, "--output", folder, "--resume"]
        return format_launch_prefix(get_world()) + shlex.join(words)


def format_launch_prefix(here: World) -> str:
    """What stands before the command where it is started as several processes."""
    if here.size == 1:
        return ""
    nodes = "" if here.size == here.local_size else "... "  # what says where the others are
    return f"torchrun {nodes}--nproc-per-node {here.local_size} -m "


def prepare_training_run(config: FinetuneConfig, display: Display, aim: Aim) -> TrainingRun:
    """Resolve and show every setting; write down what the run is, or find where it stopped.

    All processes come to the same decisions; the main one claims the folder and writes.
    """
    config.check()
    asked = config
    run_on_main_process(lambda: check_before_opening_data(asked))
    device = choose_device(config.machine.device, config.machine.precision)
    config, data, start, choices = run_on_all_processes(lambda: resolve_data_and_model(asked, aim))
    output = broadcast_from_main(
        Path(config.output or choose_output_folder(config.data, start.name))
    )
    check_output_overlap(
        output, Path(config.data), Path(config.weights) if config.weights else None
    )
    plan = build_training_plan(config, len(data.splits[TRAIN]))
    config, of_machine = resolve_machine_settings(config, device, plan.steps)
    state = build_train_state(config, plan, start, device, aim)
    held = len(data.splits.get(VALIDATION, ()))
    config, of_frozen = resolve_frozen_mode(config, plan, start, device, output, held)
    done = resolve_config(config, plan, start, device, state, output)
    run_on_main_process(
        lambda: claim_run_folder(output, resume=done.resume, overwrite=done.overwrite)
    )
    folder, resumed_at = RunFolder(output), None
    if done.resume:
        resumed_at = run_on_all_processes(
            lambda: restore_latest_checkpoint(state, start, folder, done, data, display)
        )
    if resumed_at is None:
        show_run_settings(done, start, data, device, [*choices, *of_machine, *of_frozen], display)
        run_on_main_process(lambda: write_run_record(folder, done, asked, data, device))
    return TrainingRun(done, data, start, plan, device, folder, state, resumed_at, aim)


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


def resolve_data_and_model(
    config: FinetuneConfig, aim: Aim
) -> tuple[FinetuneConfig, DatasetSplits, InitialModel, list[ResolvedSetting]]:
    """The recipe filled in, the data open, the model built; and why each setting is as it is."""
    data = load_dataset_splits(config, need_labels=aim.objective_name == "supervised")
    select_fewshot_images(config, data)  # refuses what cannot be measured
    origin = load_starting_weights(config)
    config, choices = fill_recipe_settings(
        config,
        images=len(data.splits[TRAIN]),
        from_weights=origin is not None and config.verb == "finetune",
        model=choose_model_name(config, origin),
        family=choose_model_family(config, origin),
        objective=aim.objective_name,
    )
    assert config.recipe.batch_size is not None
    check_batch_divisible(config.recipe.batch_size, get_world().size)
    config, settled = aim.settle(config, data, origin)
    start, more = build_initial_model(config, data, origin, aim.classes(data))
    return config, data, start, [*settled, *choices, *more]


def load_dataset_splits(config: FinetuneConfig, need_labels: bool = True) -> DatasetSplits:
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
        data = exclude_listed_images(data, settings.exclude)
    for examples in data.splits.values():
        check_shard_cache_size(examples, settings.shuffle_shards)
    if not {ALL, TRAIN} & data.splits.keys():
        raise DataError(f"{data.source}: has images for {', '.join(data.splits)}, none for train")
    if settings.join_validation:
        data = join_validation(data)
    seed = config.seed if settings.split_seed is None else settings.split_seed
    data = split_dataset(
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
        data = subsample_training_images(data, settings.train_images, seed, every_class)
    return data


def choose_output_folder(data: str, model: str) -> Path:
    """runs/DATA-MODEL, with a number where that is taken."""
    model = model.split(" with ", maxsplit=1)[0]
    stem = Path(data.removeprefix("hf:").rstrip("/")).stem or "data"
    return find_free_path(Path("runs") / f"{stem}-{model.replace('/', '-')}")


def build_train_state(
    config: FinetuneConfig, plan: TrainingPlan, start: InitialModel, device: Device, aim: Aim
) -> TrainState:
    """The model on its device, with an optimizer for the weights that learn."""
    shape, recipe, machine, here = start.model.config, config.recipe, config.machine, get_world()
    start.model.to(device.torch_device)
    model = aim.learner(start, config)
    freeze_layers(model, recipe.train, shape)
    if machine.checkpoint_activations:
        checkpoint_activations(model)
    if machine.compile == "yes":
        compile_layers(model)
    sharded = machine.parallel == "fsdp" and here.size > 1
    if sharded:
        shard_model(model, device, here)
    return TrainState(
        model=model,
        optimizer=build_optimizer(model, plan, shape, recipe.layer_decay),
        average=EMA(model, recipe.ema) if recipe.ema else None,
        micro_batch=choose_micro_batch(
            shape,
            plan.batch_size // here.size,
            device,
            machine.grad_accum,
            machine.checkpoint_activations,
        ),
        wrapped=None if sharded else wrap_ddp(model, here),
    )


def resolve_config(
    config: FinetuneConfig,
    plan: TrainingPlan,
    start: InitialModel,
    device: Device,
    state: TrainState,
    output: Path,
) -> FinetuneConfig:
    """The config as it will be written down: what was left to the program, decided."""
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


def write_run_record(
    folder: RunFolder,
    config: FinetuneConfig,
    asked: FinetuneConfig,
    data: DatasetSplits,
    device: Device,
) -> None:
    """What the run is, written before it starts."""
    write_splits(folder.splits, data)
    write_json(folder.data, describe_data(data, {}))
    about = {"source": data.source, "kind": data.kind, "fingerprint": fingerprint_dataset(data)}
    write_run_settings(folder, config, asked, about, device)


def write_run_settings(
    folder: RunFolder,
    config: FinetuneConfig,
    asked: FinetuneConfig,
    about: Mapping[str, str],
    device: Device,
) -> None:
    """The settings, as asked for and as decided, and what they meet; `about` is the data."""
    record = describe_environment(device.describe(), about)
    record["processes"] = get_world().size
    record["launch"] = get_launch_id()  # by which a restart knows its own run
    record["started"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    # What was asked for at first, so that the same command can go on with the run.
    record["asked"] = (
        read_requested_settings(folder) if config.resume else collect_changed_settings(asked)
    )
    write_json(folder.environment, record)
    write_atomically(folder.config, config_to_yaml(config))  # last: it marks a run that can go on
