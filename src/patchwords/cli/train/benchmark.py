"""`patchwords benchmark [MODEL]`: the speed of this machine, settings, duration of a run."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from patchwords.cli.format import (
    CONSOLE_WIDTH,
    format_bytes,
    format_epochs,
    format_long_duration,
    print_lines,
    print_section,
)
from patchwords.device import DeviceName, PrecisionName
from patchwords.distributed import get_world
from patchwords.errors import ConfigError
from patchwords.report.format import UNKNOWN_VALUE, format_compact, format_count, pluralise

if TYPE_CHECKING:
    from patchwords.benchmark.benchmark import BenchmarkEstimate, BenchmarkResult
    from patchwords.benchmark.workload import BenchmarkWorkload
    from patchwords.data.dataset import ImageDataset


@dataclass(frozen=True)
class BenchmarkCommand:
    """Measure this machine with a model: inference, training, data loading, where the time goes.

    It then suggests settings, with the rule behind each, and, for --images or --data, estimates how
    long a run would take. A benchmark takes about a minute; run nothing else meanwhile. The weights
    are random, which costs the same. docs/benchmark.md explains each number.

    Example: patchwords benchmark ViT-S/16 --data photos/ --epochs 20
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")] = "ViT-S/16"
    """model to measure, by name"""
    image_size: tuple[int, ...] | None = None
    """image size in pixels: one number, or height and width; default: the model's own, usually 224
    """
    batch_size: tuple[int, ...] | None = None
    """batch sizes to try; default: 1 8 32 for inference, 2 8 32 for training, more on a GPU"""
    start: Literal["weights", "scratch"] = "weights"
    """what training starts from; it decides the recipe, so the optimizer and the dropout"""
    data: str | None = None
    """images to read: a folder, CSV, parquet, tar shards or hf:NAME; default: synthetic images"""
    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    images: str | None = None
    """number of images to estimate a training run for, such as 303e6 or imagenet; default: the size
    of --data"""
    epochs: float | None = None
    """epochs to estimate a training run for; default: 20 from weights, 100 from scratch"""
    device: DeviceName = "auto"
    """device to measure; auto: a GPU if there is one"""
    precision: PrecisionName = "auto"
    """precision of matrix products; auto: compare bf16 and fp32 where bf16 is fast"""
    seconds: float = 60.0
    """approximate time budget in seconds"""
    output: Path | None = None
    """new folder for results.json and results.csv; default: print only"""
    overwrite: bool = False
    """overwrite the files in --output"""
    json: bool = False
    """print the results as JSON"""


def run_benchmark(config: BenchmarkCommand) -> int:
    _check_numbers(config)
    from patchwords.benchmark.benchmark import (
        DEFAULT_EPOCHS,
        benchmark_machine,
        count_benchmark_stages,
        estimate_from_benchmark,
    )
    from patchwords.benchmark.workload import build_workload
    from patchwords.cli.options import claim_output_folder, write_results
    from patchwords.cli.train.plan import parse_image_count
    from patchwords.processes import count_usable_cores

    num_images = None if config.images is None else parse_image_count(config.images)
    device = config.device, config.precision
    # Bad settings are refused before the data are opened, which may take long.
    subject = build_workload(
        config.model, config.image_size, config.batch_size, config.start, num_images, device
    )
    examples = open_benchmark_images(config)
    if config.data is not None and num_images is None:
        num_images = len(examples)
        subject = build_workload(
            config.model, config.image_size, config.batch_size, config.start, num_images, device
        )
    epochs = DEFAULT_EPOCHS[config.start] if config.epochs is None else config.epochs
    if num_images is not None and not round(num_images * epochs):
        raise ConfigError(f"--epochs {epochs:g} of {num_images:,} images is less than one image")
    folder = claim_output_folder(config.output, config.overwrite)
    cores = count_usable_cores()
    with BenchmarkProgress(count_benchmark_stages(subject, cores)) as progress:
        result = benchmark_machine(subject, examples, cores, config.seconds, progress.show_stage)
    run = (
        None
        if num_images is None
        else estimate_from_benchmark(subject, result.together, num_images, epochs)
    )
    results = summarise_benchmark(config, subject, examples, result, run)
    if folder is not None:
        write_results(folder, results, list_speed_rows(results), {})
    if config.json:
        print(jsonlib.dumps(results))
    else:
        print_benchmark(results, folder)
    return 0


