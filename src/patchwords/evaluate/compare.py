"""Two models on the same images: which is better, where, and whether that could be chance.

Differences are those of the second model less the first: above zero the second is better. A number
`x` has its 95 % interval beside it, as `x_low` and `x_high`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.evaluate.answers import LabelledPredictions
from patchwords.evaluate.bootstrap import bootstrap_macro_f1, macro_f1, percentile_interval
from patchwords.evaluate.metrics import wilson_interval
from patchwords.evaluate.paired import PairedCounts, accuracy_difference, mcnemar_test

DISAGREEMENT_COLUMNS = (  # the columns of what is said of an image that the models answer differently
    *("path", "label", "prediction_a", "probability_a", "prediction_b", "probability_b", "right"),
)


def compare_predictions(
    a: LabelledPredictions, b: LabelledPredictions, seed: int = 0
) -> dict[str, Any]:
    """The numbers of a comparison, JSON-able. The answers are of the same images (`matched`).

    `pairs` counts the images that both, one or none has right; `mcnemar_test` has the p of equal
    accuracies; `agreement` is how often both say the same, right or wrong; `compare_per_class` has the
    recalls. Macro F1 and its difference are bootstrapped: each resample is of images, about which
    both models are asked.
    """
    labels, answers = a.labels, np.stack([a.predicted, b.predicted])  # [n], [2, n]
    pairs = PairedCounts.of(a.right, b.right)
    exact, mid = mcnemar_test(pairs)
    f1 = macro_f1(labels, answers, len(a.classes))  # [2]
    drawn = bootstrap_macro_f1(labels, answers, len(a.classes), seed=seed)  # [R, 2]
    ends = [  # of each by itself, as `evaluate` has them
        percentile_interval(bootstrap_macro_f1(labels, one[None], len(a.classes), seed=seed)[:, 0])
        for one in answers
    ]
    same = int((a.predicted == b.predicted).sum())
    return {
        "images": len(a),
        "a": {
            "name": a.name,
            **build_interval_entry(
                "accuracy", pairs.a / pairs.n, *wilson_interval(pairs.a, pairs.n)
            ),
            **build_interval_entry("macro_f1", float(f1[0]), *ends[0]),
        },
        "b": {
            "name": b.name,
            **build_interval_entry(
                "accuracy", pairs.b / pairs.n, *wilson_interval(pairs.b, pairs.n)
            ),
            **build_interval_entry("macro_f1", float(f1[1]), *ends[1]),
        },
        "difference": {
            **build_interval_entry("accuracy", *accuracy_difference(pairs)),
            **build_interval_entry(
                "macro_f1", float(f1[1] - f1[0]), *percentile_interval(drawn @ [-1, 1])
            ),
        },
        "pairs": pairs.to_dict(),
        "mcnemar": {"exact_p": exact, "mid_p": mid},
        **build_interval_entry("agreement", same / pairs.n, *wilson_interval(same, pairs.n)),
        "per_class": compare_per_class(a, b),
    }


def compare_per_class(a: LabelledPredictions, b: LabelledPredictions) -> list[dict[str, Any]]:
    """A row for each class that is among the images: both recalls and their difference."""
    rows = []
    for label in np.flatnonzero(np.bincount(a.labels, minlength=len(a.classes))).tolist():
        inside = a.labels == label
        pairs = PairedCounts.of(a.right[inside], b.right[inside])
        rows.append(
            {
                "class": a.classes[label],
                "support": pairs.n,
                **build_interval_entry(
                    "recall_a", pairs.a / pairs.n, *wilson_interval(pairs.a, pairs.n)
                ),
                **build_interval_entry(
                    "recall_b", pairs.b / pairs.n, *wilson_interval(pairs.b, pairs.n)
                ),
                **build_interval_entry("difference", *accuracy_difference(pairs)),
            }
        )
    return rows


def list_disagreements(a: LabelledPredictions, b: LabelledPredictions) -> list[dict[str, Any]]:
    """The images that the models answer differently; first those where both are sure of it.

    They are ordered by the smaller of the two probabilities.
    """
    right_a, right_b = a.right, b.right
    other = np.flatnonzero(a.predicted != b.predicted)
    sure = np.minimum(a.probability, b.probability)[other]
    return [
        {
            "path": a.keys[i],
            "label": a.classes[a.labels[i]],
            "prediction_a": a.classes[a.predicted[i]],
            "probability_a": round(float(a.probability[i]), 6),
            "prediction_b": b.classes[b.predicted[i]],
            "probability_b": round(float(b.probability[i]), 6),
            "right": "a" if right_a[i] else "b" if right_b[i] else "neither",
        }
        for i in other[np.argsort(-sure, kind="stable")].tolist()
    ]


def build_interval_entry(name: str, value: float, low: float, high: float) -> dict[str, float]:
    """A number beside its 95 % interval."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}
