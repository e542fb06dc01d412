"""Benchmark of a machine with a model within a time budget, with recommended settings."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from patchwords.benchmark.advice import (
    find_bottleneck,
    recommend_batch_setting,
    recommend_checkpointing,
    recommend_compile,
    recommend_grad_accum,
    recommend_workers,
)
from patchwords.benchmark.clock import ThroughputResult
from patchwords.benchmark.loader import (
    LoaderThroughput,
    list_worker_counts,
    measure_loader_throughput,
)
from patchwords.benchmark.machine import MachineProfile, measure_machine
from patchwords.benchmark.profile import EndToEndProfile, profile_end_to_end, profile_operations
from patchwords.benchmark.throughput import (
    build_benchmark_trainer,
    measure_inference_throughput,
    measure_training_throughput,
)
from patchwords.benchmark.workload import BenchmarkWorkload, InitKind
from patchwords.data.dataset import ImageDataset
from patchwords.device import Device
from patchwords.models.zoo import resolve_model
from patchwords.planning.estimate import HardwareSetup, TrainingWorkload, estimate_time
from patchwords.planning.memory import OptimizerSpec, ParallelLayout
from patchwords.training.plan import ResolvedSetting, require_setting
from patchwords.training.recipes.scaling import FINETUNE_EPOCHS, SCRATCH_EPOCHS

# Shares of the time budget; the rest is for the peak, building models, and the profile.
INFERENCE_TIME_SHARE, TRAINING_TIME_SHARE, LOADER_TIME_SHARE, END_TO_END_TIME_SHARE = (
    0.2,
    0.35,
    0.15,
    0.15,
)

StageCallback = Callable[[str], None]  # name of the next stage


@dataclass(frozen=True)
class BenchmarkResult:
    """Measurements of a machine with a model, and recommended settings."""

    machine: MachineProfile
    inference: list[ThroughputResult]
    training: list[ThroughputResult]
    input: list[LoaderThroughput]
    together: EndToEndProfile
    operations: dict[str, float]  # share of a training step, by kind of operation
    prediction: list[ResolvedSetting]  # recommended for predict
    advice: list[ResolvedSetting]  # recommended for training
    parts: int  # micro-batches of the recipe's batch
    compile: bool


def count_benchmark_stages(workload: BenchmarkWorkload, cores: int) -> int:
    """Count how often `benchmark_machine` reports a stage."""
    return 3 + 2 * len(workload.devices) + len(list_worker_counts(cores))


def benchmark_machine(
    workload: BenchmarkWorkload,
    examples: ImageDataset,
    cores: int,
    seconds: float,
    report: StageCallback,
) -> BenchmarkResult:
    """Measure everything in about `seconds`; large models take longer.

    Raises ConfigError and DataError if there is nothing to measure.
    """
    first = workload.devices[0]
    gpus = [torch.cuda.current_device()] if first.type == "cuda" else []
    with torch.random.fork_rng(gpus):  # a training step seeds torch's generators
        report("the machine's peak")
        machine = measure_machine(workload.devices)
        peaks = machine.peak_flops_per_second
        rows = len(workload.devices) * len(workload.inference_batches)
        row_seconds = INFERENCE_TIME_SHARE * seconds / rows
        inference: list[ThroughputResult] = []
        for device in workload.devices:
            report(f"inference in {device.precision}")
            peak = peaks[device.precision]
            inference += measure_inference_throughput(workload, device, peak, row_seconds)
        trainee = build_benchmark_trainer(workload)
        rows = len(workload.devices) * len(workload.training_batches)
        row_seconds = TRAINING_TIME_SHARE * seconds / rows
        training: list[ThroughputResult] = []
        for device in workload.devices:
            report(f"training in {device.precision}")
            peak = peaks[device.precision]
            training += measure_training_throughput(trainee, workload, device, peak, row_seconds)
        setting, advice = recommend_batch_setting(training, "training", "images at a time")
        chosen = next(d for d in workload.devices if d.precision == setting.precision)
        reading = benchmark_loader(workload, examples, cores, seconds, report)
        workers = recommend_workers(reading, setting.images_per_second, first.type == "cuda")
        report("training and input together")
        settings: tuple[Device, int, int] = chosen, setting.batch, int(str(workers.value))
        together = profile_end_to_end(
            trainee, workload, examples, settings, END_TO_END_TIME_SHARE * seconds
        )
        report("the operations of a step")
        operations = profile_operations(trainee, workload, chosen, setting.batch)
    chosen_input = next(row for row in reading if row.workers == together.workers)
    parts = recommend_grad_accum(
        require_setting(workload.training.recipe.batch_size), setting.batch
    )
    compiling = recommend_compile(first.type == "cuda")
    advice += [
        parts,
        workers,
        recommend_checkpointing(workload.checkpointing, min(workload.training_batches)),
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
    workload: BenchmarkWorkload,
    examples: ImageDataset,
    cores: int,
    seconds: float,
    report: StageCallback,
) -> list[LoaderThroughput]:
    """Measure the loader alone, with increasing numbers of workers."""
    counts = list_worker_counts(cores)
    rows = []
    for workers in counts:
        report(f"input with {workers} workers" if workers != 1 else "input with 1 worker")
        share = LOADER_TIME_SHARE * seconds / len(counts)
        rows.append(measure_loader_throughput(examples, workload.preprocess, workers, share))
    return rows


# Estimated time of a run at the measured speed, and the commands for it.


DEFAULT_EPOCHS: dict[InitKind, int] = {"weights": FINETUNE_EPOCHS, "scratch": SCRATCH_EPOCHS}


@dataclass(frozen=True)
class BenchmarkEstimate:
    """Estimated time of a run on this machine."""

    images: int
    epochs: float
    batch: int  # of the recipe's step
    steps: int
    images_per_second: float  # measured, to four digits
    seconds: float  # training alone: without evaluation and checkpoints
    plan: str  # the `plan` command with the same time, and memory, data and price


def estimate_from_benchmark(
    workload: BenchmarkWorkload, together: EndToEndProfile, images: int, epochs: float
) -> BenchmarkEstimate:
    """Estimate a run: images seen / training speed limited by the loader, as `plan` does."""
    recipe = workload.training.recipe
    precision: Literal["bf16", "fp32"] = "bf16" if together.precision == "bf16" else "fp32"
    update = OptimizerSpec(require_setting(recipe.optimizer), recipe.ema is not None, precision)
    training = TrainingWorkload(
        workload.shape, images, epochs, require_setting(recipe.batch_size), update
    )
    layout = ParallelLayout(1, "ddp", workload.checkpointing)
    measured = float(f"{together.images_per_second:.4g}")
    spent = estimate_time(training, HardwareSetup(None, layout, 1.0, measured))
    words = ["patchwords", "plan", *build_model_flags(workload)]
    words += ["--classes", str(workload.shape.num_classes), "--images", str(images)]
    words += ["--epochs", f"{epochs:g}", "--batch-size", str(training.batch)]
    words += ["--micro-batch", str(min(together.batch, training.batch))]
    words += ["--optimizer", update.optimizer, "--precision", precision]
    words += ["--measured", f"{measured:g}"]
    if workload.checkpointing:
        words.append("--checkpoint-activations")
    return BenchmarkEstimate(
        images, epochs, training.batch, training.steps, measured, spent.seconds, shlex.join(words)
    )


def build_finetune_command(
    workload: BenchmarkWorkload,
    together: EndToEndProfile,
    start: InitKind,
    parts: int | None,
    compile: bool,
) -> str:
    """Build the recommended command; the user fills in DATA and WEIGHTS."""
    words = ["patchwords", "finetune", "DATA", *build_model_flags(workload)]
    if start == "weights":
        words += ["--weights", "WEIGHTS"]
    words += ["--precision", together.precision, "--workers", str(together.workers)]
    if parts is not None:
        words += ["--grad-accum", str(parts)]
    if workload.checkpointing:
        words.append("--checkpoint-activations")
    if compile:
        words += ["--compile", "yes"]
    return shlex.join(words)


def build_model_flags(workload: BenchmarkWorkload) -> list[str]:
    """Build the flags of the model, with its image size if it is not the default."""
    size = workload.shape.image_size
    if size == resolve_model(workload.name).config.image_size:
        return ["--model", workload.name]
    sides = [str(side) for side in (size[:1] if size[0] == size[1] else size)]
    return ["--model", workload.name, "--image-size", *sides]
