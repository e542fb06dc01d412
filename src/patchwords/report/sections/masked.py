"""Sections of a run that learned from hidden patches: the score, and reconstructions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from patchwords.data.decode import LOSSLESS_SIDE, encode_image_url
from patchwords.report.format import format_count, format_percent, pluralise
from patchwords.report.html import Content, Markup, note, section, tag
from patchwords.report.run_data import RunData
from patchwords.report.sections.headline import render_key_facts

MASKED_PAGE_CONTENTS = {
    "results": "Results",
    "curves": "Training",
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
    "given": "the encoder's input",
    "predicted": "the prediction",
}


def render_masked_headline(run: RunData) -> Markup:
    """Render the accuracy of the hidden patches, the images, and the baseline."""
    results = run.masked
    number, unit = format_percent(results["accuracy"]).split()
    split = results.get("split", "held-out")
    score = tag(
        "div",
        tag("p", f"Hidden colours right on the {split} images", class_="eyebrow"),
        tag("p", number, tag("span", f" {unit}"), class_="score"),
        tag("p", f"Always the most frequent colour: {format_percent(results['baseline'])}"),
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
        note("No labels were used. Fine-tuning or few-shot accuracy measures the encoder itself."),
        render_masked_warning(results),
    )
    return tag(
        "section",
        tag("div", score, story, class_="top"),
        render_key_facts(run),
        class_="hero",
        id="results",
    )


def render_mae_headline(run: RunData) -> Markup:
    """Render what a masked autoencoder explains of hidden patches, and the baseline."""
    results = run.masked
    number, unit = format_percent(results["explained"]).split()
    split, (width, depth) = results.get("split", "held-out"), results["decoder"]
    score = tag(
        "div",
        tag("p", f"Variance explained within hidden patches, {split} images", class_="eyebrow"),
        tag("p", number, tag("span", f" {unit}"), class_="score"),
        tag("p", f"Loss {results['loss']:.3f}; each patch in its mean: {results['baseline']:.3f}"),
    )
    counts = f"{format_count(results['hidden'])} of {format_count(results['patches'])} patches "
    story = tag(
        "div",
        tag(
            "p",
            tag("b", counts),
            "of each image were hidden. The encoder saw the others alone; a decoder of "
            f"{pluralise(depth, 'block')} of width {width} predicted the pixels of the hidden ones. "
            "The score is the share of their variance around the mean colour of each patch that "
            f"the predictions explain, of {pluralise(results['images'], 'image')}.",
        ),
        note("No labels were used. Fine-tuning or few-shot accuracy measures the encoder itself."),
        render_mae_warning(results),
    )
    return tag(
        "section",
        tag("div", score, story, class_="top"),
        render_key_facts(run),
        class_="hero",
        id="results",
    )


def render_mae_warning(results: dict[str, Any]) -> Markup | None:
    if results["explained"] > 0.01:
        return None
    return note(
        "It is no better than painting each hidden patch in its mean colour: it has not learned "
        "yet. Train longer, or with a higher --lr.",
        look="note warn",
    )


def render_masked_warning(results: dict[str, Any]) -> Markup | None:
    if results["accuracy"] > results["baseline"]:
        return None
    return note(
        "It is no better than always predicting the most frequent colour: it has not learned yet.",
        look="note warn",
    )


def render_reconstructions(run: RunData) -> Markup:
    """Render held-out images: original, corrupted, and with the predictions."""
    title = "Hidden patches"
    strips = [render_reconstruction_strip(run.folder, row) for row in run.masked["pictures"]]
    shown = [drawn for drawn in strips if drawn is not None]
    if not shown:
        return section("patches", title, note("The pictures in masked/ are missing."))
    of_mae = (
        "the visible patches (chequers hide the others); right: with the predictions for the "
        "hidden ones, each with its own mean and contrast given back, which are not predicted."
    )
    of_masked = (
        "the encoder's input (chequers are the mask embedding); right: the predictions for all "
        "corrupted patches, including those that were kept."
    )
    mae = run.masked.get("objective") == "mae"
    lede = tag(
        "p",
        f"{pluralise(len(shown), 'image')} spread over the held-out images. Left: the image; "
        f"middle: {of_mae if mae else of_masked}",
        class_="lede",
    )
    return section("patches", title, lede, tag("div", *shown, class_="strips"))


def render_reconstruction_strip(folder: Path, row: dict[str, Any]) -> Markup | None:
    """Render three pictures in a row, and the score of the image."""
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
        tag(
            "small",
            f"{format_percent(row['accuracy'])} right"
            if "accuracy" in row
            else f"{format_percent(row.get('explained'))} explained",
        ),
    )
    return tag("figure", tag("div", *images), caption, title=row["path"], class_="strip")


def embed_image_file(file: Path, alt: str) -> Markup:
    """Render a PNG file as an inline <img>; a tiny one is shown with hard pixels."""
    with Image.open(file) as image:
        tiny = max(image.size) <= LOSSLESS_SIDE
        source = encode_image_url(image, lossless=True)
    return tag("img", src=source, alt=alt, class_="tiny" if tiny else None)


def render_masked_reading_guide(run: RunData) -> Markup:
    """Explain what the numbers mean and what they do not show."""
    points: list[Content] = [
        "A hidden colour can be inferred only in part: noise, and objects that no other patch "
        "shows, keep the score below 100 %. Scores with other data, patch sizes or mask ratios are "
        "not comparable.",
        "A lower loss here need not mean better fine-tuning: measure it by patchwords finetune DATA "
        "--weights RUN, and compare with training from scratch.",
        "The corruption of a held-out image is the same at every evaluation; in training it changes "
        "every epoch. Training images are also cropped and flipped, so their score is lower.",
    ]
    return section("reading", "How to read this", tag("ul", *(tag("li", p) for p in points)))


def render_mae_reading_guide() -> Markup:
    """Explain what the numbers of a masked autoencoder mean and what they do not show."""
    points: list[Content] = [
        "The pixels of each patch are normalised before they are compared, so the loss of a "
        "prediction of nothing is close to 1, and fine texture weighs as much as large shapes. "
        "Most of it cannot be inferred: a loss of 0.4 to 0.6 is usual.",
        "Scores with other data, patch sizes or mask ratios are not comparable, and a lower loss "
        "here need not mean better fine-tuning: measure it by patchwords finetune DATA --weights "
        "RUN, and compare with training from scratch.",
        "What is hidden of a held-out image is the same at every evaluation; in training it "
        "changes every epoch.",
        "Only the encoder is kept in model/. The decoder is in checkpoints/, for --resume.",
    ]
    return section("reading", "How to read this", tag("ul", *(tag("li", p) for p in points)))
