"""Fetching the shards that are wanted next, while those at hand are being read.

Whoever reads images says where it has come to; where that is a new group of shards (see
`plan.shard_groups`), a thread begins to bring the rest of it and the next. Every worker process
does so for itself, beginning with another shard, so that several come at once; what another
process is at is passed over. The thread is started where the reading is done: none is running
when processes fork.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from patchwords.data.examples import ImageDataset
from patchwords.data.listing import pluralize
from patchwords.data.plan import SampleKey, draw_shard_groups
from patchwords.data.shard_store import ShardReader, ShardStore
from patchwords.errors import ConfigError, PatchwordsError


@dataclass
class ShardPrefetcher:
    """Told each place that is reached; brings this group and the next."""

    shards: ShardStore
    shard_of: np.ndarray  # [n] of the samples that are trained on
    seed: int
    group: int  # shards
    epoch: int = -1  # of which `groups` and `group_of` are
    groups: list[np.ndarray] = field(default_factory=list)
    group_of: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # [shards]
    begun: tuple[int, int] = (-1, -1)  # epoch and group that were last brought from
    thread: threading.Thread | None = None

    def __call__(self, place: SampleKey) -> None:
        if place.epoch != self.epoch:
            self.epoch = place.epoch
            self.groups = self._groups(place.epoch)
            self.group_of = np.zeros(len(self.shards.shards), np.int64)
            for number, group in enumerate(self.groups):
                self.group_of[group] = number
        here = int(self.group_of[self.shard_of[place.sample]])
        busy = self.thread is not None and self.thread.is_alive()
        if (place.epoch, here) > self.begun and not busy:
            self.begun = (place.epoch, here)
            self.thread = threading.Thread(target=self._bring, args=self._wanted(here), daemon=True)
            self.thread.start()

    def _groups(self, epoch: int) -> list[np.ndarray]:
        return draw_shard_groups(self.seed, epoch, self.shard_of, self.group)

    def _wanted(self, here: int) -> tuple[list[int], list[int]]:
        """The shards of this group, and of the next one, which may be of the next epoch."""
        last = here + 1 == len(self.groups)
        following = self._groups(self.epoch + 1)[0] if last else self.groups[here + 1]
        now = self.groups[here].tolist()
        return now, [shard for shard in following.tolist() if shard not in now]

    def _bring(self, now: list[int], following: list[int]) -> None:
        keep = {*now, *following}
        turn = os.getpid()  # so that workers begin at different shards
        for group in (now, following):
            for place in range(len(group)):
                with suppress(PatchwordsError):  # whoever wants the shard will meet it, and say it
                    self.shards.bring_ahead(group[(place + turn) % len(group)], keep)


def build_shard_prefetcher(examples: ImageDataset, seed: int, group: int) -> ShardPrefetcher | None:
    """For the order of `plan.train_plan` with the same settings; None where nothing is far away."""
    if examples.shards is None or not isinstance(examples.reader, ShardReader):
        return None
    return ShardPrefetcher(examples.reader.shards, examples.shards, seed, group)


def check_shard_cache_size(examples: ImageDataset, group: int) -> None:
    """Raise ConfigError where the shards that are read at a time do not fit into the cache."""
    if not isinstance(examples.reader, ShardReader):
        return
    shards = examples.reader.shards
    needs = sorted((shard.needs for shard in shards.shards), reverse=True)[:group]
    if sum(needs) > shards.cache.bound:
        raise ConfigError(
            f"--cache-size {shards.cache.bound / 2**30:.3g} GiB is less than the "
            f"{sum(needs) / 2**30:.3g} GiB of {pluralize(len(needs), 'shard')} mixed at a time; "
            "raise it (twice as much lets the next ones come ahead), or lower --shuffle-shards"
        )
