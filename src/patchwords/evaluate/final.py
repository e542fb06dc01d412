"""The last word on a run: its held-out images, read once, after training has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchwords.data.examples import VALIDATION, Examples
from patchwords.device import Device
from patchwords.evaluate.classify import write_predictions
from patchwords.evaluate.held_out import final_split, judge, predict
from patchwords.model.cost import macs, parameters
from patchwords.train.job import Job
from patchwords.train.run_folder import write_json
from patchwords.weights.pretrained import Pretrained


def evaluate_job(job: Job) -> tuple[str, Examples, dict[str, Any]]:
    """Judge the model that a run ended with; writes evaluation.json and predictions.csv.

    -> (split, its examples, evaluation). In float32, whatever training used: the model that is
    saved will be asked in float32 too.
    """
    split, examples = final_split(job.data)
    source = Pretrained(job.start.model, job.start.preprocess, job.data.classes, job.start.name)
    chose = split == VALIDATION and job.config.recipe.early_stop is not None
    evaluation = write_evaluation(
        job.folder.path,
        source,
        split,
        examples,
        Device(job.device.torch_device, bf16=False),
        workers=job.workers,
        max_bad=job.config.data_settings.max_bad,
        selected=chose,
    )
    return split, examples, evaluation


def write_evaluation(
    folder: Path,
    source: Pretrained,
    split: str,
    examples: Examples,
    device: Device,
    *,
    workers: int,
    max_bad: float,
    selected: bool = False,
    trained_on: bool | None = False,
    model: str | None = None,
) -> dict[str, Any]:
    """Run the model over the examples; evaluation.json and predictions.csv go into the folder.

    `selected` says that the split also chose something (when to stop), so that its numbers flatter;
    `trained_on`, that the model was trained on some of the images (None: nobody knows); `model` is
    where the model came from, if this folder is not its own run.
    """
    predictions = predict(source.model, examples, source.preprocess, device, workers)
    config = source.model.config
    evaluation = {
        "split": split,
        "selected": selected,
        "trained_on": trained_on,
        "of": model,
        "model": source.architecture,
        "parameters": parameters(config),
        "macs": macs(config),
        "image_size": list(source.preprocess.image_size),
        "precision": device.precision,
        "classes": list(source.labels),
        **judge(predictions, examples, source.labels, max_bad),
    }
    write_predictions(folder / "predictions.csv", examples, predictions, source.labels)
    write_json(folder / "evaluation.json", evaluation)
    return evaluation
