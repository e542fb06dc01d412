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

from patchwords.data.dataset import VALIDATION, ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import fingerprint_dataset
from patchwords.device import Device, choose_device
from patchwords.distributed import (
    all_gather_objects,
    broadcast_from_main,
    get_world,
    join_process_group,
    run_on_all_processes,
    run_on_main_process,
)
from patchwords.errors import Interrupted
from patchwords.files import format_duration
from patchwords.models.build import Model, build_model, config_to_dict
from patchwords.planning.matmul_peak import seconds_per_image_at_peak
from patchwords.training.config import FinetuneConfig
from patchwords.training.engine import checkpoint, loop
from patchwords.training.engine.parallel import is_sharded, restore_plain_layers, to_full_tensor
from patchwords.training.engine.sharded_checkpoint import open_async_writer
from patchwords.training.engine.signals import StopSignal, catch_stop_signals
from patchwords.training.engine.step import StepSettings, TrainState
from patchwords.training.inputs.batches import iterate_training_batches
from patchwords.training.inputs.frozen_cache import ActivationCache, validate_from_cache
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import (
    LossSpikeDetector,
    MetricsLogger,
    NullLogger,
    read_metrics,
)
from patchwords.training.logs.run_folder import describe_data, write_json
from patchwords.training.objectives.classification import Classify
from patchwords.training.run import TrainingRun, prepare_training_run, select_fewshot_images
from patchwords.weights.store import save_pretrained

FinetuneConfigT = TypeVar("FinetuneConfigT", bound=FinetuneConfig)

# (model, examples, preprocess, device, workers) -> {"split", "loss", "accuracy", "images"}
EvaluateFn = Callable[[nn.Module, ImageDataset, Preprocess, Device, int], dict[str, Any]]
# (model, drawn, held out, preprocess, device, workers) -> {"accuracy", "images"}
FewShotFn = Callable[
    [nn.Module, ImageDataset, ImageDataset, Preprocess, Device, int], dict[str, Any]
]


def finetune_model(
    config: FinetuneConfig, evaluate: EvaluateFn, display: Display, fewshot: FewShotFn | None = None
) -> TrainingRun:
    """Train as the config says; the run folder then holds all but the final evaluation.

    Raises ConfigError, DataError and WeightsError before anything is written; Diverged and
    Interrupted leave a checkpoint to go on from.
    """
    with share_config_across_processes(config) as settings:
        return train_and_save(
            prepare_training_run(settings, display, Classify()), evaluate, display, fewshot
        )


@contextmanager
def share_config_across_processes(config: FinetuneConfigT) -> Iterator[FinetuneConfigT]:
    """The settings that all processes go by, which inside can talk to one another.

    Where torchrun starts them anew after one has died, only those of its machine may know that
    they go on with the run: then theirs are the settings.
    """
    device = choose_device(config.machine.device, config.machine.precision)
    with join_process_group(device.type == "cuda"):
        configs = all_gather_objects(config)
        yield next((found for found in configs if found.resume), configs[0])


def train_and_save(
    job: TrainingRun, evaluate: EvaluateFn, display: Display, fewshot: FewShotFn | None = None
) -> TrainingRun:
    """Train what is ready, as `finetune_model` does."""
    if job.state.step < job.plan.steps and not job.state.stopped:
        train_to_end(job, evaluate, display, fewshot)
    kept = loop.load_final_weights(job.state)
    job = gather_full_model(job)
    run_on_main_process(lambda: write_trained_model(job))
    run_on_main_process(lambda: shutil.rmtree(job.folder.frozen, ignore_errors=True))
    display.say(f"trained in {format_duration(job.state.seconds)}; the weights kept are {kept}")
    return job


def gather_full_model(job: TrainingRun) -> TrainingRun:
    """The job with a model that has all weights, and nothing done to its layers."""
    if not is_sharded(job.state.model):
        restore_plain_layers(job.state.model)
        return job
    weights = {name: to_full_tensor(value) for name, value in job.state.model.state_dict().items()}
    model = build_model(job.start.model.config).to(job.device.torch_device)
    start = replace(job.start, model=model)
    learner = job.aim.learner(start, job.config)
    learner.load_state_dict(weights)
    return replace(job, start=start, state=replace(job.state, model=learner))


