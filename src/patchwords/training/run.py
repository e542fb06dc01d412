"""A training run, top to bottom: data, model, objective, optimizer, loop, outputs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import torch

from patchwords.data.dataset import TRAIN, VALIDATION, DatasetSplits
from patchwords.data.sampler import check_batch_divisible
from patchwords.device import Device, choose_device
from patchwords.distributed import (
    broadcast_from_main,
    get_world,
    run_on_all_processes,
    run_on_main_process,
)
from patchwords.errors import Interrupted
from patchwords.files import format_duration
from patchwords.training.budget import ResolvedModel, fit_to_budget
from patchwords.training.config import FinetuneConfig
from patchwords.training.data_setup import (
    limit_batch_size,
    load_dataset_splits,
    select_fewshot_images,
)
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.loop import LoopCallbacks, train_loop
from patchwords.training.engine.optimizer import describe_trained_share
from patchwords.training.engine.signals import catch_stop_signals
from patchwords.training.engine.state import build_train_state, load_final_weights
from patchwords.training.inputs.batches import build_batch_preparer, iterate_training_batches
from patchwords.training.inputs.frozen import FrozenTail, resolve_frozen_mode
from patchwords.training.inputs.frozen_cache import ActivationCache
from patchwords.training.live_metrics import (
    FewShotFn,
    build_fewshot_probe,
    build_train_display,
    build_validation,
    get_seconds_at_peak,
)
from patchwords.training.logs.display import Display, show_run_settings
from patchwords.training.logs.run_folder import RunFolder, check_output_overlap, claim_run_folder
from patchwords.training.logs.run_record import choose_output_folder, write_run_record
from patchwords.training.model_setup import (
    InitialModel,
    build_initial_model,
    choose_model_family,
    choose_model_name,
    load_starting_weights,
)
from patchwords.training.objectives import Objective, choose_task, find_objective
from patchwords.training.outputs import (
    gather_full_model,
    open_checkpoint_saver,
    open_metrics_logger,
    write_trained_model,
)
from patchwords.training.plan import (
    ResolvedSetting,
    build_training_plan,
    require_setting,
    resolve_machine_settings,
)
from patchwords.training.recipes import fill_recipe_settings
from patchwords.training.restore import restore_latest_checkpoint
from patchwords.training.settings import (
    check_before_opening_data,
    resolve_config,
    share_config_across_processes,
)
from patchwords.training.training_run import TrainingRun
from patchwords.weights.pretrained import Pretrained


def train_model(
    config: FinetuneConfig, display: Display, fewshot: FewShotFn | None = None
) -> TrainingRun:
    """Train as the config says; the run folder then holds all but the final evaluation.

    A PretrainConfig trains by its --objective, other configs by their --task. Raises ConfigError,
    DataError and WeightsError before anything is written; Diverged and Interrupted leave a
    checkpoint to go on from.
    """
    with share_config_across_processes(config) as settings:
        run = prepare_training_run(settings, display)
        if run.state.step < run.plan.steps and not run.state.stopped:
            train_to_end(run, display, fewshot)
        kept = load_final_weights(run.state)
        run = gather_full_model(run)
        run_on_main_process(lambda: write_trained_model(run))
        run_on_main_process(lambda: shutil.rmtree(run.folder.frozen, ignore_errors=True))
        display.say(f"trained in {format_duration(run.state.seconds)}; the weights kept are {kept}")
        return run


def prepare_training_run(config: FinetuneConfig, display: Display) -> TrainingRun:
    """Resolve and show every setting; write down what the run is, or find where it stopped.

    All processes come to the same decisions; the main one claims the folder and writes.
    """
    run, choices = resolve_training_run(config)
    folder, resumed_at = run.folder, None
    run_on_main_process(
        lambda: claim_run_folder(folder.path, resume=config.resume, overwrite=config.overwrite)
    )
    if config.resume:
        resumed_at = run_on_all_processes(
            lambda: restore_latest_checkpoint(
                run.state, run.start, folder, run.config, run.data, display
            )
        )
    if resumed_at is None:
        show_run_settings(run.config, run.start, run.data, run.device, choices, display)
        run_on_main_process(
            lambda: write_run_record(folder, run.config, config, run.data, run.device)
        )
    if run.front is not None:
        run.state.wrapped = FrozenTail(run.front)
    return replace(run, resumed_at=resumed_at)


def explain_training(config: FinetuneConfig, display: Display) -> list[ResolvedSetting]:
    """Show every setting of a run with its reason, and write nothing; -> the settings."""
    with share_config_across_processes(config) as settings:
        run, choices = resolve_training_run(settings)
        return show_run_settings(run.config, run.start, run.data, run.device, choices, display)


def resolve_training_run(
    requested: FinetuneConfig,
) -> tuple[TrainingRun, list[ResolvedSetting]]:
    """Decide everything about a run before its folder is touched; -> run and reasons."""
    requested.check()
    requested = replace(requested, task=choose_task(requested))
    run_on_main_process(lambda: check_before_opening_data(requested))
    device = choose_device(requested.machine.device, requested.machine.precision)
    config, data, start, objective, choices = run_on_all_processes(
        lambda: resolve_data_and_model(requested, device)
    )
    output = broadcast_from_main(
        Path(config.output or choose_output_folder(config.data, start.name))
    )
    check_output_overlap(
        output, Path(config.data), Path(config.weights) if config.weights else None
    )
    plan = build_training_plan(config, len(data.splits[TRAIN]))
    config, of_machine = resolve_machine_settings(config, device, plan.steps)
    state = build_train_state(config, plan, start, data, objective, device)
    held_out, cacheable = len(data.splits.get(VALIDATION, ())), objective.caches_frozen
    config, of_frozen = resolve_frozen_mode(
        config, plan, start, device, output, held_out, cacheable
    )
    config = resolve_config(config, plan, start, device, state, output)
    objective.config = config
    run = TrainingRun(config, data, start, objective, plan, device, RunFolder(output), state, None)
    choices += [*of_machine, *of_frozen]
    if config.recipe.train != "all":
        share = describe_trained_share(state.model)
        choices.append(ResolvedSetting("train", config.recipe.train, share))
    return run, choices


def resolve_data_and_model(
    config: FinetuneConfig, device: Device
) -> tuple[FinetuneConfig, DatasetSplits, InitialModel, Objective, list[ResolvedSetting]]:
    """Open the data, fill in the recipe, build the model; and the reason of each setting."""
    if config.weights == "none":
        config = replace(config, weights=None)
    objective_type = find_objective(config)
    data = load_dataset_splits(config, need_labels=objective_type.needs_labels)
    config, data = limit_batch_size(config, data)
    select_fewshot_images(config, data)  # refuses what cannot be measured
    origin = load_starting_weights(config)

    def resolve(candidate: FinetuneConfig) -> ResolvedModel:
        return resolve_model_and_recipe(candidate, data, origin, objective_type)

    candidates, of_data = objective_type.choose_settings(config, data, device)
    config, why_steps = candidates[0], None
    if config.budget is not None:
        config, why_steps = fit_to_budget(candidates, resolve, data, device)
    config, start, objective, choices = resolve(config)
    if why_steps is not None:
        choices = [replace(c, why=why_steps) if c.name == "steps" else c for c in choices]
    return config, data, start, objective, [*of_data, *choices]


def resolve_model_and_recipe(
    config: FinetuneConfig,
    data: DatasetSplits,
    origin: Pretrained | None,
    objective_type: type[Objective],
) -> ResolvedModel:
    """Fill in the recipe and build the model of a run on opened data."""
    config, of_recipe = fill_recipe_settings(
        config,
        images=len(data.splits[TRAIN]),
        from_weights=origin is not None and config.verb == "finetune",
        model=choose_model_name(config, origin),
        family=choose_model_family(config, origin),
        objective=objective_type.default_recipe,
    )
    check_batch_divisible(require_setting(config.recipe.batch_size), get_world().size)
    config, of_objective = objective_type.resolve(config, data, origin)
    start, of_model = build_initial_model(
        config, data, origin, objective_type.head_classes(config, data)
    )
    objective = objective_type(config, start.preprocess)
    return ResolvedModel(config, start, objective, [*of_objective, *of_recipe, *of_model])


def train_to_end(run: TrainingRun, display: Display, fewshot: FewShotFn | None = None) -> None:
    """Take the steps that are left, with all that goes on around them."""
    gpus = [torch.cuda.current_device()] if run.device.type == "cuda" else []
    metrics = open_metrics_logger(run)
    try:
        # The step seeds torch's generators; the caller's are given back as they were.
        with (
            torch.random.fork_rng(gpus),
            catch_stop_signals(display.say) as stop,
            display,
            open_checkpoint_saver(run) as save,
        ):
            display.start(run.state.step, run.plan.steps, run.objective.formats)
            if run.front is not None:
                ActivationCache(run, run.front).fill(stop, display)
            callbacks = LoopCallbacks(
                prepare=build_batch_preparer(run),
                evaluate=build_validation(run),
                save=save,
                record=metrics,
                show_train=build_train_display(run, metrics, display),
                show_evaluation=display.evaluation,
                stop_signal=stop,
                patience=run.config.recipe.early_stop,
                fewshot=build_fewshot_probe(run, fewshot),
                seconds_at_peak=get_seconds_at_peak(run),
            )
            recipe, rank = run.config.recipe, get_world().rank
            settings = StepSettings(run.device, run.config.seed, run.plan.rate, recipe.clip, rank)
            batches = iterate_training_batches(run)
            train_loop(run.state, run.objective, batches, settings, run.plan, callbacks)
    except Interrupted as error:
        raise Interrupted(f"{error}; go on with: {run.going_on}", error.exit_code) from error
    except KeyboardInterrupt as error:  # asked twice
        raise Interrupted(
            f"stopped at once, back to the last checkpoint; go on with: {run.going_on}"
        ) from error
    finally:
        metrics.close()
