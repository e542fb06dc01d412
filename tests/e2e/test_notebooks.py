"""The notebooks' cells run as they are, on fewer images; and their outputs are kept in the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))

from execute import execute_notebook  # noqa: E402

QUICK = {"IMAGES": 120, "EPOCHS": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["photos_to_report", "look_inside"])
def test_a_notebook_runs(name: str) -> None:
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells), "python notebooks/execute.py"
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in cells]
    execute_notebook(notebook, QUICK)
    assert [[output["output_type"] for output in cell["outputs"]] for cell in cells] == kinds
    pictures = [
        output for cell in cells for output in cell["outputs"] if "image/png" in str(output)
    ]
    assert len(pictures) >= 2
