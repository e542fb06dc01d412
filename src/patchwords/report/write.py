"""Run folder -> report.html, one file that opens offline, and PNGs of its charts in figures/.

The report is a function of the run folder (and of the pictures): written twice it is the same,
and it can be written again at any time. It knows nothing of how the numbers were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from patchwords.data.examples import Examples
from patchwords.files import explain, write_atomically
from patchwords.report import masked
from patchwords.report.appendix import reading, settings
from patchwords.report.beside import beside
from patchwords.report.calibration import calibration
from patchwords.report.classes import confusion, per_class
from patchwords.report.data import data
from patchwords.report.figures import draw_figures
from patchwords.report.headline import headline
from patchwords.report.html import Markup, join, tag, whole_page
from patchwords.report.learned import learned
from patchwords.report.learning import curves
from patchwords.report.pictures import Album, mistakes, right_answers
from patchwords.report.run import Run, read_run

# nothing may be loaded from anywhere, whatever a class or a file is called
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
CONTENTS = {
    "results": "Results",
    "curves": "Learning",
    "classes": "Classes",
    "confusion": "Confusion",
    "mistakes": "Mistakes",
    "calibration": "Calibration",
    "data": "Data",
    "settings": "Settings",
    "reading": "How to read this",
}


def write_report(
    run: Path | str, examples: Examples | None = None, others: Sequence[Run] = ()
) -> Path:
    """Write RUN/report.html and RUN/figures/*.png; gives the path of the page.

    `examples` are the images that predictions.csv names (others may be among them); without them
    the page says that it has no pictures. `others` are runs to set beside this one.
    """
    folder = Path(run)
    contents = read_run(folder)
    page = folder / "report.html"
    write_atomically(page, render(contents, Album.of(examples), others))
    figures = folder / "figures"
    try:
        figures.mkdir(exist_ok=True)
    except OSError as error:
        raise explain(error, figures) from error
    for name, png in draw_figures(contents).items():
        write_atomically(figures / name, png)
    return page


def render(run: Run, album: Album, others: Sequence[Run] = ()) -> str:
    """The page as text."""
    name = run.folder.resolve().name
    contents, sections = (
        (masked.CONTENTS, masked_sections(run))
        if run.masked
        else (CONTENTS, sections_of(run, album, others))
    )
    if run.insight:
        contents = with_insight(contents)
    if others:
        contents = {"results": contents["results"], "beside": "Beside others", **contents}
    body = tag(
        "body",
        tag("header", emblem(), tag("div", tag("h1", name), tag("p", subtitle(run)))),
        tag("nav", *(tag("a", word, href=f"#{place}") for place, word in contents.items())),
        tag("main", *sections),
        tag("footer", footer(run)),
    )
    return whole_page(f"{name}: patchwords report", style(), POLICY, body)


def with_insight(contents: dict[str, str]) -> dict[str, str]:
    """The same with a link to what the model learned, after the mistakes, or the patches."""
    after = "mistakes" if "mistakes" in contents else "patches"
    linked = {}
    for place, word in contents.items():
        linked[place] = word
        if place == after:
            linked["learned"] = "Insight"
    return linked


def sections_of(run: Run, album: Album, others: Sequence[Run]) -> list[Markup | None]:
    """The page of a classifier."""
    return [
        headline(run),
        absences(run),
        beside(run, others),
        curves(run),
        per_class(run),
        confusion(run),
        mistakes(run, album),
        learned(run),
        right_answers(run, album),
        calibration(run),
        data(run),
        settings(run),
        reading(run),
    ]


def masked_sections(run: Run) -> list[Markup | None]:
    """The page of a run without classes."""
    return [
        masked.headline(run),
        absences(run),
        curves(run),
        masked.pictures(run),
        learned(run),
        data(run),
        settings(run),
        masked.reading(run),
    ]


def style() -> str:
    return files("patchwords.report").joinpath("style.css").read_text(encoding="utf-8")


def emblem() -> Markup:
    """An image cut into patches."""
    shades = (0.25, 0.5, 0.9, 0.6, 0.55, 1.0, 0.7, 0.35, 0.8, 0.65, 0.3, 0.95, 0.4, 0.85, 0.5, 0.2)
    patches = (
        tag("rect", x=i % 4 * 13, y=i // 4 * 13, width=11, height=11, rx=2.5, opacity=shade)
        for i, shade in enumerate(shades)
    )
    return tag("svg", *patches, viewBox="0 0 50 50", aria_hidden="true")


def subtitle(run: Run) -> str:
    model = (run.evaluation or run.masked).get("model") or run.config.get("model")
    source = run.data.get("source")
    started = str(run.environment.get("started") or "")[:10]
    trained = " on ".join(str(word) for word in (model, source) if word)
    return " · ".join(word for word in (trained, started, "patchwords report") if word)


def absences(run: Run) -> Markup | None:
    """What the folder lacks, so that nobody takes an empty place for good news."""
    if not run.missing:
        return None
    return tag(
        "div",
        tag("b", "This report is not complete. "),
        join(*(f"{line} " for line in run.missing)),
        class_="warn missing",
        role="note",
    )


def footer(run: Run) -> str:
    version = (run.environment.get("versions") or {}).get("patchwords")
    made = f"patchwords {version}" if version else "patchwords"
    return f"Made by {made}. This page is one file and loads nothing from anywhere."
