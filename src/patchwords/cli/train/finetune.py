"""`patchwords finetune DATA`: from a folder of images to a model and an honest report."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchwords.cli.options import TrainCommand
from patchwords.training.config import FinetuneConfig

if TYPE_CHECKING:
    from patchwords.training.logs.display import Display
    from patchwords.training.training_run import TrainingRun


@dataclass(frozen=True)
class FinetuneCommand(TrainCommand, FinetuneConfig):
    """Train a Vision Transformer on your images, measure it on held-out images, write a report.

    DATA is a folder with one folder of images per class (or train/, val/ and test/ with such
    folders), a CSV (path,label), a parquet file or folder, tar shards, hf:NAME from the Hugging
    Face hub, or digits.

    With --weights, training starts from pretrained weights and follows the paper's Table 4 (SGD,
    cosine schedule); without, it starts from scratch and follows Table 3 (Adam), which needs many
    images. Settings that you leave out are fitted to the size of the data and printed before the
    first step.

    The run folder gets model/ (for `patchwords predict` and from_pretrained), report.html,
    predictions.csv, metrics.jsonl, config.yaml and checkpoints/. Ctrl-C writes a checkpoint and
    stops; the same command with --resume continues exactly.

    Example: patchwords finetune photos/ --model ViT-S/16 --image-size 128 --output runs/photos
    """


def parse_finetune(words: Sequence[str]) -> FinetuneCommand:
    from patchwords.cli.config_files import parse_with_files

    return parse_with_files(FinetuneCommand, words, "patchwords finetune")


def run_finetune(config: FinetuneCommand) -> int:
    """Train, measure on the held-out split, report."""
    config.check()
    from rich.console import Console

    from patchwords.distributed import is_main_process
    from patchwords.evaluation.probes.fewshot import measure_fewshot
    from patchwords.training.logs.display import Display
    from patchwords.training.run import train_model

    display = Display(Console(stderr=config.json, quiet=not is_main_process()))
    job = train_model(config, display, measure_fewshot)
    if is_main_process():  # of several processes, the main one measures and reports
        report_run(job, display, config.json)
    return 0


def report_run(job: TrainingRun, display: Display, json: bool) -> None:
    """Evaluate a finished run as its objective needs it, write the report, and print the result."""
    from patchwords.cli.train.pretrain import report_masked_model
    from patchwords.tasks.classification import Classification
    from patchwords.training.objectives.masked import MaskedPatchPrediction

    if isinstance(job.objective, Classification):
        report_classifier(job, display, json)
    elif isinstance(job.objective, MaskedPatchPrediction):
        report_masked_model(job, display, json)
    else:
        report_metrics(job, display, json)


def report_metrics(job: TrainingRun, display: Display, json: bool) -> None:
    """Evaluate a run by its own objective, and print the metrics."""
    from patchwords.tasks.held_out_metrics import evaluate_by_objective
    from patchwords.training.logs.display import format_metrics

    result = evaluate_by_objective(job)
    if json:
        run = {"run": str(job.folder.path), "model": str(job.folder.model)}
        print(jsonlib.dumps({**run, "steps": job.state.step, **result}))
        return
    metrics = {name: value for name, value in result.items() if name != "primary_metric"}
    values = "  ".join(format_metrics(metrics, job.objective.formats))
    display.say(
        f"{result['split']}: {values}  loss {result['loss']:.3f} on {result['images']:,} held-out "
        "images"
    )
    display.say(f"model:   {job.folder.model}")


def report_classifier(job: TrainingRun, display: Display, json: bool) -> None:
    """Measure a classifier that has ended training, write the report, and say what came of it."""
    from patchwords.cli.inspect.report import write_training_insight
    from patchwords.errors import Interrupted
    from patchwords.evaluation.held_out import evaluate_finished_run
    from patchwords.report.page import write_report

    try:
        split, examples, evaluation = evaluate_finished_run(job)
        write_training_insight(job, examples)
        page = write_report(job.folder.path, examples)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped before the report was written; go on with: {job.going_on}"
        ) from error
    if json:
        print(jsonlib.dumps(summarise_finetune(job, evaluation, page)))
        return
    accuracy = evaluation["accuracy"]
    display.say(
        f"{split}: accuracy {accuracy['value']:.1%} on {evaluation['images']:,} held-out images "
        f"(95 % interval {accuracy['low']:.1%} to {accuracy['high']:.1%})"
    )
    display.say(f"model:   {job.folder.model}")
    display.say(f"report:  {page}")


def summarise_finetune(job: TrainingRun, evaluation: dict[str, Any], page: Path) -> dict[str, Any]:
    """What --json prints."""
    return {
        "run": str(job.folder.path),
        "model": str(job.folder.model),
        "report": str(page),
        "steps": job.state.step,
        "seconds": round(job.state.seconds, 2),
        "split": evaluation["split"],
        "images": evaluation["images"],
        "accuracy": evaluation["accuracy"],
        "loss": evaluation["loss"],
    }
