"""Everything that was decided, shown before the first step."""

from __future__ import annotations

from patchwords.data.examples import Data
from patchwords.device import Device
from patchwords.distributed import world
from patchwords.model.cost import parameters
from patchwords.train.config import FinetuneConfig
from patchwords.train.progress import Display
from patchwords.train.recipes import Choice
from patchwords.train.start import Start


def introduce(
    config: FinetuneConfig,
    start: Start,
    data: Data,
    device: Device,
    choices: list[Choice],
    display: Display,
) -> None:
    """Everything that was decided, before the first step."""
    origin = f"from {config.weights}" if config.weights else "from scratch (no --weights)"
    model = start.model.config
    size = model.image_size
    name, _, other = start.name.partition(" with ")  # a long value would squeeze the reasons
    changed = f"with {other}; " if other else ""
    show = [
        Choice("model", name, f"{changed}{parameters(model):,} parameters, {origin}"),
        Choice("image_size", f"{size[0]}x{size[1]}", model.summary),
        *choices,
        Choice("grad_accum", config.machine.grad_accum, "parts of a batch, to fit the memory"),
    ]
    here = world()
    if here.size > 1:
        how = "each has all weights" if config.machine.parallel != "fsdp" else "weights in shares"
        show.append(Choice("processes", here.size, f"a share of each batch; {how}"))
    display.say(describe_splits(data))
    for line in (*data.notes, *start.changes):
        display.say(f"note: {line}")
    display.choices("settings", show)
    display.say(f"run folder: {config.output}")  # not in the table: paths are long


def describe_splits(data: Data) -> str:
    """The sizes of the splits, whole and by class."""
    lines = [f"{data.source}: {len(data.classes) or 'no'} classes"]
    for name, examples in data.splits.items():
        if not data.classes:
            lines.append(f"  {name:<10} {len(examples):>7,} images")
            continue
        counts = examples.count_per_class()
        each = ", ".join(f"{c} {n}" for c, n in zip(data.classes, counts, strict=True))
        if len(data.classes) > 12:
            each = f"{counts.min()} to {counts.max()} a class"
        lines.append(f"  {name:<10} {len(examples):>7,} images ({each})")
    return "\n".join(lines)
