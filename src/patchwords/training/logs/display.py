"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
MAX_LINE_COLUMNS = 100  # of a line in a file or a pipe; a terminal has its own width
MIN_BAR_COLUMNS = 8  # for the progress bar


class Display:
    """Shows settings before the first step, then loss, metrics, speed and time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Progress | None = None
        self.last_line = 0.0
        self.formats: Mapping[str, str] = {}

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def choices(self, title: str, choices: Iterable[ResolvedSetting]) -> None:
        """Show every setting that shapes the result, with value and reason."""
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("setting", style="bold", no_wrap=True)
        table.add_column("value", no_wrap=True)
        table.add_column("why", style="dim")
        for choice in choices:
            table.add_row(choice.name, _format_setting(choice.value), choice.why)
        self.console.print(table)

    def start(
        self,
        step: int,
        steps: int,
        formats: Mapping[str, str] = MappingProxyType({}),
        budget_left: Callable[[], float] | None = None,
    ) -> None:
        """Begin with the first step.

        Args:
            formats: metric of the objective -> how to print it; default: 3 digits.
            budget_left: -> seconds of the run's time that are left; default: it has no limit.
        """
        self.steps, self.formats, self.budget_left = steps, formats, budget_left
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
        """Show work before the first step."""
        if self.live:
            self.live.update(self.task, description=line)
        elif time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.say(line)

    def train(self, row: Mapping[str, Any]) -> None:
        """Show a "train" row of metrics.jsonl."""
        if self.budget_left is None:
            left = f"{format_duration((self.steps - row['step']) * row['batch_seconds'])} left"
        else:
            left = f"{format_duration(max(0.0, self.budget_left()))} of the budget left"
        count = f"{row['step']:,}/{self.steps:,}"
        if self.live:
            reserved = MIN_BAR_COLUMNS + len(f"  {count} {left}")
            text = join_fitting_parts(
                format_train_row(row, self.formats), self.console.width - reserved
            )
            self.live.update(
                self.task, completed=row["step"], total=self.steps, description=text, left=left
            )
        elif time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            text = join_fitting_parts(
                format_train_row(row, self.formats),
                MAX_LINE_COLUMNS - len(f"step {count}    {left}"),
            )
            self.say(f"step {count}  {text}  {left}")

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Show an "evaluation" or "fewshot" row of metrics.jsonl."""
        if row["kind"] == "fewshot":
            result = f"{row['shots']}-shot: accuracy {row['accuracy']:.1%}"
        else:
            metrics = "  ".join(format_metrics(row, self.formats))
            result = f"{row['split']}: {metrics}  loss {row['loss']:.3f}"
        self.say(
            f"step {row['step']:,}/{self.steps:,}  epoch {row['epoch']:.1f}  {result}  "
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


ROW_FIELDS = frozenset(  # of every row; the other fields are metrics of the objective
    (
        *("kind", "step", "epoch", "split", "images", "loss", "lr", "grad_norm", "data_wait"),
        *("images_per_second", "batch_seconds", "seconds", "memory", "utilisation"),
    )
)


def format_metrics(row: Mapping[str, Any], formats: Mapping[str, str]) -> Iterator[str]:
    """Format the objective's metrics in a row of metrics.jsonl."""
    for name, value in row.items():
        if name not in ROW_FIELDS:
            yield f"{name} {value:{formats.get(name, '.3g')}}"


def format_train_row(row: Mapping[str, Any], formats: Mapping[str, str]) -> Iterator[str]:
    """Format a "train" row as parts of a line, most important first."""
    yield f"loss {row['loss']:.3f}"
    yield from format_metrics(row, formats)
    yield f"{row['images_per_second']:,.0f} images/s"
    utilisation = row.get("utilisation")
    if utilisation is not None:
        yield f"{utilisation:.{0 if utilisation >= 0.1 else 1}%} of peak"
    yield f"data wait {row['data_wait']:.0%}"


def join_fitting_parts(parts: Iterable[str], room: int) -> str:
    """Join parts into a line, without the last ones if they do not fit; keep the first.

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
) -> list[ResolvedSetting]:
    """Show every resolved setting before the first step; -> the settings."""
    origin = f"from {config.weights}" if config.weights else "from scratch (no --weights)"
    model = start.model.config
    size = model.image_size
    name, _, changes = start.name.partition(" with ")  # a long value would squeeze the reasons
    changed = f"with {changes}; " if changes else ""
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
        layout = (
            "each has all weights" if config.machine.parallel != "fsdp" else "weights are sharded"
        )
        show.append(ResolvedSetting("processes", here.size, f"a share of each batch; {layout}"))
    display.say(describe_splits(data))
    for line in (*data.notes, *start.changes):
        display.say(f"note: {line}")
    # Not in the table: what is long.
    display.choices("settings", [choice for choice in show if choice.name != "weights"])
    for choice in show:
        if choice.name == "weights":
            display.say(f"weights: {choice.value}: {choice.why}")
    display.say(f"run folder: {config.output}")
    return show


def describe_splits(data: DatasetSplits) -> str:
    """Describe the sizes of the splits, in all and by class."""
    lines = [f"{data.source}: {len(data.classes) or 'no'} classes"]
    for name, examples in data.splits.items():
        if not data.classes:
            lines.append(f"  {name:<10} {len(examples):>7,} images")
            continue
        counts = examples.count_per_class()
        per_class = ", ".join(f"{c} {n}" for c, n in zip(data.classes, counts, strict=True))
        if len(data.classes) > 12:
            per_class = f"{counts.min()} to {counts.max()} a class"
        lines.append(f"  {name:<10} {len(examples):>7,} images ({per_class})")
    return "\n".join(lines)
