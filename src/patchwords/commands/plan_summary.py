"""A plan on a terminal: four sections, a formula beside each number."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from patchwords.report.words import format_compact, format_count, pluralise

CONSOLE_WIDTH = 100
BYTES_PER_GIB = 2**30

# Rows of the table of memory: what is in a device, under its name in the estimate.
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
    """Print the estimate of `commands.plan.calculate`."""
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


def print_section(console: Console, title: str, rows: list[tuple[str, str, str]]) -> None:
    """A title, and rows of name, number, formula."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(min_width=20, no_wrap=True)
    table.add_column(justify="right", min_width=16, no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(Text(f"\n{title}", style="bold"))
    console.print(table)


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
    """A column for each layout, the one asked for marked."""
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
    """What the numbers rest on, and what to do where they are too large."""
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
    """
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
    """
    >>> format_gib(3 * BYTES_PER_GIB), format_gib(5_000_000), format_gib(0)
    ('3.00', '0.005', '-')
    """
    if not size:
        return "-"
    return (
        f"{size / BYTES_PER_GIB:,.2f}"
        if size >= BYTES_PER_GIB / 100
        else f"{size / BYTES_PER_GIB:.3f}"
    )


def format_bytes(size: float) -> str:
    """Decimal, as files and disks are counted."""
    return f"{format_compact(size)}B"


def format_exaflops(number: float) -> str:
    return f"{number:,.0f} exaFLOPs" if number >= 100 else f"{number:.3g} exaFLOPs"


def format_epochs(epochs: float) -> str:
    return pluralise(int(epochs), "epoch") if epochs == int(epochs) else f"{epochs:g} epochs"


def format_days(seconds: float) -> str:
    """
    >>> format_days(86_400 * 3), format_days(7200 * 3), format_days(30)
    ('3.0 days', '6.0 hours', '1 minute')
    """
    if seconds >= 86_400:
        return f"{seconds / 86_400:,.1f} days"
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return pluralise(max(1, round(seconds / 60)), "minute")
