"""What processes do together, to be compared with what one does alone: see ranks.py."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from every_kind import EVERY_KIND, lively
from plain_objective import PlainClassification
from rich.console import Console
from scene_async_checkpoint import ASYNC_CHECKPOINT
from scene_sweep import sweep_of_three
from tiny_run import VIT, assemble, config_of, digits, go, go_on

from patchwords.cli import main
from patchwords.cli.train import finetune, pretrain
from patchwords.data.augment import AugmentSettings
from patchwords.data.dataset import TRAIN, DatasetSplits
from patchwords.data.loader import ImageBatch
from patchwords.data.sampler import iterate_batch_keys
from patchwords.device import Device
from patchwords.distributed import get_world, run_on_all_processes
from patchwords.errors import DataError, PatchwordsError
from patchwords.evaluation.probes.fewshot import measure_fewshot
from patchwords.models.build import ModelConfig
from patchwords.training.config import FinetuneConfig
from patchwords.training.engine.gradients import StepSettings
from patchwords.training.engine.optimizer import DecoupledSGD
from patchwords.training.engine.parallel import (
    checkpoint_activations,
    shard_model,
    to_full_tensor,
    wrap_ddp,
)
from patchwords.training.engine.state import TrainState
from patchwords.training.engine.step import train_step
from patchwords.training.logs.display import Display
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.training.objectives import Objective
from patchwords.training.run import train_model
from patchwords.training.training_run import TrainingRun

STEPS, BATCH = 9, 12
WORDS = (
    *("digits", "--model", "ViT-mu/4", "--image-size", 16, "--batch-size", 32, "--steps", 40),
    *("--dropout", 0.1, "--ema", 0.9, "--mixup", 0.2, "--log-every", 1, "--eval-every", 20),
    *("--save-every", 7, "--device", "cpu", "--precision", "fp32", "--workers", 0),
)
NO_DROPOUT = VIT.with_settings(dropout=0.0, drop_path=0.0)


def even_config(**machine: Any) -> FinetuneConfig:
    """Nothing that depends on the number of processes: no dropout, no mixing of neighbours."""
    config = config_of(augment=AugmentSettings(randaugment=(1, 5.0), erase=0.3))
    recipe = replace(
        config.recipe, steps=STEPS, batch_size=BATCH, balance="none", optimizer="sgd", lr=0.03
    )
    settings = replace(config.machine, eval_every=4, save_every=5, log_every=1, **machine)
    share = replace(config.data_settings, max_bad=0.5)
    return replace(config, recipe=recipe, machine=settings, data_settings=share)


def bad_samples() -> set[int]:
    """Step 3 has no image at all, step 5 none for the second of two, step 7 one less."""
    config, images = even_config(), len(digits().splits[TRAIN])
    steps = list(iterate_batch_keys(images, BATCH, config.seed, 0, STEPS))
    samples = [[place.sample for place in places] for places in steps]
    return {*samples[3], *samples[5][BATCH // 2 :], samples[7][0]}


class Damaged:
    """A reader of which some rows are gone."""

    def __init__(self, reader: Callable[[int], bytes], rows: set[int]) -> None:
        self.reader, self.rows = reader, rows

    def __call__(self, row: int) -> bytes:
        if row in self.rows:
            raise DataError(f"row {row} is gone")
        return self.reader(row)


def with_bad_images(data: DatasetSplits, bad: set[int]) -> DatasetSplits:
    train = data.splits[TRAIN]
    damaged = Damaged(train.reader, {int(train.rows[sample]) for sample in bad})
    return replace(data, splits={**data.splits, TRAIN: replace(train, reader=damaged)})


def result(job: TrainingRun) -> dict[str, Any]:
    """What is compared: the weights, and what only the state knows."""
    tables = (job.state.model.state_dict(), job.state.average.weights)
    weights, average = (
        torch.cat([to_full_tensor(value).double().flatten() for value in table.values()])
        for table in tables
    )
    return {
        "weights": weights.tolist(),
        "average": average.tolist(),
        "skipped": job.state.skipped,
        "micro_batch": job.state.micro_batch,
        "best": job.state.best and [job.state.best["step"], job.state.best["accuracy"]],
    }


def even(folder: Path) -> dict[str, Any]:
    return result(go(assemble(folder, even_config(), NO_DROPOUT)))


def uneven(folder: Path) -> dict[str, Any]:
    job = assemble(folder, even_config(), NO_DROPOUT)
    return result(go(replace(job, data=with_bad_images(job.data, bad_samples()))))


def too_many_bad(folder: Path) -> dict[str, Any]:
    config = even_config()
    few = replace(config, data_settings=replace(config.data_settings, max_bad=0.13))
    job = assemble(folder, few, NO_DROPOUT)
    return error_of(lambda: go(replace(job, data=with_bad_images(job.data, bad_samples()))))


def small_gpu(folder: Path) -> dict[str, Any]:
    """The memory of process 1 holds two images."""
    job = assemble(folder, even_config(), NO_DROPOUT)
    called = job.state.model.forward

    def forward(images: torch.Tensor) -> torch.Tensor:
        if get_world().rank == 1 and len(images) > 2 and job.state.model.training:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return called(images)

    job.state.model.forward = forward
    return result(go(job))


def breaks_in_one(folder: Path) -> dict[str, Any]:
    """A user's error that one process alone meets is that of all."""
    job = assemble(folder, even_config(), NO_DROPOUT)
    here = get_world().rank

    def evaluate(*args: Any) -> dict[str, Any]:
        return run_on_all_processes(lambda: fail() if here == 1 else {})

    def fail() -> dict[str, Any]:
        raise DataError("only here")

    return error_of(lambda: go(job, evaluate))


