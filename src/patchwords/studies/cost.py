"""What a study costs before it is run: by arithmetic on its cells, as `patchwords plan` has it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from patchwords.model.cost import Config, macs, parameters, training_flops
from patchwords.model.family import family_of
from patchwords.model.variants import resolve
from patchwords.studies.bench import Bench
from patchwords.studies.study import ENCODER, VERB, Cell, Images, Scale
from patchwords.studies.training import config_of, flops_of
from patchwords.train.config import FinetuneConfig, ModelSettings
from patchwords.train.footprint import Layout, Update
from patchwords.train.hardware import Hardware
from patchwords.train.named_recipe import find
from patchwords.train.plan import decided
from patchwords.train.planning import Machine, Training, estimate_time
from patchwords.train.pretrain import decide_head
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.recipes import fill
from patchwords.train.start import DEFAULT_MODEL, choose_family, choose_model_name, size_asked

SHAPE = ("model", *(field.name for field in fields(ModelSettings)))
UTILISATION = 0.4  # of the hardware's peak: the assumption of `patchwords plan`


@dataclass(frozen=True)
class Cost:
    """Of one cell with one seed."""

    name: str
    parameters: int
    macs: int  # of an image
    images: int  # seen, of all seeds the same
    steps: int
    flops: float
    device_days: float | None  # None: no hardware was named

    @property
    def share(self) -> float:
        """Of what it would take if all weights learned."""
        return self.flops / training_flops(self.macs, self.images) if self.images else 1.0


def shape_of(config: FinetuneConfig, classes: int) -> Config:
    """The model that a run would train from new weights."""
    if isinstance(config, PretrainConfig):
        config, _ = decide_head(config, None)
    asked = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    if "image_size" in asked:
        asked["image_size"] = size_asked(asked["image_size"])
    named = resolve(config.model or DEFAULT_MODEL).config
    if family_of(named) == "resnet":  # it has no place for dropout
        asked.pop("dropout", None)
    return named.with_settings(num_classes=classes, **asked)


def from_scratch(cell: Cell, scale: Scale) -> Cell:
    """A cell of the same cost that needs no encoder: with its shape in place of its weights."""
    if ENCODER not in cell.settings:
        return cell
    named = scale.encoders[cell.settings[ENCODER]]
    shape = {name: named[name] for name in SHAPE if name in named}
    if "recipe" in named:
        shape = {"model": find(named["recipe"]).model, **shape}
    own = {name: value for name, value in cell.settings.items() if name != ENCODER}
    return replace(cell, settings={**shape, **own})


def training_of(config: FinetuneConfig, images: Images, from_weights: bool = False) -> Training:
    """The work of a run on so many images."""
    count = config.data_settings.train_images or images.count
    filled, _ = fill(
        config,
        images=count,
        from_weights=from_weights,
        model=choose_model_name(config, None),
        family=choose_family(config, None),
    )
    recipe = filled.recipe
    steps, batch = decided(recipe.steps), decided(recipe.batch_size)
    update = Update(decided(recipe.optimizer), recipe.ema is not None, "bf16")
    shape = shape_of(filled, images.classes)
    return Training(shape, count, steps * batch / count, batch, update)


def training_in(cell: Cell, bench: Bench) -> Training | None:
    """The work of a cell; None for one that is no training."""
    if cell.settings[VERB] == "none":
        return None
    images = bench.scale.data if cell.shared and bench.scale.data else bench.scale.learned
    config = config_of(from_scratch(cell, bench.scale), bench)
    pretrained = ENCODER in cell.settings or config.weights is not None
    return training_of(config, images, pretrained)


def cost_of(cell: Cell, bench: Bench, hardware: Hardware | None = None) -> Cost:
    """What a cell takes; with hardware, also how long on one such device.

    What only measures is not counted.
    """
    training = training_in(cell, bench)
    if training is None:
        return Cost(cell.name, 0, 0, 0, 0, 0.0, None if hardware is None else 0.0)
    shape = training.config
    config = config_of(from_scratch(cell, bench.scale), bench)
    flops = flops_of(config, macs(shape), training.seen, training.images)
    cost = Cost(
        cell.name, parameters(shape), macs(shape), training.seen, training.steps, flops, None
    )
    if hardware is None:
        return cost
    machine = Machine(hardware, Layout(1, "ddp", False), UTILISATION)
    return replace(cost, device_days=cost.share * estimate_time(training, machine).device_days)
