"""A trained model that an evaluator asks, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patchwords.data.examples import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.data.workers import choose_num_workers
from patchwords.device import Device
from patchwords.errors import ConfigError
from patchwords.model.family import Model
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained


@dataclass(frozen=True)
class LoadedModel:
    """What was loaded, the device that it is on, and who decodes its images."""

    name: str  # as the user named it
    source: Pretrained
    device: Device
    workers: int | None = None  # none given: as many as are useful

    @property
    def model(self) -> Model:
        return self.source.model

    @property
    def preprocess(self) -> Preprocess:
        return self.source.preprocess

    def workers_for(self, examples: ImageDataset) -> int:
        """Processes that decode these images."""
        if self.workers is not None:
            return self.workers
        return choose_num_workers(examples, self.device.type == "cuda")


def load_model_on_device(spec: str, device: Device, workers: int | None = None) -> LoadedModel:
    """What `from_pretrained` knows by this name, on the device, in evaluation mode."""
    source = from_pretrained(spec)
    source.model.to(device.torch_device).eval()
    return LoadedModel(spec, source, device, workers)


def refuse_duplicate_models(names: Sequence[str]) -> None:
    """Raise ConfigError where one of several models to be compared is named again."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} is named twice: a model need not be compared with itself")
