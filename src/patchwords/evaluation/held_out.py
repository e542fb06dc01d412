"""Held-out images of a model, and its evaluation on them.

A model's own training images would inflate its accuracy (the published flower_photos replication
counted them in), so a run's record comes first: an image that was trained on, by its path and
length (splits.csv) or by its content (fingerprints.npy), is left out even if the data are split
differently today, or the image has another name or was saved again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from patchwords.data.dataset import (
    ALL,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    DatasetSplits,
    ImageDataset,
    concatenate_datasets,
    pluralize,
)
from patchwords.data.doctor.contents import read_fingerprints, recognise_images
from patchwords.data.loader import check_bad_image_share, load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import fingerprint_dataset, read_splits
from patchwords.device import Device
from patchwords.distributed import all_reduce_means, get_world, run_on_all_processes
from patchwords.errors import DataError, did_you_mean
from patchwords.evaluation.imagenet import (
    evaluate_accepted_classes,
    read_accepted_classes,
    rename_wnid_classes,
)
from patchwords.evaluation.metrics import compute_classification_metrics, mean_cross_entropy
from patchwords.evaluation.predictions import (
    LoadedModel,
    Predictions,
    predict_probabilities,
    write_predictions,
)
from patchwords.files import claim_output_folder
from patchwords.models.cost import count_macs, count_parameters
from patchwords.training.logs.run_folder import (
    RunFolder,
    describe_data,
    describe_environment,
    write_json,
)
from patchwords.training.training_run import TrainingRun
from patchwords.weights.pretrained import Pretrained

EVAL_BATCH_SIZE = 64
HELD_OUT = "held-out"
NEW_IMAGES = "new"  # images in no split of a run
RECORD_ORDER = (TRAIN, VALIDATION, TEST, UNUSED)  # the first counts where records differ
RecordedSplits = Mapping[tuple[str, int], str]  # (path, bytes) -> split, of one run


def evaluate_classifier(
    model: nn.Module, examples: ImageDataset, preprocess: Preprocess, device: Device, workers: int
) -> dict[str, Any]:
    """Measure loss and accuracy during training; each process measures its share."""
    share = examples if get_world().size == 1 else examples.select(get_process_indices(examples))
    predictions = run_on_all_processes(
        lambda: predict_examples(model, share, preprocess, device, workers)
    )
    labels, probabilities = predictions.labels, predictions.probabilities
    means = {"loss": 0.0, "accuracy": 0.0}
    if len(labels):
        means["loss"] = mean_cross_entropy(labels, probabilities)
        means["accuracy"] = float((probabilities.argmax(1) == labels).mean())
    means, images = all_reduce_means(means, len(labels))
    if not images:
        raise DataError("none of the validation images can be read; patchwords doctor says why")
    return {**means, "images": images}


def get_process_indices(examples: ImageDataset) -> range:
    """Return the positions of the examples that this process measures."""
    return range(get_world().rank, len(examples), get_world().size)


def predict_examples(
    model: nn.Module, examples: ImageDataset, preprocess: Preprocess, device: Device, workers: int
) -> Predictions:
    """Predict the probabilities of every readable image."""
    batches = load_eval_batches(examples, preprocess, EVAL_BATCH_SIZE, workers)
    return predict_probabilities(model, batches, preprocess, device.torch_device, device.precision)


def evaluate_predictions(
    predictions: Predictions, examples: ImageDataset, classes: Sequence[str], max_bad: float
) -> dict[str, Any]:
    """Compute the metrics of the readable images; the others are listed, and must be few."""
    bad = [(examples.keys[index], reason) for index, reason in predictions.bad]
    check_bad_image_share(bad, len(examples), "images", max_bad)
    result = compute_classification_metrics(predictions.labels, predictions.probabilities, classes)
    return {**result, "skipped": [{"path": path, "reason": reason} for path, reason in bad]}


@dataclass(frozen=True)
class HeldOutSelection:
    """The images to evaluate on, and the images left out."""

    split: str  # its name in a report
    examples: ImageDataset
    trained_on: int  # images of the data that the run trained on
    recognised: int = 0  # of them, those recognised by content, under other names or saved again


def describe_left_out(trainer: str, trained_on: int, recognised: int) -> str:
    """Describe the training images left out, `recognised` of them by content."""
    renamed = f" ({recognised:,} under other names or saved again)" if recognised else ""
    return (
        f"{pluralize(trained_on, 'image was', 'images were')} left out: {trainer} trained on "
        f"{'it' if trained_on == 1 else 'them'}{renamed}"
    )


def select_held_out(
    data: DatasetSplits,
    recorded: RecordedSplits,
    split: str = HELD_OUT,
    renamed: RecordedSplits | None = None,
) -> HeldOutSelection:
    """Select a split, as the run split the images, else as the data do.

    Args:
        recorded: (path, bytes) -> split of the run (`read_run_splits`); empty without a run.
        split: "held-out" is test, and images that are new to the run; without either, validation.
        renamed: what the run knows under other names (`recognise_run_images`), unless `recorded`
            has that as well.
    """
    renamed = renamed or {}
    recorded = {**recorded, **renamed}
    everything = concatenate_datasets(list(data.splits.values()))
    declared = [name for name, part in data.splits.items() for _ in range(len(part))]
    names = [
        recorded.get(
            place, NEW_IMAGES if declared_name in {ALL, TRAIN} and recorded else declared_name
        )
        for place, declared_name in zip(
            zip(everything.keys, everything.sizes.tolist(), strict=True), declared, strict=True
        )
    ]
    names = [NEW_IMAGES if name == ALL else name for name in names]
    found = Counter(names)
    wanted = {split}
    if split == ALL:
        wanted = set(names)
    elif split == HELD_OUT:
        wanted = {TEST, NEW_IMAGES} if found[TEST] or found[NEW_IMAGES] else {VALIDATION}
    chosen = np.array([i for i, name in enumerate(names) if name in wanted], dtype=np.int64)
    recognised = sum(name == TRAIN for name in renamed.values())
    if not len(chosen):
        there = ", ".join(f"{count:,} {name}" for name, count in found.items())
        more = f" ({recognised:,} under other names or saved again)" if recognised else ""
        raise DataError(f"{data.source}: no images of split {split!r}; there are {there}{more}")
    called = "+".join(sorted(wanted & found.keys(), reverse=True))
    return HeldOutSelection(called, everything.select(chosen), found[TRAIN], recognised)


def map_to_model_labels(examples: ImageDataset, labels: Sequence[str], source: str) -> ImageDataset:
    """Map the examples' labels to positions in the model's, by name."""
    place = {name: i for i, name in enumerate(labels)}
    present = [examples.classes[i] for i in np.flatnonzero(examples.count_per_class())]
    for name in present:
        if name not in place:
            raise DataError(
                f"{source}: class {name!r} is not one of the model's{did_you_mean(name, labels)}"
            )
    # an image without a label has -1, which finds the last
    table = np.array([*(place.get(name, -1) for name in examples.classes), -1], dtype=np.int64)
    return replace(examples, classes=tuple(labels), labels=table[examples.labels])


def choose_final_split(data: DatasetSplits) -> tuple[str, ImageDataset]:
    """Choose the split of a run's report: test if there is one, else validation."""
    for name in (TEST, VALIDATION):
        if name in data.splits and len(data.splits[name]):
            return name, data.splits[name]
    raise DataError(f"{data.source}: nothing was held out; --test and --validation are both 0")


