"""The public functions: train, evaluate, and open what a run has left.

Settings have the names of the command line's flags, `--batch-size` as `batch_size`, and are checked
alike; the commands themselves call these functions. Errors are one line, a `PatchwordsError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from rich.console import Console

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import check_bad_image_share
from patchwords.data.open import wrap_images
from patchwords.data.preprocess import Preprocess
from patchwords.data.torch_dataset import load_dataset
from patchwords.device import DeviceName, choose_device
from patchwords.distributed import is_main_process
from patchwords.errors import ConfigError, DataError, Interrupted
from patchwords.evaluation.held_out import (
    HELD_OUT,
    HeldOutSelection,
    choose_final_split,
    evaluate_finished_run,
    evaluate_model,
)
from patchwords.evaluation.predictions import EvaluationOptions, LoadedModel, load_model_on_device
from patchwords.evaluation.pretraining import evaluate_mae_run, evaluate_masked_run
from patchwords.evaluation.probes.features import TokenChoice, extract_example_features
from patchwords.evaluation.probes.fewshot import measure_fewshot
from patchwords.evaluation.results import Interval, Results, format_html_table
from patchwords.models.build import Model
from patchwords.processes import check_main_guard
from patchwords.report.page import write_report
from patchwords.report.run_data import read_run_data
from patchwords.report.run_insight import write_training_insight
from patchwords.tasks.classification import Classification
from patchwords.tasks.held_out_metrics import evaluate_by_objective
from patchwords.tasks.segmentation import Segmentation
from patchwords.tasks.segmentation.evaluate import RESULT_FILE as SEGMENTATION_FILE
from patchwords.tasks.segmentation.evaluate import evaluate_segmentation_run
from patchwords.tasks.segmentation.folder import open_segmenter
from patchwords.tasks.segmentation.held_out import evaluate_segmenter
from patchwords.training.config import FinetuneConfig, PretrainConfig, read_config_yaml
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.logs.run_folder import RunFolder
from patchwords.training.objectives.mae import MaskedAutoencoding
from patchwords.training.objectives.masked import MaskedPatchPrediction
from patchwords.training.run import explain_training, train_model
from patchwords.training.setting_layers import ConfigT, apply_settings, layer_settings
from patchwords.training.training_run import TrainingRun
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.store import from_pretrained

if TYPE_CHECKING:
    from patchwords.data.decode import ImageLike
    from patchwords.export.comparison import Export

    Images = ImageLike | Iterable[ImageLike]

# Training.


@overload
def finetune(
    data: str | Path,
    *,
    weights: str | Path | Run | None = None,
    model: str | None = None,
    output: str | Path | None = None,
    config: str | Path | None = None,
    explain: Literal[False] = False,
    **settings: Any,
) -> Run: ...
@overload
def finetune(data: str | Path, *, explain: Literal[True], **settings: Any) -> dict[str, Any]: ...
def finetune(
    data: str | Path,
    *,
    weights: str | Path | Run | None = None,
    model: str | None = None,
    output: str | Path | None = None,
    config: str | Path | None = None,
    **settings: Any,
) -> Run | dict[str, Any]:
    """Fine-tune a model on images with classes, evaluate it, and write a report.

    Args:
        data: a folder, CSV, parquet, tar shards, hf:NAME or digits.
        weights: what to start from: a run, a folder, a published name, "none" or "auto"; default:
            auto where the data choose the model, else none.
        model: the architecture; default: that of the weights, else chosen by the data.
        output: run folder to write; default: runs/DATA-MODEL.
        config: YAML file with settings, which those given here override.
        explain: only show the settings and return them: {name: {"value": ..., "why": ...}}.
        settings: flags of `patchwords finetune` by name, as budget="15m", lr=1e-3, train="head".

    Raises ConfigError, DataError or WeightsError before anything is written; Interrupted leaves a
    checkpoint that `Run.resume` continues from.
    """
    named = {"data": data, "weights": weights, "model": model, "output": output}
    return start_training(FinetuneConfig(), named, settings, config)


@overload
def pretrain(
    data: str | Path,
    *,
    weights: str | Path | Run | None = None,
    model: str | None = None,
    output: str | Path | None = None,
    config: str | Path | None = None,
    explain: Literal[False] = False,
    **settings: Any,
) -> Run: ...
@overload
def pretrain(data: str | Path, *, explain: Literal[True], **settings: Any) -> dict[str, Any]: ...
def pretrain(
    data: str | Path,
    *,
    weights: str | Path | Run | None = None,
    model: str | None = None,
    output: str | Path | None = None,
    config: str | Path | None = None,
    **settings: Any,
) -> Run | dict[str, Any]:
    """Train a model for others to start from, as `patchwords pretrain`; see `finetune`."""
    named = {"data": data, "weights": weights, "model": model, "output": output}
    return start_training(PretrainConfig(), named, settings, config)


def start_training(
    blank: FinetuneConfig,
    named: Mapping[str, Any],
    settings: Mapping[str, Any],
    file: str | Path | None,
) -> Run | dict[str, Any]:
    """Train, or explain, by named arguments, as far as they are given, and settings over a file."""
    check_main_guard()
    given = {
        name: value.folder if isinstance(value, Run) else value
        for name, value in named.items()
        if value is not None
    }
    config = layer_arguments(blank, {**given, **settings}, file)
    if config.explain:
        return explain_settings(config, make_display())
    return train(config, make_display())


def layer_arguments(
    blank: ConfigT, settings: Mapping[str, Any], file: str | Path | None = None
) -> ConfigT:
    """Settings from keyword arguments, over those of a file, as the command line has them."""
    return layer_settings(
        blank,
        lambda default: apply_settings(default, settings),
        lambda table, default: apply_settings(default, table),
        None if file is None else Path(file),
    )


def explain_settings(config: FinetuneConfig, display: Display) -> dict[str, Any]:
    """Show the settings of a training and their reasons; -> {setting: {value, why}}."""
    config.check()
    return {
        setting.name: {"value": setting.value, "why": setting.why}
        for setting in explain_training(config, display)
    }


def make_display() -> Display:
    """Progress on the terminal or in the notebook, by the main process."""
    return Display(Console(quiet=not is_main_process()))


def train(config: FinetuneConfig, display: Display, announce: bool = True) -> Run:
    """Train as the config says, evaluate on the held-out images, and write the report."""
    config.check()
    job = train_model(config, display, measure_fewshot)
    run = Run(
        job.folder.path,
        device=job.device.type,
        steps=job.state.step,
        seconds=job.state.seconds,
    )
    if is_main_process():  # of several processes, the main one evaluates and reports
        report_training(job)
        for line in run.describe() if announce else ():
            display.say(line)
    return run


def report_training(job: TrainingRun) -> None:
    """Evaluate the model of a run that has ended training, look into it, and write the report."""
    try:
        if isinstance(job.objective, Classification):
            _, examples, _ = evaluate_finished_run(job)
            write_training_insight(job, examples)
            write_report(job.folder.path, examples)
        elif isinstance(job.objective, MaskedPatchPrediction | MaskedAutoencoding):
            mae = isinstance(job.objective, MaskedAutoencoding)
            (evaluate_mae_run if mae else evaluate_masked_run)(job)
            write_training_insight(job, choose_final_split(job.data)[1])
            write_report(job.folder.path)
        elif isinstance(job.objective, Segmentation):
            evaluate_segmentation_run(job)
            write_report(job.folder.path)
        else:
            evaluate_by_objective(job)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped before the report was written; go on with: {job.going_on}"
        ) from error


# Runs.

# What a run is judged by.
RESULT_FILES = ("evaluation.json", "masked.json", "mae.json", SEGMENTATION_FILE, "objective.json")


class Run:
    """A run folder, opened; what is heavy is read when it is first asked for."""

    def __init__(
        self,
        folder: str | Path,
        *,
        device: DeviceName = "auto",
        steps: int | None = None,
        seconds: float | None = None,
    ) -> None:
        self.folder, self.device = Path(folder), device
        self._trained = steps, seconds

    @cached_property
    def pretrained(self) -> Pretrained:
        """The model with its preprocessing and labels, on the device."""
        source = from_pretrained(self.folder)
        source.model.to(choose_device(self.device, "fp32").torch_device)
        return source

    @property
    def model(self) -> Model:
        """The trained model, in evaluation mode."""
        return self.pretrained.model

    @property
    def preprocess(self) -> Preprocess:
        """What makes of images what the model takes."""
        return self.pretrained.preprocess

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits; none without classes."""
        task = self.pretrained.task
        return self.pretrained.labels if task is None else tuple(task["classes"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting of the run, decided (config.yaml)."""
        return read_config_yaml(RunFolder(self.folder).config)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl: training, validation, notes."""
        return read_metrics(RunFolder(self.folder).metrics)

    @cached_property
    def metrics(self) -> Results:
        """The evaluation on held-out images; raises DataError where the run has not ended."""
        for name in RESULT_FILES:
            if (path := self.folder / name).is_file():
                return Results(json.loads(path.read_text(encoding="utf-8")), str(self.folder))
        raise DataError(
            f"{self.folder} has no evaluation yet: the run has not ended; go on with it by "
            "resume(), or patchwords finetune --resume"
        )

    @property
    def accuracy(self) -> Interval:
        """Accuracy on the held-out images."""
        return self.metrics.accuracy

    @property
    def report(self) -> Path:
        """The page for a browser."""
        return self.folder / "report.html"

    def predict(self, images: Images, top_k: int = 5) -> list[Any]:
        """Name the best `top_k` classes of an image, or of each of several, a folder, a pattern.

        A run of the task segmentation gives masks: `.mask`, `.shares`, `.overlay`, `.to_png()`.
        """
        if self.pretrained.task is not None:
            return open_segmenter(self.pretrained, choose_device(self.device, "fp32")).predict(
                images
            )
        return self.pretrained.predict(images, top_k)

    def embed(self, images: Images, tokens: TokenChoice = "classifier") -> np.ndarray:
        """Compute the features of an image, [R] or [N, D], or of each of several, [n, R] or more.

        `tokens`: what the classifier sees, the "class" token, the "mean" of the "patches", or each.
        """
        examples, single = wrap_images(images)
        subject = load_model_on_device(self.pretrained, choose_device(self.device, "fp32"))
        values = compute_features(subject, examples, tokens=tokens).values
        return values[0] if single else values

    def evaluate(self, data: str | Path, **settings: Any) -> Evaluation:
        """Evaluate on images that the run was not trained on; see `patchwords.evaluate`."""
        return evaluate(self, data, **settings)

    def export(self, file: str | Path, **settings: Any) -> Export:
        """Write the model as ONNX or OpenVINO; see `patchwords.export`."""
        from patchwords.api.models import export

        return export(self, file, **settings)

    def resume(self, **settings: Any) -> Run:
        """Continue the run exactly, after it was interrupted."""
        blank = PretrainConfig() if "objective" in self.settings else FinetuneConfig()
        known = {"data": self.settings["data"], "output": str(self.folder), "resume": True}
        return train(layer_arguments(blank, known | settings), make_display())

    def to_dict(self) -> dict[str, Any]:
        """What `patchwords finetune --json` prints."""
        steps, seconds = self._trained
        if steps is None or seconds is None:
            rows = [row for row in self.history if row["kind"] == "train"]
            steps, seconds = (rows[-1]["step"], rows[-1]["seconds"]) if rows else (0, 0.0)
        results = {
            name: self.metrics[name]
            for name in RESULT_NAMES
            if name in self.metrics and not (name == "baseline" and "per_class" in self.metrics)
        }
        if "primary_metric" in self.metrics:  # of an objective from outside: its own metrics
            results = self.metrics.to_dict()
        return {
            "run": str(self.folder),
            "model": str(RunFolder(self.folder).model),
            "report": str(self.report),
            "steps": steps,
            "seconds": round(seconds, 2),
            **results,
        }

    def describe(self) -> list[str]:
        """The result and where things are, in lines."""
        lines = [
            f"{self.metrics['split']}: {describe_result(self.metrics)}",
            f"model:   {RunFolder(self.folder).model}",
        ]
        return [*lines, f"report:  {self.report}"] if self.report.is_file() else lines

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        rows = [line.partition(":")[::2] for line in self.describe()]
        return format_html_table(repr(self), ("", ""), rows)


RESULT_NAMES = ("split", "images", "accuracy", "miou", "pixel_accuracy", "loss", "baseline")


def describe_result(found: Results) -> str:
    """The main metrics of a run on its held-out images, in a line."""
    images = f"{found['images']:,} held-out images"
    if "miou" in found:
        miou = found["miou"]
        return (
            f"mIoU {miou['value']:.1%} on {images} (95 % interval {miou['low']:.1%} to "
            f"{miou['high']:.1%}), pixel accuracy {found['pixel_accuracy']['value']:.1%}"
        )
    if "primary_metric" in found:
        metrics = {
            name: value
            for name, value in found.items()
            if isinstance(value, float) and name != "loss"
        }
        values = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        return f"{values}  loss {found['loss']:.3f} on {images}"
    if "explained" in found:
        return (
            f"{found['explained']:.1%} of the variance within hidden patches explained on {images}, "
            f"loss {found['loss']:.3f} (each patch in its mean colour: {found['baseline']:.3f})"
        )
    accuracy = found["accuracy"]
    if isinstance(accuracy, Mapping):
        return (
            f"accuracy {accuracy['value']:.1%} on {images} "
            f"(95 % interval {accuracy['low']:.1%} to {accuracy['high']:.1%})"
        )
    return (
        f"{accuracy:.1%} of the hidden colours right on {images}, loss {found['loss']:.3f} "
        f"(always predicting the most frequent colour: {found['baseline']:.1%})"
    )


def load_run(folder: str | Path, *, device: DeviceName = "auto") -> Run:
    """Open the folder of a training run, finished or interrupted; raises DataError for another."""
    read_run_data(Path(folder))
    return Run(folder, device=device)


ModelSource = str | Path | Pretrained | Run  # a folder, a published name, or what is open


def get_source(model: ModelSource) -> str | Path | Pretrained:
    """A model by the name that it is loaded by, or as it was loaded."""
    return model.pretrained if isinstance(model, Run) else model


# Evaluation.


class Evaluation(Results):
    """The metrics of a model on images, and which images these were."""

    def __init__(
        self, values: Mapping[str, Any], selection: HeldOutSelection, report: Path | None
    ) -> None:
        super().__init__(values, f"{values['of']}: {selection.split}")
        self.selection, self.report = selection, report


def evaluate(
    model: ModelSource,
    data: str | Path,
    *,
    split: str = HELD_OUT,
    real: str | Path | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Evaluation:
    """Evaluate a model on labelled images, matched to its classes by name.

    Args:
        model: a run, a folder or a published name.
        data: a folder, CSV, parquet, tar shards, hf:NAME or digits.
        split: held-out leaves out what the run was trained on; or test, validation, train, all.
        real: JSON with several right classes per image, as ImageNet's real.json.
        output: new folder for report.html, evaluation.json and predictions.csv.
        overwrite: write over what is in `output`.
        settings: image_column, label_column, max_bad, device, precision, workers.
    """
    options = apply_settings(EvaluationOptions(), settings)
    subject = options.load_model(get_source(model))
    if subject.source.task is not None:
        if real is not None:
            raise ConfigError("--real is for classes of images, and this model makes masks")
        found = evaluate_segmenter(
            subject, str(data), split, options.max_bad, Path(output) if output else None, overwrite
        )
        page = None if output is None else write_report(Path(output))
        return Evaluation(found.values, found.selection, page)
    evaluation = evaluate_model(
        subject,
        options.open_data(data, need_labels=False),
        split,
        real=None if real is None else Path(real),
        max_bad=options.max_bad,
        output=None if output is None else Path(output),
        overwrite=overwrite,
    )
    page = None if output is None else write_report(Path(output), evaluation.examples)
    return Evaluation(evaluation.values, evaluation.selection, page)


@dataclass(frozen=True)
class FeatureTable:
    """Features of the images that could be read."""

    values: np.ndarray  # [n, R] float32, what the classifier sees; [n, N, D] for patches
    labels: np.ndarray  # [n] int64, -1 = no label
    classes: tuple[str, ...]  # names, by label
    paths: tuple[str, ...]  # [n]
    skipped: tuple[tuple[str, str], ...]  # (path, reason) of images that cannot be read

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {"values": self.values.tolist(), "labels": self.labels.tolist()}
        skipped = [{"path": path, "reason": reason} for path, reason in self.skipped]
        return {**plain, "classes": self.classes, "paths": self.paths, "skipped": skipped}

    def _repr_html_(self) -> str:
        names = [self.classes[label] if label >= 0 else "-" for label in self.labels.tolist()]
        title = f"features {list(self.values.shape)}"
        return format_html_table(title, ("path", "class"), zip(self.paths, names, strict=True))


def extract_features(
    model: ModelSource,
    images: Images,
    *,
    tokens: TokenChoice = "classifier",
    split: str | None = None,
    **settings: Any,
) -> FeatureTable:
    """Compute features of images in memory, in evaluation mode; `embed` writes them to a file.

    Args:
        model: a run, a folder or a published name; it needs no classes.
        images: a data source as for `finetune`, labels or not; or a list of paths, PIL images or
            arrays.
        tokens: what the "classifier" sees, the "class" token, the "mean" of the "patches", or each.
        split: train, validation or test of a data source, as `load_dataset` divides it.
        settings: image_column, label_column, max_bad, device, precision, workers.
    """
    options = apply_settings(EvaluationOptions(), settings)
    subject = options.load_model(get_source(model))
    if isinstance(images, str | Path):
        examples = load_dataset(
            images,
            split,
            image_column=options.image_column,
            label_column=options.label_column,
        ).examples
    else:
        examples, _ = wrap_images(images)
    return compute_features(subject, examples, options.max_bad, tokens)


def compute_features(
    subject: LoadedModel,
    examples: ImageDataset,
    max_bad: float = 0.0,
    tokens: TokenChoice = "classifier",
) -> FeatureTable:
    """Features of the examples; raises DataError where more than a share cannot be read."""
    workers = subject.workers_for(examples)
    found = extract_example_features(
        subject.model, examples, subject.preprocess, subject.device, workers, tokens
    )
    bad = [(examples.keys[index], reason) for index, reason in found.bad]
    check_bad_image_share(bad, len(examples), "images", max_bad)
    paths = tuple(examples.keys[index] for index in found.indices.tolist())
    return FeatureTable(found.values, found.labels, examples.classes, paths, tuple(bad))
