"""Linear probe: softmax regression on frozen features, its penalty chosen on a dev split.

The loss is the mean cross-entropy plus l2 / 2 times the squared weights, without the biases; it is
convex, and L-BFGS finds its minimum. Features are first standardised over the training images, so
that one path of penalties serves all models. All in float64.

A part of train is held out per seed, every penalty is fitted on the rest, and the most accurate
penalty on the held-out part is fitted again on all of train. Test is read once.
Sizes: N training images, n test images, R representation, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchwords.data.splits import allocate_class_quotas
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.metrics import compute_classification_metrics
from patchwords.evaluation.probes.cache import ProbeFeatures, require_finite_features
from patchwords.evaluation.probes.defaults import DEFAULT_DEV_SHARE, DEFAULT_L2S
from patchwords.evaluation.probes.fewshot import STD_EPSILON
from patchwords.rng import numpy_generator

MAX_LBFGS_STEPS = 2000  # maximum of L-BFGS
# Stops if no component of the gradient is larger than this times the penalty, which is the least
# curvature: no weight is then further from the minimum than about this. Below the floor there is
# only rounding.
RELATIVE_GRADIENT_TOLERANCE, MIN_GRADIENT_TOLERANCE = 1e-6, 1e-10
# For comparing penalties, of the gradient itself: scikit-learn's default, and twice its steps.
TRIAL_GRADIENT_TOLERANCE, MAX_TRIAL_STEPS = 1e-4, 200
LBFGS_MEMORY = 10  # L-BFGS history, as in scikit-learn and SciPy
MAX_LOGIT_ELEMENTS = 2**22  # numbers per block: 32 MiB


@dataclass(frozen=True)
class SoftmaxClassifier:
    """A fitted softmax classifier."""

    classes: np.ndarray  # [K] labels, rising
    mean: np.ndarray  # [R]
    deviation: np.ndarray  # [R]
    weights: np.ndarray  # [R + 1, K], the biases last
    l2: float
    converged: bool

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """[n, R] -> [n, K]"""
        rows = max(1, MAX_LOGIT_ELEMENTS // max(self.weights.shape))
        blocks = []
        for start in range(0, len(features), rows):
            x = (features[start : start + rows] - self.mean) / self.deviation
            logits = x @ self.weights[:-1] + self.weights[-1]  # [rows, K]
            odds = np.exp(logits - logits.max(1, keepdims=True))
            blocks.append(odds / odds.sum(1, keepdims=True))
        return np.concatenate(blocks)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """[n, R] -> [n] labels"""
        return self.classes[self.probabilities(features).argmax(1)]


@dataclass(frozen=True)
class SoftmaxRegressionLoss:
    """The loss to minimise, on a device."""

    x: Tensor  # float64 [N, R], mean 0 and deviation 1
    y: Tensor  # int64 [N], class indices
    classes: int

    def loss(self, flat: np.ndarray, l2: float) -> tuple[float, np.ndarray]:
        """Weights [(R + 1) K] -> loss and gradient, in blocks of rows: N x K is never in memory."""
        count, width = self.x.shape
        w = torch.from_numpy(flat).to(self.x.device).reshape(width + 1, self.classes)
        gradient = torch.zeros_like(w)
        total = torch.zeros((), dtype=w.dtype, device=w.device)
        rows = max(1, MAX_LOGIT_ELEMENTS // self.classes)
        for x, y in zip(self.x.split(rows), self.y.split(rows), strict=True):
            logs = torch.log_softmax(torch.addmm(w[-1], x, w[:-1]), 1)  # [rows, K]
            total -= logs.gather(1, y[:, None]).sum()
            slope = logs.exp_()  # d loss / d logits = probabilities - onehot
            slope.scatter_add_(1, y[:, None], slope.new_full((len(y), 1), -1.0))
            gradient[:-1].addmm_(x.T, slope)
            gradient[-1] += slope.sum(0)
        gradient /= count
        gradient[:-1] += l2 * w[:-1]
        loss = total / count + l2 / 2 * w[:-1].square().sum()
        return float(loss), gradient.reshape(-1).cpu().numpy()


def fit_regularisation_path(
    features: np.ndarray,
    labels: np.ndarray,
    l2s: Sequence[float] = DEFAULT_L2S,
    device: torch.device | str = "cpu",
    gradient: float | None = None,
    steps: int | None = None,
) -> Iterator[SoftmaxClassifier]:
    """[N, R], int [N] -> a classifier per penalty, from the largest to the smallest.

    Each fit starts from the previous one, and stops where the gradient is at most `gradient`;
    default: as fine as the penalty needs (RELATIVE_GRADIENT_TOLERANCE). Raises DataError for features that are not finite or a
    single class.
    """
    from scipy.optimize import minimize

    require_finite_features(features)
    classes, y = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise DataError("a probe needs two classes or more to learn from")
    mean = features.mean(0, dtype=np.float64)
    deviation = features.std(0, dtype=np.float64) + STD_EPSILON
    x = torch.from_numpy((features - mean) / deviation).to(device)
    problem = SoftmaxRegressionLoss(x, torch.from_numpy(y).to(device), len(classes))
    weights = np.zeros((features.shape[1] + 1) * len(classes))
    steps = MAX_LBFGS_STEPS if steps is None else steps
    options = {"maxiter": steps, "ftol": 0.0, "maxcor": LBFGS_MEMORY, "maxls": 50}
    for l2 in sorted(l2s, reverse=True):
        fine = max(RELATIVE_GRADIENT_TOLERANCE * min(1.0, l2), MIN_GRADIENT_TOLERANCE)
        options["gtol"] = fine if gradient is None else gradient
        solution = minimize(
            problem.loss, weights, args=(l2,), jac=True, method="L-BFGS-B", options=options
        )
        weights = solution.x
        # stopping earlier for rounding also counts as converged
        converged = solution.nit < steps
        yield SoftmaxClassifier(
            classes, mean, deviation, weights.reshape(-1, len(classes)), l2, converged
        )


@dataclass(frozen=True)
class ProbeSettings:
    """Penalties to try, and the dev split that chooses."""

    l2s: tuple[float, ...] = DEFAULT_L2S
    dev: float = DEFAULT_DEV_SHARE
    seeds: tuple[int, ...] = (0,)  # one dev split each
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        l2s = self.l2s
        if not l2s or any(not 0 < l2 < np.inf for l2 in l2s) or len({*l2s}) < len(l2s):
            given = " ".join(f"{l2:g}" for l2 in l2s) or "none"
            raise ConfigError(f"l2 {given}: give penalties greater than 0, none of them twice")
        if not 0 < self.dev < 1:
            raise ConfigError(
                f"dev {self.dev:g}: it is a share of the training images, between 0 and 1"
            )
        if not self.seeds:
            raise ConfigError("seeds none: give one or more, a dev split each")


def evaluate_linear_probe(
    frozen: ProbeFeatures, settings: ProbeSettings | None = None
) -> dict[str, Any]:
    """Fit and evaluate a linear probe -> plain values.

    `path` has the dev accuracy of each penalty; `results` are `compute_classification_metrics`.
    """
    settings = settings or ProbeSettings()
    train, labels = frozen.train.values, frozen.train.labels
    path = score_penalties(train, labels, settings)
    # ties go to the largest penalty; a single one has no accuracy
    best = max(path, key=lambda row: (row["dev"] or 0.0, row["l2"]))["l2"]
    [final] = fit_regularisation_path(train, labels, [best], settings.device)
    classes = frozen.split.train.classes
    probabilities = np.zeros((len(frozen.test.labels), len(classes)))
    probabilities[:, final.classes] = final.probabilities(frozen.test.values)
    single = len(settings.l2s) == 1
    return {
        **frozen.describe(),
        "path": path,
        "l2": best,
        "chosen": not single,
        "at_end": not single and best in {min(settings.l2s), max(settings.l2s)},
        "converged": final.converged,
        "results": compute_classification_metrics(frozen.test.labels, probabilities, classes),
    }


def score_penalties(
    features: np.ndarray, labels: np.ndarray, settings: ProbeSettings
) -> list[dict[str, Any]]:
    """Score each penalty, rising: mean accuracy on the dev splits, and their size.

    A single penalty is not scored: `dev` is then None.
    """
    l2s = sorted(settings.l2s)
    if len(l2s) == 1:
        return [{"l2": l2s[0], "dev": None, "images": 0}]
    right: dict[float, list[float]] = {l2: [] for l2 in l2s}
    images = 0
    for seed in settings.seeds:
        held = draw_dev_split(labels, settings.dev, seed)
        images = len(held)
        rest = np.setdiff1d(np.arange(len(labels)), held)
        trials = fit_regularisation_path(
            features[rest],
            labels[rest],
            l2s,
            settings.device,
            TRIAL_GRADIENT_TOLERANCE,
            MAX_TRIAL_STEPS,
        )
        for fitted in trials:
            correct = fitted.predict(features[held]) == labels[held]
            right[fitted.l2].append(float(correct.mean()))
    return [{"l2": l2, "dev": float(np.mean(right[l2])), "images": images} for l2 in l2s]


def draw_dev_split(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """[N] labels -> positions of the dev split: this share of each class, at least one of two.

    Copies of an image may be on both sides: the dev split only chooses a penalty.
    """
    room = allocate_class_quotas(np.bincount(labels), share, at_least_one_of=2)
    if not room.sum():
        raise DataError(
            "no class has two training images, so that none can be held back to choose a penalty: "
            "give one --l2"
        )
    drawn = [
        numpy_generator(seed, "probe", label).permutation(np.flatnonzero(labels == label))[:count]
        for label, count in enumerate(room.tolist())
        if count
    ]
    return np.sort(np.concatenate(drawn))
