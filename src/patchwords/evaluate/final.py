"""The last word on a run: its held-out images, read once, after training has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchwords.data.examples import VALIDATION, ImageDataset
from patchwords.device import Device
from patchwords.evaluate.classify import Predictions, write_predictions
from patchwords.evaluate.held_out import choose_final_split, evaluate_predictions, predict_examples
from patchwords.model.cost import count_macs, count_parameters
from patchwords.train.job import TrainingRun
from patchwords.train.run_folder import write_json
from patchwords.weights.pretrained import Pretrained


def evaluate_finished_run(job: TrainingRun) -> tuple[str, ImageDataset, dict[str, Any]]:
    """Judge the model that a run ended with; writes evaluation.json and predictions.csv.

    -> (split, its examples, evaluation). In float32, whatever training used: the model that is
    saved will be asked in float32 too.
    """
    split, examples = choose_final_split(job.data)
    source = Pretrained(job.start.model, job.start.preprocess, job.data.classes, job.start.name)
    device = Device(job.device.torch_device, bf16=False)
    predictions = predict_examples(source.model, examples, source.preprocess, device, job.workers)
    evaluation = {
        "split": split,
        "selected": split == VALIDATION and job.config.recipe.early_stop is not None,
        "trained_on": False,
        "of": None,
        **describe_evaluated_model(source, device),
        **evaluate_predictions(
            predictions, examples, source.labels, job.config.data_settings.max_bad
        ),
    }
    write_evaluation(job.folder.path, examples, predictions, evaluation)
    return split, examples, evaluation


def describe_evaluated_model(source: Pretrained, device: Device) -> dict[str, Any]:
    """What was asked, for evaluation.json."""
    config = source.model.config
    return {
        "model": source.architecture,
        "parameters": count_parameters(config),
        "macs": count_macs(config),
        "image_size": list(source.preprocess.image_size),
        "precision": device.precision,
        "classes": list(source.labels),
    }


def write_evaluation(
    folder: Path, examples: ImageDataset, predictions: Predictions, evaluation: dict[str, Any]
) -> None:
    """Write predictions.csv, and evaluation.json, which says beside the metrics:

    `selected`: the split also chose something (when to stop), so that its numbers flatter;
    `trained_on`: the model was trained on some of the images (None: nobody knows);
    `of`: where the model came from, if the folder is not its own run.
    """
    write_predictions(folder / "predictions.csv", examples, predictions, evaluation["classes"])
    write_json(folder / "evaluation.json", evaluation)
