"""Inputs of a probe: a frozen model, images to train and test on, and a feature extractor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwords.data.open import open_data
from patchwords.device import Device
from patchwords.distributed import (
    broadcast_from_main,
    get_world,
    is_main_process,
    join_process_group,
    run_on_all_processes,
)
from patchwords.evaluation.held_out import read_run_splits
from patchwords.evaluation.predictions import LoadedModel, load_model_on_device
from patchwords.evaluation.probes.cache import (
    FeatureCache,
    FeatureExtractor,
    FeatureProgress,
    build_feature_extractor,
)
from patchwords.evaluation.probes.features import ProbeSplit, split_for_probe
from patchwords.models.cost import count_parameters
from patchwords.weights.pretrained import Pretrained

ShowProgress = Callable[[], AbstractContextManager[FeatureProgress | None]]


@dataclass(frozen=True)
class ProbeInputs:
    """A frozen model and the images to probe it with."""

    loaded: LoadedModel
    split: ProbeSplit
    cache: FeatureCache | None
    extract: FeatureExtractor

    def describe(self) -> dict[str, Any]:
        """Describe the model, for the results."""
        return {
            "model": self.loaded.name,
            "architecture": self.loaded.source.architecture,
            "parameters": count_parameters(self.loaded.model.config),
            "image_size": list(self.loaded.preprocess.image_size),
            "precision": self.loaded.device.precision,
        }

    @property
    def train_is_cached(self) -> bool:
        """Whether the cache has the features of all training images; all processes call it."""
        if self.cache is None:
            return False
        loaded = self.loaded
        inputs = loaded.model, self.split.train, loaded.preprocess, loaded.device
        return broadcast_from_main(get_world().is_main and self.cache.holds(*inputs))


@contextmanager
def open_probe_inputs(
    model: str | Path | Pretrained,
    data: str,
    device: Device,
    cache: FeatureCache | None,
    *,
    seed: int = 0,
    workers: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    show_progress: ShowProgress = nullcontext,
) -> Iterator[ProbeInputs]:
    """Load a model and open the images of a probe, in all processes that torchrun started.

    Args:
        seed: of the split into train and test, where neither run nor data has one.
        workers: processes that decode images; default: as many as are useful.
        show_progress: opens a progress display, in the main process.

    Features are extracted inside the context, where the processes can communicate.
    """
    silent: AbstractContextManager[FeatureProgress | None] = nullcontext()
    with (
        join_process_group(cuda=device.type == "cuda"),
        show_progress() if is_main_process() else silent as progress,
    ):
        loaded = run_on_all_processes(lambda: load_model_on_device(model, device, workers))
        # a class may have a single training image, as no validation images are held out
        images = run_on_all_processes(
            lambda: open_data(
                data, image_column=image_column, label_column=label_column, unseen_classes=True
            )
        )
        recorded = {} if loaded.folder is None else read_run_splits(loaded.folder, images)
        split = run_on_all_processes(lambda: split_for_probe(images, recorded, seed))
        extract = build_feature_extractor(loaded, cache, progress)
        yield ProbeInputs(loaded, split, cache, extract)
