"""Images that an exported file is compared with PyTorch on, and what int8 costs in accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from patchwords.data.dataset import ImageDataset, concatenate_datasets
from patchwords.data.loader import choose_num_workers, load_eval_batches
from patchwords.data.open import open_data
from patchwords.device import choose_device
from patchwords.errors import PatchwordsError
from patchwords.evaluation.held_out import (
    evaluate_predictions,
    map_to_model_labels,
    predict_examples,
    read_run_splits,
    select_held_out,
)
from patchwords.evaluation.results import Results
from patchwords.export.runtime import open_exported_model
from patchwords.export.write import ExportedFiles
from patchwords.training.config import read_config_yaml
from patchwords.training.logs.run_folder import RunFolder
from patchwords.weights.pretrained import Pretrained

NUM_COMPARED_PHOTOS = 8  # to compare on, next to noise


@dataclass(frozen=True)
class Export:
    """What was exported, and how far it is from PyTorch."""

    source: Pretrained  # the model, at the size that was exported
    written: ExportedFiles
    accuracy: dict[str, Any] | None  # of PyTorch and of the file, where they were compared

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, and that of its weights where they are apart."""
        return self.written.files

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rounded = self.written.quantized
        return {
            "files": [str(file) for file in self.files],
            "bytes": self.written.bytes,
            "largest_difference": self.written.difference.largest,
            "largest_difference_int8": None if rounded is None else rounded.largest,
            **({} if self.accuracy is None else self.accuracy),
        }

    def _repr_html_(self) -> str:
        return Results(self.to_dict(), "export")._repr_html_()


def select_calibration_images(source: Pretrained, run: Path | None, data: str) -> ImageDataset:
    """Select labelled images that the run was not trained on, with the model's labels."""
    opened = open_data(data, need_labels=False)
    recorded = {} if run is None else read_run_splits(run, opened)
    examples = select_held_out(opened, recorded).examples
    return map_to_model_labels(examples, source.labels, data)


def find_recorded_images(run: Path | None) -> ImageDataset | None:
    """Find the images that a run was made of, if they are still where they were."""
    if run is None or not RunFolder(run).config.is_file():
        return None
    try:
        data = str(read_config_yaml(RunFolder(run).config)["data"])
        if data != "digits" and not Path(data).exists():  # nothing is fetched from the network
            return None
        return concatenate_datasets(list(open_data(data, need_labels=False).splits.values()))
    except (PatchwordsError, KeyError):  # noise does without
        return None


def load_comparison_photos(source: Pretrained, examples: ImageDataset | None) -> Tensor | None:
    """Load a few of the images, spread over all: uint8 [B, C, H, W]."""
    if not examples:
        return None
    chosen = np.unique(np.linspace(0, len(examples) - 1, NUM_COMPARED_PHOTOS).astype(int))
    batch = next(
        iter(load_eval_batches(examples.select(chosen), source.preprocess, NUM_COMPARED_PHOTOS))
    )
    return batch.images if len(batch.indices) else None


def compare_accuracy(source: Pretrained, file: Path, examples: ImageDataset) -> dict[str, Any]:
    """Compare the accuracy of a model and of the file exported from it, on the CPU."""
    before, first = evaluate_on_cpu(source, source.model, examples)
    after, second = evaluate_on_cpu(source, open_exported_model(file).model, examples)
    return {
        "images": before["images"],
        "pytorch": before["accuracy"],
        "file": after["accuracy"],
        "changed": int((first != second).sum()),
    }


def evaluate_on_cpu(
    source: Pretrained, model: nn.Module, examples: ImageDataset
) -> tuple[dict[str, Any], np.ndarray]:
    """Metrics of a model, and its answers int [n]."""
    device, workers = choose_device("cpu", "fp32"), choose_num_workers(examples)
    found = predict_examples(model, examples, source.preprocess, device, workers)
    metrics = evaluate_predictions(found, examples, source.labels, max_bad=0.01)
    return metrics, found.probabilities.argmax(1)
