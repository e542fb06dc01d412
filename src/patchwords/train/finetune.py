"""The main job: fine-tune a model on somebody's images, or train one from scratch on them.

Evaluators are passed in as functions, because training stands below them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from patchwords.data.examples import TRAIN, VALIDATION, Examples
from patchwords.data.preprocess import Preprocess
from patchwords.data.split import fingerprint
from patchwords.device import Device, choose_device
from patchwords.distributed import by_main, gather, joined, world
from patchwords.errors import Interrupted
from patchwords.model.family import build, config_to_dict
from patchwords.train import checkpoint, loop
from patchwords.train.config import FinetuneConfig
from patchwords.train.feed import Prepare, feed
from patchwords.train.job import Job, prepare
from patchwords.train.journal import Journal, Silence
from patchwords.train.parallel import plain
from patchwords.train.progress import Display, duration
from patchwords.train.run_folder import describe_data, write_json
from patchwords.train.sharding import is_sharded, whole
from patchwords.train.signals import StopSignal, stop_signals
from patchwords.train.step import State, StepSettings
from patchwords.train.task import Classification, balanced_weights
from patchwords.weights.store import save_pretrained

# (model, examples, preprocess, device, workers) -> {"split", "loss", "accuracy", "images"}
Evaluate = Callable[[nn.Module, Examples, Preprocess, Device, int], dict[str, Any]]


def run(config: FinetuneConfig, evaluate: Evaluate, display: Display) -> Job:
    """Train as the config says; the run folder then holds all but the final evaluation.

    Raises ConfigError, DataError and WeightsError before anything is written; Diverged and
    Interrupted leave a checkpoint to go on from.
    """
    device = choose_device(config.machine.device, config.machine.precision)
    with joined(device.type == "cuda"):
        job = prepare(as_one(config), display)
        if job.state.step < job.plan.steps and not job.state.stopped:
            train_to_end(job, evaluate, display)
        kept = loop.keep_final_weights(job.state)
        job = with_whole_model(job)
        by_main(lambda: write_model(job))
    display.say(f"trained in {duration(job.state.seconds)}; the weights kept are {kept}")
    return job


def as_one(config: FinetuneConfig) -> FinetuneConfig:
    """The settings that all processes go by: those of one that goes on with a run, if any does.

    Where torchrun starts the processes anew, only those of the machine that failed may know.
    """
    configs = gather(config)
    return next((found for found in configs if found.resume), configs[0])


def with_whole_model(job: Job) -> Job:
    """The job with a model that has all weights, and nothing done to its layers."""
    model = job.start.model
    if not is_sharded(job.state.model):
        plain(model)
        return job
    weights = {name: whole(value) for name, value in model.state_dict().items()}
    copy = build(model.config).to(job.device.torch_device)
    copy.load_state_dict(weights)
    return replace(job, start=replace(job.start, model=copy))


def write_model(job: Job) -> None:
    """The trained model, and what became of the data."""
    write_json(job.folder.data, describe_data(job.data, job.state.skipped))
    save_pretrained(
        job.start.model,
        job.folder.model,
        labels=job.data.classes,
        preprocess=job.start.preprocess,
        architecture=job.start.name,
    )


def train_to_end(job: Job, evaluate: Evaluate, display: Display) -> None:
    """Wire data, step and loop together and run them."""
    plan, normalise, model = job.plan, job.start.preprocess.normalise, job.state.forward

    def forward(images: Tensor) -> Tensor:
        return model(normalise(images))

    gpus = [torch.cuda.current_device()] if job.device.type == "cuda" else []
    journal = open_journal(job)
    try:
        # The step seeds torch's generators; the caller's are given back as they were.
        with torch.random.fork_rng(gpus), stop_signals() as stop, display:
            display.start(job.state.step, plan.steps)
            loop.train(
                job.state,
                classification(job, forward),
                feed(job),
                step_settings(job),
                plan,
                callbacks(job, evaluate, journal, display, stop),
            )
    except Interrupted as error:
        raise Interrupted(f"{error}; go on with: {job.going_on}", error.exit_code) from error
    except KeyboardInterrupt as error:  # asked twice
        raise Interrupted(
            f"stopped at once, back to the last checkpoint; go on with: {job.going_on}"
        ) from error
    finally:
        journal.close()


def open_journal(job: Job) -> Journal | Silence:
    """The main process keeps the record."""
    return Journal(job.folder.metrics, job.resumed_at) if world().is_main else Silence()


def classification(job: Job, forward: Callable[[Tensor], Tensor]) -> Classification:
    recipe, weights = job.config.recipe, None
    if recipe.balance == "loss":
        counts = torch.from_numpy(job.data.splits[TRAIN].count_per_class())
        weights = balanced_weights(counts).float().to(job.device.torch_device)
    return Classification(forward, recipe.label_smoothing, weights)


def step_settings(job: Job) -> StepSettings:
    return StepSettings(
        device=job.device,
        seed=job.config.seed,
        rate=job.plan.rate,
        clip=job.config.recipe.clip,
        rank=world().rank,
    )


def callbacks(
    job: Job,
    evaluate: Evaluate,
    journal: loop.Recorder,
    display: Display,
    stop: StopSignal,
) -> loop.Callbacks:
    validation = job.data.splits.get(VALIDATION)
    preprocess, device = job.start.preprocess, job.device
    about = {"architecture": config_to_dict(job.start.model.config), "data": fingerprint(job.data)}

    def save(state: State) -> None:
        folder = job.folder.checkpoints
        if is_sharded(state.model):
            from patchwords.train import shares

            return shares.save(folder, state, about)
        by_main(lambda: checkpoint.save(folder, state.step, {**state.to_dict(), **about}))

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
