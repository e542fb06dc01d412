"""Training sampler: the order of samples as a function of the seed and step.

Training sees one endless stream of samples: epoch after epoch, each a permutation of its own.
The stream is cut into global batches; a batch may span two epochs, so nothing is dropped and in
every epoch every sample is seen exactly once. Step s is samples s B .. (s + 1) B of the stream.

Samples that lie in shards are permuted within groups of shards, whose order is an epoch's own:
then no more than two groups are wanted at a time, however large the data are.

Sizes: n samples, B global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from patchwords.errors import ConfigError
from patchwords.rng import numpy_generator

SHUFFLE_SHARDS = 8  # shards of a group


class SampleKey(NamedTuple):
    """Epoch and sample of a draw: the augmentation is a function of these."""

    epoch: int
    sample: int  # its position in the examples
    repeat: int = 0  # how often this epoch had it before: above 0 only with weights


def draw_epoch_order(
    seed: int,
    epoch: int,
    n: int,
    weights: np.ndarray | None = None,
    shards: np.ndarray | None = None,
    group: int = SHUFFLE_SHARDS,
) -> np.ndarray:
    """Draw the order of an epoch's samples, int64 [n].

    With shards [n], the shard of each sample, it is a permutation brought into the order of the
    shards' groups: where there are no more than `group` shards, the permutation as it is.
    """
    order = _permutation(seed, epoch, n, weights)
    if shards is None:
        return order
    group_of = np.zeros(int(shards.max()) + 1, np.int64)
    for number, members in enumerate(draw_shard_groups(seed, epoch, shards, group)):
        group_of[members] = number
    return order[np.argsort(group_of[shards[order]], kind="stable")]


def draw_shard_groups(seed: int, epoch: int, shards: np.ndarray, group: int) -> list[np.ndarray]:
    """Draw the groups of shards of an epoch: `group` shards each, the last may have fewer."""
    present = np.unique(shards)
    order = numpy_generator(seed, "shards", epoch).permutation(present)
    return np.split(order, range(group, len(order), group))


def _permutation(seed: int, epoch: int, n: int, weights: np.ndarray | None) -> np.ndarray:
    """Draw a permutation int64 [n], or samples in proportion to their weights.

    With weights [n] samples are drawn in proportion to them, some several times, others not at
    all. The draw is systematic: a sample that is due 2.3 times comes 2 or 3 times, never 0.
    """
    generator = numpy_generator(seed, "epoch", epoch)
    order = generator.permutation(n)
    if weights is None:
        return order
    ends = np.cumsum(weights[order] / weights.sum()) * n
    ends[-1] = n  # rounding must not leave the last point without a sample
    points = generator.random() + np.arange(n)
    return generator.permutation(order[np.searchsorted(ends, points, side="right")])


def _repeats(order: np.ndarray) -> np.ndarray:
    """Count how often each entry occurred before its position -> int64 [n]."""
    by_value = np.argsort(order, kind="stable")
    values = order[by_value]
    first = np.searchsorted(values, values, side="left")  # where the run of equal values begins
    repeats = np.empty_like(order)
    repeats[by_value] = np.arange(len(order)) - first
    return repeats


def iterate_batch_keys(
    n: int,
    batch_size: int,
    seed: int,
    first_step: int,
    last_step: int,
    weights: np.ndarray | None = None,
    rank: int = 0,
    world: int = 1,
    shards: np.ndarray | None = None,
    group: int = SHUFFLE_SHARDS,
) -> Iterator[list[SampleKey]]:
    """Iterate over the batches of steps first_step .. last_step - 1: this rank's share of each.

    `weights`, `shards` and `group` as in `draw_epoch_order`.
    """
    _check_sampling(n, batch_size, weights, rank, world)

    def order_of(epoch: int) -> np.ndarray:
        return draw_epoch_order(seed, epoch, n, weights, shards, group)

    steps = range(first_step, last_step)
    return _iterate_steps(n, batch_size, steps, order_of, weights is not None, (rank, world))


def check_batch_divisible(batch_size: int, world: int) -> None:
    """Raise ConfigError unless the processes' shares of a batch are equal."""
    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size} must be greater than 0")
    if not batch_size % world:
        return
    more = batch_size + -batch_size % world
    batches = f"{more - world} or {more}" if batch_size > world else f"{more}"
    fewer = next(count for count in range(world, 0, -1) if not batch_size % count)
    raise ConfigError(
        f"--batch-size {batch_size} is not a multiple of the {world} processes: take {batches}, or "
        f"start {fewer} process{'es' * (fewer > 1)}"
    )


def _check_sampling(
    n: int, batch_size: int, weights: np.ndarray | None, rank: int, world: int
) -> None:
    if n < 1:
        raise ConfigError("there is nothing to train on: 0 samples")
    check_batch_divisible(batch_size, world)
    assert 0 <= rank < world
    if weights is not None and (len(weights) != n or min(weights) < 0 or not sum(weights) > 0):
        raise ConfigError(f"sampling weights must be {n} numbers >= 0, not all 0")


def _iterate_steps(
    n: int,
    batch_size: int,
    steps: range,
    order_of: Callable[[int], np.ndarray],
    repeating: bool,
    share: tuple[int, int],
) -> Iterator[list[SampleKey]]:
    rank, world = share
    mine = batch_size // world
    current, order, repeats = -1, np.empty(0, np.int64), np.empty(0, np.int64)
    for step in steps:
        start = step * batch_size + rank * mine
        places = []
        for position in range(start, start + mine):
            epoch, slot = divmod(position, n)
            if epoch != current:
                current, order = epoch, order_of(epoch)
                repeats = _repeats(order) if repeating else np.zeros_like(order)
            places.append(SampleKey(epoch, int(order[slot]), int(repeats[slot])))
        yield places
