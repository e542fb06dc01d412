"""Images whose label looks wrong, by out-of-fold probabilities of a probe on frozen features.

The images are cut into folds. A softmax regression learns from all folds except one and judges the
images of that one, so no image is judged by a probe that has learned its label. The penalty is the
one with the least out-of-fold log loss. Images are ranked by the probability of their label over the
mean that images of that label have for it (a mean of confident learning, Northcutt et al. 2021,
arXiv 1911.00068), the smallest first: so a class that is hard to recognise does not fill the list.
On flowers with flipped labels this finds more of them than p(another class) - p(label).
Sizes: n images, R representation, K classes, F folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from patchwords.data.dataset import DatasetSplits, ImageDataset, concatenate_datasets
from patchwords.errors import DataError
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.probes.cache import (
    FeatureCache,
    FeatureProgress,
    build_feature_extractor,
    require_finite_features,
)
from patchwords.evaluation.probes.defaults import DEFAULT_L2S
from patchwords.evaluation.probes.linear import (
    MAX_TRIAL_STEPS,
    TRIAL_GRADIENT_TOLERANCE,
    fit_regularisation_path,
)
from patchwords.rng import numpy_generator

FOLDS = 5
SUSPICIOUS_SCORE = 0.1
MIN_CLASS_IMAGES = 2  # one to learn from while the other is judged


@dataclass(frozen=True)
class LabelScores:
    """Out-of-fold probabilities of labelled images, and what they say of the labels."""

    labels: np.ndarray  # [n] int64, as given
    probabilities: np.ndarray  # [n, K]
    l2: float

    @property
    def accuracy(self) -> float:
        """Share of the labels that the probe predicts out of fold."""
        return float((self.probabilities.argmax(1) == self.labels).mean())

    @property
    def given(self) -> np.ndarray:
        """[n] probability of the label."""
        return self.probabilities[np.arange(len(self.labels)), self.labels]

    @property
    def suggested(self) -> np.ndarray:
        """[n] the most probable class except the label."""
        others = self.probabilities.copy()
        others[np.arange(len(self.labels)), self.labels] = -1
        return others.argmax(1)

    @property
    def score(self) -> np.ndarray:
        """[n] p(label) over its mean in the class: the smaller, the more the label looks wrong."""
        count = self.probabilities.shape[1]
        sums = np.bincount(self.labels, self.given, minlength=count)
        means = sums / np.maximum(np.bincount(self.labels, minlength=count), 1)  # [K]
        ratio: np.ndarray = self.given / np.maximum(means[self.labels], 1e-12)
        return ratio

    @property
    def suspicious(self) -> np.ndarray:
        """bool [n], whether the label is ten times less probable than usual in its class."""
        suspicious: np.ndarray = self.score < SUSPICIOUS_SCORE
        return suspicious


def score_labels(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    *,
    l2s: Sequence[float] = DEFAULT_L2S,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> LabelScores:
    """Judge each label by a probe of the other folds: [n, R], int [n] -> scores.

    Every class needs two images. Raises DataError for features that are not finite.
    """
    require_finite_features(features)
    folds = assign_folds(labels, seed)
    penalties = sorted(l2s, reverse=True)
    probabilities = np.zeros((len(penalties), len(labels), classes))
    for fold in np.unique(folds):
        held, rest = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        fits = fit_regularisation_path(
            features[rest],
            labels[rest],
            penalties,
            device,
            TRIAL_GRADIENT_TOLERANCE,
            MAX_TRIAL_STEPS,
        )
        for place, fitted in enumerate(fits):
            columns = np.ix_(held, fitted.classes)
            probabilities[place][columns] = fitted.probabilities(features[held])
    of_labels = probabilities[:, np.arange(len(labels)), labels]  # [penalties, n]
    losses = -np.log(np.maximum(of_labels, 1e-12)).mean(1)
    best = int(losses.argmin())
    return LabelScores(labels, probabilities[best], penalties[best])


def assign_folds(labels: np.ndarray, seed: int) -> np.ndarray:
    """Assign labels [n] to folds 0 to 4 [n], so that each fold has its share of every class."""
    folds = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels).tolist():
        of_class = np.flatnonzero(labels == label)
        order = numpy_generator(seed, "label folds", label).permutation(of_class)
        folds[order] = (np.arange(len(order)) + label) % FOLDS
    return folds


class LabelSuspect(NamedTuple):
    """An image, and how much its label looks wrong."""

    path: str
    split: str
    label: str
    suggested: str
    p_label: float
    p_suggested: float
    score: float
    suspicious: bool


@dataclass(frozen=True)
class LabelErrors:
    """All judged images, the most suspicious first."""

    model: str
    examples: ImageDataset
    suspects: tuple[LabelSuspect, ...]
    accuracy: float  # out of fold
    l2: float
    left_out: int  # images that cannot be read, have no label, or are alone in their class

    @property
    def suspicious(self) -> int:
        """Number of labels that look wrong."""
        return sum(suspect.suspicious for suspect in self.suspects)

    def to_dict(self, most: int = 100) -> dict[str, Any]:
        """Plain values, with the first suspects, for JSON."""
        return {
            "model": self.model,
            "images": len(self.suspects),
            "left_out": self.left_out,
            "accuracy": self.accuracy,
            "l2": self.l2,
            "suspicious": self.suspicious,
            "suspects": [suspect._asdict() for suspect in self.suspects[:most]],
        }


def find_label_errors(
    loaded: LoadedModel,
    data: DatasetSplits,
    cache: FeatureCache | None = None,
    *,
    seed: int = 0,
    progress: FeatureProgress | None = None,
) -> LabelErrors:
    """Rank all labelled images of the data, of every split, by how wrong their label looks.

    Raises DataError if fewer than two classes have two images each.
    """
    examples = concatenate_datasets(list(data.splits.values()))
    splits = [name for name, part in data.splits.items() for _ in range(len(part))]
    features = build_feature_extractor(loaded, cache, progress)(examples)
    counts = np.bincount(features.labels[features.labels >= 0], minlength=len(data.classes))
    if (counts >= MIN_CLASS_IMAGES).sum() < 2:
        raise DataError(
            f"{data.source}: labels are checked by comparing classes, and fewer than two classes "
            "have two readable images"
        )
    judged = (features.labels >= 0) & (counts[features.labels] >= MIN_CLASS_IMAGES)
    labels, positions = features.labels[judged], features.indices[judged]
    device = loaded.device.torch_device
    scores = score_labels(
        features.values[judged], labels, len(data.classes), seed=seed, device=device
    )
    suspects = rank_suspects(scores, examples, positions, splits)
    left_out = len(examples) - len(suspects)
    return LabelErrors(loaded.name, examples, suspects, scores.accuracy, scores.l2, left_out)


def rank_suspects(
    scores: LabelScores, examples: ImageDataset, positions: np.ndarray, splits: Sequence[str]
) -> tuple[LabelSuspect, ...]:
    """List the images at these positions, the most suspicious first."""
    suggested, given, score = scores.suggested, scores.given, scores.score
    suspicious, names = scores.suspicious, examples.classes
    rows = []
    for row in np.argsort(score, kind="stable").tolist():
        position, other = int(positions[row]), int(suggested[row])
        rows.append(
            LabelSuspect(
                examples.keys[position],
                splits[position],
                names[scores.labels[row]],
                names[other],
                float(given[row]),
                float(scores.probabilities[row, other]),
                float(score[row]),
                bool(suspicious[row]),
            )
        )
    return tuple(rows)