def open_benchmark_images(config: BenchmarkCommand) -> ImageDataset:
    """Open the training images of --data, or make synthetic ones."""
    if config.data is None:
        from patchwords.benchmark.loader import make_synthetic_photos

        return make_synthetic_photos()
    from patchwords.data.dataset import ALL, TRAIN
    from patchwords.data.open import open_data

    data = open_data(config.data, image_column=config.image_column, need_labels=False)
    first = next(iter(data.splits.values()))
    return data.splits.get(TRAIN, data.splits.get(ALL, first))


def summarise_benchmark(
    config: BenchmarkCommand,
    subject: BenchmarkWorkload,
    examples: ImageDataset,
    result: BenchmarkResult,
    run: BenchmarkEstimate | None,
) -> dict[str, Any]:
    """Make what --json prints."""
    from patchwords.benchmark.benchmark import build_finetune_command
    from patchwords.models.cost import count_forward_macs, count_macs, count_parameters
    from patchwords.version import __version__

    results = asdict(result)
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
        "macs_computed": count_forward_macs(subject.shape),  # what the shares of the peak refer to
        "start": config.start,
        "optimizer": subject.training.recipe.optimizer,
        "data": config.data,
        "images": len(examples),
        "image_bytes": float(examples.sizes.mean()),
        **results,
        "command": build_finetune_command(subject, result.together, config.start, parts, compiling),
        "run": run and asdict(run),
    }


def list_speed_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """List every speed in a row, for results.csv."""
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
            raise ConfigError(f"--batch-size {batch} must be at least 1")
    if config.epochs is not None and config.images is None and config.data is None:
        raise ConfigError(f"--epochs {config.epochs:g} needs --images with a number, or --data")
    if config.image_column is not None and config.data is None:
        raise ConfigError("--image-column needs --data")


GIB = 2**30
BUSY_LOAD = 0.5  # load average above which measured speeds are too low


class BenchmarkProgress:
    """Shows progress on stderr: a bar on a terminal, a line per stage elsewhere."""

    def __init__(self, total: int) -> None:
        self.console = Console(stderr=True)
        self.total, self.done = total, 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=total)

    def show_stage(self, stage: str) -> None:
        """Show what is measured next."""
        if not self.console.is_terminal:
            line = f"{self.done + 1}/{self.total} {stage}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self.bar.update(self.task, completed=self.done, description=stage)
        self.done += 1

    def __enter__(self) -> BenchmarkProgress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.stop()


def print_benchmark(results: dict[str, Any], folder: Path | None) -> None:
    """Print the results by section, then the advice."""
    console = Console(width=CONSOLE_WIDTH, highlight=False)
    height, width = results["image_size"]
    title = f"{results['model']} at {height}x{width} on {results['machine']['name']}"
    console.print(Text(title, style="bold"))
    print_section(console, "The machine", machine_rows(results["machine"]))
    for name, section in {
        "inference": "Inference, as in patchwords predict",
        "training": f"Training step, {results['optimizer']}",
    }.items():
        console.print(Text(f"\n{section}", style="bold"))
        console.print(make_speed_table(results[name]))
    print_section(console, "Input", input_rows(results))
    print_section(console, "Where the time of a training goes", phase_rows(results["together"]))
    print_section(console, "The step by kind of operation", share_rows(results["operations"]))
    print_section(console, "Advice for predict", advice_rows(results["prediction"]))
    print_section(console, "Advice for training", advice_rows(results["advice"]))
    print_lines(console, f"\n  {results['command']}")
    if results["run"] is not None:
        print_section(console, "Your run", training_time_rows(results))
        print_lines(console, f"\n  {results['run']['plan']}")
    if folder is not None:
        print_lines(console, f"\nresults: {folder}")


