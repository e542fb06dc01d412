"""How fast models answer: by the clock of `patchwords benchmark`, with weights as they begin.

What a weight is does not change how long it takes, so nothing has to be trained first.
"""

from __future__ import annotations

from dataclasses import replace

from torch import OutOfMemoryError

from patchwords.device import Device
from patchwords.measure.clock import Speed
from patchwords.measure.inference import measure_inference
from patchwords.measure.subject import Subject
from patchwords.model.variants import resolve
from patchwords.studies.bench import Bench
from patchwords.studies.cost import shape_of
from patchwords.studies.study import Cell
from patchwords.studies.training import config_of
from patchwords.train.peak import matrix_peak
from patchwords.train.start import DEFAULT_MODEL, size_asked

CLASSES = 1000  # of a model that is only timed; the head costs next to nothing


def subject_of(cell: Cell, bench: Bench, device: Device, batches: tuple[int, ...]) -> Subject:
    """The model that a cell describes, to be asked so many images at a time."""
    config = config_of(cell, bench)
    size = config.model_settings.image_size
    if size is not None:
        square = replace(config.model_settings, image_size=size_asked(size))
        config = replace(config, model_settings=square)
    name = resolve(config.model or DEFAULT_MODEL).name
    return Subject(name, shape_of(config, CLASSES), config, (device,), batches, ())


def speeds(subject: Subject, seconds: float) -> list[Speed]:
    """A row for each number of images at a time, rising; `seconds` for each.

    Without the largest numbers where a GPU has no room for them.
    """
    [device] = subject.devices
    while True:
        try:
            return measure_inference(subject, device, matrix_peak(device), seconds)
        except OutOfMemoryError:
            fewer = subject.inference_batches[:-1]
            if not fewer:
                raise
            subject = replace(subject, inference_batches=fewer)
