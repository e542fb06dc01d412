"""`patchwords benchmark [MODEL]`: what this machine can do, what to set, how long a run takes."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from patchwords.device import DeviceName, PrecisionName
from patchwords.distributed import get_world
from patchwords.errors import ConfigError

if TYPE_CHECKING:
    from patchwords.data.examples import ImageDataset
    from patchwords.measure.benchmark import BenchmarkResult
    from patchwords.measure.estimate import BenchmarkEstimate
    from patchwords.measure.subject import BenchmarkWorkload


@dataclass(frozen=True)
class BenchmarkCommand:
    """Measure this machine with a model: inference, training, input, and where the time goes.

    Then it says which settings to take, by rules that are printed beside, and, for --images or
    --data, how long a run would last. It takes about a minute; let nothing else run meanwhile.
    Weights are random, which costs the same. docs/benchmark.md says what each number means.

    Example: patchwords benchmark ViT-S/16 --data photos/ --epochs 20
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")] = "ViT-S/16"
    """a model by name; that of the default is the smallest that is worth fine-tuning on photos"""
    image_size: tuple[int, ...] | None = None
    """one number, or height and width, in pixels; none given: that of the model, mostly 224"""
    batch_size: tuple[int, ...] | None = None
    """images at a time to try; none given: 1, 8, 32 (inference) and 2, 8, 32 (training), more on a
    GPU"""
    start: Literal["weights", "scratch"] = "weights"
    """what training starts from: it decides the recipe, so the optimizer and the dropout"""
    data: str | None = None
    """read these images rather than made ones: a folder, CSV, parquet, tar shards, hf:NAME"""
    image_column: str | None = None
    """column of a CSV or parquet that has the images"""
    images: str | None = None
    """how many images a run would train on, as 303e6 or imagenet; none given: those of --data"""
    epochs: float | None = None
    """passes over them; none given: 20 from weights, 100 from scratch"""
    device: DeviceName = "auto"
    """where to compute"""
    precision: PrecisionName = "auto"
    """of matrix products; auto compares bf16 and fp32 where bf16 is fast"""
    seconds: float = 60.0
    """about how long all of it may take"""
    output: Path | None = None
    """write results.json and results.csv into this new folder"""
    overwrite: bool = False
    """write over what is in --output"""
    json: bool = False
    """print everything as JSON"""


def run_benchmark(config: BenchmarkCommand) -> int:
    _check_numbers(config)
    from patchwords.commands.benchmark_summary import BenchmarkProgress, print_benchmark
    from patchwords.commands.evaluator import claim_output_folder, write_results
    from patchwords.commands.plan import parse_image_count
    from patchwords.measure.benchmark import benchmark_machine, count_benchmark_stages
    from patchwords.measure.estimate import DEFAULT_EPOCHS, estimate_from_benchmark
    from patchwords.measure.machine import count_usable_cores
    from patchwords.measure.subject import build_workload

    wanted = None if config.images is None else parse_image_count(config.images)
    where = config.device, config.precision
    # What is refused without looking at the data comes before they are opened, which may take long.
    subject = build_workload(
        config.model, config.image_size, config.batch_size, config.start, wanted, where
    )
    examples = open_benchmark_images(config)
    if config.data is not None and wanted is None:
        wanted = len(examples)
        subject = build_workload(
            config.model, config.image_size, config.batch_size, config.start, wanted, where
        )
    epochs = DEFAULT_EPOCHS[config.start] if config.epochs is None else config.epochs
    if wanted is not None and not round(wanted * epochs):
        raise ConfigError(f"--epochs {epochs:g} of {wanted:,} images are not one image")
    folder = claim_output_folder(config.output, config.overwrite)
    cores = count_usable_cores()
    with BenchmarkProgress(count_benchmark_stages(subject, cores)) as steps:
        found = benchmark_machine(subject, examples, cores, config.seconds, steps.tell)
    run = (
        None if wanted is None else estimate_from_benchmark(subject, found.together, wanted, epochs)
    )
    results = summarise_benchmark(config, subject, examples, found, run)
    if folder is not None:
        write_results(folder, results, list_speed_rows(results), {})
    if config.json:
        print(jsonlib.dumps(results))
    else:
        print_benchmark(results, folder)
    return 0


def open_benchmark_images(config: BenchmarkCommand) -> ImageDataset:
    """The images to train on of --data, or made ones."""
    if config.data is None:
        from patchwords.measure.photos import make_synthetic_photos

        return make_synthetic_photos()
    from patchwords.data.examples import ALL, TRAIN
    from patchwords.data.open import open_data

    data = open_data(config.data, image_column=config.image_column, need_labels=False)
    first = next(iter(data.splits.values()))
    return data.splits.get(TRAIN, data.splits.get(ALL, first))


def summarise_benchmark(
    config: BenchmarkCommand,
    subject: BenchmarkWorkload,
    examples: ImageDataset,
    found: BenchmarkResult,
    run: BenchmarkEstimate | None,
) -> dict[str, Any]:
    """All of it as one table, which is what --json prints."""
    from patchwords.measure.estimate import build_finetune_command
    from patchwords.model.cost import count_forward_macs, count_macs, count_parameters
    from patchwords.version import __version__

    results = asdict(found)
    parts, compiling = results.pop("parts"), results.pop("compile")
    if run is None:  # the recipe's batch is not known
        results["advice"] = [row for row in results["advice"] if row["name"] != "--grad-accum"]
        parts = None
    return {
        "patchwords": __version__,
        "model": subject.name,
        "image_size": list(subject.shape.image_size),
        "sees": subject.shape.summary,
        "parameters": count_parameters(subject.shape),
        "macs_per_image": count_macs(subject.shape),
        "macs_computed": count_forward_macs(subject.shape),  # what shares of the peak are meant of
        "start": config.start,
        "optimizer": subject.training.recipe.optimizer,
        "data": config.data,
        "images": len(examples),
        "image_bytes": float(examples.sizes.mean()),
        **results,
        "command": build_finetune_command(subject, found.together, config.start, parts, compiling),
        "run": run and asdict(run),
    }


def list_speed_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Every speed in a row of its own, for results.csv."""
    kinds = {kind: results[kind] for kind in ("inference", "training", "input")}
    together = {name: value for name, value in results["together"].items() if name != "phases"}
    kinds["together"] = [together]
    return [{"kind": kind, **row} for kind, rows in kinds.items() for row in rows]


def _check_numbers(config: BenchmarkCommand) -> None:
    if get_world().size > 1:
        raise ConfigError("benchmark measures one process: start it without torchrun")
    for name in ("epochs", "seconds"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"--{name} {value:g} must be a number greater than 0")
    if config.image_size is not None and len(config.image_size) not in {1, 2}:
        raise ConfigError("--image-size takes one number, or height and width")
    if config.batch_size is not None and not config.batch_size:
        raise ConfigError("--batch-size lacks a value; leave it out, or say which")
    for batch in config.batch_size or ():
        if batch < 1:
            raise ConfigError(f"--batch-size {batch}: it is a number of images, 1 or more")
    if config.epochs is not None and config.images is None and config.data is None:
        raise ConfigError(
            f"--epochs {config.epochs:g} of what? Give --images with a number, or --data"
        )
    if config.image_column is not None and config.data is None:
        raise ConfigError("--image-column names a column of --data; give that, too")
