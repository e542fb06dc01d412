"""`patchwords plan`: what a training costs, before it starts."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from patchwords.cli.format import (
    CONSOLE_WIDTH,
    format_bytes,
    format_days,
    format_epochs,
    print_section,
)
from patchwords.errors import ConfigError, did_you_mean
from patchwords.files import GIB
from patchwords.report.format import format_count

if TYPE_CHECKING:
    from patchwords.planning.estimate import HardwareSetup, MemoryFit, TrainingWorkload


# The paper's data sets (Section 4.1): images, in ImageNet-21k's case the exact number.
DATA_SET_SIZES = {"imagenet": 1_281_167, "imagenet21k": 14_197_122, "jft": 303_000_000}


@dataclass(frozen=True)
class PlanCommand:
    """Estimate what a training costs before it starts: compute, memory, days, data.

    Everything is computed from the model's shape and the hardware's datasheet; nothing runs, and no
    GPU is needed. Each number comes with its formula; docs/planning.md lists the assumptions.

    Example: patchwords plan --model ViT-H/14 --images jft --epochs 14 --gpus 64 --gpu h100
    """

    model: str = "ViT-B/16"
    """model, by name; `patchwords models` lists them"""
    image_size: tuple[int, ...] | None = None
    """image size in pixels: one number, or height and width; default: the model's own"""
    classes: int = 1000
    """number of classes of the head"""
    images: str = "imagenet"
    """images in the data set, such as 303e6; or imagenet (1.28 M), imagenet21k (14.2 M), jft (303
    M)"""
    epochs: float = 300
    """passes over the images; the paper uses 300 for ImageNet, 7 or 14 for JFT"""
    batch_size: int = 4096
    """images per update, over all devices"""
    gpu: str | None = None
    """hardware: h100, a100-80gb, 4090, mi300x, tpu-v3 and others; default: compare all"""
    gpus: int = 1
    """number of devices"""
    utilisation: float = 0.4
    """assumed share of the hardware's peak that training reaches"""
    measured: float | None = None
    """images per second that one device reached in a short run, instead of --utilisation; default:
    none"""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: replicate the weights on every device; fsdp: shard weights, gradients and optimizer
    state"""
    checkpoint_activations: bool = False
    """recompute activations in the backward pass: less memory, more time"""
    micro_batch: int | None = None
    """images per device at a time; default: as many as fit"""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """optimizer, for its memory: adamw keeps two numbers per weight, sgd with momentum one"""
    ema: bool = False
    """keep an exponential moving average of the weights, too"""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """precision of matrix products; auto: bf16 where the hardware has it"""
    image_kb: float = 110
    """size of an image file in kB; ImageNet's are about 110"""
    price_per_hour: float | None = None
    """price of one device per hour, in any currency, to add the total price; default: none"""
    json: bool = False
    """print JSON"""


def run_plan(config: PlanCommand) -> int:

    training, machine = check_plan(config)
    estimate = estimate_plan(config, training, machine)
    if config.json:
        print(jsonlib.dumps(estimate, indent=1))
    else:
        print_plan(estimate)
    return 0


def check_plan(config: PlanCommand) -> tuple[TrainingWorkload, HardwareSetup]:
    """Build the training and the hardware setup; raises ConfigError that names the flag."""
    from patchwords.models.zoo import resolve_model
    from patchwords.planning.estimate import HardwareSetup, TrainingWorkload
    from patchwords.planning.hardware import HARDWARE, choose_hardware_precision, find_hardware
    from patchwords.planning.memory import OptimizerSpec, ParallelLayout

    _check_numbers(config)
    if config.gpu is None and config.measured is None:
        raise ConfigError(
            f"--gpu is missing: give one of {', '.join(HARDWARE)}; or --measured with "
            "the images per second of a short run"
        )
    if config.parallel == "fsdp" and config.gpus == 1:
        raise ConfigError("--parallel fsdp shards weights over several devices, and --gpus is 1")
    if config.gpus > config.batch_size:
        raise ConfigError(
            f"--gpus {config.gpus} for batches of {config.batch_size}: a device would have no "
            f"image; use at most {config.batch_size}"
        )
    settings: dict[str, Any] = {"num_classes": config.classes}
    if config.image_size is not None:
        size = config.image_size
        settings["image_size"] = size * 2 if len(size) == 1 else size
    hardware = None if config.gpu is None else find_hardware(config.gpu)
    update = OptimizerSpec(
        config.optimizer, config.ema, choose_hardware_precision(hardware, config.precision)
    )
    shape = resolve_model(config.model).config.with_settings(**settings)
    layout = ParallelLayout(config.gpus, config.parallel, config.checkpoint_activations)
    training = TrainingWorkload(
        shape, parse_image_count(config.images), config.epochs, config.batch_size, update
    )
    if not training.seen:
        raise ConfigError(
            f"--epochs {config.epochs:g} of {training.images:,} images is less than one image"
        )
    if config.micro_batch is not None and config.micro_batch * config.gpus > config.batch_size:
        raise ConfigError(
            f"--micro-batch {config.micro_batch} on {config.gpus} devices is more than the batch "
            f"of {config.batch_size}; use at most {config.batch_size // config.gpus}"
        )
    return training, HardwareSetup(hardware, layout, config.utilisation, config.measured)


