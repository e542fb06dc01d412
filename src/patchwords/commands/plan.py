"""`patchwords plan`: what a training costs, before it is paid for."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from patchwords.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from patchwords.train.planning import HardwareSetup, TrainingWorkload

# The paper's data sets (Section 4.1): images, in ImageNet-21k's case the exact number.
DATA_SET_SIZES = {"imagenet": 1_281_167, "imagenet21k": 14_197_122, "jft": 303_000_000}


@dataclass(frozen=True)
class PlanCommand:
    """Say what a training costs before it is paid for: compute, memory, days, data.

    Everything is arithmetic on the model's shape and the hardware's datasheet; nothing is run, and
    no GPU is needed. Each number comes with its formula, docs/planning.md has the assumptions.

    Example: patchwords plan --model ViT-H/14 --images jft --epochs 14 --gpus 64 --gpu h100
    """

    model: str = "ViT-B/16"
    """the model, by name; `patchwords models` lists them"""
    image_size: tuple[int, ...] | None = None
    """one number, or height and width, in pixels"""
    classes: int = 1000
    """outputs of the head"""
    images: str = "imagenet"
    """images in the data set, as 303e6; or imagenet (1.28 M), imagenet21k (14.2 M), jft (303 M)"""
    epochs: float = 300
    """passes over the images; the paper has 300 for ImageNet, 7 or 14 for JFT"""
    batch_size: int = 4096
    """images per update, over all devices"""
    gpu: str | None = None
    """the hardware: h100, a100-80gb, 4090, mi300x, tpu-v3 and others: without it, all are named"""
    gpus: int = 1
    """how many of them"""
    utilisation: float = 0.4
    """share of the hardware's peak that is reached; 0.4 is an assumption"""
    measured: float | None = None
    """images a second that one device trained on in a short run, in place of --utilisation"""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every device holds all weights; fsdp: weights, gradients and state are shared out"""
    checkpoint_activations: bool = False
    """keep only the input of each block, and compute the rest again: less memory, more time"""
    micro_batch: int | None = None
    """images at a time on one device; none given: as many as fit"""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """what keeps state for the weights: adamw two numbers each, sgd with momentum one"""
    ema: bool = False
    """keep a running average of the weights, too"""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """of matrix products; auto: bf16 where the hardware has it"""
    image_kb: float = 110
    """size of one image file in kB; ImageNet's are about 110"""
    price_per_hour: float | None = None
    """of one device, in any currency: adds what all of it costs"""
    json: bool = False
    """print JSON"""


def run_plan(config: PlanCommand) -> int:
    from patchwords.commands.plan_estimate import estimate_plan
    from patchwords.commands.plan_summary import print_plan

    training, machine = check_plan(config)
    estimate = estimate_plan(config, training, machine)
    if config.json:
        print(jsonlib.dumps(estimate, indent=1))
    else:
        print_plan(estimate)
    return 0


def check_plan(config: PlanCommand) -> tuple[TrainingWorkload, HardwareSetup]:
    """The training and the machine that are asked for; raises ConfigError by the flag's name."""
    from patchwords.model.variants import resolve_model
    from patchwords.train.footprint import OptimizerSpec, ParallelLayout
    from patchwords.train.hardware import HARDWARE, choose_hardware_precision, find_hardware
    from patchwords.train.planning import HardwareSetup, TrainingWorkload

    _check_numbers(config)
    if config.gpu is None and config.measured is None:
        raise ConfigError(
            f"which hardware? Give --gpu with one of {', '.join(HARDWARE)}; or --measured with "
            "the images a second of a short run"
        )
    if config.parallel == "fsdp" and config.gpus == 1:
        raise ConfigError("--parallel fsdp shares weights out over devices; --gpus 1 is only one")
    if config.gpus > config.batch_size:
        raise ConfigError(
            f"--gpus {config.gpus} for batches of {config.batch_size}: a device would have no "
            f"image; up to {config.batch_size} can take part"
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
            f"--epochs {config.epochs:g} of {training.images:,} images are not one image"
        )
    if config.micro_batch is not None and config.micro_batch * config.gpus > config.batch_size:
        raise ConfigError(
            f"--micro-batch {config.micro_batch} on {config.gpus} devices is more than the batch "
            f"of {config.batch_size}; up to {config.batch_size // config.gpus} would do"
        )
    return training, HardwareSetup(hardware, layout, config.utilisation, config.measured)


def parse_image_count(text: str) -> int:
    """'303e6', '1,281,167' or a data set of the paper, as a number of images.

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
            f"--images {text!r}: expected a number, as 303e6, or a data set{near}"
        ) from None
    if not math.isfinite(number) or number < 1 or number != int(number):
        raise ConfigError(f"--images {text} must be a whole number from 1 up, as 303e6")
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
