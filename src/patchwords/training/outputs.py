"""What a run writes: checkpoints while it goes on, the model and what became of the data after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from patchwords.data.splits import fingerprint_dataset
from patchwords.distributed import get_world, run_on_main_process
from patchwords.models.build import build_model, config_to_dict
from patchwords.training.engine import checkpoint
from patchwords.training.engine.lora import merge_lora
from patchwords.training.engine.parallel import is_sharded, restore_plain_layers, to_full_tensor
from patchwords.training.engine.sharded_checkpoint import open_async_writer
from patchwords.training.engine.state import TrainState
from patchwords.training.logs.metrics_log import MetricsLogger, NullLogger
from patchwords.training.logs.run_folder import describe_data, write_json
from patchwords.training.training_run import TrainingRun
from patchwords.weights.store import save_pretrained


def open_metrics_logger(run: TrainingRun) -> MetricsLogger | NullLogger:
    """Open metrics.jsonl in the main process, which keeps the record."""
    return (
        MetricsLogger(run.folder.metrics, run.resumed_at) if get_world().is_main else NullLogger()
    )


@contextmanager
def open_checkpoint_saver(run: TrainingRun) -> Iterator[Callable[[TrainState], None]]:
    """Inside, the function that writes a checkpoint; sharded ones are written in the background."""
    folder = run.folder.checkpoints
    about = {
        "architecture": config_to_dict(run.start.model.config),
        "data": fingerprint_dataset(run.data),
    }
    if not is_sharded(run.state.model):
        yield lambda state: run_on_main_process(
            lambda: checkpoint.save_checkpoint(folder, state.step, {**state.to_dict(), **about})
        )
        return
    from patchwords.training.engine import sharded_checkpoint as shares

    with open_async_writer() as writer:
        yield lambda state: shares.save_sharded_checkpoint(folder, state, about, writer)


def gather_full_model(run: TrainingRun) -> TrainingRun:
    """The run with a model that has all weights and plain layers."""
    if not is_sharded(run.state.model):
        restore_plain_layers(run.state.model)
        merge_lora(run.state.model)
        return run
    weights = {name: to_full_tensor(value) for name, value in run.state.model.state_dict().items()}
    model = build_model(run.start.model.config).to(run.device.torch_device)
    start = replace(run.start, model=model)
    learner = run.objective.build(start, run.data)
    learner.load_state_dict(weights)
    return replace(run, start=start, state=replace(run.state, model=learner))


def write_trained_model(run: TrainingRun) -> None:
    """Write the trained model, and which images were left out."""
    write_json(run.folder.data, describe_data(run.data, run.state.skipped))
    save_pretrained(
        run.start.model,
        run.folder.model,
        labels=run.objective.labels(run.data),
        preprocess=run.start.preprocess,
        architecture=run.start.name,
        task=run.objective.describe_task(),
    )
    run.objective.save_parts(run.state.model, run.folder.model)
