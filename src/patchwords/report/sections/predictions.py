"""Picture sections: the most confident mistakes and the most confident right answers."""

from __future__ import annotations

from dataclasses import dataclass

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import LOSSLESS_SIDE, decode_image, encode_image_url
from patchwords.errors import DataError
from patchwords.report.format import format_probability, pluralise
from patchwords.report.html import Content, Markup, html_table, note, number_cell, section, tag
from patchwords.report.run_data import PredictionRow, RunData

# pixels of a thumbnail's longer side: sharp at 160 CSS pixels on a dense screen
REPORT_THUMBNAIL_SIDE = 240
MAX_MISTAKES = 24
MAX_RIGHT_ANSWERS = 20


@dataclass(frozen=True)
class RunImages:
    """Images of a run by their paths in predictions.csv."""

    examples: ImageDataset | None
    indices: dict[str, int]

    @classmethod
    def from_dataset(cls, examples: ImageDataset | None) -> RunImages:
        """Index the images by path."""
        keys = examples.keys if examples is not None else []
        return cls(examples, {key: index for index, key in enumerate(keys)})

    def picture(self, path: str, alt: str) -> Markup | str:
        """Render an image inline, or return why it cannot be shown."""
        if self.examples is None or path not in self.indices:
            return "the data has no such image"
        try:
            image = decode_image(
                self.examples.read(self.indices[path]), smallest=REPORT_THUMBNAIL_SIDE
            )
        except (OSError, DataError) as error:
            return " ".join(str(error).split())
        tiny = max(image.size) <= LOSSLESS_SIDE
        if not tiny:
            image.thumbnail((REPORT_THUMBNAIL_SIDE, REPORT_THUMBNAIL_SIDE))
        share = min(
            1.0, image.width / image.height
        )  # a tall image is as tall as a wide one is wide
        return tag(
            "img",
            src=encode_image_url(image),
            alt=alt,
            width=image.width,
            height=image.height,
            style=f"width:{100 * share:.0f}%",
            class_="tiny" if tiny else None,
        )


def render_mistakes(run: RunData, album: RunImages) -> Markup:
    """Render the wrong answers with the highest confidence."""
    title = "Most confident mistakes"
    if not run.predictions:
        return section("mistakes", title, note("There is no predictions.csv."))
    wrong = [row for row in run.predictions if row.correct is False]
    if not wrong:
        return section(
            "mistakes", title, note("None: every held-out image was predicted correctly.")
        )
    shown = sorted(wrong, key=lambda row: -row.probability)[:MAX_MISTAKES]
    part = f"{len(shown)} of " if len(shown) < len(wrong) else ""
    lede = tag(
        "p",
        f"{part}{pluralise(len(wrong), 'mistake')}, the most confident first. "
        "Some may be wrong labels rather than wrong predictions. Under each picture: the predicted "
        "class and its probability, then the true class and its probability.",
        class_="lede",
    )
    return section("mistakes", title, lede, render_gallery(shown, album))


def render_right_answers(run: RunData, album: RunImages) -> Markup | None:
    """Render the right answers with the highest confidence, class by class."""
    right = sorted((row for row in run.predictions if row.correct), key=lambda r: -r.probability)
    if not right or album.examples is None:
        return None
    classes = sorted({row.label for row in right})[:MAX_RIGHT_ANSWERS]
    each = max(1, MAX_RIGHT_ANSWERS // len(classes)) if len(classes) > 4 else 4
    shown = [row for name in classes for row in [r for r in right if r.label == name][:each]]
    lede = tag("p", "The most confident right predictions of each class.", class_="lede")
    return section(
        "typical", "Most confident right predictions", lede, render_gallery(shown, album)
    )


def render_gallery(rows: list[PredictionRow], album: RunImages) -> Markup:
    """Render cards with pictures, or a table if no picture can be shown."""
    pictures = [
        album.picture(row.path, f"{row.label}, predicted as {row.prediction}") for row in rows
    ]
    if not any(isinstance(picture, Markup) for picture in pictures):
        return render_prediction_table(rows, pictures[0], album)
    cards = [
        render_prediction_card(row, picture) for row, picture in zip(rows, pictures, strict=True)
    ]
    return tag("div", *cards, class_="gallery")


def render_prediction_card(row: PredictionRow, picture: Markup | str) -> Markup:
    if not isinstance(picture, Markup):
        picture = tag("span", f"No picture: {picture}", class_="gone")
    probability = format_probability(row.probability)
    lines: list[Content]
    if row.correct:
        lines = [tag("p", tag("b", row.prediction), tag("small", probability), class_="good")]
    else:
        true = None
        if row.true_probability is not None:
            true = format_probability(row.true_probability)
        lines = [
            tag("p", tag("b", row.prediction), tag("small", probability), class_="bad"),
            tag("p", tag("span", "is ", tag("b", row.label)), tag("small", true)),
        ]
    frame = tag("div", picture, class_="frame")
    return tag("figure", frame, tag("figcaption", *lines), title=row.path, class_="card")


def render_prediction_table(rows: list[PredictionRow], reason: str, album: RunImages) -> Markup:
    """Render predictions without pictures, and why there are none."""
    if album.examples is None:
        reason = "the images were not available when this report was written"
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
    head = ("Image", "True class", "Prediction", "Probability")
    return tag("div", note(f"No pictures: {reason}."), html_table(head, named, look="paths"))