def read_run_splits(model: Path, data: DatasetSplits | None = None) -> dict[tuple[str, int], str]:
    """Read splits.csv of a model's run (its run folder, or model/ in it); empty without one.

    With `data`, its images that the run knows under other names are in it, too.
    """
    for folder in (model, model.resolve().parent):
        if (folder / "splits.csv").is_file():
            recorded = read_splits(folder / "splits.csv")
            return recorded if data is None else recorded | recognise_run_images(folder, data)
    return {}


def recognise_run_images(model: Path, data: DatasetSplits) -> dict[tuple[str, int], str]:
    """Recognise images by content that a run has under other names -> their splits in the run.

    Only images that are not in the record by path and length are looked at.
    """
    run = next(
        (
            RunFolder(folder)
            for folder in (model, model.resolve().parent)
            if RunFolder(folder).fingerprints.is_file() and RunFolder(folder).splits.is_file()
        ),
        None,
    )
    if run is None:
        return {}
    recorded, known = read_splits(run.splits), read_fingerprints(run.fingerprints)
    splits = list(recorded.values())
    if len(splits) != len(known):
        return {}  # splits.csv was edited
    recognised = {}
    for examples in data.splits.values():
        places = list(zip(examples.keys, examples.sizes.tolist(), strict=True))
        strange = [i for i, place in enumerate(places) if place not in recorded]
        for index, matches in recognise_images(examples, strange, known).items():
            split = min((splits[match] for match in matches), key=RECORD_ORDER.index)
            recognised[places[index]] = split
    return recognised


