"""How long a run would take at the measured speed, and the commands that say and do so."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from patchwords.measure.subject import BenchmarkWorkload, InitKind
from patchwords.measure.together import EndToEndProfile
from patchwords.model.variants import resolve_model
from patchwords.train.footprint import OptimizerSpec, ParallelLayout
from patchwords.train.plan import require_setting
from patchwords.train.planning import HardwareSetup, TrainingWorkload, estimate_time
from patchwords.train.recipes import FINETUNE_EPOCHS, SCRATCH_EPOCHS

DEFAULT_EPOCHS: dict[InitKind, int] = {"weights": FINETUNE_EPOCHS, "scratch": SCRATCH_EPOCHS}


@dataclass(frozen=True)
class BenchmarkEstimate:
    """A run of so many images, on this machine."""

    images: int
    epochs: float
    batch: int  # of the recipe
    steps: int
    images_per_second: float  # as measured, to four digits
    seconds: float  # of training: evaluation and checkpoints are not in it
    plan: str  # the command that has the same time, with memory, data and price beside it


def estimate_from_benchmark(
    subject: BenchmarkWorkload, together: EndToEndProfile, images: int, epochs: float
) -> BenchmarkEstimate:
    """Images seen / the speed of training fed by the loader; all by the rules of `plan`."""
    recipe = subject.training.recipe
    precision: Literal["bf16", "fp32"] = "bf16" if together.precision == "bf16" else "fp32"
    update = OptimizerSpec(require_setting(recipe.optimizer), recipe.ema is not None, precision)
    training = TrainingWorkload(
        subject.shape, images, epochs, require_setting(recipe.batch_size), update
    )
    layout = ParallelLayout(1, "ddp", subject.checkpointing)
    measured = float(f"{together.images_per_second:.4g}")
    spent = estimate_time(training, HardwareSetup(None, layout, 1.0, measured))
    words = ["patchwords", "plan", *build_model_flags(subject)]
    words += ["--classes", str(subject.shape.num_classes), "--images", str(images)]
    words += ["--epochs", f"{epochs:g}", "--batch-size", str(training.batch)]
    words += ["--micro-batch", str(min(together.batch, training.batch))]
    words += ["--optimizer", update.optimizer, "--precision", precision]
    words += ["--measured", f"{measured:g}"]
    if subject.checkpointing:
        words.append("--checkpoint-activations")
    return BenchmarkEstimate(
        images, epochs, training.batch, training.steps, measured, spent.seconds, shlex.join(words)
    )


def build_finetune_command(
    subject: BenchmarkWorkload,
    together: EndToEndProfile,
    start: InitKind,
    parts: int | None,
    compile: bool,
) -> str:
    """What was advised, as a command; DATA and WEIGHTS are for a person to fill in."""
    words = ["patchwords", "finetune", "DATA", *build_model_flags(subject)]
    if start == "weights":
        words += ["--weights", "WEIGHTS"]
    words += ["--precision", together.precision, "--workers", str(together.workers)]
    if parts is not None:
        words += ["--grad-accum", str(parts)]
    if subject.checkpointing:
        words.append("--checkpoint-activations")
    if compile:
        words += ["--compile", "yes"]
    return shlex.join(words)


def build_model_flags(subject: BenchmarkWorkload) -> list[str]:
    """The model, and its image size where it is not that of the name."""
    size = subject.shape.image_size
    if size == resolve_model(subject.name).config.image_size:
        return ["--model", subject.name]
    sides = [str(side) for side in (size[:1] if size[0] == size[1] else size)]
    return ["--model", subject.name, "--image-size", *sides]