def machine_rows(machine: dict[str, Any]) -> list[tuple[str, str, str]]:
    used = f"{pluralise(machine['threads'], 'thread')} on {pluralise(machine['cores'], 'core')}"
    rows = [
        (
            f"matrix peak, {precision}",
            f"{format_compact(peak)}FLOP/s",
            used if machine["device"] == "cpu" else "",
        )
        for precision, peak in machine["peak_flops_per_second"].items()
    ]
    rows.append(
        ("memory", format_bytes(machine["copied_bytes_per_second"]) + "/s", "read and written")
    )
    rows.append(("free memory", f"{machine['free_bytes'] / GIB:.1f} GiB", "before this"))
    if machine["load"] is not None and machine["load"] >= BUSY_LOAD:
        warning = "other programs ran just before: if they still run, all speeds are too low"
        rows.append(("load", f"{machine['load']:.1f}", warning))
    return rows


def make_speed_table(rows: list[dict[str, Any]]) -> Table:
    """Make a table of speed and memory per precision and batch size."""
    from patchwords.benchmark.advice import format_throughput

    table = Table(box=None, pad_edge=False)
    table.add_column("precision", min_width=20, no_wrap=True)
    for name in ("at a time", "images/s", "of the peak", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", style="dim")
    for row in rows:
        share, memory = row["share_of_peak"], row["memory_bytes"]
        table.add_row(
            row["precision"],
            format_count(row["batch"]),
            UNKNOWN_VALUE if row["skipped"] else format_throughput(row["images_per_second"]),
            UNKNOWN_VALUE if share is None else f"{share:.0%}" if share >= 0.1 else f"{share:.1%}",
            UNKNOWN_VALUE if memory is None else f"{memory / GIB:.2f} GiB",
            row["skipped"] or "",
        )
    return table


def input_rows(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    from patchwords.benchmark.advice import format_throughput

    named = "synthetic JPEGs of 500 x 375 pixels" if results["data"] is None else results["data"]
    description = f"{named}, {format_bytes(results['image_bytes'])} each"
    return [
        (
            "between the steps" if row["workers"] == 0 else pluralise(row["workers"], "worker"),
            f"{format_throughput(row['images_per_second'])} images/s",
            description if index == 0 else "",
        )
        for index, row in enumerate(results["input"])
    ]


def phase_rows(together: dict[str, Any]) -> list[tuple[str, str, str]]:
    from patchwords.benchmark.advice import format_throughput

    how = (
        f"{together['precision']}, {together['batch']} at a time, "
        f"{pluralise(together['workers'], 'worker')}; {pluralise(together['steps'], 'step')}"
    )
    rows = [
        ("training and input", f"{format_throughput(together['images_per_second'])} images/s", how)
    ]
    return rows + share_rows(together["phases"])


def share_rows(table: dict[str, float]) -> list[tuple[str, str, str]]:
    return [(name, f"{share:.1%}", "") for name, share in table.items()]


def advice_rows(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["name"], str(row["value"]), row["why"]) for row in rows]


def training_time_rows(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List how long training takes, and from which numbers."""
    from patchwords.benchmark.advice import format_throughput

    run = results["run"]
    seen = f"{format_count(run['images'])} images x {format_epochs(run['epochs'])}"
    speed = f"{format_throughput(run['images_per_second'])} images/s, training and input together"
    steps = f"{format_count(run['steps'])} steps of {format_count(run['batch'])}"
    return [
        ("training", format_long_duration(run["seconds"]), f"{seen} / {speed}"),
        ("steps", steps, "evaluation and checkpoints are not counted"),
    ]
