"""Final evaluation of a run by its own objective: metrics on the held-out split."""

from __future__ import annotations

from typing import Any

from patchwords.device import Device
from patchwords.evaluation.held_out import choose_final_split
from patchwords.training.logs.run_folder import write_json
from patchwords.training.objectives import HeldOutExamples
from patchwords.training.training_run import TrainingRun


def evaluate_by_objective(run: TrainingRun) -> dict[str, Any]:
    """Evaluate the learner at the end of a run, in float32; writes objective.json."""
    split, dataset = choose_final_split(run.data)
    device = Device(run.device.torch_device, bf16=False)
    examples = HeldOutExamples(dataset, run.objective.views(), device, run.workers)
    metrics = run.objective.evaluate(run.state.model, examples)
    result = {"split": split, "primary_metric": run.objective.primary_metric, **metrics}
    write_json(run.folder.path / "objective.json", result)
    return result
