"""Metrics of a model in training: validation, the few-shot probe, loss spikes, utilisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from patchwords.data.dataset import VALIDATION, ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import broadcast_from_main, get_world, run_on_all_processes
from patchwords.planning.matmul_peak import seconds_per_image_at_peak
from patchwords.training.data_setup import select_fewshot_images
from patchwords.training.engine.loop import MetricsWriter
from patchwords.training.inputs.frozen import FrozenTail
from patchwords.training.inputs.frozen_cache import ActivationCache
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import LossSpikeDetector, read_metrics
from patchwords.training.objectives import HeldOutExamples
from patchwords.training.training_run import TrainingRun

# (model, drawn, held out, preprocess, device, workers) -> metrics by name, and "images"
FewShotFn = Callable[
    [nn.Module, ImageDataset, ImageDataset, Preprocess, Device, int], dict[str, Any]
]


def build_validation(run: TrainingRun) -> Callable[[nn.Module], dict[str, Any]] | None:
    """Build the evaluation on validation images; None if there are none."""
    dataset = run.data.splits.get(VALIDATION)
    if dataset is None or not len(dataset):
        return None
    front, views = run.front, run.objective.views()
    cached = None if front is None else ActivationCache(run, front).validation_batches
    examples = HeldOutExamples(dataset, views, run.device, run.workers, cached)

    def evaluate(learner: nn.Module) -> dict[str, Any]:
        called = learner if front is None else FrozenTail(front)
        return {"split": VALIDATION, **run.objective.evaluate(called, examples)}

    return evaluate


def build_fewshot_probe(
    run: TrainingRun, fewshot: FewShotFn | None
) -> Callable[[], dict[str, Any]] | None:
    """Build the few-shot probe of the current model; None without --fewshot-every."""
    images = select_fewshot_images(run.config, run.data)
    if images is None:
        return None
    assert fewshot is not None, "the caller has to say how few-shot accuracy is measured"
    start, shots = run.start, run.config.machine.fewshot_shots
    measure = partial(fewshot, start.model, *images, start.preprocess, run.device, run.workers)

    def probe() -> dict[str, Any]:  # by the main process, which has the whole model, too
        result: dict[str, Any] = run_on_all_processes(
            lambda: measure() if get_world().is_main else {}
        )
        return {"shots": shots, **broadcast_from_main(result)}

    return probe


def build_train_display(
    run: TrainingRun, metrics: MetricsWriter, display: Display
) -> Callable[[Mapping[str, Any]], None]:
    """Build the display of a "train" row of metrics.jsonl, which notes a spike of the loss."""
    spikes = LossSpikeDetector(
        row["loss"] for row in read_metrics(run.folder.metrics) if row["kind"] == "train"
    )

    def show(row: Mapping[str, Any]) -> None:
        display.train(row)
        if note := spikes.note(row):
            metrics.write(note)
            display.note(note)

    return show


def get_seconds_at_peak(run: TrainingRun) -> float | None:
    """Return seconds of a training image at the peak of all devices; None if unknown."""
    if not run.objective.costs_as_model:
        return None
    seconds = seconds_per_image_at_peak(run.start.model, run.device)
    return seconds / get_world().size if seconds else None
