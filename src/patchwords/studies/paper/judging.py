"""By test images, and by a few images of another data set: both, where there are both."""

from __future__ import annotations

from patchwords.studies.bench import Bench
from patchwords.studies.study import Cell, Numbers
from patchwords.studies.training import judge_fewshot, judge_training

FEWSHOT = "5-shot"  # of a cell's numbers, and in labels
SHOTS = 5


def judge_both(cell: Cell, bench: Bench) -> Numbers:
    """Accuracy on test images, and few-shot linear accuracy of the frozen model on --transfer.

    The latter is the accuracy where the scale says so, and is not there where cells are trained
    on --transfer.
    """
    if bench.scale.shots is not None or bench.scale.tuned:
        return judge_training(cell, bench)
    few = judge_fewshot(cell, bench, SHOTS)
    return {**judge_training(cell, bench), FEWSHOT: few["accuracy"]}
