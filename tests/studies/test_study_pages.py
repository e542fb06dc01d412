"""The studies that docs show: of the program as it is, and every number as it was found."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from patchwords.studies.grid import compute_study_digest
from patchwords.studies.page import build_page_blocks, render_markdown_page
from patchwords.studies.registry import STUDIES, load_study
from patchwords.studies.results import judge_claim, summarise_label

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "studies").glob("*.json"))

spec = importlib.util.spec_from_file_location("take", DOCS / "studies" / "take.py")
assert spec is not None
assert spec.loader is not None
take = importlib.util.module_from_spec(spec)
spec.loader.exec_module(take)

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
    study = load_study(file.stem)
    assert results["study"] == study.name
    assert (results["version"], results["digest"]) == (
        study.version,
        compute_study_digest(study, results["scale"]),
    )


@EACH
def test_verdicts_follow_from_the_values(file: Path) -> None:
    results = read(file)
    study = load_study(file.stem)
    table = {one["label"]: dict(enumerate(one["values"])) for one in results["labels"]}
    for claim, shown in zip(study.claims, results["claims"], strict=True):
        found = judge_claim(claim, table)
        assert (found.word, list(found.values)) == (shown["verdict"], shown["values"])
    for one in results["labels"]:
        again = summarise_label(one["label"], table[one["label"]], study.paper.get(one["label"]))
        assert (one["values"], one["paper"]) == (again["values"], again["paper"])
        # Student's t is another library's, and may differ in its last digits
        assert one["over_seeds"] == pytest.approx(again["over_seeds"], rel=1e-9)


@EACH
def test_the_page_says_what_the_results_say(file: Path) -> None:
    results, page = read(file), file.with_suffix(".md").read_text(encoding="utf-8")
    study = load_study(file.stem)
    pictures = [Path(name).stem for name in take.pictures_of(page)]
    assert pictures
    assert all((DOCS / "studies" / f"{name}.png").is_file() for name in pictures)
    assert page == render_markdown_page(
        study.title, build_page_blocks(study, results, pictures, results["command"])
    )
    assert f"](studies/{file.stem}.md)" in (DOCS / "studies.md").read_text(encoding="utf-8")


def test_the_list_of_claims_has_all_of_them() -> None:
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    assert text == take.claims_page(text), "run: python docs/studies/take.py"


def test_a_run_is_taken_with_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown already, taken anew; a figure that the page had before goes away."""
    docs, file = tmp_path / "docs", FILES[0]
    run, here = tmp_path / "run", docs / "studies"
    for folder in (run, here):
        folder.mkdir(parents=True)
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    (run / "page.md").write_text(page, encoding="utf-8")
    (run / "results.json").write_bytes(file.read_bytes())
    (here / file.name).write_text("{}", encoding="utf-8")
    (here / f"{file.stem}.md").write_text("![old](old.png)\n", encoding="utf-8")
    (here / "old.png").touch()
    pictures = take.pictures_of(page)
    for picture in pictures:
        (run / picture).write_bytes(picture.encode())
    for name in ("claims.md", "studies.md"):
        (docs / name).write_bytes((DOCS / name).read_bytes())
    monkeypatch.setattr(take, "HERE", here)
    monkeypatch.setattr(take, "DOCS", docs)

    take.main([str(run)])

    assert (here / f"{file.stem}.md").read_text(encoding="utf-8") == page
    assert (here / file.name).read_bytes() == file.read_bytes()
    assert {one.name for one in here.glob("*.png")} == set(pictures)
    claims = (docs / "claims.md").read_text(encoding="utf-8")
    assert "by 1 study:" in claims
    assert all(f"| {claim['text']} |" in claims for claim in read(file)["claims"])
    assert claims.count("## By arithmetic") == 1
