"""The studies that docs show: of the program as it is, and every number as it was found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from patchwords.studies.contents import contents, difference
from patchwords.studies.page import markdown
from patchwords.studies.record import digest
from patchwords.studies.results import summary
from patchwords.studies.table import STUDIES, find
from patchwords.studies.verdict import judge

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "studies").glob("*.json"))
EACH = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_some_studies_are_shown() -> None:
    assert {file.stem for file in FILES} <= set(STUDIES)
    assert FILES


@EACH
def test_results_are_of_this_version_of_the_study(file: Path) -> None:
    results = read(file)
    study = find(file.stem)
    assert results["study"] == study.name
    assert (results["version"], results["digest"]) == (
        study.version,
        digest(study, results["scale"]),
    )


@EACH
def test_verdicts_follow_from_the_values(file: Path) -> None:
    results = read(file)
    study = find(file.stem)
    table = {one["label"]: dict(enumerate(one["values"])) for one in results["labels"]}
    for claim, shown in zip(study.claims, results["claims"], strict=True):
        found = judge(claim, table)
        assert (found.word, list(found.values)) == (shown["verdict"], shown["values"])
    for one in results["labels"]:
        again = summary(one["label"], table[one["label"]], study.paper.get(one["label"]))
        assert (one["values"], one["paper"]) == (again["values"], again["paper"])
        # Student's t is another library's, and may differ in its last digits
        assert one["over_seeds"] == pytest.approx(again["over_seeds"], rel=1e-9)


@EACH
def test_the_page_says_what_the_results_say(file: Path) -> None:
    results, page = read(file), file.with_suffix(".md").read_text(encoding="utf-8")
    study = find(file.stem)
    pictures = re.findall(r"^!\[.*\]\((.*)\.png\)$", page, re.MULTILINE)
    assert pictures
    assert all((DOCS / "studies" / f"{name}.png").is_file() for name in pictures)
    assert page == markdown(study.title, contents(study, results, pictures, results["command"]))
    assert f"](studies/{file.stem}.md)" in (DOCS / "studies.md").read_text(encoding="utf-8")


@EACH
def test_the_list_of_claims_has_each_with_its_verdict(file: Path) -> None:
    rows = (DOCS / "claims.md").read_text(encoding="utf-8").splitlines()
    for claim in read(file)["claims"]:
        cells = claim["text"], claim["paper"], difference(claim), claim["verdict"]
        assert any(row.endswith(f"| {' | '.join(cells)} |") for row in rows)


def test_the_list_of_claims_counts_them() -> None:
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    verdicts = [claim["verdict"] for file in FILES for claim in read(file)["claims"]]
    assert f"{len(verdicts)} claims by {len(FILES)} stud" in text
    for word in set(verdicts):
        assert f"{verdicts.count(word)} {word}" in text
