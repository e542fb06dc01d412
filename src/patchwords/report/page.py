"""Report of a run: report.html, one file that opens offline, and its charts in figures/.

The report depends only on the run folder and the images: writing it again gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from patchwords.data.dataset import ImageDataset
from patchwords.files import explain_write_error, write_atomically
from patchwords.report.figures.plots import draw_run_figures
from patchwords.report.html import Markup, html_document, join_markup, tag
from patchwords.report.run_data import RunData, read_run_data
from patchwords.report.sections import masked, masks
from patchwords.report.sections.appendix import render_reading_guide, render_settings
from patchwords.report.sections.classes import (
    render_calibration,
    render_class_scores,
    render_confusion_matrix,
)
from patchwords.report.sections.data import render_data
from patchwords.report.sections.headline import render_headline
from patchwords.report.sections.model import render_insight
from patchwords.report.sections.next_steps import render_next_steps
from patchwords.report.sections.other_runs import render_other_runs
from patchwords.report.sections.predictions import RunImages, render_mistakes, render_right_answers
from patchwords.report.sections.training import render_training_curves

# nothing may be loaded from elsewhere, whatever a class or a file is called
PAGE_SECURITY_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
PAGE_CONTENTS = {
    "results": "Results",
    "curves": "Training",
    "classes": "Classes",
    "confusion": "Confusion",
    "mistakes": "Mistakes",
    "calibration": "Calibration",
    "next": "Next steps",
    "data": "Data",
    "settings": "Settings",
    "reading": "How to read this",
}


def write_report(
    run: Path | str, examples: ImageDataset | None = None, others: Sequence[RunData] = ()
) -> Path:
    """Write RUN/report.html and RUN/figures/; return the path of the page.

    Args:
        examples: images that include those of predictions.csv; default: no pictures.
        others: runs to compare with.
    """
    folder = Path(run)
    contents = read_run_data(folder)
    page = folder / "report.html"
    write_atomically(page, render_report(contents, RunImages.from_dataset(examples), others))
    figures = folder / "figures"
    try:
        figures.mkdir(exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, figures) from error
    for name, png in draw_run_figures(contents).items():
        write_atomically(figures / name, png)
    return page


def render_report(run: RunData, album: RunImages, others: Sequence[RunData] = ()) -> str:
    """Render the page."""
    name = run.folder.resolve().name
    if run.masked:
        contents, sections = masked.MASKED_PAGE_CONTENTS, masked_sections(run)
    elif run.masks:
        contents, sections = masks.MASK_PAGE_CONTENTS, mask_sections(run)
    else:
        contents, sections = PAGE_CONTENTS, classifier_sections(run, album, others)
    if run.insight:
        contents = add_insight_link(contents)
    if run.results.get("of"):
        contents = {place: word for place, word in contents.items() if place != "next"}
    if others:
        contents = {"results": contents["results"], "beside": "Comparison", **contents}
    body = tag(
        "body",
        tag("header", draw_logo(), tag("div", tag("h1", name), tag("p", report_subtitle(run)))),
        tag("nav", *(tag("a", word, href=f"#{place}") for place, word in contents.items())),
        tag("main", *sections),
        tag("footer", report_footer(run)),
    )
    return html_document(
        f"{name}: patchwords report", read_stylesheet(), PAGE_SECURITY_POLICY, body
    )


def add_insight_link(contents: dict[str, str]) -> dict[str, str]:
    """Add a link to the insight section after the mistakes, or the patches."""
    after = "mistakes" if "mistakes" in contents else "patches"
    linked = {}
    for place, word in contents.items():
        linked[place] = word
        if place == after:
            linked["learned"] = "Insight"
    return linked


def classifier_sections(
    run: RunData, album: RunImages, others: Sequence[RunData]
) -> list[Markup | None]:
    """Render the sections of a classifier."""
    return [
        render_headline(run),
        render_missing_files(run),
        render_other_runs(run, others),
        render_training_curves(run),
        render_class_scores(run),
        render_confusion_matrix(run),
        render_mistakes(run, album),
        render_insight(run),
        render_right_answers(run, album),
        render_calibration(run),
        render_next_steps(run),
        render_data(run),
        render_settings(run),
        render_reading_guide(run),
    ]


def masked_sections(run: RunData) -> list[Markup | None]:
    """Render the sections of a run that learned from hidden patches."""
    mae = run.masked.get("objective") == "mae"
    return [
        masked.render_mae_headline(run) if mae else masked.render_masked_headline(run),
        render_missing_files(run),
        render_training_curves(run),
        masked.render_reconstructions(run),
        render_insight(run),
        render_data(run),
        render_settings(run),
        masked.render_mae_reading_guide() if mae else masked.render_masked_reading_guide(run),
    ]


def mask_sections(run: RunData) -> list[Markup | None]:
    """Render the sections of a segmentation run."""
    return [
        masks.render_mask_headline(run),
        render_missing_files(run),
        render_training_curves(run),
        masks.render_mask_classes(run),
        masks.render_mask_confusion(run),
        masks.render_mask_pictures(run),
        render_data(run),
        render_settings(run),
        masks.render_mask_reading_guide(run),
    ]


def read_stylesheet() -> str:
    return files("patchwords.report").joinpath("style.css").read_text(encoding="utf-8")


def draw_logo() -> Markup:
    """Draw the logo: an image cut into patches."""
    shades = (0.25, 0.5, 0.9, 0.6, 0.55, 1.0, 0.7, 0.35, 0.8, 0.65, 0.3, 0.95, 0.4, 0.85, 0.5, 0.2)
    patches = (
        tag("rect", x=i % 4 * 13, y=i // 4 * 13, width=11, height=11, rx=2.5, opacity=shade)
        for i, shade in enumerate(shades)
    )
    return tag("svg", *patches, viewBox="0 0 50 50", aria_hidden="true")


def report_subtitle(run: RunData) -> str:
    model = run.results.get("model") or run.config.get("model")
    source = run.data.get("source")
    started = str(run.environment.get("started") or "")[:10]
    trained = " on ".join(str(word) for word in (model, source) if word)
    return " · ".join(word for word in (trained, started, "patchwords report") if word)


def render_missing_files(run: RunData) -> Markup | None:
    """List missing files, so that an empty section is not read as good news."""
    if not run.missing:
        return None
    return tag(
        "div",
        tag("b", "This report is incomplete. "),
        join_markup(*(f"{line} " for line in run.missing)),
        class_="warn missing",
        role="note",
    )


def report_footer(run: RunData) -> str:
    version = (run.environment.get("versions") or {}).get("patchwords")
    made = f"patchwords {version}" if version else "patchwords"
    return f"Made by {made}. This page is one file and loads nothing from the network."
