"""Results of an evaluation: plain values by name, which show themselves as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

MAX_TABLE_ROWS = 50  # rows of a list that a notebook shows
MAX_CELL_LETTERS = 60
INTERVAL_ENDS = ("low", "high")


@dataclass(frozen=True)
class Interval:
    """A measured value and its 95 % interval, where one is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2%}"
        return f"{self.value:.2%} (95 % interval {self.low:.2%} to {self.high:.2%})"

    def to_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


class Results(Mapping[str, Any]):
    """Numbers by name, as JSON has them; a table in a notebook."""

    def __init__(self, values: Mapping[str, Any], title: str) -> None:
        self.values_by_name, self.title = dict(values), title

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    @property
    def accuracy(self) -> Interval:
        """Share of right answers; raises KeyError where several were measured, or none."""
        values = self.values_by_name
        accuracy = values["accuracy"] if "accuracy" in values else values["results"]["accuracy"]
        return Interval(**accuracy) if isinstance(accuracy, Mapping) else Interval(accuracy)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(self.values_by_name)

    def __repr__(self) -> str:
        lines = [f"  {name}: {text}" for name, text in iterate_cells(self.values_by_name)]
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        tables = [format_html_table(self.title, ("", ""), iterate_cells(self.values_by_name))]
        for name, rows in iterate_tables(self.values_by_name):
            columns = list(dict.fromkeys(key for row in rows for key in row))
            cells = ([format_cell(row.get(key)) for key in columns] for row in rows)
            tables.append(format_html_table(name, columns, cells))
        return "".join(tables)


def iterate_cells(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of every single value; ends of intervals are shown with what they belong to."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if set(value) == {"value", *INTERVAL_ENDS}:
                yield name, str(Interval(**value))
            elif not any(isinstance(inner, list | dict) for inner in value.values()):
                yield from ((f"{name} {inner}", text) for inner, text in iterate_cells(value))
            else:
                yield from iterate_cells(value)
        elif isinstance(value, list | tuple):
            if not value or not isinstance(value[0], Mapping | list | tuple):
                yield name, format_cell(", ".join(map(str, value)) or "none")
        elif name.rpartition("_")[2] not in INTERVAL_ENDS:
            ends = [values.get(f"{name}_{end}") for end in INTERVAL_ENDS]
            known = value is not None and None not in ends
            yield name, str(Interval(value, *ends)) if known else format_cell(value)


def iterate_tables(values: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Name and rows of every list of records, those of nested results included."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from iterate_tables(value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield name, value


def format_cell(value: object) -> str:
    """A value as short text."""
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_CELL_LETTERS else f"{text[: MAX_CELL_LETTERS - 3]}..."


def format_html_table(title: str, columns: Sequence[str], rows: Any) -> str:
    """An HTML table of texts, all of them escaped."""

    def row(cells: Sequence[str], element: str) -> str:
        return "".join(f"<{element}>{escape(cell)}</{element}>" for cell in cells)

    body = [f"<tr>{row(cells, 'td')}</tr>" for cells in rows]
    if len(body) > MAX_TABLE_ROWS:
        rest = f"<tr><td>and {len(body) - MAX_TABLE_ROWS:,} more</td></tr>"
        body = [*body[:MAX_TABLE_ROWS], rest]
    head = f"<thead><tr>{row(columns, 'th')}</tr></thead>" if any(columns) else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{''.join(body)}</tbody></table>"
