"""The recipe that a run without `--recipe` follows, and other defaults that need the data's size.

Such a run takes DEFAULT_SETTINGS of a published recipe, fitted to the data (scaling.py).
Everything else keeps the defaults of the flags.
"""

from __future__ import annotations

import math
from dataclasses import replace

from patchwords.training.config import FinetuneConfig, MachineSettings
from patchwords.training.recipes.finetune import FINETUNE_RECIPES
from patchwords.training.recipes.pretrain import PRETRAIN_RECIPES
from patchwords.training.recipes.row import Recipe
from patchwords.training.recipes.scaling import REQUESTED_REASON

DEFAULT_SETTINGS = ("optimizer", "schedule", "weight_decay")
MAX_EVALUATIONS = 30  # on the validation split, unless the user says how often

_published = {row.name: row for row in (*PRETRAIN_RECIPES, *FINETUNE_RECIPES)}

# The paper's 300 epochs of "1.3M images", counted as 1.28 million: a few steps less than
# vit-b16-imagenet has. Every ViT and hybrid takes it (Section 4.1).
SCRATCH_RECIPE = replace(_published["vit-b16-imagenet"], length=("steps", 93_750))
# Table 3 has no ResNet trained on ImageNet alone.
SCRATCH_RESNET_RECIPE = _published["bit-imagenet"]
# Its rate, 2e-4, is the paper's lowest. Divided for the batches of a small set (1.8e-5) it learns
# nothing: digits, ViT-mu/4 at 32 px, 20 epochs: held-out loss 5.6; with 2e-4 1.9 after 15 epochs.
MASKED_RECIPE = replace(_published["masked-vit-b16-jft"], scaling="none")
OBJECTIVE_RECIPES = {
    "masked": MASKED_RECIPE,
    "mae": replace(_published["mae-vit-b16-imagenet"], scaling="root"),
}
# (largest training set, recipe), smallest first; larger data take the last. Table 4 is for all
# models. Its three lengths go with these sizes in BiT's HyperRule.
FINETUNE_RECIPES_BY_SIZE = (
    (20_000, _published["paper-finetune-pets"]),
    (500_000, _published["paper-finetune-cifar10"]),
    (math.inf, _published["paper-finetune-imagenet"]),
)

# Dropout of Table 3 from scratch; of vit_jax/configs/models.py in fine-tuning. R50+ViT-L/16 is not
# in that file: hybrids are trained as their ViT (Section 4.1). ResNets have no dropout.
SCRATCH_DROPOUT = 0.1
FINETUNE_DROPOUT = {
    "ViT-L/16": 0.1,
    "ViT-H/14": 0.1,
    "R50+ViT-B/16": 0.1,
    "R50+ViT-L/16": 0.1,
    "R50+ViT-L/32": 0.1,
}


def choose_default_recipe(
    from_weights: bool, images: int, family: str = "vit", objective: str = "supervised"
) -> Recipe:
    """Choose the recipe for this start and size of data."""
    if objective in OBJECTIVE_RECIPES:
        return OBJECTIVE_RECIPES[objective]
    if not from_weights:
        return SCRATCH_RESNET_RECIPE if family == "resnet" else SCRATCH_RECIPE
    return next(row for largest, row in FINETUNE_RECIPES_BY_SIZE if images <= largest)


def choose_dropout(
    config: FinetuneConfig, from_weights: bool, model: str, objective: str
) -> tuple[float, str]:
    """Choose the dropout rate where no recipe sets it; -> the rate and the reason."""
    requested = config.model_settings.dropout
    if requested is not None:
        return requested, REQUESTED_REASON
    if objective == "masked":
        return 0.0, "Table 3, JFT-300M; Appendix B.1.2 gives none"
    if objective == "mae":
        return 0.0, OBJECTIVE_RECIPES[objective].source
    if not from_weights:
        return SCRATCH_DROPOUT, SCRATCH_RECIPE.source
    rate = FINETUNE_DROPOUT.get(model.split(" with ", maxsplit=1)[0], 0.0)
    return rate, "the official fine-tuning code (vit_jax/configs/models.py)"


def choose_eval_interval(steps: int, steps_per_epoch: int) -> int:
    """Choose the steps between evaluations: an epoch, or more where there are too many epochs."""
    return min(steps, max(steps_per_epoch, math.ceil(steps / MAX_EVALUATIONS)))


def fill_intervals(
    machine: MachineSettings, steps: int, batch_size: int, images: int
) -> MachineSettings:
    """Set the steps between logging, evaluation and checkpoints where the user did not."""
    steps_per_epoch = max(1, images // batch_size)
    eval_every = machine.eval_every or choose_eval_interval(steps, steps_per_epoch)
    return replace(
        machine,
        log_every=machine.log_every or max(1, min(50, steps // 100)),
        eval_every=eval_every,
        save_every=machine.save_every or eval_every,
    )
