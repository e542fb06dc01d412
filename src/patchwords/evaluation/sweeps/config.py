"""Settings of learning-rate sweeps and of VTAB-1k: those of fine-tuning, and more.

Imports no torch, as help must be quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from patchwords.errors import ConfigError, did_you_mean
from patchwords.evaluation.sweeps.vtab_tasks import VTAB_TASK_NAMES
from patchwords.training.config import DataSettings, FinetuneConfig, RecipeSettings


@dataclass(frozen=True)
class SweepDataSettings(DataSettings):
    """Which images to train on, and which to hold out; the dev split has no size limit."""

    most_validation: int | None = None
    """maximum number of images in the dev split; default: no limit"""


@dataclass(frozen=True)
class SweepGrid:
    """Which learning rates to try, and on which images to choose."""

    section: ClassVar[str] = "Sweep"

    lrs: tuple[float, ...] | None = None
    """learning rates to try; default: Table 4's grid"""
    dev: float | None = None
    """share of the training images held out to choose by; default: Table 4's 10, 2 or 1 %, by the
    size of DATA"""
    seeds: int = 1
    """number of final runs, with seeds --seed, --seed + 1, ...; their spread is reported"""


@dataclass(frozen=True)
class SweepConfig(FinetuneConfig):
    """All settings of a sweep; `plan_sweep` resolves those that are None."""

    verb: ClassVar[str] = "sweep"

    output: str | None = None
    """folder to write; default: runs/DATA-sweep"""
    grid: SweepGrid = field(default_factory=SweepGrid)
    data_settings: SweepDataSettings = field(default_factory=SweepDataSettings)

    def check(self) -> None:
        """Refuse settings that are out of range or contradict the protocol, by name."""
        super().check()
        grid, recipe = self.grid, self.recipe
        if recipe.lr is not None:
            raise ConfigError(
                f"--lr {recipe.lr:g}: a sweep chooses the learning rate; say which to try by --lrs"
            )
        if recipe.early_stop is not None:
            raise ConfigError(
                "--early-stop needs validation images, and the final run trains on all of them"
            )
        if self.data_settings.validation != DataSettings.validation:
            raise ConfigError(
                f"--validation {self.data_settings.validation:g}: a sweep holds out one part of "
                "the training images, to choose by; give its share by --dev"
            )
        if grid.dev is not None and not 0 < grid.dev < 1:
            raise ConfigError(f"--dev {grid.dev:g} is a share: above 0 and less than 1")
        if grid.seeds < 1:
            raise ConfigError(f"--seeds {grid.seeds}: there is at least one final run")
        if grid.lrs is not None:
            _check_learning_rates(grid.lrs)


def _check_learning_rates(rates: tuple[float, ...]) -> None:
    for rate in rates:
        if not 0 < rate < float("inf"):
            raise ConfigError(f"--lrs {rate:g}: a learning rate is a number above 0")
    names = {f"{rate:g}" for rate in rates}  # names of run folders
    if len(names) < len(rates):
        raise ConfigError("--lrs names a rate twice")
    if len(rates) < 2:
        raise ConfigError(
            "--lrs: a sweep compares two rates or more; to train with one: patchwords finetune --lr"
        )


# VTAB-1k: settings of fine-tuning, which the paper fixes, and the tasks.


VTAB_RECIPE = "paper-finetune-vtab"


@dataclass(frozen=True)
class VtabRecipeSettings(RecipeSettings):
    """How long and how to train; the paper has one protocol for all tasks."""

    recipe: str | None = VTAB_RECIPE
    """published recipe to train by; `patchwords recipes` lists them"""


@dataclass(frozen=True)
class VtabTaskSettings:
    """Which of the 19 tasks to train on."""

    section: ClassVar[str] = "Tasks"

    tasks: tuple[str, ...] | None = None
    """tasks to train on, by name; default: all with a folder in ROOT"""


@dataclass(frozen=True)
class VtabConfig(FinetuneConfig):
    """All settings of a VTAB-1k run."""

    verb: ClassVar[str] = "vtab"

    output: str | None = None
    """folder to write; default: runs/ROOT-vtab"""
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
