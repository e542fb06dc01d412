"""All that is measured of a machine with a model, in turn, within a time; then what it advises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from patchwords.data.examples import Examples
from patchwords.device import Device
from patchwords.measure.advice import (
    choose_checkpointing,
    choose_compile,
    choose_parts,
    choose_setting,
    choose_workers,
    what_binds,
)
from patchwords.measure.clock import Speed
from patchwords.measure.inference import measure_inference
from patchwords.measure.input import InputSpeed, measure_input, worker_counts
from patchwords.measure.machine import Machine, measure_machine
from patchwords.measure.operations import measure_operations
from patchwords.measure.subject import Subject
from patchwords.measure.together import Together, measure_together
from patchwords.measure.training import make_trainee, measure_training
from patchwords.train.choice import Choice
from patchwords.train.plan import decided

# Of the time that there is; the rest goes for the peak, for building models, and for the profile.
INFERENCE, TRAINING, INPUT, TOGETHER = 0.2, 0.35, 0.15, 0.15

Tell = Callable[[str], None]  # what is measured next


@dataclass(frozen=True)
class Findings:
    """What a machine does with a model, and what to set."""

    machine: Machine
    inference: list[Speed]
    training: list[Speed]
    input: list[InputSpeed]
    together: Together
    operations: dict[str, float]  # share of a training step, by kind
    prediction: list[Choice]  # advice for predict
    advice: list[Choice]  # for training
    parts: int  # that the recipe's batch is to be cut into
    compile: bool


def stages(subject: Subject, cores: int) -> int:
    """How often `benchmark` tells what comes next."""
    return 3 + 2 * len(subject.devices) + len(worker_counts(cores))


def benchmark(
    subject: Subject, examples: Examples, cores: int, seconds: float, tell: Tell
) -> Findings:
    """About `seconds` in all; more for a model so large that the least takes longer.

    Raises ConfigError and DataError where there is nothing to measure.
    """
    first = subject.devices[0]
    gpus = [torch.cuda.current_device()] if first.type == "cuda" else []
    with torch.random.fork_rng(gpus):  # a step seeds torch's generators
        tell("the machine's peak")
        machine = measure_machine(subject.devices)
        peaks = machine.peak_flops_per_second
        each = INFERENCE * seconds / (len(subject.devices) * len(subject.inference_batches))
        inference: list[Speed] = []
        for device in subject.devices:
            tell(f"inference in {device.precision}")
            inference += measure_inference(subject, device, peaks[device.precision], each)
        trainee = make_trainee(subject)
        each = TRAINING * seconds / (len(subject.devices) * len(subject.training_batches))
        training: list[Speed] = []
        for device in subject.devices:
            tell(f"training in {device.precision}")
            peak = peaks[device.precision]
            training += measure_training(trainee, subject, device, peak, each)
        setting, advice = choose_setting(training, "training", "images at a time")
        chosen = next(one for one in subject.devices if one.precision == setting.precision)
        reading = read(subject, examples, cores, seconds, tell)
        workers = choose_workers(reading, setting.images_per_second, first.type == "cuda")
        tell("training and input together")
        settings: tuple[Device, int, int] = chosen, setting.batch, int(str(workers.value))
        together = measure_together(trainee, subject, examples, settings, TOGETHER * seconds)
        tell("the operations of a step")
        operations = measure_operations(trainee, subject, chosen, setting.batch)
    chosen_input = next(row for row in reading if row.workers == together.workers)
    parts = choose_parts(decided(subject.training.recipe.batch_size), setting.batch)
    compiling = choose_compile(first.type == "cuda")
    advice += [
        parts,
        workers,
        choose_checkpointing(subject.checkpointing, min(subject.training_batches)),
        compiling,
        what_binds(chosen_input.images_per_second, setting.images_per_second),
    ]
    return Findings(
        machine,
        inference,
        training,
        reading,
        together,
        operations,
        choose_setting(inference, "inference", "--batch-size")[1],
        advice,
        int(str(parts.value)),
        compiling.value == "yes",
    )


def read(
    subject: Subject, examples: Examples, cores: int, seconds: float, tell: Tell
) -> list[InputSpeed]:
    """The loader alone, with more and more workers."""
    counts = worker_counts(cores)
    rows = []
    for workers in counts:
        tell(f"input with {workers} workers" if workers != 1 else "input with 1 worker")
        share = INPUT * seconds / len(counts)
        rows.append(measure_input(examples, subject.preprocess, workers, share))
    return rows
