"""Accuracy of a trained model on disturbed images, and how much of it is left.

Accuracies of two models differ before anything is disturbed, and hardly a disturbance brings them
below chance. What is compared is therefore the share of a model's lead over chance that is left, as
a mean over the levels of a disturbance: 1 where nothing is lost, 0 where chance alone is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwords.studies.bench import StudyContext
from patchwords.studies.paper.trained import load_encoder_data, load_encoder_model
from patchwords.studies.study import Trial, TrialMetrics


def measure_trial(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """Accuracy on held-out images as they are and at each level of the cell's disturbances."""
    from patchwords.data.examples import TRAIN
    from patchwords.evaluate.held_out import choose_final_split
    from patchwords.evaluate.robustness.images import draw_stratified_subset
    from patchwords.evaluate.robustness.measure import measure_robustness
    from patchwords.evaluate.robustness.table import choose_perturbations
    from patchwords.model.vit import ViT

    subject = load_encoder_model(cell, bench)
    if subject is None:
        return {"accuracy": None}
    data = load_encoder_data(cell, bench)
    _, held_out = choose_final_split(data)
    judged = held_out.select(
        draw_stratified_subset(held_out, min(cell.settings["images"], len(held_out)))
    )
    rows = measure_robustness(
        [subject],
        judged,
        choose_perturbations(cell.settings["disturbances"]),
        seeds=(cell.seed,),
        training=data.splits[TRAIN],
    )
    vit = subject.model
    return {
        "accuracy": rows[0]["accuracy"],  # each curve begins with the images as they are
        **{f"{row['disturbance']} at {row['level']:g}": row["accuracy"] for row in rows},
        **({"own grid": vit.config.grid[0]} if isinstance(vit, ViT) else {}),
        "classes": len(data.classes),
        "test images": rows[0]["images"],
    }


def list_level_names(numbers: Mapping[str, Any], name: str) -> list[str]:
    """The numbers of a disturbance at all levels but the first, at which nothing is done."""
    return [key for key in numbers if key.startswith(f"{name} at ")][1:]


def compute_share_kept(numbers: TrialMetrics, keys: Sequence[str]) -> float | None:
    """Of the lead over chance, the mean over some levels; None where there was none.

    >>> compute_share_kept({"accuracy": 0.5, "classes": 10, "a": 0.3, "b": 0.1}, ["a", "b"])
    0.25
    """
    clean, classes = numbers["accuracy"], numbers.get("classes")
    if clean is None or not classes or clean <= 1 / classes:
        return None
    chance = 1 / classes
    found = [numbers[key] or 0.0 for key in keys]
    return (sum(found) / len(found) - chance) / (clean - chance)
