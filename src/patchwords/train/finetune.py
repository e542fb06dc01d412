"""The main job: fine-tune a model on somebody's images, or train one from scratch on them.

Evaluators are passed in as functions, because training stands below them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn

from patchwords.data.examples import VALIDATION, Examples
from patchwords.data.preprocess import Preprocess
from patchwords.data.split import fingerprint
from patchwords.device import Device, choose_device
from patchwords.distributed import by_main, from_main, gather, joined, together, world
from patchwords.duration import duration
from patchwords.errors import Interrupted
from patchwords.model.family import Model, build, config_to_dict
from patchwords.train import checkpoint, loop
from patchwords.train.behind import behind
from patchwords.train.classify import Classify
from patchwords.train.config import FinetuneConfig
from patchwords.train.feed import feed
from patchwords.train.front_cache import FrontCache
from patchwords.train.front_validation import validate
from patchwords.train.job import Job, prepare
from patchwords.train.journal import Journal, Silence, read_rows
from patchwords.train.parallel import plain
from patchwords.train.peak import seconds_at_peak
from patchwords.train.probe import fewshot_images
from patchwords.train.progress import Display
from patchwords.train.run_folder import describe_data, write_json
from patchwords.train.sharding import is_sharded, whole
from patchwords.train.signals import StopSignal, stop_signals
from patchwords.train.spikes import Spikes
from patchwords.train.step import State, StepSettings
from patchwords.weights.store import save_pretrained

Config = TypeVar("Config", bound=FinetuneConfig)

# (model, examples, preprocess, device, workers) -> {"split", "loss", "accuracy", "images"}
Evaluate = Callable[[nn.Module, Examples, Preprocess, Device, int], dict[str, Any]]
# (model, drawn, held out, preprocess, device, workers) -> {"accuracy", "images"}
FewShot = Callable[[nn.Module, Examples, Examples, Preprocess, Device, int], dict[str, Any]]


def run(
    config: FinetuneConfig, evaluate: Evaluate, display: Display, fewshot: FewShot | None = None
) -> Job:
    """Train as the config says; the run folder then holds all but the final evaluation.

    Raises ConfigError, DataError and WeightsError before anything is written; Diverged and
    Interrupted leave a checkpoint to go on from.
    """
    with in_all_processes(config) as settings:
        return carry_out(prepare(settings, display, Classify()), evaluate, display, fewshot)


@contextmanager
def in_all_processes(config: Config) -> Iterator[Config]:
    """The settings that all processes go by, which inside can talk to one another.

    Where torchrun starts them anew after one has died, only those of its machine may know that
    they go on with the run: then theirs are the settings.
    """
    device = choose_device(config.machine.device, config.machine.precision)
    with joined(device.type == "cuda"):
        configs = gather(config)
        yield next((found for found in configs if found.resume), configs[0])


def carry_out(
    job: Job, evaluate: Evaluate, display: Display, fewshot: FewShot | None = None
) -> Job:
    """Train what is ready, as `run` does."""
    if job.state.step < job.plan.steps and not job.state.stopped:
        train_to_end(job, evaluate, display, fewshot)
    kept = loop.keep_final_weights(job.state)
    job = with_whole_model(job)
    by_main(lambda: write_model(job))
    by_main(lambda: shutil.rmtree(job.folder.frozen, ignore_errors=True))
    display.say(f"trained in {duration(job.state.seconds)}; the weights kept are {kept}")
    return job


def with_whole_model(job: Job) -> Job:
    """The job with a model that has all weights, and nothing done to its layers."""
    if not is_sharded(job.state.model):
        plain(job.state.model)
        return job
    weights = {name: whole(value) for name, value in job.state.model.state_dict().items()}
    model = build(job.start.model.config).to(job.device.torch_device)
    start = replace(job.start, model=model)
    learner = job.aim.learner(start, job.config)
    learner.load_state_dict(weights)
    return replace(job, start=start, state=replace(job.state, model=learner))


def write_model(job: Job) -> None:
    """The trained model, and what became of the data."""
    write_json(job.folder.data, describe_data(job.data, job.state.skipped))
    save_pretrained(
        job.start.model,
        job.folder.model,
        labels=job.aim.classes(job.data),
        preprocess=job.start.preprocess,
        architecture=job.start.name,
    )


def train_to_end(
    job: Job, evaluate: Evaluate, display: Display, fewshot: FewShot | None = None
) -> None:
    """Wire data, step and loop together and run them."""
    plan, learner = job.plan, job.state.forward
    gpus = [torch.cuda.current_device()] if job.device.type == "cuda" else []
    journal = open_journal(job)
    try:
        # The step seeds torch's generators; the caller's are given back as they were.
        with torch.random.fork_rng(gpus), stop_signals() as stop, display, saving(job) as save:
            display.start(job.state.step, plan.steps)
            if job.front is not None:
                FrontCache(job, job.front).fill(stop, display)
            loop.train(
                job.state,
                job.aim.objective(job, learner),
                feed(job),
                step_settings(job),
                plan,
                callbacks(job, evaluate, fewshot, journal, display, stop, save),
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


def step_settings(job: Job) -> StepSettings:
    return StepSettings(
        device=job.device,
        seed=job.config.seed,
        rate=job.plan.rate,
        clip=job.config.recipe.clip,
        rank=world().rank,
    )


@contextmanager
def saving(job: Job) -> Iterator[Callable[[State], None]]:
    """Inside, what writes a checkpoint; shares are written behind the training, to its end."""
    folder = job.folder.checkpoints
    about = {"architecture": config_to_dict(job.start.model.config), "data": fingerprint(job.data)}
    if not is_sharded(job.state.model):
        yield lambda state: by_main(
            lambda: checkpoint.save(folder, state.step, {**state.to_dict(), **about})
        )
        return
    from patchwords.train import shares

    with behind() as writer:
        yield lambda state: shares.save(folder, state, about, writer)


def callbacks(
    job: Job,
    evaluate: Evaluate,
    fewshot: FewShot | None,
    journal: loop.Recorder,
    display: Display,
    stop: StopSignal,
    save: Callable[[State], None],
) -> loop.Callbacks:
    validation = job.data.splits.get(VALIDATION)
    preprocess, device = job.start.preprocess, job.device
    spikes = Spikes(row["loss"] for row in read_rows(job.folder.metrics) if row["kind"] == "train")
    at_peak = seconds_at_peak(job.start.model, job.device)
    cache = None if job.front is None else FrontCache(job, job.front)

    def on_validation(model: nn.Module) -> dict[str, Any]:
        assert validation is not None
        if cache is not None:
            return {"split": VALIDATION, **validate(cache, cast(Model, model))}
        measured = evaluate(model, validation, preprocess, device, job.workers)
        return {"split": VALIDATION, **measured}

    def show_train(row: Mapping[str, Any]) -> None:
        display.train(row)
        if note := spikes.note(row):
            journal.write(note)
            display.note(note)

    return loop.Callbacks(
        prepare=job.aim.preparation(job),
        evaluate=on_validation if validation is not None and len(validation) else None,
        save=save,
        record=journal,
        show_train=show_train,
        show_evaluation=display.evaluation,
        stop_signal=stop,
        patience=job.config.recipe.early_stop,
        fewshot=live_fewshot(job, fewshot),
        seconds_at_peak=at_peak / world().size if at_peak else None,
    )


def live_fewshot(job: Job, fewshot: FewShot | None) -> Callable[[], dict[str, Any]] | None:
    """The few-shot accuracy of the model as it is now; None where --fewshot-every is not given."""
    images = fewshot_images(job.config, job.data)
    if images is None:
        return None
    assert fewshot is not None, "the caller has to say how few-shot accuracy is measured"
    start, shots = job.start, job.config.machine.fewshot_shots
    measure = partial(fewshot, start.model, *images, start.preprocess, job.device, job.workers)

    def by_one() -> dict[str, Any]:  # the main process, in which the model is whole, too
        found: dict[str, Any] = together(lambda: measure() if world().is_main else {})
        return {"shots": shots, **from_main(found)}

    return by_one
