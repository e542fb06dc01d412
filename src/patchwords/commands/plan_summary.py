"""A plan on a terminal: four sections, a formula beside each number."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from patchwords.report.words import big, count, plural

WIDTH = 100
GIB = 2**30

# Rows of the table of memory: what is in a device, under its name in the estimate.
PARTS = {
    "weights": "weights_bytes",
    "gradients": "gradients_bytes",
    "gradient buckets": "buckets_bytes",
    "optimizer's state": "state_bytes",
    "average of the weights": "average_bytes",
    "weights at work": "weights_at_work_bytes",
    "activations": "activations_bytes",
}


def show(plan: dict[str, Any]) -> None:
    """Print the estimate of `commands.plan.calculate`."""
    console = Console(width=WIDTH, highlight=False)
    height, width = plan["image_size"]
    hardware = plan["hardware"] or "a device of measured speed"
    console.print(
        Text(
            f"{plan['model']} at {height}x{width} on {plan['devices']:,} x {hardware}: "
            f"{days(plan['seconds'])}",
            style="bold",
        )
    )
    section(console, "Work", work(plan))
    console.print(Text("\nMemory of a device, GiB", style="bold"))
    console.print(memory_table(plan))
    for line in memory_notes(plan):
        console.print(line)
    section(console, "Time", time_taken(plan))
    section(console, "Data and disk", data(plan))


def section(console: Console, title: str, rows: list[tuple[str, str, str]]) -> None:
    """A title, and rows of name, number, formula."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(min_width=20, no_wrap=True)
    table.add_column(justify="right", min_width=16, no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(Text(f"\n{title}", style="bold"))
    console.print(table)


def work(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = [
        ("parameters", count(plan["parameters"]), ""),
        ("MACs per image", f"{plan['macs_per_image'] / 1e9:,.3f} G", plan["sees"]),
        (
            "images seen",
            count(plan["images_seen"]),
            f"{count(plan['images'])} images x {plural_epochs(plan['epochs'])}",
        ),
        ("steps", count(plan["steps"]), f"images seen / batch of {count(plan['batch_size'])}"),
        ("compute", exaflops(plan["training_exaflops"]), "6 x MACs x images seen (Table 6's unit)"),
    ]
    if plan["computed_exaflops"] != plan["training_exaflops"]:
        again = "8 x MACs x images seen: one more forward pass"
        rows.append(("with checkpointing", exaflops(plan["computed_exaflops"]), again))
    return rows


def memory_table(plan: dict[str, Any]) -> Table:
    """A column for each layout, the one asked for marked."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", min_width=20, no_wrap=True)
    rows = plan["memory"]
    for row in rows:
        style = "bold" if row["chosen"] else ""
        table.add_column(layout_name(row), justify="right", no_wrap=True, style=style)
    for title, name in PARTS.items():
        if any(row[name] for row in rows):
            table.add_row(title, *(gib(row[name]) for row in rows))
    table.add_row("together", *(gib(row["total_bytes"]) for row in rows))
    if plan["hardware"]:
        table.add_row("fits", *(Text(*verdict(row)) for row in rows))
        table.add_row("most images at a time", *(count(row["most_images"]) for row in rows))
    table.add_row("images at a time", *(count(row["micro_batch"]) for row in rows))
    table.add_row("parts of a batch", *(count(row["parts"]) for row in rows))
    return table


def layout_name(row: dict[str, Any]) -> str:
    checkpointed = ", checkpointed" if row["checkpoint_activations"] else ""
    return f"{row['parallel'] or 'one device'}{checkpointed}{' *' if row['chosen'] else ''}"


def verdict(row: dict[str, Any]) -> tuple[str, str]:
    return ("yes", "green") if row["fits"] else ("no", "bold red")


def memory_notes(plan: dict[str, Any]) -> list[Text]:
    """What the numbers rest on, and what to do where they are too large."""
    shares = "* as asked for; a device's share of a batch = images at a time x parts"
    if plan["hardware"]:
        free = f"fits: within 90 % of {plan['hardware_memory_gib']} GiB. "
    else:
        free = "Without --gpu it is not known what fits: see --micro-batch. "
    notes = [Text(free + shares, style="dim")]
    if any(row["chosen"] and row["fits"] is False for row in plan["memory"]):
        notes.append(Text(f"It does not fit. {remedy(plan['would_fit'])}", style="bold red"))
    return notes


def remedy(would_fit: dict[str, Any] | None) -> str:
    """
    >>> remedy({"devices": 8, "parallel": "fsdp", "checkpoint_activations": True})
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


def time_taken(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    each = 8 if plan["computed_exaflops"] != plan["training_exaflops"] else 6
    measured = plan["utilisation_is"] == "measured"
    if measured:
        how = f"{count(plan['devices'])} x the measured speed"
    else:
        how = (
            f"{count(plan['devices'])} x {plan['hardware_peak_tflops']:,.5g} TFLOP/s "
            f"({plan['precision']}) x {plan['utilisation']:g} / ({each} x MACs)"
        )
    rows = [("images a second", count(plan["images_per_second"]), how)]
    if not measured:
        rows.append(("utilisation", f"{plan['utilisation']:g}", "an assumption: see --measured"))
    elif plan["utilisation"]:
        reached = f"of {plan['hardware_peak_tflops']:,.5g} TFLOP/s ({plan['precision']})"
        rows.append(("utilisation", f"{plan['utilisation']:.3f}", reached))
    rows.append(("time", days(plan["seconds"]), "images seen / images a second"))
    rows.append(("device-days", f"{plan['device_days']:,.4g}", "time x devices"))
    if plan["price"]:
        how = f"device-hours x {plan['price_per_device_hour']:g}"
        rows.append(("price", f"{plan['price']:,.0f}", how))
    return rows


def data(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    low, high = plan["decoding_cores"]
    slow, fast = plan["decoded_images_per_second_and_core"]
    each = round(plan["checkpoint_gb"] * 1e9 / plan["parameters"])
    average = ", average" if plan["memory"][0]["average_bytes"] else ""
    return [
        ("size of the data", bytes_of(plan["data_gb"] * 1e9), f"images x {plan['image_kb']:g} kB"),
        ("read", f"{count(plan['read_mb_per_second'])} MB/s", "images a second x size of one"),
        (
            "CPU cores to decode",
            count(low) if low == high else f"{count(low)} to {count(high)}",
            f"{count(fast)} to {count(slow)} photos a second each",
        ),
        (
            "a checkpoint",
            bytes_of(plan["checkpoint_gb"] * 1e9),
            f"{each} bytes a parameter: weights, optimizer's state{average}",
        ),
    ]


def gib(size: int) -> str:
    """
    >>> gib(3 * GIB), gib(5_000_000), gib(0)
    ('3.00', '0.005', '-')
    """
    if not size:
        return "-"
    return f"{size / GIB:,.2f}" if size >= GIB / 100 else f"{size / GIB:.3f}"


def bytes_of(size: float) -> str:
    """Decimal, as files and disks are counted."""
    return f"{big(size)}B"


def exaflops(number: float) -> str:
    return f"{number:,.0f} exaFLOPs" if number >= 100 else f"{number:.3g} exaFLOPs"


def plural_epochs(epochs: float) -> str:
    return plural(int(epochs), "epoch") if epochs == int(epochs) else f"{epochs:g} epochs"


def days(seconds: float) -> str:
    """
    >>> days(86_400 * 3), days(7200 * 3), days(30)
    ('3.0 days', '6.0 hours', '1 minute')
    """
    if seconds >= 86_400:
        return f"{seconds / 86_400:,.1f} days"
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return plural(max(1, round(seconds / 60)), "minute")
