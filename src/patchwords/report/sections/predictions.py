"""Sections of pictures: the most confident mistakes, and the most confident right answers."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import decode_image
from patchwords.errors import DataError
from patchwords.report.format import format_count, format_probability, pluralise
from patchwords.report.html import Content, Markup, html_table, note, number_cell, section, tag
from patchwords.report.run_data import PredictionRow, RunData

REPORT_THUMBNAIL_SIDE = (
    240  # pixels of a thumbnail's longer side: sharp at 160 CSS pixels on a dense screen
)
LOSSLESS_SIDE = 64  # images up to this size are kept as they are, and shown with hard pixels
MAX_MISTAKES = 24
MAX_RIGHT_ANSWERS = 20


@dataclass(frozen=True)
class RunImages:
    """Finds the images of a run by the names that predictions.csv gives them."""

    examples: ImageDataset | None
    places: dict[str, int]

    @classmethod
    def of(cls, examples: ImageDataset | None) -> RunImages:
        keys = examples.keys if examples is not None else []
        return cls(examples, {key: place for place, key in enumerate(keys)})

    def picture(self, path: str, alt: str) -> Markup | str:
        """An <img> with the image inside it, or the reason why there is none."""
        if self.examples is None or path not in self.places:
            return "not among the images given"
        try:
            image = decode_image(
                self.examples.read(self.places[path]), smallest=REPORT_THUMBNAIL_SIDE
            )
        except (OSError, DataError) as error:
            return " ".join(str(error).split())
        tiny = max(image.size) <= LOSSLESS_SIDE
        file = io.BytesIO()
        if tiny:
            image.save(file, "PNG")
        else:
            image.thumbnail((REPORT_THUMBNAIL_SIDE, REPORT_THUMBNAIL_SIDE))
            image.save(file, "JPEG", quality=82)
        kind = "png" if tiny else "jpeg"
        source = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
        share = min(1.0, image.width / image.height)  # as high as a wide one is wide
        return tag(
            "img",
            src=source,
            alt=alt,
            width=image.width,
            height=image.height,
            style=f"width:{100 * share:.0f}%",
            class_="tiny" if tiny else None,
        )


def render_mistakes(run: RunData, album: RunImages) -> Markup:
    """The wrong answers that the model was surest of."""
    title = "The most confident mistakes"
    if not run.predictions:
        return section("mistakes", title, note("There is no predictions.csv to take them from."))
    wrong = [row for row in run.predictions if row.correct is False]
    if not wrong:
        return section("mistakes", title, note("None: every held-out image was answered right."))
    shown = sorted(wrong, key=lambda row: -row.probability)[:MAX_MISTAKES]
    lede = tag(
        "p",
        f"{pluralise(len(shown), 'mistake')} of {format_count(len(wrong))}, the surest first. Some may be "
        "wrong labels rather than wrong answers. Under each picture: the answer and how sure it "
        "was, then what the image is and the chance that the model gave that.",
        class_="lede",
    )
    return section("mistakes", title, lede, render_gallery(shown, album))


def render_right_answers(run: RunData, album: RunImages) -> Markup | None:
    """For each class the right answers that the model was surest of: what it thinks is typical."""
    right = sorted((row for row in run.predictions if row.correct), key=lambda r: -r.probability)
    if not right or album.examples is None:
        return None
    classes = sorted({row.label for row in right})[:MAX_RIGHT_ANSWERS]
    each = max(1, MAX_RIGHT_ANSWERS // len(classes)) if len(classes) > 4 else 4
    shown = [row for name in classes for row in [r for r in right if r.label == name][:each]]
    lede = tag("p", "The right answers it was surest of, class by class.", class_="lede")
    return section("typical", "What it finds typical", lede, render_gallery(shown, album))


def render_gallery(rows: list[PredictionRow], album: RunImages) -> Markup:
    """Cards with pictures; a table where no picture can be had."""
    pictures = [album.picture(row.path, f"{row.label}, answered {row.prediction}") for row in rows]
    if not any(isinstance(picture, Markup) for picture in pictures):
        return render_prediction_table(rows, pictures[0], album)
    cards = [
        render_prediction_card(row, picture) for row, picture in zip(rows, pictures, strict=True)
    ]
    return tag("div", *cards, class_="gallery")


def render_prediction_card(row: PredictionRow, picture: Markup | str) -> Markup:
    if not isinstance(picture, Markup):
        picture = tag("span", f"No picture: {picture}", class_="gone")
    sure = format_probability(row.probability)
    lines: list[Content]
    if row.correct:
        lines = [tag("p", tag("b", row.prediction), tag("small", sure), class_="good")]
    else:
        own = format_probability(row.own) if row.own is not None else None
        lines = [
            tag("p", tag("b", row.prediction), tag("small", sure), class_="bad"),
            tag("p", tag("span", "is ", tag("b", row.label)), tag("small", own)),
        ]
    frame = tag("div", picture, class_="frame")
    return tag("figure", frame, tag("figcaption", *lines), title=row.path, class_="card")


def render_prediction_table(rows: list[PredictionRow], reason: str, album: RunImages) -> Markup:
    """The same without pictures, and why there are none."""
    if album.examples is None:
        reason = "the images were not at hand when this report was written"
    named = [
        tag(
            "tr",
            tag("td", row.path),
            tag("td", row.label),
            tag("td", row.prediction),
            number_cell(format_probability(row.probability)),
        )
        for row in rows
    ]
    head = ("Image", "True class", "Answer", "Sure")
    return tag("div", note(f"No pictures: {reason}."), html_table(head, named, look="paths"))
