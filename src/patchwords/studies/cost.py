"""What a study costs before it is run: by arithmetic on its cells, as `patchwords plan` has it."""

from __future__ import annotations

from dataclasses import dataclass

from patchwords.model.cost import Config, macs, parameters
from patchwords.model.family import family_of
from patchwords.model.variants import resolve
from patchwords.studies.study import Cell, Scale
from patchwords.train.config import FinetuneConfig
from patchwords.train.footprint import Layout, Update
from patchwords.train.hardware import Hardware
from patchwords.train.plan import decided
from patchwords.train.planning import Machine, Training, estimate_time
from patchwords.train.pretrain import decide_head
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.recipes import fill
from patchwords.train.start import DEFAULT_MODEL, choose_family, choose_model_name

UTILISATION = 0.4  # of the hardware's peak: the assumption of `patchwords plan`


@dataclass(frozen=True)
class Cost:
    """Of one cell with one seed."""

    name: str
    parameters: int
    macs: int  # of an image
    images: int  # seen
    steps: int
    flops: float
    device_days: float | None  # None: no hardware was named


def shape_of(config: FinetuneConfig, classes: int) -> Config:
    """The model that a run would train from new weights."""
    if isinstance(config, PretrainConfig):
        config, _ = decide_head(config, None)
    asked = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    if "image_size" in asked:
        size = asked["image_size"]
        asked["image_size"] = size * 2 if len(size) == 1 else size
    named = resolve(config.model or DEFAULT_MODEL).config
    if family_of(named) == "resnet":  # it has no place for dropout
        asked.pop("dropout", None)
    return named.with_settings(num_classes=classes, **asked)


def training_of(config: FinetuneConfig, scale: Scale) -> Training:
    """The work of a run on the data that the scale is meant for."""
    filled, _ = fill(
        config,
        images=scale.images,
        from_weights=False,
        model=choose_model_name(config, None),
        family=choose_family(config, None),
    )
    recipe = filled.recipe
    steps, batch = decided(recipe.steps), decided(recipe.batch_size)
    update = Update(decided(recipe.optimizer), recipe.ema is not None, "bf16")
    shape = shape_of(filled, scale.classes)
    return Training(shape, scale.images, steps * batch / scale.images, batch, update)


def cost_of(
    cell: Cell, config: FinetuneConfig, scale: Scale, hardware: Hardware | None = None
) -> Cost:
    """What a cell takes; with hardware, also how long on one such device."""
    training = training_of(config, scale)
    days = None
    if hardware is not None:
        machine = Machine(hardware, Layout(1, "ddp", False), UTILISATION)
        days = estimate_time(training, machine).device_days
    shape = training.config
    return Cost(
        cell.name,
        parameters(shape),
        macs(shape),
        training.seen,
        training.steps,
        training.flops(),
        days,
    )