def error_of(action: Callable[[], object]) -> dict[str, Any]:
    try:
        action()
    except PatchwordsError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


def with_moments(parallel: str = "ddp") -> FinetuneConfig:
    """Adam's state has more in it, a number that is of no weight's shape among it."""
    config = even_config(parallel=parallel)
    recipe = replace(config.recipe, optimizer="adamw", lr=3e-3, early_stop=9)
    return replace(config, recipe=recipe)


def whole_way(folder: Path) -> dict[str, Any]:
    return result(go(assemble(folder, with_moments(), NO_DROPOUT)))


def first_part(folder: Path, parallel: str = "ddp") -> dict[str, Any]:
    """Up to the checkpoint of step 5, and on to 8, as if killed then."""
    job = assemble(folder, with_moments(parallel), NO_DROPOUT)

    def evaluate(objective: Objective, *args: Any) -> dict[str, Any]:
        if job.state.step > 5:
            raise DataError("killed")
        return type(objective).evaluate(objective, *args)

    return error_of(lambda: go(job, evaluate))


def second_part(folder: Path, parallel: str = "ddp") -> dict[str, Any]:
    return result(go_on(folder, with_moments(parallel), NO_DROPOUT))


def sharded(folder: Path) -> dict[str, Any]:
    return result(go(assemble(folder, even_config(parallel="fsdp"), NO_DROPOUT)))


def sharded_uneven(folder: Path) -> dict[str, Any]:
    job = assemble(folder, even_config(parallel="fsdp"), NO_DROPOUT)
    return result(go(replace(job, data=with_bad_images(job.data, bad_samples()))))


