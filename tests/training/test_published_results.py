"""Published accuracies of recipes: rows of real recipes, and the numbers of docs/reference.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patchwords.models.zoo import resolve_model
from patchwords.planning.table6 import TABLE6
from patchwords.training.recipes import RECIPES, find_recipe
from patchwords.training.recipes.published import PUBLISHED_RESULTS, list_published_results

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
NUMBERS = {float(number) for number in re.findall(r"(?<![\d.])\d+\.\d+", REFERENCE)}


@pytest.mark.parametrize("name", PUBLISHED_RESULTS)
def test_a_row_is_of_a_recipe_and_of_its_model(name: str) -> None:
    recipe = find_recipe(name)
    for result in PUBLISHED_RESULTS[name]:
        assert resolve_model(result.model).name == result.model
        assert recipe.model in {None, result.model}
        assert 0 < result.accuracy < 100
        if recipe.finetunes:
            assert result.on.startswith(recipe.data.name)


def test_every_number_stands_in_the_reference() -> None:
    rows = {result for results in PUBLISHED_RESULTS.values() for result in results}
    assert not [str(result) for result in rows if result.accuracy not in NUMBERS]


def test_every_row_of_table_6_with_a_recipe_has_its_accuracy() -> None:
    """R200x3 and the longer R152x2 have no recipe."""
    named = {
        (RECIPES[name].model, RECIPES[name].length[1], result.accuracy)
        for name, results in PUBLISHED_RESULTS.items()
        for result in results
        if result.source.endswith("Table 6")
    }
    table = {(row.model, row.epochs, row.accuracies[0]) for row in TABLE6}
    assert named < table
    assert {model for model, _, _ in table - named} == {"BiT-R200x3", "BiT-R152x2"}


def test_results_of_one_model() -> None:
    (result,) = list_published_results("vit-jax-finetune-imagenet", "ViT-B/32")
    assert str(result) == (
        "81.66 % on ImageNet, ViT-B/32, from ImageNet-21k, at 384 pixels, no dropout "
        "(README of vision_transformer)"
    )
    assert list_published_results("vit-jax-finetune-imagenet", "ViT-S/16") == ()
    assert list_published_results("vit-l16-imagenet21k-30ep") == ()  # the table does not say
