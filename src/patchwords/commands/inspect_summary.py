"""What `patchwords inspect` says on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchwords.report.words import format_against_random, pluralise


def print_inspection(results: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    console = Console()
    for line in format_inspection_lines(results, folder):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def format_inspection_lines(results: dict[str, Any], folder: Path) -> list[str]:
    """The main numbers, and whether maps explain answers."""
    filters = results["filters"]
    said = [
        f"filters: the first {len(filters['explained'])} principal components hold "
        f"{sum(filters['explained']):.0%} of the variance of {filters['filters']} filters of the "
        f"{filters['of']}"
    ]
    if "positions" in results:
        said += [
            format_positions(table, results)
            for table in first_and_last(results["positions"]["explained"])
        ]
    if "nearest" in results:
        said.append(format_nearest(results["nearest"]))
    if "distance" in results:
        said += format_distance(results["distance"])
    if "tokens" in results:
        tokens = results["tokens"]
        said.append(
            f"tokens: cosine similarity to the {tokens['to']} {tokens['mean'][0]:.2f} after the "
            f"first layer, {tokens['mean'][-1]:.2f} after the last"
        )
    if "truth" in results:
        said += format_faithfulness(results["truth"])
    said += [f"left out: {part}: {why}" for part, why in results["left_out"].items()]
    return [*said, f"figures and numbers: {folder}"]


def first_and_last(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return tables if len(tables) == 1 else [tables[0], tables[-1]]


def format_positions(table: dict[str, Any], results: dict[str, Any]) -> str:
    many = len(results["positions"]["explained"]) > 1
    return (
        f"positions{' of layer ' + str(table['layer']) if many else ''}: similarity is explained "
        f"by rows {table['rows']:.0%}, columns {table['columns']:.0%}, both in sum "
        f"{table['rows_and_columns']:.0%}, distance {table['distance']:.0%}"
    )


def format_nearest(nearest: dict[str, Any]) -> str:
    best = [photo["nearest"][0]["similarity"] for photo in nearest["photos"]]
    images, chance = pluralise(nearest["images"], "image"), nearest["by_chance"]
    return (
        f"nearest to {pluralise(len(best), 'photo')} among {images} of {nearest['data']} "
        f"({nearest['origin']}): cosines {min(best):.3f} to {max(best):.3f}"
        + ("" if chance is None else f"; two images by chance {chance:.3f}")
    )


def format_distance(distance: dict[str, Any]) -> list[str]:
    first, last = distance["pixels"][0], distance["pixels"][-1]
    return [
        f"attention distance over {pluralise(distance['images'], 'image')}: heads of the first layer "
        f"{min(first):.3g} to {max(first):.3g} pixels, of the last {min(last):.3g} to "
        f"{max(last):.3g}; looking everywhere alike would be {distance['uniform']:.3g}"
    ]


def format_faithfulness(truth: dict[str, Any]) -> list[str]:
    said = [
        f"do maps explain the answers? over {pluralise(truth['images'], 'image')}, area under "
        "insertion less deletion, beside random maps:"
    ]
    for name, areas in truth["maps"].items():
        if beside := areas.get("beside_random"):
            said.append(f"  {name}: {format_against_random(beside)}")
    return said
