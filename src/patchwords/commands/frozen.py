"""What the probes of a frozen model have in common: its features, kept for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchwords.commands.evaluator import DataOptions, DeviceOptions

if TYPE_CHECKING:
    from patchwords.device import Device
    from patchwords.evaluate.feature_cache import FeatureCache
    from patchwords.evaluate.frozen import FeatureExtractor
    from patchwords.evaluate.subject import LoadedModel
    from patchwords.evaluate.train_test import ProbeSplit

FEATURE_CACHE_FOLDER = "features"  # in the cache folder


@dataclass(frozen=True)
class CacheOptions:
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
        folder = cache_folder() / FEATURE_CACHE_FOLDER if self.cache is None else Path(self.cache)
        return FeatureCache(folder.absolute(), int(self.cache_size * GIB))


@dataclass(frozen=True)
class ProbeInputs:
    """A model and the images to ask it about."""

    subject: LoadedModel
    pair: ProbeSplit
    cache: FeatureCache | None
    ask: FeatureExtractor

    def describe(self) -> dict[str, Any]:
        """The model, for the results."""
        from patchwords.model.cost import count_parameters

        return {
            "model": self.subject.name,
            "architecture": self.subject.source.architecture,
            "parameters": count_parameters(self.subject.model.config),
            "image_size": list(self.subject.preprocess.image_size),
            "precision": self.subject.device.precision,
        }

    @property
    def whole_is_kept(self) -> bool:
        """Whether the cache has the features of all images to learn from; all processes ask."""
        from patchwords.distributed import broadcast_from_main, get_world

        if self.cache is None:
            return False
        subject = self.subject
        of = subject.model, self.pair.train, subject.preprocess, subject.device
        return broadcast_from_main(get_world().is_main and self.cache.holds(*of))


@contextmanager
def open_probe_inputs(
    model: str, data: str, where: DeviceOptions, images: DataOptions, cache: CacheOptions, seed: int
) -> Iterator[ProbeInputs]:
    """For the time that features are asked for; processes that torchrun started can talk."""
    from patchwords.commands.doctor_summary import show_progress
    from patchwords.data.open import open_data
    from patchwords.distributed import is_main_process, join_process_group, run_on_all_processes
    from patchwords.evaluate.frozen import build_feature_extractor
    from patchwords.evaluate.held_out import read_run_splits
    from patchwords.evaluate.subject import load_model_on_device
    from patchwords.evaluate.train_test import split_for_probe

    device: Device = where.choose()
    kept = cache.open()
    silent: Any = nullcontext(None)
    with (
        join_process_group(cuda=device.type == "cuda"),
        show_progress("computing features") if is_main_process() else silent as progress,
    ):
        subject = run_on_all_processes(lambda: load_model_on_device(model, device, where.workers))
        # a class may have one image to learn from, as nothing is held out of it
        found = run_on_all_processes(
            lambda: open_data(
                data,
                image_column=images.image_column,
                label_column=images.label_column,
                unseen_classes=True,
            )
        )
        recorded = read_run_splits(Path(model))
        pair = run_on_all_processes(lambda: split_for_probe(found, recorded, seed))
        yield ProbeInputs(subject, pair, kept, build_feature_extractor(subject, kept, progress))


def print_image_counts(results: dict[str, Any], say: Callable[[str], None]) -> None:
    """Which images were learned from and judged, and which could not be read."""
    say(f"{results['test']:,} images of test; {results['divided']}")
    if results["skipped"]:
        first = results["skipped"][0]
        say(
            f"{len(results['skipped'])} images cannot be read, the first: {first['path']} "
            f"({first['reason']})"
        )
