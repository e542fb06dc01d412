"""All that is measured of a machine with a model, in turn, within a time; then what it advises."""

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


# How long a run would take at the measured speed, and the commands that say and do so.


DEFAULT_EPOCHS: dict[InitKind, int] = {"weights": FINETUNE_EPOCHS, "scratch": SCRATCH_EPOCHS}


@dataclass(frozen=True)
class BenchmarkEstimate:
    """A run of so many images, on this machine."""

    images: int
    epochs: float
    batch: int  # of the recipe
    steps: int
    images_per_second: float  # as measured, to four digits
    seconds: float  # of training: evaluation and checkpoints are not in it
    plan: str  # the command that has the same time, with memory, data and price beside it


def estimate_from_benchmark(
    subject: BenchmarkWorkload, together: EndToEndProfile, images: int, epochs: float
) -> BenchmarkEstimate:
    """Images seen / the speed of training fed by the loader; all by the rules of `plan`."""
    recipe = subject.training.recipe
    precision: Literal["bf16", "fp32"] = "bf16" if together.precision == "bf16" else "fp32"
    update = OptimizerSpec(require_setting(recipe.optimizer), recipe.ema is not None, precision)
    training = TrainingWorkload(
        subject.shape, images, epochs, require_setting(recipe.batch_size), update
    )
    layout = ParallelLayout(1, "ddp", subject.checkpointing)
    measured = float(f"{together.images_per_second:.4g}")
    spent = estimate_time(training, HardwareSetup(None, layout, 1.0, measured))
    words = ["patchwords", "plan", *build_model_flags(subject)]
    words += ["--classes", str(subject.shape.num_classes), "--images", str(images)]
    words += ["--epochs", f"{epochs:g}", "--batch-size", str(training.batch)]
    words += ["--micro-batch", str(min(together.batch, training.batch))]
    words += ["--optimizer", update.optimizer, "--precision", precision]
    words += ["--measured", f"{measured:g}"]
    if subject.checkpointing:
        words.append("--checkpoint-activations")
    return BenchmarkEstimate(
        images, epochs, training.batch, training.steps, measured, spent.seconds, shlex.join(words)
    )


def build_finetune_command(
    subject: BenchmarkWorkload,
    together: EndToEndProfile,
    start: InitKind,
    parts: int | None,
    compile: bool,
) -> str:
    """What was advised, as a command; DATA and WEIGHTS are for a person to fill in."""
    words = ["patchwords", "finetune", "DATA", *build_model_flags(subject)]
    if start == "weights":
        words += ["--weights", "WEIGHTS"]
    words += ["--precision", together.precision, "--workers", str(together.workers)]
    if parts is not None:
        words += ["--grad-accum", str(parts)]
    if subject.checkpointing:
        words.append("--checkpoint-activations")
    if compile:
        words += ["--compile", "yes"]
    return shlex.join(words)


def build_model_flags(subject: BenchmarkWorkload) -> list[str]:
    """The model, and its image size where it is not that of the name."""
    size = subject.shape.image_size
    if size == resolve_model(subject.name).config.image_size:
        return ["--model", subject.name]
    sides = [str(side) for side in (size[:1] if size[0] == size[1] else size)]
    return ["--model", subject.name, "--image-size", *sides]
