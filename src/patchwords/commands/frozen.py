"""What the probes of a frozen model have in common: its features, kept for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchwords.commands.evaluator import Images, Where

if TYPE_CHECKING:
    from patchwords.device import Device
    from patchwords.evaluate.feature_cache import FeatureCache
    from patchwords.evaluate.frozen import Ask
    from patchwords.evaluate.subject import Subject
    from patchwords.evaluate.train_test import TrainTest

FOLDER = "features"  # in the cache folder


@dataclass(frozen=True)
class Cache:
    """Where features are kept."""

    cache: str | None = None
    """folder for features, so that they are computed once; `none` keeps nothing. None given:
    features/ in PATCHWORDS_CACHE, or ~/.cache/patchwords/features"""
    cache_size: float = 16.0
    """GiB that the folder may take; what was used longest ago is removed first"""

    def open(self) -> FeatureCache | None:
        from patchwords.errors import ConfigError
        from patchwords.evaluate.feature_cache import GIB, FeatureCache
        from patchwords.files import cache_folder

        if not self.cache_size > 0:
            raise ConfigError(f"--cache-size {self.cache_size:g}: give GiB, more than 0")
        if self.cache == "none":
            return None
        folder = cache_folder() / FOLDER if self.cache is None else Path(self.cache)
        return FeatureCache(folder.absolute(), int(self.cache_size * GIB))


@dataclass(frozen=True)
class Opened:
    """A model and the images to ask it about."""

    subject: Subject
    pair: TrainTest
    cache: FeatureCache | None
    ask: Ask

    def describe(self) -> dict[str, Any]:
        """The model, for the results."""
        from patchwords.model.cost import parameters

        return {
            "model": self.subject.name,
            "architecture": self.subject.source.architecture,
            "parameters": parameters(self.subject.model.config),
            "image_size": list(self.subject.preprocess.image_size),
            "precision": self.subject.device.precision,
        }

    @property
    def whole_is_kept(self) -> bool:
        """Whether the cache has the features of all images to learn from; all processes ask."""
        from patchwords.distributed import from_main, world

        if self.cache is None:
            return False
        subject = self.subject
        of = subject.model, self.pair.train, subject.preprocess, subject.device
        return from_main(world().is_main and self.cache.holds(*of))


@contextmanager
def opened(
    model: str, data: str, where: Where, images: Images, cache: Cache, seed: int
) -> Iterator[Opened]:
    """For the time that features are asked for; processes that torchrun started can talk."""
    from patchwords.commands.doctor_summary import following
    from patchwords.data.open import open_data
    from patchwords.distributed import joined, speaks, together
    from patchwords.evaluate.frozen import asker
    from patchwords.evaluate.held_out import read_recorded
    from patchwords.evaluate.subject import load_subject
    from patchwords.evaluate.train_test import train_and_test

    device: Device = where.choose()
    kept = cache.open()
    silent: Any = nullcontext(None)
    with (
        joined(cuda=device.type == "cuda"),
        following("computing features") if speaks() else silent as progress,
    ):
        subject = together(lambda: load_subject(model, device, where.workers))
        # a class may have one image to learn from, as nothing is held out of it
        found = together(
            lambda: open_data(
                data,
                image_column=images.image_column,
                label_column=images.label_column,
                unseen_classes=True,
            )
        )
        recorded = read_recorded(Path(model))
        pair = together(lambda: train_and_test(found, recorded, seed))
        yield Opened(subject, pair, kept, asker(subject, kept, progress))


def say_images(results: dict[str, Any], say: Callable[[str], None]) -> None:
    """Which images were learned from and judged, and which could not be read."""
    say(f"{results['test']:,} images of test; {results['divided']}")
    if results["skipped"]:
        first = results["skipped"][0]
        say(
            f"{len(results['skipped'])} images cannot be read, the first: {first['path']} "
            f"({first['reason']})"
        )
