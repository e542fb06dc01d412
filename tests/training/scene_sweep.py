"""A scene of `scenes.py`: a sweep of which one rate diverges, in all processes at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_run import quiet

from patchwords.evaluation.sweeps.config import SweepConfig, SweepDataSettings, SweepGrid
from patchwords.evaluation.sweeps.sweep import sweep_learning_rates
from patchwords.training.config import MachineSettings, ModelSettings, RecipeSettings

# No dropout and an even batch: what two processes compute is what one does, but for rounding.
CONFIG = SweepConfig(
    data="digits",
    model="ViT-mu/4",
    data_settings=SweepDataSettings(classes=("0", "1", "2")),
    grid=SweepGrid(lrs=(0.01, 1e30, 0.1), dev=0.2),
    model_settings=ModelSettings(image_size=(8,), dropout=0.0),
    recipe=RecipeSettings(steps=6, batch_size=12, optimizer="sgd", warmup_steps=0),
    machine=MachineSettings(device="cpu", precision="fp32", workers=0, eval_every=6),
)


def sweep_of_three(folder: Path) -> dict[str, Any]:
    outcome = sweep_learning_rates(replace(CONFIG, output=str(folder)), quiet())
    [final] = outcome.finals
    return {
        "accuracies": [cell.accuracy for cell in outcome.cells],
        "losses": [cell.loss for cell in outcome.cells],
        "images": [cell.images for cell in outcome.cells],
        "lr": outcome.chosen.lr,
        "test": [final.evaluation["images"], final.evaluation["loss"]],
    }
