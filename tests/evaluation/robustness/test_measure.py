"""What is counted, of whom, over which seeds; and that neither batches nor processes matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from subjects import CLASSES, RESNET, VIT, examples_of, lively

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.held_out import map_to_model_labels
from patchwords.evaluation.predictions import LoadedModel
from patchwords.evaluation.robustness import measure
from patchwords.evaluation.robustness.measure import (
    PERTURBATION_FAMILIES,
    PERTURBATIONS,
    choose_perturbations,
    measure_robustness,
    summarise_robustness,
)
from patchwords.evaluation.robustness.occlusion import build_occlusions
from patchwords.evaluation.robustness.perturbation import (
    NamedProgress,
    Perturbation,
    PerturbationBatch,
)
from patchwords.evaluation.robustness.shuffling import TILE_PERMUTATION
from patchwords.models.build import ModelConfig

OCCLUSION, *_ = build_occlusions(grid=4)
N = 17
PLAIN = Perturbation(
    "plain", "made-up", "Plain", "level", (1.0, 2.0), "", change=lambda b, *_: b.images
)


def one_by_one(subject: LoadedModel, examples: ImageDataset) -> list[PerturbationBatch]:
    labelled = map_to_model_labels(examples, subject.source.labels, "x")
    found = []
    for place in range(len(examples)):
        [decoded] = load_eval_batches(labelled.select([place]), subject.preprocess, 1)
        found.append(PerturbationBatch(decoded.images, decoded.targets, [place], subject))
    return found


def accuracy(
    images: list[PerturbationBatch], disturbance: Perturbation, level: float, seed: int
) -> float:
    """One image at a time, written out."""
    right = 0
    for batch in images:
        changed = batch.images
        if level != disturbance.clean:
            assert disturbance.change is not None
            changed = disturbance.change(batch, level, seed)
        right += int(ask(batch, changed) == batch.labels)
    return right / len(images)


@torch.no_grad()
def ask(batch: PerturbationBatch, images: torch.Tensor) -> torch.Tensor:
    return batch.loaded.model(batch.loaded.preprocess.normalise(images)).argmax(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("config", [VIT, RESNET], ids=["ViT", "ResNet"])
def test_rows_are_the_accuracies_of_images_taken_one_by_one(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "BATCH_SIZE", 5)
    subject, examples = lively(config), examples_of(7)
    answers = [int(ask(batch, batch.images)) for batch in one_by_one(subject, examples)]
    examples = replace(examples, labels=np.array(answers))  # right where nothing is changed
    rows = measure_robustness([subject], examples, [OCCLUSION, TILE_PERMUTATION], seeds=(3, 5))
    assert len(rows) == 1 + 2 * 10 + 1 + 2 * len(TILE_PERMUTATION.levels_of(subject))
    images = one_by_one(subject, examples)
    for row in rows:
        disturbance = OCCLUSION if row["disturbance"] == OCCLUSION.name else TILE_PERMUTATION
        wanted = accuracy(images, disturbance, row["level"], row["seed"] or 0)
        assert row["accuracy"] == pytest.approx(wanted, abs=1e-12), row
        assert row["images"] == 7
        assert (row["seed"] is None) == (row["level"] == disturbance.clean)
    assert len({row["accuracy"] for row in rows}) > 2


def test_models_are_matched_by_the_names_of_classes() -> None:
    """Labels in another order, with a class that the data lack, are the same classes."""
    subject = lively(VIT)
    examples = examples_of(N)
    other = replace(
        examples, classes=("cat", "none", "ant", "bee"), labels=np.array([2, 3, 0])[examples.labels]
    )
    first, second = (measure_robustness([subject], part, [OCCLUSION]) for part in (examples, other))
    assert first == second
    unknown = replace(examples, classes=("ant", "bee", "cow"))
    with pytest.raises(DataError, match="model: class 'cow' is not one of the model's"):
        measure_robustness([subject], unknown, [OCCLUSION])


def test_what_has_nothing_random_is_measured_once() -> None:
    rows = measure_robustness([lively(VIT)], examples_of(5), [PLAIN], seeds=(0, 1, 2))
    assert [(row["level"], row["seed"]) for row in rows] == [(0, None), (1, None), (2, None)]


def test_images_that_cannot_be_read_are_left_out_but_not_many() -> None:
    examples = examples_of(N, broken=(2, 11))
    good = examples.select([place for place in range(N) if place not in (2, 11)])
    rows = measure_robustness([lively(VIT)], examples, [PLAIN], max_bad=0.5)
    assert {row["images"] for row in rows} == {N - 2}
    wanted = measure_robustness([lively(VIT)], good, [PLAIN])
    assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in wanted]
    with pytest.raises(DataError, match=r"2 of 17 images cannot be read.* 2\.png"):
        measure_robustness([lively(VIT)], examples, [PLAIN])
    with pytest.raises(DataError, match="none of the images can be read"):
        measure_robustness([lively(VIT)], examples_of(2, broken=(0, 1)), [PLAIN], max_bad=1)


@pytest.mark.parametrize("labels", [[], [0, -1, 2]])
def test_images_without_labels_are_refused(labels: list[int]) -> None:
    examples = replace(examples_of(len(labels)), labels=np.array(labels, dtype=np.int64))
    with pytest.raises(DataError, match="each with a label"):
        measure_robustness([lively(VIT)], examples, [PLAIN])


def test_a_model_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="model is named twice"):
        measure_robustness([lively(VIT), lively(VIT)], examples_of(3), [PLAIN])


def learned(transfers: bool, seen: list[Any]) -> Perturbation:
    """What is learned is a shade of grey that says on whom, and from which seed."""

    def prepare(
        subject: LoadedModel, training: ImageDataset, seed: int, progress: NamedProgress
    ) -> Callable[..., Any]:
        seen.append((subject.name, [*training.classes], len(training), seed))
        assert not subject.model.training
        shade = 40 * len(seen)
        return lambda batch, level, seed: torch.full_like(batch.images, shade)

    return Perturbation(
        "learned", "made-up", "", "", (1.0,), "", prepare=prepare, seeds=True, transfers=transfers
    )


@pytest.mark.parametrize("transfers", [False, True])
def test_what_is_learned_is_learned_once_and_tried_on_others_if_it_may(transfers: bool) -> None:
    seen: list[Any] = []
    subjects = [lively(VIT, "a"), lively(RESNET, "b")]
    rows = measure_robustness(
        subjects, examples_of(6), [learned(transfers, seen)], (0, 7), examples_of(4)
    )
    assert seen == [(name, [*CLASSES], 4, seed) for name in "ab" for seed in (0, 7)]
    found = [(row["model"], row["prepared_on"], row["level"], row["seed"]) for row in rows]
    pairs = ["aa", "ab", "ba", "bb"] if transfers else ["aa", "bb"]
    assert found == [
        (model, maker, *rest) for model, maker in pairs for rest in ((0, None), (1, 0), (1, 7))
    ]


def test_learning_needs_training_images() -> None:
    for training in (None, examples_of(3).select([])):
        with pytest.raises(
            ConfigError, match="learned is learned on training images, and there are none"
        ):
            measure_robustness([lively(VIT)], examples_of(3), [learned(False, [])], (0,), training)


def test_progress_counts_the_images_of_each_model() -> None:
    told: list[Any] = []
    examples = examples_of(N, broken=(2,))
    subjects = [lively(VIT, "a"), lively(RESNET, "b")]
    measure_robustness(
        subjects, examples, [PLAIN], max_bad=1, progress=lambda *words: told.append(words)
    )
    assert told == [("a", N, N), ("b", N, N)]


def test_training_goes_on_as_it_was() -> None:
    subject = lively(VIT)
    subject.model.train()
    measure_robustness([subject], examples_of(3), [PLAIN])
    assert subject.model.training


def test_points_are_means_over_seeds() -> None:
    rows = [
        {"model": "a", "disturbance": "d", "prepared_on": None, "level": level, "seed": seed,
         "accuracy": value, "images": 9}
        for level, seed, value in ((0, None, 0.9), (1, 0, 0.2), (1, 1, 0.6), (1, 2, 0.4))
    ]  # fmt: skip
    clean, point = summarise_robustness(rows)
    assert (clean["mean"], clean["std"], clean["seeds"]) == (0.9, None, 1)
    assert point["mean"] == pytest.approx(0.4)
    assert point["std"] == pytest.approx(0.2)  # of 0.2, 0.4 and 0.6, with n - 1
    assert (point["lowest"], point["highest"], point["seeds"], point["images"]) == (0.2, 0.6, 3, 9)
    assert point["level"] == 1


def test_disturbances_are_chosen_by_name_or_family_in_the_tables_order() -> None:
    names = [each.name for each in choose_perturbations(("texture", "occlusion-salient"))]
    assert names == ["occlusion-salient", "texture-smoothing", "texture-shuffling"]
    assert [each.name for each in choose_perturbations(("all",))] == [*PERTURBATIONS]
    usual = choose_perturbations()
    assert [each.name for each in usual] == [n for n, d in PERTURBATIONS.items() if d.usual]
    with pytest.raises(ConfigError, match="'oclusion'; did you mean 'occlusion'"):
        choose_perturbations(("oclusion",))
    assert len({*PERTURBATION_FAMILIES} & {*PERTURBATIONS} - {"permutation"}) == 0


@pytest.mark.parametrize("disturbance", PERTURBATIONS.values(), ids=lambda d: d.name)
def test_every_disturbance_says_where_it_was_measured_before(disturbance: Perturbation) -> None:
    assert disturbance.published.endswith(".")
    assert (disturbance.change is None) != (disturbance.prepare is None)
    levels = disturbance.levels_of(lively(VIT))
    assert list(levels) == sorted(levels)
    assert disturbance.clean not in levels


def test_processes_take_shares_that_sum_up_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two processes count, each of its own images, is what one counts alone."""
    sums: list[torch.Tensor] = []

    def summed(tensor: torch.Tensor) -> torch.Tensor:
        sums.append(tensor.clone())
        return tensor

    def named(bad: list[tuple[int, str]]) -> list[tuple[int, str]]:
        broken.append([place for place, _ in bad])
        return bad

    broken: list[list[int]] = []
    monkeypatch.setattr(measure, "all_reduce_sum", summed)
    monkeypatch.setattr(measure, "all_gather_lists", named)
    subject, examples = lively(VIT), examples_of(N, broken=(3,))
    for share in (range(0, N, 1), range(0, N, 2), range(1, N, 2)):
        monkeypatch.setattr(measure, "get_process_indices", lambda _, share=share: share)
        measure_robustness([subject], examples, [OCCLUSION, TILE_PERMUTATION], (0, 1), max_bad=0.2)
    alone, first, second = sums
    assert torch.equal(first + second, alone)
    assert (int(first[-1]), int(second[-1])) == (9, 7)  # images, of which one is broken
    assert broken == [[3], [], [3]]


def test_a_bad_image_of_another_process_is_named_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "all_gather_lists", lambda mine: [*mine, (8, "gone")])
    with pytest.raises(DataError, match=r"1 of 9 images cannot be read.* 8\.png \(gone\)"):
        measure_robustness([lively(VIT)], examples_of(9), [PLAIN], max_bad=0.0)
