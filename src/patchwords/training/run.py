"""A training run, top to bottom: data, model, objective, optimizer, loop, outputs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
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
from patchwords.errors import Interrupted, WeightsError
from patchwords.files import format_duration
from patchwords.training.budget import ResolvedModel, fit_to_budget
from patchwords.training.config import FinetuneConfig
from patchwords.training.data_setup import (
    limit_batch_size,
    load_dataset_splits,
    select_fewshot_images,
)
from patchwords.training.engine.countdown import (
    Countdown,
    TimeBudget,
    read_time_budget,
    write_time_budget,
)
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.loop import LoopCallbacks, MetricsWriter, train_loop
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
    choose_plain_settings,
    load_starting_weights,
)
from patchwords.training.objectives import (
    Objective,
    choose_task,
    find_objective,
    refuse_mask_settings,
)
from patchwords.training.outputs import (
    gather_full_model,
    open_checkpoint_saver,
    open_metrics_logger,
    write_trained_model,
)
from patchwords.training.plan import (
    ResolvedSetting,
    TrainingPlan,
    build_training_plan,
    require_setting,
    resolve_machine_settings,
)
from patchwords.training.recipes import fill_recipe_settings
from patchwords.training.recipes.auto_weights import AUTO, NONE, WeightsSearch
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
        if run.state.step < run.plan.last_step and not run.state.stopped:
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
    run, choices = resolve_training_run(config, display.say)
    folder, resumed_at = run.folder, None
    run_on_main_process(
        lambda: claim_run_folder(folder.path, resume=config.resume, overwrite=config.overwrite)
    )
    if config.resume:
        resumed_at = run_on_all_processes(
            lambda: restore_latest_checkpoint(
                *(run.state, run.start, folder, run.config, run.data, display),
                steps=run.plan.last_step,
            )
        )
    if resumed_at is None:
        show_run_settings(run.config, run.start, run.data, run.device, choices, display)
        run_on_main_process(
            lambda: write_run_record(folder, run.config, config, run.data, run.device, run.budget)
        )
    if run.front is not None:
        run.state.wrapped = FrozenTail(run.front)
    return replace(run, resumed_at=resumed_at)


def explain_training(config: FinetuneConfig, display: Display) -> list[ResolvedSetting]:
    """Show every setting of a run with its reason, and write nothing; -> the settings."""
    with share_config_across_processes(config) as settings:
        run, choices = resolve_training_run(settings, display.say)
        return show_run_settings(run.config, run.start, run.data, run.device, choices, display)


def resolve_training_run(
    requested: FinetuneConfig, say: Callable[[str], None]
) -> tuple[TrainingRun, list[ResolvedSetting]]:
    """Decide everything about a run before its folder is touched; -> run and reasons."""
    begun = time.perf_counter()
    requested.check()
    requested = replace(requested, task=choose_task(requested))
    run_on_main_process(lambda: check_before_opening_data(requested))
    device = choose_device(requested.machine.device, requested.machine.precision)
    config, data, start, objective, budget, choices = run_on_all_processes(
        lambda: resolve_data_and_model(requested, device, say)
    )
    output = broadcast_from_main(
        Path(config.output or choose_output_folder(config.data, start.name))
    )
    check_output_overlap(
        output, Path(config.data), Path(config.weights) if config.weights else None
    )
    folder, plan = RunFolder(output), build_training_plan(config, len(data.splits[TRAIN]))
    if requested.resume and (budget := read_time_budget(folder.budget)) is not None:
        plan = replace(plan, cuts=budget.cuts)
    config, of_machine = resolve_machine_settings(config, device, plan.steps)
    state = build_train_state(config, plan, start, data, objective, device)
    held_out, cacheable = len(data.splits.get(VALIDATION, ())), objective.caches_frozen
    config, of_frozen = resolve_frozen_mode(
        config, plan, start, device, output, held_out, cacheable
    )
    config = resolve_config(config, plan, start, device, state, output)
    objective.config = config
    run = TrainingRun(
        *(config, data, start, objective, plan, device, folder, state, None, budget, begun)
    )
    choices = [*choices, *of_machine, *of_frozen]
    if config.recipe.train != "all":
        share = describe_trained_share(state.model)
        choices = [choice for choice in choices if choice.name != "train"]
        choices.append(ResolvedSetting("train", config.recipe.train, share))
    return run, choices


def resolve_data_and_model(
    config: FinetuneConfig, device: Device, say: Callable[[str], None] = print
) -> tuple[
    FinetuneConfig,
    DatasetSplits,
    InitialModel,
    Objective,
    TimeBudget | None,
    list[ResolvedSetting],
]:
    """Open the data, fill in the recipe, build the model; and the reason of each setting."""
    objective_type = find_objective(config)
    data = load_dataset_splits(config, need_labels=objective_type.needs_labels)
    config, data = limit_batch_size(config, data)
    select_fewshot_images(config, data)  # refuses what cannot be measured
    search = WeightsSearch(config, data, device, say)
    if config.weights in {AUTO, NONE}:
        config = replace(config, weights=None)
    resolved = None
    while resolved is None:  # again without the published weights that cannot be read
        try:
            resolved = resolve_settings(config, data, device, objective_type, search)
        except WeightsError as error:
            if not search.give_up(error):
                raise
    data = replace(data, notes=(*data.notes, *search.notes))
    config, start, objective, choices, _, budget = resolved
    return config, data, start, objective, budget, choices


def resolve_settings(
    config: FinetuneConfig,
    data: DatasetSplits,
    device: Device,
    objective_type: type[Objective],
    search: WeightsSearch,
) -> ResolvedModel:
    """Choose what is left to the data and the time, and build the model.

    Raises WeightsError for weights that cannot be read.
    """
    load = cache(partial(load_starting_weights, config))

    def resolve(candidate: FinetuneConfig) -> ResolvedModel:
        origin = search.open(load, candidate.weights)
        return resolve_model_and_recipe(candidate, data, origin, objective_type)

    if search.active:
        refuse_mask_settings(config)
        candidates, of_data = choose_plain_settings(config, data, device, search.find)
    else:
        candidates, of_data = objective_type.choose_settings(config, data, device)
    chosen, reasons, budget = candidates[0], {}, None
    if chosen.budget is not None:
        chosen, reasons["steps"], budget = fit_to_budget(candidates, resolve, data, device)
    if search.active:
        of_data.insert(0, search.explain(chosen.weights))
        reasons |= search.explain_views(chosen)
        search.fetch(chosen.weights)
    resolved = resolve(chosen)
    choices = [replace(c, why=reasons.get(c.name, c.why)) for c in resolved.choices]
    return resolved._replace(choices=[*of_data, *choices], budget=budget)


def resolve_model_and_recipe(
    config: FinetuneConfig,
    data: DatasetSplits,
    origin: Pretrained | None,
    objective_type: type[Objective],
) -> ResolvedModel:
    """Fill in the recipe and build the model of a run on opened data."""
    eval_every = config.machine.eval_every
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
    choices = [*of_objective, *of_recipe, *of_model]
    return ResolvedModel(config, start, objective, choices, eval_every)


def start_countdown(run: TrainingRun) -> Countdown | None:
    """Start to count down the time of a run; None without one, or for several processes."""
    if run.budget is None or get_world().size > 1:
        return None
    spent = time.perf_counter() - run.begun if run.resumed_at is None else run.state.seconds
    return Countdown(run.budget, spent)


def record_cut(
    run: TrainingRun, metrics: MetricsWriter, display: Display, plan: TrainingPlan
) -> None:
    """Write down that the schedule was cut, and show it."""
    assert run.budget is not None
    write_time_budget(run.folder.budget, replace(run.budget, cuts=plan.cuts))
    text = (
        f"slower than measured: {plan.last_step:,} steps in place of {run.plan.steps:,}, to end "
        f"within {format_duration(run.budget.seconds)}"
    )
    display.steps = plan.last_step
    note = {"kind": "note", "step": plan.cuts[-1].step, "text": text}
    metrics.write(note)
    display.note(note)


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
            countdown = start_countdown(run)
            left = None if countdown is None else (lambda: countdown.left)
            display.start(run.state.step, run.plan.last_step, run.objective.formats, left)
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
                countdown=countdown,
                note_cut=partial(record_cut, run, metrics, display),
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