def spoken(*words: object) -> dict[str, Any]:
    """`patchwords WORDS` in this process: its exit code, and what it prints as an error."""
    with (
        contextlib.redirect_stderr(io.StringIO()) as err,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = main([str(word) for word in words])
    return {"code": code, "err": err.getvalue()}


def batch_of_33(folder: Path) -> dict[str, Any]:
    return spoken("finetune", *WORDS, "--batch-size", 33, "--output", folder)


def told_to_stop(folder: Path) -> dict[str, Any]:
    """SIGTERM reaches process 1, which writes nothing, in the midst of step 9."""

    def step(state: TrainState, *others: Any) -> Any:
        if get_world().rank == 1 and state.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(state, *others)

    with mock.patch("patchwords.training.engine.loop.train_step", step):
        return spoken("finetune", *WORDS, "--output", folder)


def undisturbed(folder: Path, *more: object) -> dict[str, Any]:
    """The whole run, but for its report; -> digest of its model, or of none in process 1."""
    config = finetune.parse_finetune([*map(str, (*WORDS, *more)), "--output", str(folder)])
    quiet = Display(Console(quiet=True))
    train_model(config, quiet)
    return {"sha256": digest(folder)}


def masked(folder: Path, *more: object, objective: str = "masked") -> dict[str, Any]:
    """Pre-training by hidden patches, without the report; -> accuracy of its few-shot probes."""
    words = (*WORDS, "--objective", objective, "--steps", 12, "--dropout", 0, "--mixup", 0)
    live = ("--fewshot-every", 6, "--eval-every", 6)
    config = pretrain.parse_pretrain([*map(str, (*words, *live, *more)), "--output", str(folder)])
    job = train_model(config, Display(Console(quiet=True)), measure_fewshot)
    assert not hasattr(job.state.model, "unshard")  # whole, for the report
    rows = read_metrics(folder / "metrics.jsonl")
    return {"fewshot": [row["accuracy"] for row in rows if row["kind"] == "fewshot"]}


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def every_kind(folder: Path) -> dict[str, Any]:
    """By how much a step in shares differs from one of DDP; the second process has no image."""
    return {
        f"{kind} in {'bf16' if bf16 else 'fp32'}": difference(config, bf16)
        for kind, config in EVERY_KIND.items()
        for bf16 in (False, True)
    }


def difference(config: ModelConfig, bf16: bool) -> float:
    device, here = Device(torch.device("cpu"), bf16), get_world()
    settings = StepSettings(device, seed=0, rate=lambda step: 0.1, clip=1.0, rank=here.rank)
    images = torch.arange(3 * 3 * 144).remainder(251).to(torch.uint8).view(3, 3, 12, 12)
    images, labels = images[3 * here.rank :], torch.arange(3)[3 * here.rank :]
    weights = []
    for shares in (False, True):
        model = lively(config)
        if shares:
            checkpoint_activations(model)
            shard_model(model, device, here)
        groups = [{"params": list(model.parameters()), "scale": 1.0}]
        state = TrainState(model, DecoupledSGD(groups), None, micro_batch=2)
        state.wrapped = None if shares else wrap_ddp(model, here)
        forward = state.forward
        objective = PlainClassification(lambda pixels, call=forward: call(pixels / 127.5 - 1))
        train_step(state, objective, ImageBatch.of(images, labels), settings)
        weights.append(
            torch.cat([to_full_tensor(p.detach()).flatten() for p in model.parameters()])
        )
    return float((weights[0] - weights[1]).abs().max())


SCENES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "even": even,
    "whole_way": whole_way,
    "uneven": uneven,
    "too_many_bad": too_many_bad,
    "small_gpu": small_gpu,
    "breaks_in_one": breaks_in_one,
    "replicated_first": first_part,
    "replicated_then_replicated": second_part,
    "replicated_then_sharded": partial(second_part, parallel="fsdp"),
    "batch_of_33": batch_of_33,
    "told_to_stop": told_to_stop,
    "undisturbed": undisturbed,
    "undisturbed_shares": lambda folder: undisturbed(folder, "--parallel", "fsdp"),
    "every_kind": every_kind,
    "masked": masked,
    "masked_shares": lambda folder: masked(folder, "--parallel", "fsdp"),
    "mae": partial(masked, objective="mae"),
    "mae_shares": lambda folder: masked(folder, "--parallel", "fsdp", objective="mae"),
    "sharded": sharded,
    "sweep": sweep_of_three,
    "sharded_uneven": sharded_uneven,
    "sharded_first": partial(first_part, parallel="fsdp"),
    "sharded_then_replicated": second_part,
    "sharded_then_sharded": partial(second_part, parallel="fsdp"),
    **ASYNC_CHECKPOINT,
}
