"""Few-shot accuracy of a model on a data set: by images of each class and penalty, over draws.

Only images that are drawn need features, unless all have been computed before. An image that was
drawn and cannot be read is left out of the fit, and no other takes its place: so the draws depend
on the data alone. Nothing is chosen by the test images: every penalty that was asked for is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from patchwords.evaluate.fewshot import L2, SEEDS, SHOTS, Draws, Score, draw_all, score_draws
from patchwords.evaluate.frozen import Ask, Frozen, freeze
from patchwords.evaluate.spread import spread
from patchwords.evaluate.train_test import TrainTest, limit


@dataclass(frozen=True)
class Shots:
    """What is drawn from the images to learn from."""

    draws: Draws  # positions in the images to learn from
    images: int  # that may be drawn

    @property
    def wanted(self) -> np.ndarray:
        """Positions of the images that are in any draw, rising."""
        return np.unique(np.concatenate([*self.draws.values()]))

    def among(self, positions: np.ndarray) -> Draws:
        """The draws as places in a list of positions; what is not in it is left out."""
        place = np.full(self.images, -1, dtype=np.int64)
        place[positions] = np.arange(len(positions))
        found = {key: place[drawn] for key, drawn in self.draws.items()}
        return {key: places[places >= 0] for key, places in found.items()}


def draw(pair: TrainTest, shots: Sequence[int] = SHOTS, seeds: Sequence[int] = SEEDS) -> Shots:
    """A draw for each number of images of a class and each seed; raises DataError for too few."""
    train = pair.train
    return Shots(draw_all(train.labels, shots, seeds, train.classes), len(train))


def freeze_drawn(
    ask: Ask, pair: TrainTest, shots: Shots, max_bad: float = 0.01, whole: bool = False
) -> tuple[Frozen, Draws]:
    """Features of what is drawn, or with `whole` of all that may be; -> and the draws in them."""
    wanted = np.arange(shots.images) if whole else shots.wanted
    frozen = freeze(ask, pair if whole else limit(pair, wanted), max_bad)
    return frozen, shots.among(wanted[frozen.train.indices])


def fewshot_table(frozen: Frozen, draws: Draws, l2s: Sequence[float] = (L2,)) -> dict[str, Any]:
    """A row for each number of shots and penalty, over the seeds -> plain values for a report.

    `std` is that of a single draw (n - 1 in the denominator); of one seed there is none.
    """
    train, test = frozen.train, frozen.test
    scores = score_draws(train.values, train.labels, draws, test.values, test.labels, l2s)
    found: dict[tuple[int, float], list[Score]] = {}
    for score in scores:
        found.setdefault((score.shots, score.l2), []).append(score)
    rows = []
    for (count, l2), some in found.items():
        summary = spread([score.accuracy for score in some])
        rows.append({"shots": count, "l2": l2, **asdict(summary)})
    return {
        **frozen.describe(),
        "table": rows,
        "scores": [asdict(score) for score in scores],
    }
