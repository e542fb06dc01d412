"""How fast models answer: by the clock of `patchwords benchmark`, with weights as they begin.

What a weight is does not change how long it takes, so nothing has to be trained first.
"""

from __future__ import annotations

from dataclasses import replace

from torch import OutOfMemoryError

from patchwords.device import Device
from patchwords.measure.clock import ThroughputResult
from patchwords.measure.inference import measure_inference_throughput
from patchwords.measure.subject import BenchmarkWorkload
from patchwords.model.variants import resolve_model
from patchwords.studies.bench import StudyContext
from patchwords.studies.cost import resolve_model_config
from patchwords.studies.study import Trial
from patchwords.studies.training import build_training_config
from patchwords.train.peak import measure_matmul_peak
from patchwords.train.start import DEFAULT_MODEL, parse_image_size

TIMED_CLASSES = 1000  # of a model that is only timed; the head costs next to nothing


def build_timing_workload(
    cell: Trial, bench: StudyContext, device: Device, batches: tuple[int, ...]
) -> BenchmarkWorkload:
    """The model that a cell describes, to be asked so many images at a time."""
    config = build_training_config(cell, bench)
    size = config.model_settings.image_size
    if size is not None:
        square = replace(config.model_settings, image_size=parse_image_size(size))
        config = replace(config, model_settings=square)
    name = resolve_model(config.model or DEFAULT_MODEL).name
    return BenchmarkWorkload(
        name, resolve_model_config(config, TIMED_CLASSES), config, (device,), batches, ()
    )


def measure_inference_speeds(subject: BenchmarkWorkload, seconds: float) -> list[ThroughputResult]:
    """A row for each number of images at a time, rising; `seconds` for each.

    Without the largest numbers where a GPU has no room for them.
    """
    [device] = subject.devices
    while True:
        try:
            return measure_inference_throughput(
                subject, device, measure_matmul_peak(device), seconds
            )
        except OutOfMemoryError:
            fewer = subject.inference_batches[:-1]
            if not fewer:
                raise
            subject = replace(subject, inference_batches=fewer)
