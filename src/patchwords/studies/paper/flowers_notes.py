"""What the study notes print of flower_photos, and of how many photos that can be."""

from __future__ import annotations

from typing import NamedTuple

VIT, RESNET = "ViT", "ResNet"
# Recipes: the notes' with the head alone learning, with all weights, and what this program decides.
NOTES_HEAD_ONLY, NOTES_ALL_WEIGHTS, OUR_RECIPE = (
    "notes, head alone",
    "notes, all weights",
    "our recipe",
)
HELD_OUT, ALL_PHOTOS = "held out", "all photos"
COLUMNS = (HELD_OUT, ALL_PHOTOS)

PHOTOS_BY_CLASS = {"daisy": 633, "dandelion": 898, "roses": 641, "sunflowers": 699, "tulips": 799}


class ClassScores(NamedTuple):
    """Of one class."""

    precision: float
    recall: float
    f1: float


NOTES_SCORES = {
    VIT: {
        "daisy": ClassScores(0.966, 0.973, 0.969),
        "dandelion": ClassScores(0.963, 0.976, 0.969),
        "roses": ClassScores(0.903, 0.939, 0.920),
        "sunflowers": ClassScores(0.979, 0.979, 0.979),
        "tulips": ClassScores(0.966, 0.914, 0.939),
    },
    RESNET: {
        "daisy": ClassScores(0.962, 0.643, 0.770),
        "dandelion": ClassScores(0.493, 0.988, 0.657),
        "roses": ClassScores(0.941, 0.501, 0.654),
        "sunflowers": ClassScores(0.978, 0.441, 0.608),
        "tulips": ClassScores(0.767, 0.758, 0.763),
    },
}
NOTES_ACCURACY = {VIT: 0.956, RESNET: 0.689}
# Answers "dandelion" of that ResNet: beside 887 right ones the precision leaves 1,798 to 1,801, and
# only with the last of these do the answers of all classes add up to the photos.
NOTES_DANDELION_ANSWERS = 1_801


def count_held_out_photos(name: str) -> int:
    """Photos of a class in the fifth that the notes' script sets apart: int(n / 5)."""
    return PHOTOS_BY_CLASS[name] // 5


def find_possible_correct_counts(recall: float, photos: int) -> list[int]:
    """Of so many photos, how many a model can have had right if its recall prints like this.

    >>> find_possible_correct_counts(0.973, 126), find_possible_correct_counts(0.973, 633)
    ([], [616])
    """
    return [count for count in range(photos + 1) if abs(count / photos - recall) <= 0.0005]
