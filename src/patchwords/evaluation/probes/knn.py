"""k-NN on the features of a frozen model, as in DINO (Caron et al. 2021, eval_knn.py).

The k training images with the largest cosine s to an image vote for their classes with weight
exp(s / T). The search is exact, in blocks, in float32. k is chosen by up to 5,000 training images,
each classified by all the others; test images choose nothing.
Sizes: N voting images, n images to classify, R representation, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from patchwords.data.dataset import ALL, TRAIN, DatasetSplits, ImageDataset
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.metrics import per_class_scores, proportion_with_interval
from patchwords.evaluation.probes.cache import ProbeFeatures, require_finite_features
from patchwords.evaluation.probes.defaults import DEFAULT_KS, DEFAULT_TEMPERATURE
from patchwords.evaluation.probes.features import is_run_data, split_as_recorded
from patchwords.rng import numpy_generator

MAX_SELECTION_IMAGES = 5_000  # training images that choose k: a standard error of 0.7 % at most
NEIGHBOUR_BLOCK_SIZE = 2**15  # images per block
MAX_SIMILARITY_ELEMENTS = 2**25  # numbers per block: 128 MiB
MAX_VOTE_ELEMENTS = 2**24


@dataclass(frozen=True)
class NeighbourIndex:
    """Labelled images on the device where they are searched."""

    features: np.ndarray  # [N, R]
    labels: np.ndarray  # int [N]
    device: torch.device | str = "cpu"

    def nearest(
        self, features: np.ndarray, k: int, own: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """[n, R] -> cosines float32 [n, k], falling, and positions int64 [n, k] of the voters.

        `own` [n] has the positions of the images themselves, which do not vote for themselves.
        """
        queries = self.on_device(features)
        best = torch.full((len(queries), 0), 0.0)
        places = torch.zeros((len(queries), 0), dtype=torch.int64)
        query_rows = None if own is None else torch.from_numpy(own).to(self.device)
        best, places = best.to(self.device), places.to(self.device)
        rows = max(1, MAX_SIMILARITY_ELEMENTS // NEIGHBOUR_BLOCK_SIZE)
        for start in range(0, len(self.features), NEIGHBOUR_BLOCK_SIZE):
            voters = self.on_device(self.features[start : start + NEIGHBOUR_BLOCK_SIZE])
            found = []
            for first in range(0, len(queries), rows):
                positions = slice(first, first + rows)
                cosines = queries[positions] @ voters.T  # [rows, voters]
                if query_rows is not None:
                    mask_self_matches(cosines, query_rows[positions] - start)
                top, at = cosines.topk(min(k, len(voters)), dim=1)
                # merged with the best of previous blocks
                top = torch.cat([best[positions], top], 1)
                at = torch.cat([places[positions], at + start], 1)
                top, order = top.sort(dim=1, descending=True, stable=True)
                found.append((top[:, :k], at.gather(1, order)[:, :k]))
            best, places = (torch.cat(parts) for parts in zip(*found, strict=True))
        return best.cpu(), places.cpu()

    def on_device(self, features: np.ndarray) -> Tensor:
        """[n, R] -> float32 [n, R] of length 1"""
        copied = torch.from_numpy(np.array(features, dtype=np.float32))
        return normalize(copied.to(self.device), dim=1)

    def vote(
        self, features: np.ndarray, ks: Sequence[int], temperature: float, own: np.ndarray | None
    ) -> dict[int, np.ndarray]:
        """[n, R] -> for each k the predicted labels [n]; ties go to the smallest label."""
        cosines, places = self.nearest(features, max(ks), own)
        # the largest vote is scaled to 1, so that no temperature overflows
        weights = ((cosines - cosines[:, :1]).double() / temperature).exp()  # [n, k]
        labels = torch.from_numpy(self.labels)[places]  # [n, k]
        classes = int(self.labels.max()) + 1
        rows = max(1, MAX_VOTE_ELEMENTS // classes)
        answers: dict[int, list[np.ndarray]] = {k: [] for k in ks}
        for weight, label in zip(weights.split(rows), labels.split(rows), strict=True):
            scores = torch.zeros(len(label), classes, dtype=torch.float64)
            counted = 0
            for k in sorted(set(ks)):
                scores.scatter_add_(1, label[:, counted:k], weight[:, counted:k])
                answers[k].append(scores.numpy().argmax(1))
                counted = k
        return {k: np.concatenate(parts) for k, parts in answers.items()}


def mask_self_matches(cosines: Tensor, columns: Tensor) -> None:
    """Mask images as their own neighbours: [rows, voters] at [rows], in place."""
    inside = (columns >= 0) & (columns < cosines.shape[1])
    rows = inside.nonzero()[:, 0]
    cosines[rows, columns[rows]] = -torch.inf


def evaluate_knn(
    frozen: ProbeFeatures,
    ks: Sequence[int] = (),
    temperature: float = DEFAULT_TEMPERATURE,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Measure k-NN accuracy for each k, with all metrics for the k that train chose.

    Args:
        ks: default: 10, 20 and 100, up to the number of images.
        seed: of the training images that choose k, if there are more than 5,000.

    Raises ConfigError for a k above the number of voters, or a T that is not above 0.
    """
    train, test = frozen.train, frozen.test
    ks = ks or choose_default_ks(len(train.labels))
    validate_knn_settings(ks, temperature, len(train.labels))
    for features in (train.values, test.values):
        require_finite_features(features)
    voters = NeighbourIndex(train.values, train.labels, device)
    judges = np.arange(len(train.labels))
    if len(judges) > MAX_SELECTION_IMAGES:
        drawn = numpy_generator(seed, "knn").permutation(len(judges))[:MAX_SELECTION_IMAGES]
        judges = np.sort(drawn)
    left_out = {}
    if len(ks) > 1:
        left_out = voters.vote(train.values[judges], ks, temperature, judges)
    answers = voters.vote(test.values, ks, temperature, None)
    rows: list[dict[str, Any]] = []
    for k in ks:
        right = int((answers[k] == test.labels).sum())
        chosen_by = float((left_out[k] == train.labels[judges]).mean()) if left_out else None
        accuracy = proportion_with_interval(right, len(test.labels))
        rows.append({"k": k, "train": chosen_by, **accuracy, "images": len(test.labels)})
    best = max(rows, key=lambda row: (row["train"] or 0.0, -row["k"]))[
        "k"
    ]  # ties go to the smallest k
    return {
        **frozen.describe(),
        "temperature": temperature,
        "path": rows,
        "k": best,
        "chosen": len(ks) > 1,
        "judges": len(judges) if left_out else 0,
        "results": {
            "images": len(test.labels),
            "accuracy": proportion_with_interval(
                int((answers[best] == test.labels).sum()), len(test.labels)
            ),
            **per_class_scores(test.labels, answers[best], frozen.split.train.classes),
        },
    }


