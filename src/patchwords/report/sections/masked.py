"""The page of a run that learned by masks: how many colours were right, and pictures of them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from PIL import Image

from patchwords.report.format import format_count, format_percent, pluralise
from patchwords.report.html import Content, Markup, note, section, tag
from patchwords.report.run_data import RunData
from patchwords.report.sections.headline import render_key_facts
from patchwords.report.sections.predictions import LOSSLESS_SIDE

MASKED_PAGE_CONTENTS = {
    "results": "Results",
    "curves": "Learning",
    "patches": "Patches",
    "data": "Data",
    "settings": "Settings",
    "reading": "How to read this",
}
TARGET_DESCRIPTIONS = {  # target -> what accuracy counts
    "mean-colour": "hidden patches whose mean colour, to 3 bits a channel, was predicted",
    "small-patch": "cells of the hidden patches, 4 x 4 of each, whose mean colour was predicted",
    "pixels": "hidden patches whose predicted pixels have the right mean colour",
}
RECONSTRUCTION_PANELS = {  # picture -> what it shows
    "image": "the image",
    "given": "what the encoder was given",
    "predicted": "what it predicted",
}


def render_masked_headline(run: RunData) -> Markup:
    """The share of hidden colours that were right, on what, and compared with what."""
    results = run.masked
    number, unit = format_percent(results["accuracy"]).split()
    split = results.get("split", "held-out")
    score = tag(
        "div",
        tag("p", f"Hidden colours right on the {split} images", class_="eyebrow"),
        tag("p", number, tag("span", f" {unit}"), class_="score"),
        tag("p", f"Always the commonest colour: {format_percent(results['baseline'])}"),
    )
    story = tag(
        "div",
        tag(
            "p",
            tag(
                "b",
                f"{format_count(results['corrupted'])} of {format_count(results['patches'])} patches ",
            ),
            f"of each image were corrupted: 80 % of them masked, 10 % replaced by another patch of "
            f"the image, 10 % kept. The score is the share of {TARGET_DESCRIPTIONS[results['target']]}, of "
            f"{pluralise(results['images'], 'image')}.",
        ),
        note("No labels were used. What the encoder is worth, fine-tuning or few-shot tells."),
        render_masked_warning(results),
    )
    return tag(
        "section",
        tag("div", score, story, class_="top"),
        render_key_facts(run),
        class_="hero",
        id="results",
    )


def render_masked_warning(results: dict[str, Any]) -> Markup | None:
    if results["accuracy"] > results["baseline"]:
        return None
    return note(
        "It does no better than always answering the commonest colour: it has not learned yet.",
        look="note warn",
    )


def render_reconstructions(run: RunData) -> Markup:
    """Images of the held-out split: whole, as given, and with the predictions put in."""
    title = "Hidden patches"
    strips = [render_reconstruction_strip(run.folder, row) for row in run.masked["pictures"]]
    shown = [drawn for drawn in strips if drawn is not None]
    if not shown:
        return section("patches", title, note("The pictures in masked/ are not there."))
    lede = tag(
        "p",
        f"{pluralise(len(shown), 'image')} spread over the held-out ones. On the left the image, in "
        "the middle what the encoder was given of it (chequers are the mask embedding), on the "
        "right the predictions in the places of all corrupted patches, those kept among them.",
        class_="lede",
    )
    return section("patches", title, lede, tag("div", *shown, class_="strips"))


def render_reconstruction_strip(folder: Path, row: dict[str, Any]) -> Markup | None:
    """Three pictures in a row, and how much of the image was right."""
    files = [folder / str(row.get(name)) for name in RECONSTRUCTION_PANELS]
    if not all(file.is_file() for file in files):
        return None
    images = [
        embed_image_file(file, f"{row['path']}: {what}")
        for file, what in zip(files, RECONSTRUCTION_PANELS.values(), strict=True)
    ]
    caption = tag(
        "figcaption",
        tag("span", row["path"]),
        tag("small", f"{format_percent(row['accuracy'])} right"),
    )
    return tag("figure", tag("div", *images), caption, title=row["path"], class_="strip")


def embed_image_file(file: Path, alt: str) -> Markup:
    """An <img> with the picture inside it; a tiny one is shown with hard pixels."""
    content = file.read_bytes()
    with Image.open(file) as image:
        tiny = max(image.size) <= LOSSLESS_SIDE
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return tag("img", src=source, alt=alt, class_="tiny" if tiny else None)


def render_masked_reading_guide(run: RunData) -> Markup:
    """What the numbers mean and what they do not say."""
    points: list[Content] = [
        "A hidden colour can be inferred only in part: noise, and things that no other patch tells "
        "of, keep the score below 100 %. Scores of other data, patch sizes or mask ratios are no "
        "measure for this one.",
        "A lower loss here need not mean a better start for fine-tuning: measure that, by "
        "patchwords finetune DATA --weights RUN, beside a start from scratch.",
        "The corruption of a held-out image is the same at every evaluation; in training it is new "
        "in every epoch. Training images are cropped and flipped, too, so their score is lower.",
    ]
    return section("reading", "How to read this", tag("ul", *(tag("li", p) for p in points)))
