"""`pw.fewshot`, `pw.probe` and `pw.knn`: the numbers of the commands, as objects."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

import patchwords as pw
from patchwords.cli import main
from patchwords.errors import ConfigError

CALLS: dict[str, dict[str, Any]] = {
    "fewshot": {"shots": [1, 5], "seeds": 2, "l2": [1024.0]},
    "probe": {"l2": [0.01, 1.0]},
    "knn": {"k": [3, 5], "temperature": 0.1},
}


@pytest.mark.parametrize("verb", CALLS)
def test_a_probe_is_that_of_the_command(verb: str, run: pw.Run, photos: Path) -> None:
    results = getattr(pw, verb)(run, photos, cache="none", **CALLS[verb])
    flags = [
        str(word)
        for name, value in CALLS[verb].items()
        for word in (f"--{name}", *(value if isinstance(value, list) else [value]))
    ]
    out = io.StringIO()
    words = [verb, str(run.folder), str(photos), *flags, "--cache", "none", "--json"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(words) == 0
    assert json.loads(out.getvalue()) == json.loads(json.dumps(results.to_dict()))
    assert "<table>" in results._repr_html_()
    assert str(run.folder) in repr(results)
    if verb != "fewshot":
        assert results.accuracy.low <= results.accuracy.value <= results.accuracy.high


def test_one_value_is_as_good_as_a_list(run: pw.Run, photos: Path) -> None:
    results = pw.fewshot(run.pretrained, photos, shots=2, seeds=1, cache="none")
    assert [row["shots"] for row in results["table"]] == [2]
    assert results["model"] == str(run.folder)


def test_wrong_settings_are_named(run: pw.Run, photos: Path) -> None:
    with pytest.raises(ConfigError, match="unknown setting 'cash'; did you mean 'cache'"):
        pw.knn(run, photos, cash="none")
    with pytest.raises(ConfigError, match="--seeds 0 must be at least 1"):
        pw.fewshot(run, photos, seeds=0)
    with pytest.raises(ConfigError, match="--precision 'fp64' is not a choice"):
        pw.probe(run, photos, precision="fp64")
