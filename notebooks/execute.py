"""Execute the notebooks of this folder in place: `python notebooks/execute.py`, after a change.

Cells are plain Python, so that no Jupyter is needed here and the tests can run them, too.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MAX_PRINTED_LINES = 60  # of a cell, kept in the file


def execute_notebook(notebook: dict[str, Any], settings: dict[str, int] | None = None) -> None:
    """Execute the cells in the current folder and fill in their outputs.

    `settings` takes the place of numbers: {"EPOCHS": 1} of a line `EPOCHS = 8`.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        cell["execution_count"] = number
        cell["outputs"] = execute_cell("".join(cell["source"]), names, settings or {}, number)


def execute_cell(
    source: str, names: dict[str, Any], settings: dict[str, int], number: int
) -> list[dict[str, Any]]:
    """Execute one cell; -> its outputs: what it printed, and its last expression."""
    body = ast.parse(source).body
    for statement in body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in settings:
            statement.value = ast.Constant(settings[target.id])  # type: ignore[attr-defined]
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.fix_missing_locations(ast.Module(body, [])), "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # type: ignore[attr-defined]
    outputs: list[dict[str, Any]] = []
    if lines := printed.getvalue().splitlines(keepends=True):
        kept = lines[-MAX_PRINTED_LINES:]
        outputs.append({"output_type": "stream", "name": "stdout", "text": kept})
    if value is not None:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": represent_value(value),
            }
        )
    return outputs


def represent_value(value: Any) -> dict[str, Any]:
    """Represent a value as Jupyter does: text, and HTML or a PNG if it has them."""
    text = re.sub(r" at 0x[0-9A-F]+", "", repr(value))  # an address is new each time
    data: dict[str, Any] = {"text/plain": text.splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode()
    return data


def main() -> int:
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            execute_notebook(notebook)
            os.chdir(FOLDER)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"{path.name}: {os.path.getsize(path) / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
