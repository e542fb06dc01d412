"""By test images, and by a few images of another data set: both, where there are both."""

from __future__ import annotations

from patchwords.studies.bench import StudyContext
from patchwords.studies.study import Trial, TrialMetrics
from patchwords.studies.training import evaluate_by_fewshot, evaluate_on_test

FEWSHOT_LABEL = "5-shot"  # of a cell's numbers, and in labels
FEWSHOT_SHOTS = 5


def evaluate_on_test_and_fewshot(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """Accuracy on test images, and few-shot linear accuracy of the frozen model on --transfer.

    The latter is the accuracy where the scale says so, and is not there where cells are trained
    on --transfer.
    """
    if bench.scale.shots is not None or bench.scale.tuned:
        return evaluate_on_test(cell, bench)
    few = evaluate_by_fewshot(cell, bench, FEWSHOT_SHOTS)
    return {**evaluate_on_test(cell, bench), FEWSHOT_LABEL: few["accuracy"]}
