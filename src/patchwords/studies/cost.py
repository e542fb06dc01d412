"""What a study costs before it is run: by arithmetic on its cells, as `patchwords plan` has it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from patchwords.model.cost import ModelConfig, compute_training_flops, count_macs, count_parameters
from patchwords.model.family import get_model_family
from patchwords.model.variants import resolve_model
from patchwords.studies.bench import StudyContext
from patchwords.studies.study import ENCODER, VERB, DatasetSpec, Scale, Trial
from patchwords.studies.training import build_training_config, count_training_flops
from patchwords.train.config import FinetuneConfig, ModelSettings
from patchwords.train.footprint import OptimizerSpec, ParallelLayout
from patchwords.train.hardware import Hardware
from patchwords.train.named_recipe import find_recipe
from patchwords.train.plan import require_setting
from patchwords.train.planning import HardwareSetup, TrainingWorkload, estimate_time
from patchwords.train.pretrain import resolve_head
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.recipes import fill_recipe_settings
from patchwords.train.start import (
    DEFAULT_MODEL,
    choose_model_family,
    choose_model_name,
    parse_image_size,
)

MODEL_SETTING_NAMES = ("model", *(field.name for field in fields(ModelSettings)))
ASSUMED_UTILISATION = 0.4  # of the hardware's peak: the assumption of `patchwords plan`


@dataclass(frozen=True)
class TrialCost:
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
        return self.flops / compute_training_flops(self.macs, self.images) if self.images else 1.0


def resolve_model_config(config: FinetuneConfig, classes: int) -> ModelConfig:
    """The model that a run would train from new weights."""
    if isinstance(config, PretrainConfig):
        config, _ = resolve_head(config, None)
    asked = {
        name: value for name, value in vars(config.model_settings).items() if value is not None
    }
    if "image_size" in asked:
        asked["image_size"] = parse_image_size(asked["image_size"])
    named = resolve_model(config.model or DEFAULT_MODEL).config
    if get_model_family(named) == "resnet":  # it has no place for dropout
        asked.pop("dropout", None)
    return named.with_settings(num_classes=classes, **asked)


def replace_encoder_by_shape(cell: Trial, scale: Scale) -> Trial:
    """A cell of the same cost that needs no encoder: with its shape in place of its weights."""
    if ENCODER not in cell.settings:
        return cell
    named = scale.encoders[cell.settings[ENCODER]]
    shape = {name: named[name] for name in MODEL_SETTING_NAMES if name in named}
    if "recipe" in named:
        shape = {"model": find_recipe(named["recipe"]).model, **shape}
    own = {name: value for name, value in cell.settings.items() if name != ENCODER}
    return replace(cell, settings={**shape, **own})


def build_training_workload(
    config: FinetuneConfig, images: DatasetSpec, from_weights: bool = False
) -> TrainingWorkload:
    """The work of a run on so many images."""
    count = config.data_settings.train_images or images.count
    filled, _ = fill_recipe_settings(
        config,
        images=count,
        from_weights=from_weights,
        model=choose_model_name(config, None),
        family=choose_model_family(config, None),
    )
    recipe = filled.recipe
    steps, batch = require_setting(recipe.steps), require_setting(recipe.batch_size)
    update = OptimizerSpec(require_setting(recipe.optimizer), recipe.ema is not None, "bf16")
    shape = resolve_model_config(filled, images.classes)
    return TrainingWorkload(shape, count, steps * batch / count, batch, update)


def build_trial_workload(cell: Trial, bench: StudyContext) -> TrainingWorkload | None:
    """The work of a cell; None for one that is no training."""
    if cell.settings[VERB] == "none":
        return None
    images = bench.scale.data if cell.shared and bench.scale.data else bench.scale.learned
    config = build_training_config(replace_encoder_by_shape(cell, bench.scale), bench)
    pretrained = ENCODER in cell.settings or config.weights is not None
    return build_training_workload(config, images, pretrained)


def estimate_trial_cost(
    cell: Trial, bench: StudyContext, hardware: Hardware | None = None
) -> TrialCost:
    """What a cell takes; with hardware, also how long on one such device.

    What only measures is not counted.
    """
    training = build_trial_workload(cell, bench)
    if training is None:
        return TrialCost(cell.name, 0, 0, 0, 0, 0.0, None if hardware is None else 0.0)
    shape = training.config
    config = build_training_config(replace_encoder_by_shape(cell, bench.scale), bench)
    flops = count_training_flops(config, count_macs(shape), training.seen, training.images)
    cost = TrialCost(
        cell.name,
        count_parameters(shape),
        count_macs(shape),
        training.seen,
        training.steps,
        flops,
        None,
    )
    if hardware is None:
        return cost
    machine = HardwareSetup(hardware, ParallelLayout(1, "ddp", False), ASSUMED_UTILISATION)
    return replace(cost, device_days=cost.share * estimate_time(training, machine).device_days)
