"""Everything that was decided, shown before the first step."""

from __future__ import annotations

from patchwords.data.examples import DatasetSplits
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.model.cost import count_parameters
from patchwords.train.config import FinetuneConfig
from patchwords.train.progress import Display
from patchwords.train.recipes import Choice
from patchwords.train.start import InitialModel


def show_run_settings(
    config: FinetuneConfig,
    start: InitialModel,
    data: DatasetSplits,
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
        Choice("model", name, f"{changed}{count_parameters(model):,} parameters, {origin}"),
        Choice("image_size", f"{size[0]}x{size[1]}", model.summary),
        *choices,
        Choice("grad_accum", config.machine.grad_accum, "parts of a batch, to fit the memory"),
    ]
    here = get_world()
    if here.size > 1:
        how = "each has all weights" if config.machine.parallel != "fsdp" else "weights in shares"
        show.append(Choice("processes", here.size, f"a share of each batch; {how}"))
    display.say(describe_splits(data))
    for line in (*data.notes, *start.changes):
        display.say(f"note: {line}")
    display.choices("settings", show)
    display.say(f"run folder: {config.output}")  # not in the table: paths are long


def describe_splits(data: DatasetSplits) -> str:
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
