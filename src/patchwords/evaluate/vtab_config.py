"""Every setting of a VTAB-1k run: those of fine-tuning, which the paper fixes, and which tasks.

Nothing here imports torch: help must be quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from patchwords.errors import ConfigError, did_you_mean
from patchwords.evaluate.vtab_tasks import VTAB_TASK_NAMES
from patchwords.train.config import DataSettings, FinetuneConfig, RecipeSettings

VTAB_RECIPE = "paper-finetune-vtab"


@dataclass(frozen=True)
class VtabRecipeSettings(RecipeSettings):
    """How long and how to train; the paper has one protocol for all tasks."""

    recipe: str | None = VTAB_RECIPE  # a published one, by name: see `patchwords recipes`


@dataclass(frozen=True)
class VtabTaskSettings:
    """Which of the 19 tasks."""

    tasks: tuple[str, ...] | None = None  # by name; none given: all whose data are in ROOT


@dataclass(frozen=True)
class VtabConfig(FinetuneConfig):
    """All settings of a VTAB-1k run."""

    verb: ClassVar[str] = "vtab"

    output: str | None = None  # folder to write; none given: runs/ROOT-vtab
    choice: VtabTaskSettings = field(default_factory=VtabTaskSettings)
    recipe: VtabRecipeSettings = field(default_factory=VtabRecipeSettings)

    def check(self) -> None:
        """Refuse settings that are out of range or contradict the protocol, by name."""
        super().check()
        if self.weights is None:
            raise ConfigError("VTAB-1k measures transfer: say from which --weights")
        if self.recipe.early_stop is not None:
            raise ConfigError(
                "--early-stop needs validation images, and VTAB-1k trains on all 1,000"
            )
        for name in ("validation", "test", "train_images"):
            value = getattr(self.data_settings, name)
            if value != getattr(DataSettings, name):
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} {value:g}: the splits of VTAB-1k are fixed")
        if self.choice.tasks == ():
            raise ConfigError("--tasks lacks a value; leave it out, or say which")
        for name in self.choice.tasks or ():
            if name not in VTAB_TASK_NAMES:
                raise ConfigError(
                    f"--tasks: VTAB-1k has no task {name!r}"
                    f"{did_you_mean(name, VTAB_TASK_NAMES) or '; it has ' + ', '.join(VTAB_TASK_NAMES)}"
                )
