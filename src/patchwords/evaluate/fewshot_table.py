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

from patchwords.evaluate.fewshot import (
    DEFAULT_L2,
    DEFAULT_SHOTS,
    FEWSHOT_SEEDS,
    FewShotScore,
    ShotDraws,
    draw_all_shots,
    score_shot_draws,
)
from patchwords.evaluate.frozen import FeatureExtractor, ProbeFeatures, extract_probe_features
from patchwords.evaluate.spread import compute_seed_statistics
from patchwords.evaluate.train_test import ProbeSplit, limit_train_images


@dataclass(frozen=True)
class DrawnShots:
    """What is drawn from the images to learn from."""

    draws: ShotDraws  # positions in the images to learn from
    images: int  # that may be drawn

    @property
    def wanted(self) -> np.ndarray:
        """Positions of the images that are in any draw, rising."""
        return np.unique(np.concatenate([*self.draws.values()]))

    def among(self, positions: np.ndarray) -> ShotDraws:
        """The draws as places in a list of positions; what is not in it is left out."""
        place = np.full(self.images, -1, dtype=np.int64)
        place[positions] = np.arange(len(positions))
        found = {key: place[drawn] for key, drawn in self.draws.items()}
        return {key: places[places >= 0] for key, places in found.items()}


def draw_probe_shots(
    pair: ProbeSplit, shots: Sequence[int] = DEFAULT_SHOTS, seeds: Sequence[int] = FEWSHOT_SEEDS
) -> DrawnShots:
    """A draw for each number of images of a class and each seed; raises DataError for too few."""
    train = pair.train
    return DrawnShots(draw_all_shots(train.labels, shots, seeds, train.classes), len(train))


def extract_drawn_features(
    ask: FeatureExtractor,
    pair: ProbeSplit,
    shots: DrawnShots,
    max_bad: float = 0.01,
    whole: bool = False,
) -> tuple[ProbeFeatures, ShotDraws]:
    """Features of what is drawn, or with `whole` of all that may be; -> and the draws in them."""
    wanted = np.arange(shots.images) if whole else shots.wanted
    frozen = extract_probe_features(
        ask, pair if whole else limit_train_images(pair, wanted), max_bad
    )
    return frozen, shots.among(wanted[frozen.train.indices])


def build_fewshot_table(
    frozen: ProbeFeatures, draws: ShotDraws, l2s: Sequence[float] = (DEFAULT_L2,)
) -> dict[str, Any]:
    """A row for each number of shots and penalty, over the seeds -> plain values for a report.

    `std` is that of a single draw (n - 1 in the denominator); of one seed there is none.
    """
    train, test = frozen.train, frozen.test
    scores = score_shot_draws(train.values, train.labels, draws, test.values, test.labels, l2s)
    found: dict[tuple[int, float], list[FewShotScore]] = {}
    for score in scores:
        found.setdefault((score.shots, score.l2), []).append(score)
    rows = []
    for (count, l2), some in found.items():
        summary = compute_seed_statistics([score.accuracy for score in some])
        rows.append({"shots": count, "l2": l2, **asdict(summary)})
    return {
        **frozen.describe(),
        "table": rows,
        "scores": [asdict(score) for score in scores],
    }
