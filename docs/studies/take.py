"""Takes finished studies into the documentation: `python docs/studies/take.py FOLDER...`.

FOLDER is what `patchwords study --output` was given. Its page, results and figures come to lie
beside this file; ../claims.md gets their claims, ../studies.md their links. Labels, verdicts and
pages of all that lies here are then made again of its cells, by the studies as they are now.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

from patchwords.files import write_atomically
from patchwords.report.format import pluralise
from patchwords.studies.page import (
    build_page_blocks,
    format_difference,
    format_flops,
    format_verdict,
    render_markdown_block,
    render_markdown_page,
)
from patchwords.studies.page_blocks import PageCommand, PageTable
from patchwords.studies.registry import STUDIES, load_study
from patchwords.studies.results import VerdictName, rejudge_results
from patchwords.studies.study import Study
from patchwords.training.logs.run_folder import write_json

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
FIRST, AFTER = "## By studies\n", "## By arithmetic, or by a test\n"
VERDICTS = get_args(VerdictName)
# What the name of a data set does not say of it: source of the runs -> a note on their pages.
ABOUT = {
    "cifar10": "The images of CIFAR-10 are JPEGs of quality 75 here, those of a public mirror: "
    "accuracies run a little below those on the lossless original.",
}


# Claims that were two, and keep both numbers: those of the others stay.
TWO_NUMBERS = ("At its own best rate, GAP is as good as the class token",)


def take(run: Path) -> None:
    """A study's page, results and figures, copied."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    page = (run / "page.md").read_text(encoding="utf-8")
    name = load_study(results["study"]).name
    pictures = pictures_of(page)
    for old in (file.with_suffix(".md") for file in shown() if file.stem == name):
        for picture in set(pictures_of(old.read_text(encoding="utf-8"))) - set(pictures):
            (HERE / picture).unlink()
    write_atomically(HERE / f"{name}.md", page)
    shutil.copyfile(run / "results.json", HERE / f"{name}.json")
    for picture in pictures:
        shutil.copyfile(run / picture, HERE / picture)


def make_again(file: Path) -> None:
    """Results of the study as it is now, and their page; cells and figures stay."""
    old, study = json.loads(file.read_text(encoding="utf-8")), load_study(file.stem)
    notes = [ABOUT[name] for name in (old["data"], old["transfer"]) if name in ABOUT]
    kept = [note for note in old["notes"] if note not in ABOUT.values()]
    results = rejudge_results(study, {**old, "notes": [*kept, *notes]})
    page = file.with_suffix(".md")
    pictures = [Path(name).stem for name in pictures_of(page.read_text(encoding="utf-8"))]
    write_json(file, results)
    pieces = build_page_blocks(study, results, pictures, results["command"])
    write_atomically(page, render_markdown_page(study.title, pieces))


def pictures_of(page: str) -> list[str]:
    return re.findall(r"^!\[.*\]\((.*\.png)\)$", page, re.MULTILINE)


def shown() -> list[Path]:
    """The results of every study that the documentation shows."""
    return sorted(HERE.glob("*.json"))


def section() -> str:
    """Of claims.md: all claims by studies, numbered; then those of studies without results."""
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in shown()}
    verdicts = [claim["verdict"] for results in found.values() for claim in results["claims"]]
    tally = ", ".join(f"{verdicts.count(word)} {word}" for word in VERDICTS if word in verdicts)
    counted = f"{pluralise(len(verdicts), 'claim')} by {pluralise(len(found), 'study', 'studies')}"
    parts, before = [f"{FIRST}\n{counted}: {tally}.\n"], 0
    for name, results in found.items():
        parts.append(of_study(load_study(name), results, before))
        before += sum(map(places, results["claims"]))
    return "\n".join([*parts, *of_others(set(STUDIES) - set(found))]) + "\n"


def of_study(study: Study, results: dict[str, Any], before: int) -> str:
    spent = results["compute"]
    paid = pluralise(spent["trainings"], "training") + f", {format_flops(spent['flops'])}"
    rows = []
    for claim in results["claims"]:
        last = before + places(claim)
        number = ", ".join(map(str, range(before + 1, last + 1)))
        told = claim["text"], claim["paper"], format_difference(claim), format_verdict(claim)
        rows.append((number, *told))
        before = last
    of = (
        f"[studies/{study.name}.md](studies/{study.name}.md); {study.source}; "
        f"{pluralise(results['seeds'], 'repeat' if study.timed else 'seed')}, "
        f"{paid if spent['trainings'] else 'nothing trained'}."
    )
    table = PageTable(("", "claim", "the paper's evidence", "here", "verdict"), rows)
    command = PageCommand(results["command"])
    return (
        "\n\n".join(
            (f"### {study.title}", of, render_markdown_block(command), render_markdown_block(table))
        )
        + "\n"
    )


def places(claim: dict[str, Any]) -> int:
    """How many numbers of the list a claim has."""
    return 2 if claim["text"] in TWO_NUMBERS else 1


def of_others(names: set[str]) -> list[str]:
    if not names:
        return []
    rows = []
    for name in sorted(names):
        study = load_study(name)
        rows.append((f"`{name}` ({study.source})", "; ".join(one.text for one in study.claims)))
    return [
        "## Studies that have not been run to the end\n",
        "Their claims are fixed, and the command is there; no number of theirs is in this page.\n",
        render_markdown_block(PageTable(("study", "its claims"), rows)) + "\n",
    ]


def claims_page(text: str) -> str:
    """claims.md with its section by studies made anew."""
    before, rest = text.split(FIRST)
    return before + section() + AFTER + rest.split(AFTER)[1]


def studies_page(text: str) -> str:
    """studies.md, in which the name of each study that is shown is a link."""
    for file in shown():
        text = text.replace(
            f"\n| `{file.stem}` |", f"\n| [`{file.stem}`](studies/{file.stem}.md) |"
        )
    return text


def main(runs: list[str]) -> None:
    for run in runs:
        take(Path(run))
    for file in shown():
        make_again(file)
    for name, made in (("claims.md", claims_page), ("studies.md", studies_page)):
        old = (DOCS / name).read_text(encoding="utf-8")
        write_atomically(DOCS / name, made(old))


if __name__ == "__main__":
    main(sys.argv[1:])
