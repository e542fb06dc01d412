"""What is measured: a model, at a size, trained as `patchwords finetune` would train it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from patchwords.data.preprocess import Preprocess
from patchwords.device import Device, DeviceName, PrecisionName, choose_device, free_memory
from patchwords.errors import ConfigError
from patchwords.model.create import create_model
from patchwords.model.family import Config, Model, family_of
from patchwords.model.variants import resolve
from patchwords.train.config import FinetuneConfig
from patchwords.train.footprint import USABLE, Footprint, Layout, Update, footprint
from patchwords.train.memory import SHARE_OF_FREE
from patchwords.train.plan import decided
from patchwords.train.recipes import fill
from patchwords.train.settings import unflatten

Start = Literal["weights", "scratch"]
GIB = 2**30
USUAL_IMAGES = 1_281_167  # where nobody says how many: ImageNet's; it decides the recipe's batch
BATCHES = {"cpu": (2, 8, 32), "cuda": (32, 128, 512)}  # training, images at a time
ASKED_AT_ONCE = {"cpu": (1, 8, 32), "cuda": (1, 8, 32, 256)}  # inference


@dataclass(frozen=True)
class Subject:
    """A model, how it would be trained, and the precisions to compare."""

    name: str  # canonical
    shape: Config
    training: FinetuneConfig  # its recipe filled in
    devices: tuple[Device, ...]  # one device; the precision that `auto` takes comes first
    inference_batches: tuple[int, ...]
    training_batches: tuple[int, ...]

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess(image_size=self.shape.image_size)

    @property
    def checkpointing(self) -> bool:
        return self.training.machine.checkpoint_activations

    def create(self) -> Model:
        """A new model with initial weights; what it computes costs what trained ones cost."""
        settings = {
            name: value
            for name, value in vars(self.training.model_settings).items()
            if value is not None
        }
        return create_model(self.name, **settings)

    def needs(self, batch: int, precision: str) -> int:
        """Bytes that training on so many images at a time takes, by arithmetic."""
        return footprint_of(self.shape, self.training, precision).total(batch)


def choose_subject(
    model: str,
    image_size: tuple[int, ...] | None,
    batches: Sequence[int] | None,
    start: Start,
    images: int | None,
    where: tuple[DeviceName, PrecisionName],
) -> Subject:
    """Resolve everything; raises ConfigError for what does not exist here, or does not fit.

    Activations are checkpointed where the smallest batch does not fit into memory without.
    """
    devices = choose_devices(*where)
    found = resolve(model)
    settings: dict[str, object] = {"model": found.name}
    if image_size is not None:
        settings["image_size"] = image_size * 2 if len(image_size) == 1 else image_size
    shape = found.config.with_settings(
        **({"image_size": settings["image_size"]} if image_size is not None else {})
    )
    settings["image_size"] = shape.image_size
    training, _ = fill(
        unflatten(FinetuneConfig(), settings),
        images=images or USUAL_IMAGES,
        from_weights=start == "weights",
        model=found.name,
        family=family_of(shape),
    )
    subject = Subject(
        found.name,
        shape,
        training,
        devices,
        tuple(sorted(set(batches or ASKED_AT_ONCE[devices[0].type]))),
        tuple(sorted(set(batches or BATCHES[devices[0].type]))),
    )
    return with_checkpointing(subject, usable_memory(devices[0]))


def choose_devices(name: DeviceName, precision: PrecisionName) -> tuple[Device, ...]:
    """The device in the precision asked for; `auto` compares bf16 and fp32 where bf16 is fast."""
    first = choose_device(name, precision)
    if precision == "auto" and first.bf16:
        return first, replace(first, bf16=False)
    return (first,)


def with_checkpointing(subject: Subject, memory: int) -> Subject:
    """The subject with activations checkpointed if need be; raises ConfigError where that fails."""
    smallest = min(subject.training_batches)
    precision = subject.devices[0].precision
    if subject.needs(smallest, precision) <= memory:
        return subject
    machine = replace(subject.training.machine, checkpoint_activations=True)
    spared = replace(subject, training=replace(subject.training, machine=machine))
    needed = spared.needs(smallest, precision)
    if needed > memory:
        raise ConfigError(
            f"{subject.name}: training on {smallest} images at a time takes about "
            f"{needed / GIB:.1f} GiB, of {memory / GIB:.1f} GiB that may be taken here; try a "
            "smaller model, --image-size or --batch-size"
        )
    return spared


def usable_memory(device: Device) -> int:
    """Bytes that a training may take: as training itself decides (train/memory.py)."""
    share = USABLE if device.type == "cuda" else SHARE_OF_FREE
    return int(share * free_memory(device.torch_device))


def footprint_of(shape: Config, training: FinetuneConfig, precision: str) -> Footprint:
    """What the training holds on one device."""
    layout = Layout(1, "ddp", training.machine.checkpoint_activations)
    average = training.recipe.ema is not None
    exact: Literal["bf16", "fp32"] = "bf16" if precision == "bf16" else "fp32"
    return footprint(shape, layout, Update(decided(training.recipe.optimizer), average, exact))
