"""What `patchwords compare` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

MAX_CLASS_ROWS = 20  # rows, those with the largest differences; results.csv has them all
MAX_DISAGREEMENTS = 5  # that the models disagree on; disagreements.csv has them all


def print_comparison(
    results: dict[str, Any], other: Sequence[dict[str, Any]], folder: Path | None
) -> None:
    """Tables of the models and of the classes, then the answer in words."""
    from rich.console import Console

    console = Console()
    console.print(make_comparison_table(results))
    console.print()
    console.print(make_recall_table(results["per_class"]))
    console.print()
    lines = [
        *describe_comparison(results),
        *list_comparison_warnings(results),
        *describe_disagreements(other),
    ]
    if folder is not None:
        lines.append(f"written: {folder}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_comparison_table(results: dict[str, Any]) -> Table:
    """Accuracy and macro F1 of each, and how far they are apart."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "accuracy", "95 %", "macro F1", "95 %"):
        table.add_column(name, justify="left" if not name else "right")
    for side in ("a", "b"):
        one = results[side]
        cells = [*format_share_cells(one, "accuracy"), *format_share_cells(one, "macro_f1")]
        table.add_row(f"{side.upper()} {escape(one['name'])}", *cells)
    apart = results["difference"]
    table.add_row(
        "B less A",
        *format_point_cells(apart, "accuracy"),
        *format_point_cells(apart, "macro_f1"),
        style="bold",
    )
    return table


def format_share_cells(numbers: dict[str, Any], name: str) -> tuple[str, str]:
    low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
    return f"{numbers[name]:.2%}", f"{low:.2%} to {high:.2%}"


def format_point_cells(numbers: dict[str, Any], name: str) -> tuple[str, str]:
    """A difference in percentage points."""
    value, low, high = (100 * numbers[key] for key in (name, f"{name}_low", f"{name}_high"))
    return f"{value:+.2f}", f"{low:+.2f} to {high:+.2f}"


def make_recall_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Recall of each class, the widest apart first."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("class", "recall of A", "of B", "B less A", "95 %", "images"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for row in sorted(rows, key=lambda row: -abs(row["difference"]))[:MAX_CLASS_ROWS]:
        recalls = (f"{row[f'recall_{side}']:.3f}" for side in "ab")
        table.add_row(
            escape(row["class"]),
            *recalls,
            *format_point_cells(row, "difference"),
            f"{row['support']:,}",
        )
    return table


def describe_comparison(results: dict[str, Any]) -> list[str]:
    """What the numbers say."""
    from patchwords.evaluate.paired import PairedCounts, format_mcnemar_result, format_paired_counts

    pairs = PairedCounts(**results["pairs"])
    where = "" if results["split"] is None else f" of {results['split']}"
    lines = [
        f"{results['images']:,} images{where}: {format_paired_counts(pairs)}; the same answer to "
        f"{results['agreement']:.2%}",
        format_mcnemar_result(pairs),
    ]
    if left := results.get("left_out_as_trained_on"):
        lines.append(f"{left:,} images were left out: a run trained on them")
    if any(results["left_out"]):
        a, b = results["left_out"]
        lines.append(f"left out: {a:,} images of A and {b:,} of B that the other did not answer")
    return lines


def list_comparison_warnings(results: dict[str, Any]) -> list[str]:
    """What may flatter one of them."""
    names = {side: results[side]["name"] for side in ("a", "b")}
    trained, unknown = (
        [names[side] for side, found in results["trained_on"].items() if found is value]
        for value in (True, None)
    )
    return [
        *(f"beware: {name} was trained on some of these images" for name in trained),
        *(f"beware: what {name} was trained on is not recorded with it" for name in unknown),
    ]


def describe_disagreements(other: Sequence[dict[str, Any]]) -> list[str]:
    """The images on which both are sure, of different answers."""
    if not other:
        return []
    return [
        f"they answer {len(other):,} images differently; both are surest on:",
        *(
            f"  {row['path']} ({row['label']}): A {row['prediction_a']} "
            f"{row['probability_a']:.0%}, B {row['prediction_b']} {row['probability_b']:.0%}"
            for row in other[:MAX_DISAGREEMENTS]
        ),
    ]