def choose_default_ks(images: int) -> tuple[int, ...]:
    """Choose 10, 20 and 100 neighbours, up to the number of images; or all images."""
    return tuple(k for k in DEFAULT_KS if k < images) or (images,)


def validate_knn_settings(ks: Sequence[int], temperature: float, images: int) -> None:
    """Raise ConfigError for an unusable k or temperature."""
    if not ks or min(ks) < 1 or len({*ks}) < len(ks):
        given = " ".join(map(str, ks))
        raise ConfigError(f"k {given}: give numbers of neighbours, each 1 or more, none twice")
    most = images - (len(ks) > 1)  # choosing k leaves the image itself out
    if max(ks) > most:
        raise ConfigError(
            f"k {max(ks)}: only {most} training images can vote; use {most} or fewer neighbours"
        )
    if not temperature > 0:
        raise ConfigError(f"temperature {temperature:g} must be greater than 0; 0.07 is usual")


# Nearest training images of photos, by the cosine of features.
#
# Sizes: n photos, N searched images, R representation, k nearest.


MAX_SEARCHED_IMAGES = 20_000  # larger sets are subsampled
NUM_RANDOM_PAIRS = 2_000  # for the median similarity of random pairs


def find_nearest_images(
    features: np.ndarray, searched: np.ndarray, k: int, device: torch.device | str = "cpu"
) -> tuple[np.ndarray, np.ndarray]:
    """[n, R], [N, R] -> cosines float32 [n, k], falling, and positions int64 [n, k] in N.

    The search is exact. Returns all images if there are fewer than k. Raises DataError for features
    that are not finite.
    """
    for values in (features, searched):
        require_finite_features(values)
    no_labels = np.zeros(len(searched), dtype=np.int64)  # labels are not used
    cosines, places = NeighbourIndex(searched, no_labels, device).nearest(features, k)
    return cosines.numpy(), places.numpy()


def median_random_similarity(searched: np.ndarray) -> float | None:
    """[N, R] -> the median cosine of 2,000 random pairs; None for one image.

    Features of many models lie in a narrow cone: a high cosine alone says little.
    """
    count = len(searched)
    if count < 2:
        return None
    random = numpy_generator(0, "pairs of images")
    first = random.integers(0, count, NUM_RANDOM_PAIRS)
    second = (first + random.integers(1, count, NUM_RANDOM_PAIRS)) % count  # never the same image
    return float(
        np.median((normalise_rows(searched[first]) * normalise_rows(searched[second])).sum(axis=1))
    )


def normalise_rows(values: np.ndarray) -> np.ndarray:
    """[n, R] -> float32 [n, R] of length 1"""
    values = np.asarray(values, dtype=np.float32)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.maximum(lengths, np.finfo(np.float32).tiny)


def select_training_images(
    data: DatasetSplits, recorded: Mapping[tuple[str, int], str]
) -> tuple[ImageDataset, str]:
    """Select the images that a model may have trained on, and describe them.

    Args:
        recorded: (path, bytes) -> split of the model's run (`read_run_splits`), or empty. It counts
            if the run saw these images; otherwise the data's own splits do, and data without splits
            are taken whole.

    Raises DataError if there is no training image.
    """
    parts = data.splits
    origins = {TRAIN: "the training split", ALL: "all of them, as they are not divided"}
    if is_run_data(data, recorded):
        parts = split_as_recorded(data, recorded)
        origins = {TRAIN: "those that the run trained on", ALL: "those that the run never saw"}
    for name, origin in origins.items():
        if len(parts.get(name, ())):
            return parts[name], origin
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
    raise DataError(f"{data.source}: has no training images to search; there are {counts}")


def subsample_examples(examples: ImageDataset, most: int) -> ImageDataset:
    """Keep at most this many images, always the same ones."""
    if len(examples) <= most:
        return examples
    order = numpy_generator(0, "neighbours").permutation(len(examples))[:most]
    return examples.select(np.sort(order))
