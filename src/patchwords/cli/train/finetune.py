"""`patchwords finetune DATA`: from a folder of images to a model and an honest report."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import dataclass

from patchwords.cli.options import TrainCommand
from patchwords.training.config import FinetuneConfig


@dataclass(frozen=True)
class FinetuneCommand(TrainCommand, FinetuneConfig):
    """Train a Vision Transformer on your images, measure it on held-out images, write a report.

    DATA is a folder with one folder of images per class (or train/, val/ and test/ with such
    folders), a CSV (path,label), a parquet file or folder, tar shards, hf:NAME from the Hugging
    Face hub, or digits.

    Without --model, --weights and --image-size, your images and the time decide: the head of
    published weights where this machine or the Hugging Face hub has some that fit (--offline: only
    this machine), else a small CNN from scratch, and on a CPU --budget 15m the length. With
    --weights NAME, training starts from those and follows the paper's Table 4 (SGD, cosine
    schedule); with --model alone, it starts from scratch and follows Table 3 (Adam), which needs
    many images. Every setting is printed with its reason before the first step; --explain stops
    there.

    The run folder gets model/ (for `patchwords predict` and from_pretrained), report.html,
    predictions.csv, metrics.jsonl, config.yaml and checkpoints/. Ctrl-C writes a checkpoint and
    stops; the same command with --resume continues exactly.

    Example: patchwords finetune photos/ --budget 30m --output runs/photos
    """


def parse_finetune(words: Sequence[str]) -> FinetuneCommand:
    from patchwords.cli.config_files import parse_with_files

    return parse_with_files(FinetuneCommand, words, "patchwords finetune")


def run_finetune(config: FinetuneCommand) -> int:
    """Train, measure on the held-out split, report."""
    return train_and_print(config, config.json)


def train_and_print(config: FinetuneConfig, json: bool) -> int:
    """Train as the config says; with `json`, print the results as JSON, and progress to stderr."""
    config.check()
    from patchwords.api.runs import explain_settings, train
    from patchwords.cli.format import make_console
    from patchwords.distributed import is_main_process
    from patchwords.training.logs.display import Display

    display = Display(make_console(stderr=json, quiet=not is_main_process()))
    if config.explain:
        settings = explain_settings(config, display)
        if json and is_main_process():
            print(jsonlib.dumps(settings))
        return 0
    run = train(config, display, announce=not json)
    if json and is_main_process():
        print(jsonlib.dumps(run.to_dict()))
    return 0