def merge_run_splits(recorded: Sequence[RecordedSplits]) -> dict[tuple[str, int], str]:
    """Merge splits of several runs: trained on by any, then validated on by any, else test."""
    known: dict[tuple[str, int], str] = {}
    for record in recorded:
        for place, split in record.items():
            known[place] = min(split, known.get(place, split), key=RECORD_ORDER.index)
    return known


@dataclass(frozen=True)
class ModelEvaluation:
    """Metrics and predictions of a model on images."""

    values: dict[str, Any]  # evaluation.json
    selection: HeldOutSelection
    data: DatasetSplits  # the evaluated images, by split
    predictions: Predictions
    device: Device

    @property
    def examples(self) -> ImageDataset:
        """The evaluated images, with the model's labels."""
        return self.data.splits[self.selection.split]

    def write(self, folder: Path) -> None:
        """Write evaluation.json, predictions.csv, and a description of data and machine."""
        write_evaluation(folder, self.examples, self.predictions, self.values)
        data, run = self.data, RunFolder(folder)
        about = {"source": data.source, "kind": data.kind, "fingerprint": fingerprint_dataset(data)}
        write_json(run.environment, describe_environment(self.device.describe(), about))
        write_json(run.data, describe_data(data, {}))


def evaluate_model(
    loaded: LoadedModel,
    data: DatasetSplits,
    split: str = HELD_OUT,
    *,
    real: Path | None = None,
    max_bad: float = 0.01,
    output: Path | None = None,
    overwrite: bool = False,
) -> ModelEvaluation:
    """Evaluate a model on images of a split that its run was not trained on.

    Args:
        split: as in `select_held_out`.
        real: a file of several right classes per image, by which it is judged as well.
        output: a new folder for evaluation.json and predictions.csv.
    """
    source = loaded.source
    source.require_classes(loaded.name)
    if loaded.device.int8:  # int8 needs more than the weights
        source = source.for_inference(loaded.device)
    recorded = {} if loaded.folder is None else read_run_splits(loaded.folder)
    renamed = {} if loaded.folder is None else recognise_run_images(loaded.folder, data)
    selection = select_held_out(data, recorded, split, renamed)
    examples = rename_wnid_classes(selection.examples, source.labels, loaded.name)
    examples = map_to_model_labels(examples, source.labels, data.source)
    accepted = None
    if real is not None:  # before predicting, as it may not match
        accepted = read_accepted_classes(real, examples, source.labels, loaded.name)
    folder = claim_output_folder(output, overwrite)
    predictions = predict_examples(
        source.model, examples, source.preprocess, loaded.device, loaded.workers_for(examples)
    )
    values = {
        "split": selection.split,
        "selected": False,
        "trained_on": TRAIN in selection.split.split("+") if recorded else None,
        "of": loaded.name,
        **describe_evaluated_model(source, loaded.device),
        **evaluate_predictions(predictions, examples, source.labels, max_bad),
    }
    if real is not None and accepted is not None:
        values["real"] = evaluate_accepted_classes(real, accepted, predictions)
    judged = replace(data, splits={selection.split: examples})
    evaluation = ModelEvaluation(values, selection, judged, predictions, loaded.device)
    if folder is not None:
        evaluation.write(folder)
    return evaluation


# Final evaluation of a run on its held-out images, read once, after training.


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
    """Describe the evaluated model, for evaluation.json."""
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
    """Write predictions.csv, and evaluation.json with the metrics and these entries:

    `selected`: the split also chose something (when to stop), so that its metrics are optimistic;
    `trained_on`: the model was trained on some of the images (None: unknown);
    `of`: where the model came from, if the folder is not its own run.
    """
    write_predictions(folder / "predictions.csv", examples, predictions, evaluation["classes"])
    write_json(folder / "evaluation.json", evaluation)
