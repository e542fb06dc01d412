"""Transfer: Table 4's choice of a rate, which images a cell gets, and the paper's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchwords.studies.paper import transfer
from patchwords.studies.paper.transfer import (
    FEW,
    FULL,
    MANY,
    MINI,
    PAPER,
    RANDOM,
    STUDY,
    strip_last_part,
)
from patchwords.studies.study import StudyContext, Trial, TrialMetrics
from patchwords.studies.training import build_training_config, select_trial_data
from patchwords.training.config import flatten_config
from patchwords.training.recipes import find_recipe
from patchwords.weights.locate import find_published_url

GRID = {
    f"{start}, {task}, lr {lr:g}": {"lr": lr} for start in "ab" for task in "xy" for lr in (3, 1, 2)
}


def test_each_start_has_its_best_rate_on_each_task() -> None:
    best = {"a, x": 1, "a, y": 2, "b, x": 3, "b, y": 1}
    validation = {
        name: [0.5, 0.7] if best[strip_last_part(name)] == own["lr"] else [0.9, 0.2]
        for name, own in GRID.items()
    }
    found = transfer.choose_trials(GRID, validation)
    assert found == {label: f"{label}, lr {lr}" for label, lr in best.items()}
    assert list(found) == list(best)  # in the order of the grid


def test_what_diverged_once_is_out_and_of_equal_rates_the_smallest_is_taken() -> None:
    values: dict[int, list[float | None]] = {1: [0.5, 0.5], 2: [0.9, None], 3: [0.4, 0.6]}
    found = transfer.choose_trials(GRID, {name: values[own["lr"]] for name, own in GRID.items()})
    assert set(found.values()) == {f"{label}, lr 1" for label in found}


@pytest.mark.parametrize("stage", ["measure_trial", "evaluate_trial"])
def test_a_cell_gets_the_images_of_its_task(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str | None] = {}

    def at(cell: Trial, bench: StudyContext) -> TrialMetrics:
        seen[cell.name.split(", ")[1]] = select_trial_data(cell, bench)
        return {}

    function = {"measure_trial": "train_and_measure", "evaluate_trial": "evaluate_on_test"}[stage]
    monkeypatch.setattr(transfer, function, at)
    bench = StudyContext(Path("study"), FULL, "the data", "the other data")
    for cell in FULL.list_trials(1):
        getattr(STUDY, stage)(cell, bench)
    assert seen == {"flowers": "the other data", "digits": "digits", "CIFAR-10": "the data"}


def test_rates_are_those_of_table_4_and_small_models_go_on_from_there() -> None:
    for recipe in ("flowers102", "cifar10"):
        assert find_recipe(f"paper-finetune-{recipe}").rates == transfer.RATES
    for scale, wanted in ((MINI, transfer.MINI_RATES), (FULL, transfer.RATES)):
        rates: dict[str, list[float]] = {}
        for name, own in scale.grid.items():
            rates.setdefault(strip_last_part(name), []).append(own["lr"])
        assert set(map(tuple, rates.values())) == {wanted}
    assert set(transfer.RATES[1:]) < set(transfer.MINI_RATES)


def test_what_starts_from_random_weights_is_trained_as_what_does_not() -> None:
    """At full scale it has no recipe, as these want weights."""
    bench = StudyContext(Path("study"), FULL, "the data", "the other data")
    settings = {cell.name: cell for cell in FULL.list_trials(1)}
    for task, recipe in (("flowers", "flowers102"), ("digits", "vtab"), ("CIFAR-10", "cifar10")):
        row = find_recipe(f"paper-finetune-{recipe}")
        ours = flatten_config(build_training_config(settings[f"{RANDOM}, {task}, lr 0.01"], bench))
        length = (row.steps, row.warmup_steps, row.batch_size)
        assert (ours["steps"], ours["warmup_steps"], ours["batch_size"]) == length
        wanted = dict(row.settings)
        if task == "digits":
            wanted["flip"] = False
        assert {name: ours[name] for name in wanted} == wanted


def test_public_checkpoints_have_an_address() -> None:
    named = {own["weights"] for own in FULL.grid.values() if "weights" in own}
    assert len(named) == 4
    for name in named:
        assert find_published_url(name) is not None


def test_few_images_are_a_tenth_and_are_seen_as_often() -> None:
    few, many = MINI.encoders[FEW], MINI.encoders[MANY]
    assert {**many, "train_images": 5_000} == few
    assert MINI.data is not None
    assert 10 * few["train_images"] == MINI.data.count


def test_the_papers_numbers_are_as_printed() -> None:
    assert PAPER == {"few images, flowers": 0.8949, "many images, flowers": 0.9938}
    quoted = [claim.paper for claim in STUDY.claims]
    for said, (more, less) in zip(
        quoted, ((83.97, 77.91), (99.38, 89.49), (87.4, 80.9)), strict=True
    ):
        assert said.startswith(f"{more - less:+.1f} points")
        assert f"{more:g}" in said
        assert f"{less:g}" in said
