"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from patchwords.data.dataset import DatasetSplits
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.files import format_duration
from patchwords.models.cost import count_parameters
from patchwords.training.config import FinetuneConfig
from patchwords.training.model_setup import InitialModel
from patchwords.training.plan import ResolvedSetting

SECONDS_BETWEEN_LINES = 10.0
MAX_LINE_COLUMNS = 100  # of a line in a file or a pipe; a terminal says how many it has
MIN_BAR_COLUMNS = 8  # columns that are left to it, at least


class Display:
    """Shows the settings before the first step, then loss, metrics, speed and time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Progress | None = None
        self.last_line = 0.0
        self.formats: Mapping[str, str] = {}

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def choices(self, title: str, choices: Iterable[ResolvedSetting]) -> None:
        """Print every setting that shapes the result, its value and the reason."""
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("setting", style="bold", no_wrap=True)
        table.add_column("value", no_wrap=True)
        table.add_column("why", style="dim")
        for choice in choices:
            table.add_row(choice.name, _format_setting(choice.value), choice.why)
        self.console.print(table)

    def start(
        self, step: int, steps: int, formats: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`formats`: metric of the objective -> how to print it; default: 3 digits."""
        self.steps, self.formats = steps, formats
        if self.console.is_terminal:
            self.live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                expand=True,
            )
            self.live.start()
            self.task = self.live.add_task("starting", total=steps, completed=step, left="")

    def busy(self, line: str) -> None:
        """Show what is done before the first step."""
        if self.live:
            self.live.update(self.task, description=line)
        elif time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.say(line)

    def train(self, row: Mapping[str, Any]) -> None:
        """Show a "train" row of metrics.jsonl."""
        left = f"{format_duration((self.steps - row['step']) * row['batch_seconds'])} left"
        place = f"{row['step']:,}/{self.steps:,}"
        if self.live:
            reserved = MIN_BAR_COLUMNS + len(f"  {place} {left}")
            text = join_fitting_parts(
                format_train_row(row, self.formats), self.console.width - reserved
            )
            self.live.update(self.task, completed=row["step"], description=text, left=left)
        elif time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            text = join_fitting_parts(
                format_train_row(row, self.formats),
                MAX_LINE_COLUMNS - len(f"step {place}    {left}"),
            )
            self.say(f"step {place}  {text}  {left}")

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Show an "evaluation" or "fewshot" row of metrics.jsonl."""
        if row["kind"] == "fewshot":
            what = f"{row['shots']}-shot: accuracy {row['accuracy']:.1%}"
        else:
            metrics = "  ".join(format_metrics(row, self.formats))
            what = f"{row['split']}: {metrics}  loss {row['loss']:.3f}"
        self.say(
            f"step {row['step']:,}/{self.steps:,}  epoch {row['epoch']:.1f}  {what}  "
            f"({row['images']:,} images)"
        )

    def note(self, row: Mapping[str, Any]) -> None:
        """Show a "note" row of metrics.jsonl."""
        self.say(f"step {row['step']:,}/{self.steps:,}  {row['text']}")

    def stop(self) -> None:
        if self.live:
            self.live.stop()
            self.live = None

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


ROW_FIELDS = frozenset(  # of every row; what else is in it are metrics of the objective
    (
        *("kind", "step", "epoch", "split", "images", "loss", "lr", "grad_norm", "data_wait"),
        *("images_per_second", "batch_seconds", "seconds", "memory", "utilisation"),
    )
)


def format_metrics(row: Mapping[str, Any], formats: Mapping[str, str]) -> Iterator[str]:
    """Each metric of the objective in a row of metrics.jsonl."""
    for name, value in row.items():
        if name not in ROW_FIELDS:
            yield f"{name} {value:{formats.get(name, '.3g')}}"


def format_train_row(row: Mapping[str, Any], formats: Mapping[str, str]) -> Iterator[str]:
    """The parts of a "train" row, what matters most first."""
    yield f"loss {row['loss']:.3f}"
    yield from format_metrics(row, formats)
    yield f"{row['images_per_second']:,.0f} images/s"
    used = row.get("utilisation")
    if used is not None:
        yield f"{used:.0%} of peak" if used >= 0.1 else f"{used:.1%} of peak"
    yield f"data wait {row['data_wait']:.0%}"


def join_fitting_parts(parts: Iterable[str], room: int) -> str:
    """Join the first parts that fit into a line; the very first always does.

    >>> join_fitting_parts(["loss 2.5", "accuracy 10.0%", "97 images/s"], room=24)
    'loss 2.5  accuracy 10.0%'
    """
    line, *others = parts
    for part in others:
        if len(line) + 2 + len(part) > room:
            break
        line = f"{line}  {part}"
    return line


def _format_setting(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return " ".join(_format_setting(part) for part in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def show_run_settings(
    config: FinetuneConfig,
    start: InitialModel,
    data: DatasetSplits,
    device: Device,
    choices: list[ResolvedSetting],
    display: Display,
) -> None:
    """Show every setting as resolved, before the first step."""
    origin = f"from {config.weights}" if config.weights else "from scratch (no --weights)"
    model = start.model.config
    size = model.image_size
    name, _, other = start.name.partition(" with ")  # a long value would squeeze the reasons
    changed = f"with {other}; " if other else ""
    show = [
        ResolvedSetting(
            "model", name, f"{changed}{count_parameters(model):,} parameters, {origin}"
        ),
        ResolvedSetting("image_size", f"{size[0]}x{size[1]}", model.summary),
        *choices,
        ResolvedSetting(
            "grad_accum", config.machine.grad_accum, "parts of a batch, to fit the memory"
        ),
    ]
    here = get_world()
    if here.size > 1:
        how = "each has all weights" if config.machine.parallel != "fsdp" else "weights in shares"
        show.append(ResolvedSetting("processes", here.size, f"a share of each batch; {how}"))
    display.say(describe_splits(data))
    for line in (*data.notes, *start.changes):
        display.say(f"note: {line}")
    display.choices("settings", show)
    display.say(f"run folder: {config.output}")  # not in the table: paths are long


def describe_splits(data: DatasetSplits) -> str:
    """Describe the sizes of the splits, in all and by class."""
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