def parse_image_count(text: str) -> int:
    """Parse a number of images: '303e6', '1,281,167' or a data set of the paper.

    >>> parse_image_count("303e6"), parse_image_count("ImageNet-21k")
    (303000000, 14197122)
    """
    name = text.strip().lower().replace("-", "").replace("_", "")
    if name in DATA_SET_SIZES:
        return DATA_SET_SIZES[name]
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        near = did_you_mean(name, DATA_SET_SIZES)
        raise ConfigError(
            f"--images {text!r}: expected a number, such as 303e6, or a data set{near}"
        ) from None
    if not math.isfinite(number) or number < 1 or number != int(number):
        raise ConfigError(f"--images {text} must be a whole number of at least 1, such as 303e6")
    return int(number)


def _check_numbers(config: PlanCommand) -> None:
    flags = ("classes", "epochs", "batch_size", "gpus", "micro_batch", "utilisation", "measured")
    for name in (*flags, "image_kb", "price_per_hour"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {value:g} must be a number greater than 0")
    if config.utilisation > 1:
        raise ConfigError(f"--utilisation {config.utilisation:g} is a share of the peak, up to 1")
    if config.image_size is not None and len(config.image_size) not in {1, 2}:
        raise ConfigError("--image-size takes one number, or height and width")


def estimate_plan(
    config: PlanCommand, training: TrainingWorkload, machine: HardwareSetup
) -> dict[str, Any]:
    """Compute the plan as --json prints it, with the unit in each name.

    Raises ConfigError if the hardware has no peak in this precision.
    """
    from patchwords.models.zoo import resolve_model

    return {
        "model": resolve_model(config.model).name,
        **_work(training, machine),
        **_hardware(training, machine),
        **_time(config, training, machine),
        **_memory(training, machine, config.micro_batch),
    }


def _work(training: TrainingWorkload, machine: HardwareSetup) -> dict[str, Any]:
    from patchwords.models.cost import count_macs, count_parameters

    shape = training.config
    return {
        "image_size": list(shape.image_size),
        "sees": shape.summary,
        "parameters": count_parameters(shape),
        "macs_per_image": count_macs(shape),
        "images": training.images,
        "epochs": training.epochs,
        "images_seen": training.seen,
        "batch_size": training.batch,
        "steps": training.steps,
        "training_exaflops": training.flops() / 1e18,
        "computed_exaflops": training.flops(machine.layout.checkpointing) / 1e18,
        "checkpoint_gb": training.checkpoint_bytes / 1e9,
    }


def _hardware(training: TrainingWorkload, machine: HardwareSetup) -> dict[str, Any]:
    from patchwords.planning.estimate import GIB
    from patchwords.planning.hardware import get_peak_flops
    from patchwords.planning.memory import USABLE_MEMORY_SHARE

    hardware, precision = machine.hardware, training.update.precision
    return {
        "devices": machine.layout.devices,
        "hardware": hardware and hardware.name,
        "hardware_memory_gib": hardware and hardware.memory,
        "hardware_usable_bytes": hardware and int(USABLE_MEMORY_SHARE * hardware.memory * GIB),
        "hardware_peak_tflops": hardware and get_peak_flops(hardware, precision) / 1e12,
        "hardware_source": hardware and hardware.source,
        "precision": precision,
    }


def _time(
    config: PlanCommand, training: TrainingWorkload, machine: HardwareSetup
) -> dict[str, Any]:
    """Estimate time, price, and the speed that reading and decoding need."""
    from patchwords.planning.estimate import (
        JPEGS_PER_CORE_SECOND,
        estimate_decoding_cores,
        estimate_time,
    )

    duration = estimate_time(training, machine)
    price = config.price_per_hour
    return {
        "utilisation": duration.utilisation,
        "utilisation_is": "measured" if machine.measured else "assumed",
        "images_per_second": duration.images_per_second,
        "seconds": duration.seconds,
        "days": duration.seconds / 86_400,
        "device_days": duration.device_days,
        "price_per_device_hour": price,
        "price": price and price * duration.device_days * 24,
        "image_kb": config.image_kb,
        "data_gb": training.images * config.image_kb / 1e6,
        "read_mb_per_second": duration.images_per_second * config.image_kb / 1e3,
        "decoded_images_per_second_and_core": list(JPEGS_PER_CORE_SECOND),
        "decoding_cores": list(estimate_decoding_cores(duration.images_per_second)),
    }


def _memory(
    training: TrainingWorkload, machine: HardwareSetup, micro_batch: int | None
) -> dict[str, Any]:
    """Compute the memory of each layout; if the chosen one does not fit, find one that does."""
    from patchwords.planning.estimate import find_fitting_layout, fit_in_memory, list_layouts

    fits = {
        layout: fit_in_memory(training, replace(machine, layout=layout), micro_batch)
        for layout in list_layouts(machine.layout)
    }
    would_fit = None
    if fits[machine.layout].fits is False:
        would_fit = find_fitting_layout(training, machine, micro_batch)
    return {
        "memory": [_layout(fit, layout == machine.layout) for layout, fit in fits.items()],
        "would_fit": would_fit
        and {
            "devices": would_fit.devices,
            "parallel": would_fit.parallel,
            "checkpoint_activations": would_fit.checkpointing,
        },
    }


def _layout(fit: MemoryFit, chosen: bool) -> dict[str, Any]:
    footprint = fit.footprint
    return {
        "parallel": fit.layout.parallel if fit.layout.devices > 1 else None,
        "checkpoint_activations": fit.layout.checkpointing,
        "chosen": chosen,
        "weights_bytes": footprint.weights,
        "gradients_bytes": footprint.gradients,
        "buckets_bytes": footprint.buckets,
        "state_bytes": footprint.state,
        "average_bytes": footprint.average,
        "weights_at_work_bytes": footprint.weights_at_work,
        "activations_bytes": footprint.activations(fit.micro_batch),
        "total_bytes": fit.total_bytes,
        "fits": fit.fits,
        "most_images": fit.most_images,
        "micro_batch": fit.micro_batch,
        "parts": fit.parts,
    }


# Rows of the table of memory: title and name in the estimate.
MEMORY_PARTS = {
    "weights": "weights_bytes",
    "gradients": "gradients_bytes",
    "gradient buckets": "buckets_bytes",
    "optimizer's state": "state_bytes",
    "average of the weights": "average_bytes",
    "weights at work": "weights_at_work_bytes",
    "activations": "activations_bytes",
}


def print_plan(plan: dict[str, Any]) -> None:
    """Print a plan in four sections, with a formula next to each number."""
    console = Console(width=CONSOLE_WIDTH, highlight=False)
    height, width = plan["image_size"]
    hardware = plan["hardware"] or "a device of measured speed"
    console.print(
        Text(
            f"{plan['model']} at {height}x{width} on {plan['devices']:,} x {hardware}: "
            f"{format_days(plan['seconds'])}",
            style="bold",
        )
    )
    print_section(console, "Work", compute_rows(plan))
    console.print(Text("\nMemory of a device, GiB", style="bold"))
    console.print(make_memory_table(plan))
    for line in list_memory_notes(plan):
        console.print(line)
    print_section(console, "Time", time_rows(plan))
    print_section(console, "Data and disk", data_rows(plan))


def compute_rows(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = [
        ("parameters", format_count(plan["parameters"]), ""),
        ("MACs per image", f"{plan['macs_per_image'] / 1e9:,.3f} G", plan["sees"]),
        (
            "images seen",
            format_count(plan["images_seen"]),
            f"{format_count(plan['images'])} images x {format_epochs(plan['epochs'])}",
        ),
        (
            "steps",
            format_count(plan["steps"]),
            f"images seen / batch of {format_count(plan['batch_size'])}",
        ),
        (
            "compute",
            format_exaflops(plan["training_exaflops"]),
            "6 x MACs x images seen (Table 6's unit)",
        ),
    ]
    if plan["computed_exaflops"] != plan["training_exaflops"]:
        again = "8 x MACs x images seen: one more forward pass"
        rows.append(("with checkpointing", format_exaflops(plan["computed_exaflops"]), again))
    return rows


def make_memory_table(plan: dict[str, Any]) -> Table:
    """Make a table of memory with a column per layout; the chosen one is marked."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", min_width=20, no_wrap=True)
    rows = plan["memory"]
    for row in rows:
        style = "bold" if row["chosen"] else ""
        table.add_column(format_layout(row), justify="right", no_wrap=True, style=style)
    for title, name in MEMORY_PARTS.items():
        if any(row[name] for row in rows):
            table.add_row(title, *(format_gib(row[name]) for row in rows))
    table.add_row("together", *(format_gib(row["total_bytes"]) for row in rows))
    if plan["hardware"]:
        table.add_row("fits", *(Text(*format_fit(row)) for row in rows))
        table.add_row("most images at a time", *(format_count(row["most_images"]) for row in rows))
    table.add_row("images at a time", *(format_count(row["micro_batch"]) for row in rows))
    table.add_row("parts of a batch", *(format_count(row["parts"]) for row in rows))
    return table


def format_layout(row: dict[str, Any]) -> str:
    checkpointed = ", checkpointed" if row["checkpoint_activations"] else ""
    return f"{row['parallel'] or 'one device'}{checkpointed}{' *' if row['chosen'] else ''}"


def format_fit(row: dict[str, Any]) -> tuple[str, str]:
    return ("yes", "green") if row["fits"] else ("no", "bold red")


def list_memory_notes(plan: dict[str, Any]) -> list[Text]:
    """List the assumptions, and a layout that fits if the chosen one does not."""
    shares = "* as asked for; a device's share of a batch = images at a time x parts"
    if plan["hardware"]:
        free = f"fits: within 90 % of {plan['hardware_memory_gib']} GiB. "
    else:
        free = "Without --gpu it is not known what fits: see --micro-batch. "
    notes = [Text(free + shares, style="dim")]
    if any(row["chosen"] and row["fits"] is False for row in plan["memory"]):
        notes.append(
            Text(f"It does not fit. {suggest_layout(plan['would_fit'])}", style="bold red")
        )
    return notes


def suggest_layout(would_fit: dict[str, Any] | None) -> str:
    """Suggest flags that fit in memory.

    >>> suggest_layout({"devices": 8, "parallel": "fsdp", "checkpoint_activations": True})
    'This would: --gpus 8 --parallel fsdp --checkpoint-activations'
    """
    if would_fit is None:
        return "Take devices with more memory, a smaller model or smaller images"
    flags = f"--gpus {would_fit['devices']}"
    if would_fit["devices"] > 1:
        flags += f" --parallel {would_fit['parallel']}"
    if would_fit["checkpoint_activations"]:
        flags += " --checkpoint-activations"
    return f"This would: {flags}"


def time_rows(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    each = 8 if plan["computed_exaflops"] != plan["training_exaflops"] else 6
    measured = plan["utilisation_is"] == "measured"
    if measured:
        how = f"{format_count(plan['devices'])} x the measured speed"
    else:
        how = (
            f"{format_count(plan['devices'])} x {plan['hardware_peak_tflops']:,.5g} TFLOP/s "
            f"({plan['precision']}) x {plan['utilisation']:g} / ({each} x MACs)"
        )
    rows = [("images a second", format_count(plan["images_per_second"]), how)]
    if not measured:
        rows.append(("utilisation", f"{plan['utilisation']:g}", "an assumption: see --measured"))
    elif plan["utilisation"]:
        reached = f"of {plan['hardware_peak_tflops']:,.5g} TFLOP/s ({plan['precision']})"
        rows.append(("utilisation", f"{plan['utilisation']:.3f}", reached))
    rows.append(("time", format_days(plan["seconds"]), "images seen / images a second"))
    rows.append(("device-days", f"{plan['device_days']:,.4g}", "time x devices"))
    if plan["price"]:
        how = f"device-hours x {plan['price_per_device_hour']:g}"
        rows.append(("price", f"{plan['price']:,.0f}", how))
    return rows


def data_rows(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    low, high = plan["decoding_cores"]
    slow, fast = plan["decoded_images_per_second_and_core"]
    each = round(plan["checkpoint_gb"] * 1e9 / plan["parameters"])
    average = ", average" if plan["memory"][0]["average_bytes"] else ""
    return [
        (
            "size of the data",
            format_bytes(plan["data_gb"] * 1e9),
            f"images x {plan['image_kb']:g} kB",
        ),
        (
            "read",
            f"{format_count(plan['read_mb_per_second'])} MB/s",
            "images a second x size of one",
        ),
        (
            "CPU cores to decode",
            format_count(low) if low == high else f"{format_count(low)} to {format_count(high)}",
            f"{format_count(fast)} to {format_count(slow)} photos a second each",
        ),
        (
            "a checkpoint",
            format_bytes(plan["checkpoint_gb"] * 1e9),
            f"{each} bytes a parameter: weights, optimizer's state{average}",
        ),
    ]


def format_gib(size: int) -> str:
    """Format a size in GiB.

    >>> format_gib(3 * GIB), format_gib(5_000_000), format_gib(0)
    ('3.00', '0.005', '-')
    """
    if not size:
        return "-"
    return f"{size / GIB:,.2f}" if size >= GIB / 100 else f"{size / GIB:.3f}"


def format_exaflops(number: float) -> str:
    return f"{number:,.0f} exaFLOPs" if number >= 100 else f"{number:.3g} exaFLOPs"
