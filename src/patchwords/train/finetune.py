"""The main job: fine-tune a ViT on somebody's images, or train one from scratch on them.

Assembles the pieces and nothing else: data, model, recipe, folder, loop. Evaluators are passed in
as functions, because training stands below them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchwords.data.examples import TRAIN, VALIDATION, Data, Examples
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.data.split import divide, fingerprint, write_splits
from patchwords.data.workers import useful_workers
from patchwords.device import Device, choose_device
from patchwords.errors import ConfigError, DataError, Interrupted
from patchwords.files import write_atomically
from patchwords.train import checkpoint, loop
from patchwords.train.average import Average
from patchwords.train.config import FinetuneConfig
from patchwords.train.feed import Prepare, feed
from patchwords.train.introduce import introduce
from patchwords.train.journal import Journal
from patchwords.train.memory import choose_micro_batch
from patchwords.train.optimizer import build_optimizer, freeze
from patchwords.train.plan import Plan, plan_of
from patchwords.train.progress import Display, duration
from patchwords.train.recipes import fill
from patchwords.train.run_folder import (
    RunFolder,
    claim,
    describe_data,
    describe_environment,
    free_name,
    write_json,
)
from patchwords.train.settings import not_default, to_yaml
from patchwords.train.signals import StopSignal, stop_signals
from patchwords.train.start import Start, choose_model_name, prepare_start
from patchwords.train.step import State, StepSettings
from patchwords.train.task import balanced_weights
from patchwords.weights.store import save_pretrained

# (model, examples, preprocess, device, workers) -> {"split", "loss", "accuracy", "images"}
Evaluate = Callable[[nn.Module, Examples, Preprocess, Device, int], dict[str, Any]]


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

    @property
    def workers(self) -> int:
        asked = self.config.machine.workers
        return (
            asked
            if asked is not None
            else useful_workers(self.data.splits[TRAIN], self.device.type == "cuda")
        )


def run(config: FinetuneConfig, evaluate: Evaluate, display: Display) -> Job:
    """Train as the config says; the run folder then holds all but the final evaluation.

    Raises ConfigError, DataError and WeightsError before anything is written; Diverged and
    Interrupted leave a checkpoint to go on from.
    """
    job = prepare(config, display)
    if job.state.step < job.plan.steps and not job.state.stopped:
        train_to_end(job, evaluate, display)
    kept = loop.keep_final_weights(job.state)
    write_json(job.folder.data, describe_data(job.data, job.state.skipped))
    save_pretrained(
        job.start.model,
        job.folder.model,
        labels=job.data.classes,
        preprocess=job.start.preprocess,
        architecture=job.start.name,
    )
    display.say(f"trained in {duration(job.state.seconds)}; the weights kept are {kept}")
    return job


def prepare(config: FinetuneConfig, display: Display) -> Job:
    """Resolve and show every setting; write down what the run is, or find where it stopped."""
    config.check()
    asked = config
    device = choose_device(config.machine.device, config.machine.precision)
    data = load_data(config)
    config, choices = fill(
        config,
        images=len(data.splits[TRAIN]),
        from_weights=config.weights is not None,
        model=choose_model_name(config),
    )
    start, more = prepare_start(config, data)
    output = Path(config.output) if config.output else default_output(config.data, start.name)
    plan = plan_of(config, len(data.splits[TRAIN]))
    state = build_state(config, plan, start, device)
    config = resolve(config, plan, start, device, state, output)
    folder = claim(output, resume=config.resume, overwrite=config.overwrite)
    resumed_at = restore(state, start, folder, config, data, display) if config.resume else None
    if resumed_at is None:
        introduce(config, start, data, device, [*choices, *more], display)
        write_record(folder, config, asked, data, device)
    return Job(config, data, start, plan, device, folder, state, resumed_at)


def load_data(config: FinetuneConfig) -> Data:
    """Open the source and hold images out."""
    settings = config.data_settings
    data = open_data(
        config.data,
        image_column=settings.image_column,
        label_column=settings.label_column,
        classes=settings.classes,
    )
    data = divide(data, seed=config.seed, validation=settings.validation, test=settings.test)
    if not any(len(part) for name, part in data.splits.items() if name != TRAIN):
        raise DataError(
            f"{data.source}: no image is held out to measure the model on; raise --test or "
            "--validation, or add images that are not copies of others"
        )
    return data


def default_output(data: str, model: str) -> Path:
    """runs/DATA-MODEL, with a number where that is taken."""
    stem = Path(data.removeprefix("hf:").rstrip("/")).stem or "data"
    return free_name(Path("runs") / f"{stem}-{model.replace('/', '-')}")


def build_state(config: FinetuneConfig, plan: Plan, start: Start, device: Device) -> State:
    """The model on its device, with an optimizer for the weights that learn."""
    vit, recipe = start.model.config, config.recipe
    model = start.model.to(device.torch_device)
    freeze(model, recipe.train, vit.depth)
    return State(
        model=model,
        optimizer=build_optimizer(model, plan, vit.depth, recipe.layer_decay),
        average=Average(model, recipe.ema) if recipe.ema else None,
        micro_batch=choose_micro_batch(vit, plan.batch_size, device, config.machine.grad_accum),
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
        model=config.model or start.name,  # as spelled: timm's names imply numerics
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
    vit = start.model.config.to_dict()
    if saved["architecture"] != vit:
        differ = [name for name in vit if saved["architecture"].get(name) != vit[name]]
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
    record["asked"] = not_default(asked)  # so that the same command can go on with the run
    write_json(folder.environment, record)
    write_atomically(folder.config, to_yaml(config))  # last: it marks a run that can go on


def train_to_end(job: Job, evaluate: Evaluate, display: Display) -> None:
    """Wire data, step and loop together and run them."""
    config, plan, normalise = job.config, job.plan, job.start.preprocess.normalise
    train = job.data.splits[TRAIN]
    model = torch.compile(job.start.model) if config.machine.compile else job.start.model

    def forward(images: Tensor) -> Tensor:
        return model(normalise(images))

    journal = Journal(job.folder.metrics, job.resumed_at)
    try:
        # The step seeds torch's generators; the caller's are given back as they were.
        with torch.random.fork_rng(), stop_signals() as stop, display:
            display.start(job.state.step, plan.steps)
            loop.train(
                job.state,
                forward,
                feed(config, plan, train, job.start.preprocess, job.state, job.workers),
                step_settings(job),
                plan,
                callbacks(job, evaluate, journal, display, stop),
            )
    except Interrupted as error:
        words = ["patchwords", "finetune", config.data, "--output", str(job.folder.path)]
        again = shlex.join([*words, "--resume"])
        raise Interrupted(f"{error}; go on with: {again}", error.exit_code) from error
    finally:
        journal.close()


def step_settings(job: Job) -> StepSettings:
    recipe, weights = job.config.recipe, None
    if recipe.balance == "loss":
        counts = torch.from_numpy(job.data.splits[TRAIN].count_per_class())
        weights = balanced_weights(counts).float().to(job.device.torch_device)
    return StepSettings(
        device=job.device,
        seed=job.config.seed,
        rate=job.plan.rate,
        clip=recipe.clip,
        label_smoothing=recipe.label_smoothing,
        class_weights=weights,
    )


def callbacks(
    job: Job, evaluate: Evaluate, journal: Journal, display: Display, stop: StopSignal
) -> loop.Callbacks:
    validation = job.data.splits.get(VALIDATION)
    preprocess, device = job.start.preprocess, job.device
    about = {"architecture": job.start.model.config.to_dict(), "data": fingerprint(job.data)}

    def save(state: State) -> None:
        checkpoint.save(job.folder.checkpoints, state.step, {**state.to_dict(), **about})

    def on_validation(model: nn.Module) -> dict[str, Any]:
        assert validation is not None
        measured = evaluate(model, validation, preprocess, device, job.workers)
        return {"split": VALIDATION, **measured}

    return loop.Callbacks(
        prepare=Prepare(job.config, device, len(job.data.classes)),
        evaluate=on_validation if validation is not None and len(validation) else None,
        save=save,
        record=journal,
        show_train=display.train,
        show_evaluation=display.evaluation,
        stop_signal=stop,
        patience=job.config.recipe.early_stop,
    )
