"""How far macro F1 would move with other images: percentile bootstrap (Efron 1979), 95 %.

Images are drawn anew with replacement within each class, so that every class keeps its number of
images: a class with few of them is never left without one, and every resample averages the same
classes. The numbers depend on the images only through how often a label has met each answer (each
tuple of answers, where several models were asked), so the draws are multinomial over these: the
same distribution as from drawing images, without their number in the cost.

Sizes: n images, m models asked about the same images, K classes, R resamples.
"""

from __future__ import annotations

import numpy as np

from patchwords.noise import numpy_generator

BOOTSTRAP_RESAMPLES = 1000


def macro_f1(labels: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """int [n], int [m, n] -> [m], the mean F1 over the classes that are among the labels."""
    support = np.bincount(labels, minlength=classes)  # [K]
    present = support > 0
    scores = []
    for answer in answers:
        right = np.bincount(labels[answer == labels], minlength=classes)
        given = np.bincount(answer, minlength=classes)
        scores.append((2 * right[present] / (support + given)[present]).mean())
    return np.array(scores)


def bootstrap_macro_f1(
    labels: np.ndarray,
    answers: np.ndarray,
    classes: int,
    resamples: int = BOOTSTRAP_RESAMPLES,
    seed: int = 0,
) -> np.ndarray:
    """int [n], int [m, n] -> [R, m], macro F1 in each resample.

    All models are asked about the same resampled images, so that differences are paired.
    """
    support = np.bincount(labels, minlength=classes)  # [K]
    right = np.zeros((len(answers), classes, resamples))
    given = np.zeros((len(answers), classes, resamples))
    for label in np.flatnonzero(support):
        own = answers[:, labels == label]  # [m, images of the class]
        tuples, counts = np.unique(own, axis=1, return_counts=True)  # [m, tuples], [tuples]
        random = numpy_generator(seed, "bootstrap", int(label))
        drawn = random.multinomial(support[label], counts / counts.sum(), size=resamples)
        for model, answer in enumerate(tuples):  # [tuples], what this model says in each
            places, which = np.unique(answer, return_inverse=True)
            per_answer = np.eye(len(places))[which].T @ drawn.T  # [places, R]
            given[model, places] += per_answer
            right[model, label] = per_answer[places == label].sum(0)
    present = support > 0
    scores = 2 * right[:, present] / (support[:, None] + given)[:, present]  # [m, K present, R]
    return np.asarray(scores.mean(1).T)


def percentile_interval(values: np.ndarray) -> tuple[float, float]:
    """[R] -> the ends between which 95 % of them lie."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