def write_trained_model(job: TrainingRun) -> None:
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
    job: TrainingRun, evaluate: EvaluateFn, display: Display, fewshot: FewShotFn | None = None
) -> None:
    """Wire data, step and loop together and run them."""
    plan, learner = job.plan, job.state.forward
    gpus = [torch.cuda.current_device()] if job.device.type == "cuda" else []
    journal = open_metrics_logger(job)
    try:
        # The step seeds torch's generators; the caller's are given back as they were.
        with (
            torch.random.fork_rng(gpus),
            catch_stop_signals() as stop,
            display,
            open_checkpoint_saver(job) as save,
        ):
            display.start(job.state.step, plan.steps)
            if job.front is not None:
                ActivationCache(job, job.front).fill(stop, display)
            loop.train_loop(
                job.state,
                job.aim.objective(job, learner),
                iterate_training_batches(job),
                build_step_settings(job),
                plan,
                build_callbacks(job, evaluate, fewshot, journal, display, stop, save),
            )
    except Interrupted as error:
        raise Interrupted(f"{error}; go on with: {job.going_on}", error.exit_code) from error
    except KeyboardInterrupt as error:  # asked twice
        raise Interrupted(
            f"stopped at once, back to the last checkpoint; go on with: {job.going_on}"
        ) from error
    finally:
        journal.close()


def open_metrics_logger(job: TrainingRun) -> MetricsLogger | NullLogger:
    """The main process keeps the record."""
    return (
        MetricsLogger(job.folder.metrics, job.resumed_at) if get_world().is_main else NullLogger()
    )


def build_step_settings(job: TrainingRun) -> StepSettings:
    return StepSettings(
        device=job.device,
        seed=job.config.seed,
        rate=job.plan.rate,
        clip=job.config.recipe.clip,
        rank=get_world().rank,
    )


@contextmanager
def open_checkpoint_saver(job: TrainingRun) -> Iterator[Callable[[TrainState], None]]:
    """Inside, what writes a checkpoint; shares are written behind the training, to its end."""
    folder = job.folder.checkpoints
    about = {
        "architecture": config_to_dict(job.start.model.config),
        "data": fingerprint_dataset(job.data),
    }
    if not is_sharded(job.state.model):
        yield lambda state: run_on_main_process(
            lambda: checkpoint.save_checkpoint(folder, state.step, {**state.to_dict(), **about})
        )
        return
    from patchwords.training.engine import sharded_checkpoint as shares

    with open_async_writer() as writer:
        yield lambda state: shares.save_sharded_checkpoint(folder, state, about, writer)


def build_callbacks(
    job: TrainingRun,
    evaluate: EvaluateFn,
    fewshot: FewShotFn | None,
    journal: loop.MetricsWriter,
    display: Display,
    stop: StopSignal,
    save: Callable[[TrainState], None],
) -> loop.LoopCallbacks:
    validation = job.data.splits.get(VALIDATION)
    preprocess, device = job.start.preprocess, job.device
    spikes = LossSpikeDetector(
        row["loss"] for row in read_metrics(job.folder.metrics) if row["kind"] == "train"
    )
    at_peak = seconds_per_image_at_peak(job.start.model, job.device)
    cache = None if job.front is None else ActivationCache(job, job.front)

    def on_validation(model: nn.Module) -> dict[str, Any]:
        assert validation is not None
        if cache is not None:
            return {"split": VALIDATION, **validate_from_cache(cache, cast(Model, model))}
        measured = evaluate(model, validation, preprocess, device, job.workers)
        return {"split": VALIDATION, **measured}

    def show_train(row: Mapping[str, Any]) -> None:
        display.train(row)
        if note := spikes.note(row):
            journal.write(note)
            display.note(note)

    return loop.LoopCallbacks(
        prepare=job.aim.preparation(job),
        evaluate=on_validation if validation is not None and len(validation) else None,
        save=save,
        record=journal,
        show_train=show_train,
        show_evaluation=display.evaluation,
        stop_signal=stop,
        patience=job.config.recipe.early_stop,
        fewshot=build_live_fewshot(job, fewshot),
        seconds_at_peak=at_peak / get_world().size if at_peak else None,
    )


def build_live_fewshot(
    job: TrainingRun, fewshot: FewShotFn | None
) -> Callable[[], dict[str, Any]] | None:
    """The few-shot accuracy of the model as it is now; None where --fewshot-every is not given."""
    images = select_fewshot_images(job.config, job.data)
    if images is None:
        return None
    assert fewshot is not None, "the caller has to say how few-shot accuracy is measured"
    start, shots = job.start, job.config.machine.fewshot_shots
    measure = partial(fewshot, start.model, *images, start.preprocess, job.device, job.workers)

    def by_one() -> dict[str, Any]:  # the main process, in which the model is whole, too
        found: dict[str, Any] = run_on_all_processes(
            lambda: measure() if get_world().is_main else {}
        )
        return {"shots": shots, **broadcast_from_main(found)}

    return by_one
