"""The studies that docs show: of the program as it is, and every number as it was found."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from patchwords.studies.grid import compute_study_digest
from patchwords.studies.page import (
    build_page_blocks,
    format_difference,
    format_verdict,
    render_markdown_page,
)
from patchwords.studies.registry import STUDIES, load_study
from patchwords.studies.results import rejudge_results

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
    assert leaves(rejudge_results(load_study(file.stem), results)) == leaves(results)


def leaves(found: Any, path: str = "") -> dict[str, Any]:
    """Every value by its path; numbers as approximate, as Student's t is another library's."""
    if isinstance(found, float):
        return {path: pytest.approx(found, rel=1e-9, abs=1e-12)}
    if not isinstance(found, dict | list):
        return {path: found}
    items = found.items() if isinstance(found, dict) else enumerate(found)
    return {key: leaf for name, one in items for key, leaf in leaves(one, f"{path}/{name}").items()}


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


@EACH
def test_the_list_of_claims_has_each_with_its_verdict(file: Path) -> None:
    rows = (DOCS / "claims.md").read_text(encoding="utf-8").splitlines()
    for claim in read(file)["claims"]:
        cells = claim["text"], claim["paper"], format_difference(claim), format_verdict(claim)
        assert any(row.endswith(f"| {' | '.join(cells)} |") for row in rows)


def test_the_list_of_claims_counts_them() -> None:
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    verdicts = [claim["verdict"] for file in FILES for claim in read(file)["claims"]]
    assert f"{len(verdicts)} claims by {len(FILES)} stud" in text
    for word in set(verdicts):
        assert f"{verdicts.count(word)} {word}" in text


def test_the_list_of_claims_is_what_the_program_makes() -> None:
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
