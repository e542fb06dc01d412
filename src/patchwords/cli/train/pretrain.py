"""`patchwords pretrain DATA`: a model for others to start from, by classes or by hidden patches."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchwords.cli.options import TrainCommand
from patchwords.training.config import PretrainConfig

if TYPE_CHECKING:
    from patchwords.training.logs.display import Display
    from patchwords.training.training_run import TrainingRun


@dataclass(frozen=True)
class PretrainCommand(TrainCommand, PretrainConfig):
    """Pre-train a model on many images; then fine-tune it: patchwords finetune --weights RUN.

    DATA is as for `patchwords finetune`. --objective masked (Sec. 4.6 of the paper) needs no
    labels: half of the patches of each image are masked, and their colours are predicted.
    --objective supervised learns the classes, with the tanh layer of Sec. 3.1 in the head.

    Settings that you leave out come from Table 3, or for masks from Appendix B.1.2, fitted to the
    size of the data. Few images are held out: up to 5,000 for validation, and a test split only if
    DATA has one. Everything else, including the run folder, is as for `patchwords finetune`.

    Example: patchwords pretrain photos/ --objective masked --model ViT-S/16 --output runs/masked
    """


def parse_pretrain(words: Sequence[str]) -> PretrainCommand:
    from patchwords.cli.config_files import parse_with_files

    return parse_with_files(PretrainCommand, words, "patchwords pretrain")


def run_pretrain(config: PretrainCommand) -> int:
    """Train, measure on held-out images, report."""
    config.check()
    from rich.console import Console

    from patchwords.cli.train.finetune import report_run
    from patchwords.distributed import is_main_process
    from patchwords.evaluation.probes.fewshot import measure_fewshot
    from patchwords.training.logs.display import Display
    from patchwords.training.run import train_model

    display = Display(Console(stderr=config.json, quiet=not is_main_process()))
    job = train_model(config, display, measure_fewshot)
    if is_main_process():  # of several processes, the main one measures and reports
        report_run(job, display, config.json)
    return 0


def report_masked_model(job: TrainingRun, display: Display, json: bool) -> None:
    """Measure what has learned by masks, write the report, and say what came of it."""
    from patchwords.cli.inspect.report import write_training_insight
    from patchwords.errors import Interrupted
    from patchwords.evaluation.held_out import choose_final_split
    from patchwords.evaluation.pretraining import evaluate_masked_run
    from patchwords.report.page import write_report

    try:
        evaluation = evaluate_masked_run(job)
        write_training_insight(job, choose_final_split(job.data)[1])
        page = write_report(job.folder.path)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped before the report was written; go on with: {job.going_on}"
        ) from error
    if json:
        summary = {
            "run": str(job.folder.path),
            "model": str(job.folder.model),
            "report": str(page),
            "steps": job.state.step,
            "seconds": round(job.state.seconds, 2),
            **{name: evaluation[name] for name in ("split", "images", "loss", "accuracy")},
            "baseline": evaluation["baseline"],
        }
        print(jsonlib.dumps(summary))
        return
    display.say(
        f"{evaluation['split']}: {evaluation['accuracy']:.1%} of the hidden colours right on "
        f"{evaluation['images']:,} held-out images, loss {evaluation['loss']:.3f} (always "
        f"answering the commonest colour: {evaluation['baseline']:.1%})"
    )
    display.say(f"model:   {job.folder.model}")
    display.say(f"report:  {page}")
