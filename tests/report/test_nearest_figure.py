"""The figure of photos and their nearest: its caption, and what stands above each picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from patchwords.report.figures.insight import (
    NearestImage,
    PhotoNeighbours,
    SearchSummary,
    draw_nearest_images,
    format_nearest_caption,
    format_neighbour_title,
    truncate_start,
)

RANDOM = np.random.default_rng(0)
SEARCHED = SearchSummary("flowers/", "the training split", 1203, 0, 1203, 2, 0.71249)


def picture() -> np.ndarray:
    return RANDOM.uniform(size=(5, 7, 3))


def company(*similarities: float) -> PhotoNeighbours:
    near = [
        NearestImage(f"{i}.png", picture(), f"rose {i}", value)
        for i, value in enumerate(similarities)
    ]
    return PhotoNeighbours("new/photo.jpg", picture(), near)


def test_it_is_drawn_as_png_and_svg() -> None:
    found = draw_nearest_images([company(0.91, 0.83), company(0.66, 0.5)], SEARCHED)
    assert sorted(found) == ["nearest.png", "nearest.svg"]
    drawn = found["nearest.svg"].decode()
    for words in ("the photo", "photo.jpg", "rose 0", "0.910", "0.500"):
        assert f"<!-- {words}" in drawn or f"\n{words}" in drawn, words


def test_the_caption_says_what_was_searched() -> None:
    said = format_nearest_caption([company(0.91, 0.83)], SEARCHED)
    assert said.startswith(
        "1 photo (left), each with the 2 images of flowers/ (the training split) that are nearest in "
        "the model's features, among 1,203 images: label and cosine above each"
    )
    assert "Two random images have a cosine of 0.712 (median)." in said
    assert "the figure does not show why, that the photo is of their class" in said
    for words in ("requested", "subset", "cannot be read", "1.000 is"):
        assert words not in said


def test_the_caption_says_what_is_less_than_was_asked() -> None:
    some = replace(SEARCHED, images=990, skipped=10, of=5000, asked=6, by_chance=None)
    said = format_nearest_caption([company(0.91, 0.83)], some)
    assert "the 2 images (6 were requested) of flowers/" in said
    assert "among 990 images, a random subset of 5,000 (10 more cannot be read): label" in said
    assert "random images" not in said
    # those that cannot be read are no draw
    assert "subset" not in format_nearest_caption([company(0.9, 0.8)], replace(some, of=1000))


def test_the_photo_itself_is_told() -> None:
    assert "1.000 is the photo itself" in format_nearest_caption(
        [company(0.9), company(0.9996)], SEARCHED
    )


def test_above_a_picture() -> None:
    near = company(0.87654).neighbours[0]
    assert format_neighbour_title(near) == "rose 0\n0.877"
    assert format_neighbour_title(replace(near, label=None)) == "no label\n0.877"
    assert format_neighbour_title(replace(near, picture=None)) == "missing\n0.877"
    assert draw_nearest_images(
        [PhotoNeighbours("a", picture(), [replace(near, picture=None)])], SEARCHED
    )


def test_of_a_long_name_the_end_is_shown() -> None:
    assert truncate_start("train-00000-of-00001.parquet:2499") == "…0001.parquet:2499"
    assert len(truncate_start("train-00000-of-00001.parquet:2499")) == 18
    assert truncate_start("18 letters and.jpg") == "18 letters and.jpg"
