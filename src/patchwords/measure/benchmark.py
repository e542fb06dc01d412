"""All that is measured of a machine with a model, in turn, within a time; then what it advises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from patchwords.data.examples import ImageDataset
from patchwords.device import Device
from patchwords.measure.advice import (
    find_bottleneck,
    recommend_batch_setting,
    recommend_checkpointing,
    recommend_compile,
    recommend_grad_accum,
    recommend_workers,
)
from patchwords.measure.clock import ThroughputResult
from patchwords.measure.inference import measure_inference_throughput
from patchwords.measure.input import LoaderThroughput, list_worker_counts, measure_loader_throughput
from patchwords.measure.machine import MachineProfile, measure_machine
from patchwords.measure.operations import profile_operations
from patchwords.measure.subject import BenchmarkWorkload
from patchwords.measure.together import EndToEndProfile, profile_end_to_end
from patchwords.measure.training import build_benchmark_trainer, measure_training_throughput
from patchwords.train.choice import ResolvedSetting
from patchwords.train.plan import require_setting

# Of the time that there is; the rest goes for the peak, for building models, and for the profile.
INFERENCE_TIME_SHARE, TRAINING_TIME_SHARE, LOADER_TIME_SHARE, END_TO_END_TIME_SHARE = (
    0.2,
    0.35,
    0.15,
    0.15,
)

StageCallback = Callable[[str], None]  # what is measured next


@dataclass(frozen=True)
class BenchmarkResult:
    """What a machine does with a model, and what to set."""

    machine: MachineProfile
    inference: list[ThroughputResult]
    training: list[ThroughputResult]
    input: list[LoaderThroughput]
    together: EndToEndProfile
    operations: dict[str, float]  # share of a training step, by kind
    prediction: list[ResolvedSetting]  # advice for predict
    advice: list[ResolvedSetting]  # for training
    parts: int  # that the recipe's batch is to be cut into
    compile: bool


def count_benchmark_stages(subject: BenchmarkWorkload, cores: int) -> int:
    """How often `benchmark_machine` tells what comes next."""
    return 3 + 2 * len(subject.devices) + len(list_worker_counts(cores))


def benchmark_machine(
    subject: BenchmarkWorkload,
    examples: ImageDataset,
    cores: int,
    seconds: float,
    tell: StageCallback,
) -> BenchmarkResult:
    """About `seconds` in all; more for a model so large that the least takes longer.

    Raises ConfigError and DataError where there is nothing to measure.
    """
    first = subject.devices[0]
    gpus = [torch.cuda.current_device()] if first.type == "cuda" else []
    with torch.random.fork_rng(gpus):  # a step seeds torch's generators
        tell("the machine's peak")
        machine = measure_machine(subject.devices)
        peaks = machine.peak_flops_per_second
        each = (
            INFERENCE_TIME_SHARE * seconds / (len(subject.devices) * len(subject.inference_batches))
        )
        inference: list[ThroughputResult] = []
        for device in subject.devices:
            tell(f"inference in {device.precision}")
            inference += measure_inference_throughput(
                subject, device, peaks[device.precision], each
            )
        trainee = build_benchmark_trainer(subject)
        each = (
            TRAINING_TIME_SHARE * seconds / (len(subject.devices) * len(subject.training_batches))
        )
        training: list[ThroughputResult] = []
        for device in subject.devices:
            tell(f"training in {device.precision}")
            peak = peaks[device.precision]
            training += measure_training_throughput(trainee, subject, device, peak, each)
        setting, advice = recommend_batch_setting(training, "training", "images at a time")
        chosen = next(one for one in subject.devices if one.precision == setting.precision)
        reading = benchmark_loader(subject, examples, cores, seconds, tell)
        workers = recommend_workers(reading, setting.images_per_second, first.type == "cuda")
        tell("training and input together")
        settings: tuple[Device, int, int] = chosen, setting.batch, int(str(workers.value))
        together = profile_end_to_end(
            trainee, subject, examples, settings, END_TO_END_TIME_SHARE * seconds
        )
        tell("the operations of a step")
        operations = profile_operations(trainee, subject, chosen, setting.batch)
    chosen_input = next(row for row in reading if row.workers == together.workers)
    parts = recommend_grad_accum(require_setting(subject.training.recipe.batch_size), setting.batch)
    compiling = recommend_compile(first.type == "cuda")
    advice += [
        parts,
        workers,
        recommend_checkpointing(subject.checkpointing, min(subject.training_batches)),
        compiling,
        find_bottleneck(chosen_input.images_per_second, setting.images_per_second),
    ]
    return BenchmarkResult(
        machine,
        inference,
        training,
        reading,
        together,
        operations,
        recommend_batch_setting(inference, "inference", "--batch-size")[1],
        advice,
        int(str(parts.value)),
        compiling.value == "yes",
    )


def benchmark_loader(
    subject: BenchmarkWorkload,
    examples: ImageDataset,
    cores: int,
    seconds: float,
    tell: StageCallback,
) -> list[LoaderThroughput]:
    """The loader alone, with more and more workers."""
    counts = list_worker_counts(cores)
    rows = []
    for workers in counts:
        tell(f"input with {workers} workers" if workers != 1 else "input with 1 worker")
        share = LOADER_TIME_SHARE * seconds / len(counts)
        rows.append(measure_loader_throughput(examples, subject.preprocess, workers, share))
    return rows
