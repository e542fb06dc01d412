"""The study of flower_photos: the notes' numbers, what is read off a cell, and a tiny one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import precision_recall_fscore_support
from tiny_study import OneThread

from patchwords.data.augment import AugmentSettings
from patchwords.studies.budget import estimate_trial_cost
from patchwords.studies.page import build_page_blocks, render_markdown_page
from patchwords.studies.page_blocks import PageTable, PageText
from patchwords.studies.paper.flowers import (
    DANDELION_EXCESS,
    FULL,
    LATE_GAIN,
    MINI,
    NUM_TRAINING_PHOTOS,
    OUR_SETTINGS,
    STUDY,
    build_notes_recipe,
    collect_training_curves,
    compute_confusion_scores,
    compute_values,
)
from patchwords.studies.paper.flowers_page import (
    NOTES_ACCURACY,
    NOTES_ALL_WEIGHTS,
    NOTES_DANDELION_ANSWERS,
    NOTES_HEAD_ONLY,
    NOTES_SCORES,
    PHOTOS_BY_CLASS,
    RESNET,
    VIT,
    build_recall_check_table,
    build_tables,
    count_held_out_photos,
    find_possible_correct_counts,
)
from patchwords.studies.runner import execute_study
from patchwords.studies.study import StudyContext
from patchwords.studies.training import count_training_flops
from patchwords.training.config import FinetuneConfig, MachineSettings, RecipeSettings
from patchwords.training.recipes import fill_recipe_settings


def test_the_notes_tables_are_of_all_photos() -> None:
    """Whole numbers of photos that print as the recalls do; their sums print as the accuracies."""
    of_fifth, of_all = (
        {
            m: [
                find_possible_correct_counts(row.recall, n(name))
                for name, row in NOTES_SCORES[m].items()
            ]
            for m in NOTES_SCORES
        }
        for n in (count_held_out_photos, PHOTOS_BY_CLASS.__getitem__)
    )
    assert of_all == {
        VIT: [[616], [876], [602], [684], [730]],
        RESNET: [[407], [887], [321], [308], [606]],
    }
    assert of_fifth == {VIT: [[]] * 5, RESNET: [[81], *[[]] * 4]}
    assert sum(PHOTOS_BY_CLASS.values()) == 3670
    for model, counts in of_all.items():
        assert round(sum(map(sum, counts)) / 3670, 3) == NOTES_ACCURACY[model]


def test_printed_scores_agree_with_one_another() -> None:
    """F1 is 2PR / (P + R), to a thousandth of each."""
    for row in (row for table in NOTES_SCORES.values() for row in table.values()):
        ours = 2 * row.precision * row.recall / (row.precision + row.recall)
        assert ours == pytest.approx(row.f1, abs=0.0016)


def test_that_resnet_answers_dandelion_for_half_of_the_photos() -> None:
    """Each other class leaves one number of answers; what remains of 3,670 prints right, too."""
    answers = {}
    for name, row in NOTES_SCORES[RESNET].items():
        [found] = find_possible_correct_counts(row.recall, PHOTOS_BY_CLASS[name])
        answers[name] = [n for n in range(1, 3671) if abs(found / n - row.precision) <= 0.0005]
    options = answers.pop("dandelion")
    assert answers == {"daisy": [423], "roses": [341], "sunflowers": [315], "tulips": [790]}
    assert NOTES_DANDELION_ANSWERS == 3670 - 423 - 341 - 315 - 790
    assert NOTES_DANDELION_ANSWERS in options


def test_the_page_has_the_arithmetic() -> None:
    rows = build_recall_check_table().rows
    fifth, every = "no number", "616"
    assert rows[0] == ["daisy", "126", "633", "0.973", fifth, every, "0.643", "81", "407"]
    assert len(rows) == 5


def test_the_notes_settings() -> None:
    """200 epochs in batches of 256 at 0.001; a shorter one has the same sum of rates."""
    full = FULL.grid[f"{VIT}, {NOTES_ALL_WEIGHTS}"]
    assert (full["lr"], full["batch_size"], full["steps"]) == (0.001, 256, 2065)
    assert full["log_every"] / full["steps"] * 200 == pytest.approx(5, rel=0.02)
    for scale in (MINI, FULL):
        for model in (VIT, RESNET):
            whole, head = (
                scale.grid[f"{model}, {recipe}"] for recipe in (NOTES_ALL_WEIGHTS, NOTES_HEAD_ONLY)
            )
            assert whole["lr"] * whole["steps"] == pytest.approx(0.001 * 2065, rel=0.01)
            assert {name: head[name] for name in build_notes_recipe(256)} == build_notes_recipe(256)
            assert ("train" not in whole, head["train"]) == (True, "head")


def test_both_models_of_the_miniature_cost_the_same_and_are_pre_trained_alike() -> None:
    bench = StudyContext(Path("nowhere"), MINI, "cifar10", "flowers")
    vit, resnet = (estimate_trial_cost(cell, bench) for cell in MINI.list_pretrainings(1))
    assert [round(one.macs / 1e6) for one in (vit, resnet)] == [32, 30]
    assert vit.images == resnet.images == pytest.approx(75_000, abs=128)
    ours, theirs = MINI.encoders[RESNET], MINI.encoders[VIT]
    assert {name for name in ours if ours[name] != theirs.get(name)} == {"model"}
    said = next(piece.text for piece in tables_of_nothing() if "miniature" in piece.text)
    assert f"{vit.parameters / 1e3:.0f} thousand" in said
    assert f"{resnet.parameters / 1e6:.0f} million" in said


def test_the_head_alone_costs_a_forward_pass_of_each_view_that_is_computed() -> None:
    bench = StudyContext(Path("nowhere"), MINI, "cifar10", "flowers")
    costs = {cell.name: estimate_trial_cost(cell, bench) for cell in MINI.list_trials(1)}
    head = costs[f"{VIT}, {NOTES_HEAD_ONLY}"]
    assert head.flops == 2 * head.macs * 10 * 2936  # ten views of four fifths of the photos
    config = FinetuneConfig(recipe=RecipeSettings(train="head"))
    views = replace(config, augment=AugmentSettings(views=3))
    in_every_step = replace(views, machine=MachineSettings(frozen="compute"))
    assert count_training_flops(config, macs=5, seen=700, images=11) == 10 * 700
    assert count_training_flops(views, macs=5, seen=700, images=11) == 10 * 33
    assert count_training_flops(views, macs=5, seen=7, images=11) == 10 * 7
    assert count_training_flops(in_every_step, macs=5, seen=700, images=11) == 10 * 700
    assert count_training_flops(FinetuneConfig(), macs=5, seen=700, images=11) == 30 * 700


def tables_of_nothing() -> list[PageText]:
    """What the page says, whatever was found."""
    found = build_tables({"scale": "mini", "grid": {}, "cells": []})
    return [piece for piece in found if isinstance(piece, PageText)]


def test_this_programs_recipe_is_what_finetune_decides() -> None:
    config = FinetuneConfig(data="flower_photos", weights="imagenet21k/ViT-B_16")
    filled, _ = fill_recipe_settings(
        config, images=NUM_TRAINING_PHOTOS, from_weights=True, model="ViT-B/16"
    )
    recipe = filled.recipe
    decided = {name: getattr(recipe, name) for name in OUR_SETTINGS if hasattr(recipe, name)}
    assert decided == {name: OUR_SETTINGS[name] for name in decided}
    assert len(decided) == 8


def test_scores_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, answers = rng.integers(0, 3, 41), rng.integers(0, 2, 41)  # the third: never answered
    held_out, others = np.zeros((2, 3, 3), np.int64)
    np.add.at(held_out, (labels[:17], answers[:17]), 1)
    np.add.at(others, (labels[17:], answers[17:]), 1)
    found = compute_confusion_scores(held_out, held_out + others, ("a", "b", "c"))
    for column, part in (("held out", slice(17)), ("all photos", slice(41))):
        expected = precision_recall_fscore_support(
            labels[part], answers[part], labels=range(3), zero_division=0
        )
        for what, values in zip(("precision", "recall", "f1"), expected, strict=False):
            assert [found[f"{column} {what}, {n}"] for n in "abc"] == pytest.approx(values)
    assert found["accuracy"] == (labels == answers)[:17].mean()
    assert found["all photos"] == (labels == answers).mean()
    assert found["all photos share of answers, b"] == (answers == 1).mean()
    counted = [found[f"held out, {a} taken for {b}"] for a in "abc" for b in "abc"]
    assert counted == held_out.ravel().tolist()


def test_curves_are_shares_of_the_steps() -> None:
    rows = [
        {"kind": "train", "step": 5, "loss": 1.5, "accuracy": 0.2},
        {"kind": "train", "step": 10, "loss": 1.2, "accuracy": 0.3},
        {"kind": "note", "step": 10, "loss": 9.0},
        {"kind": "evaluation", "step": 10, "loss": 1.4, "accuracy": 0.25},
    ]
    assert collect_training_curves(rows, 200) == {
        "training loss at 0.025": 1.5,
        "training accuracy at 0.025": 0.2,
        "training loss at 0.05": 1.2,
        "training accuracy at 0.05": 0.3,
        "validation loss at 0.05": 1.4,
    }


def made_up() -> dict[str, dict[str, float | None]]:
    """Every cell with numbers of its own."""
    return {
        name: {
            "accuracy": 0.1 * i,
            "all photos": 0.1 * i + 0.05,
            "all photos share of answers, dandelion": 0.25,
            **{f"training accuracy at {i / 40}": i / 80 for i in range(1, 41)},
        }
        for i, name in enumerate(MINI.grid)
    }


def test_what_is_read_off_the_cells() -> None:
    labels = {name: name for name in MINI.grid}
    table = compute_values(labels, made_up())
    assert table[f"{RESNET}, {NOTES_HEAD_ONLY}, held out"] == pytest.approx(0.1)
    assert table[f"{RESNET}, {NOTES_HEAD_ONLY}, all photos"] == pytest.approx(0.15)
    assert table[DANDELION_EXCESS.format(NOTES_HEAD_ONLY)] == pytest.approx(0.25 - 1801 / 3670)
    assert table[LATE_GAIN] == pytest.approx((37 + 38 + 39 + 40) / 4 / 80 - 2 / 80)
    for claim in STUDY.claims:
        assert {*claim.more, *claim.less} <= set(table)
    assert set(STUDY.paper) <= set(table)
    assert STUDY.layout is not None
    rows, columns = STUDY.layout
    assert {f"{row}, {column}" for row in rows for column in columns} <= set(table)


def test_what_diverged_is_none() -> None:
    labels = {name: name for name in MINI.grid}
    lost: dict[str, float | None] = {"validation": None, "diverged": 1.0, "accuracy": None}
    table = compute_values(labels, {**made_up(), f"{RESNET}, {NOTES_ALL_WEIGHTS}": lost})
    gone = [name for name, value in table.items() if value is None]
    assert gone == [
        f"{RESNET}, {NOTES_ALL_WEIGHTS}, held out",
        f"{RESNET}, {NOTES_ALL_WEIGHTS}, all photos",
        DANDELION_EXCESS.format(NOTES_ALL_WEIGHTS),
        LATE_GAIN,
    ]


def test_a_table_by_class_and_the_confusion_of_two_seeds() -> None:
    """Held out first, with its spread; then all photos, then the notes' for that model."""
    cell = f"{RESNET}, {NOTES_ALL_WEIGHTS}"
    rows = [{"name": cell, "seed": seed, **two_seeds(seed)} for seed in (0, 1)]
    pieces = list(build_tables({"scale": "full", "grid": {cell: {}}, "cells": rows}))
    by_class, confusion, _ = (piece for piece in pieces if isinstance(piece, PageTable))
    assert by_class.head[0] == cell
    daisy = ("daisy", "20.0 ± 28.3", "50.0 ± 0.0", "10.0 ± 14.1", "80.0  60.0  70.0")
    assert by_class.rows[0] == (*daisy, "96.2  64.3  77.0")
    assert by_class.rows[-1] == ("accuracy", "45.0 ± 7.1", "", "", "75.0", "68.9")
    assert confusion.rows[1] == ("dandelion", "3", "5", "3", "3", "3")
    assert not any("miniature" in piece.text for piece in pieces if isinstance(piece, PageText))


def two_seeds(seed: int) -> dict[str, float]:
    scores = {"precision": (0.4 * seed, 0.8), "recall": (0.5, 0.6), "f1": (0.2 * seed, 0.7)}
    by_class = {
        f"{column} {what}, {name}": value
        for name in PHOTOS_BY_CLASS
        for what, both in scores.items()
        for column, value in zip(("held out", "all photos"), both, strict=True)
    }
    taken = {
        f"held out, {name} taken for {answer}": seed + 1 + (name == answer)
        for name in PHOTOS_BY_CLASS
        for answer in PHOTOS_BY_CLASS
    }
    return {**by_class, **taken, "accuracy": 0.4 + 0.1 * seed, "all photos": 0.75}


TINY = {"model": "ViT-mu/4", "image_size": (8,), "batch_size": 8, "steps": 2, "dropout": 0.0}
BRIEF = {"steps": 12, "log_every": 1, "eval_every": 6, "save_every": 12, "warmup_steps": 0}


@pytest.fixture(scope="module")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pictures of each class, of a colour of its own."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number, name in enumerate(PHOTOS_BY_CLASS):
        (folder / name).mkdir()
        for i in range(10):
            pixels = rng.integers(40 * number, 40 * number + 60, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_a_tiny_one_from_end_to_end(flowers: Path, tmp_path: Path) -> None:
    grid = {
        name: {**own, **BRIEF, "batch_size": 8, **({"views": 2} if "views" in own else {})}
        for name, own in MINI.grid.items()
    }
    scale = replace(
        MINI,
        grid=grid,
        settings={**MINI.settings, "image_size": (8,), "validation": 0.2},
        encoders={VIT: TINY, RESNET: TINY},
        seeds=1,
    )
    study = replace(STUDY, scales={"mini": scale, "full": FULL})
    asked: Mapping[str, Any] = {"jobs": 1, "device": "cpu", "precision": "fp32"}
    results = execute_study(
        OneThread(study, "mini", tmp_path / "study", "digits", str(flowers), **asked), print, "it"
    )
    cells = {(cell["name"], cell["seed"]): cell for cell in results["cells"]}
    assert len(cells) == 6
    head, whole = (cells[f"{VIT}, {recipe}", 0] for recipe in (NOTES_HEAD_ONLY, NOTES_ALL_WEIGHTS))
    assert (head["test images"], head["photos"]) == (10, 50)  # ten of each class
    macs = whole["flops"] / (6 * whole["images"])
    assert head["flops"] == pytest.approx(2 * macs * 2 * 32)  # two views of each
    for cell in cells.values():
        every = [cell[f"all photos share of answers, {name}"] for name in PHOTOS_BY_CLASS]
        assert sum(every) == pytest.approx(1)
        recall = np.mean([cell[f"held out recall, {name}"] for name in PHOTOS_BY_CLASS])
        assert cell["accuracy"] == pytest.approx(recall)  # classes of equal size
        counted = sum(value for name, value in cell.items() if "taken for" in name)
        assert counted == 10
    page = render_markdown_page(
        "Flowers", build_page_blocks(study, results, ("flowers-loss", "flowers-f1"), "it")
    )
    for words in ("no whole number prints", "is no baseline", "This is a miniature"):
        assert words in page
    daisy = 100 * whole["held out recall, daisy"]
    assert f" | {daisy:.1f} | " in page
    assert f"| {VIT}, {NOTES_HEAD_ONLY} | " in page
    assert "(95.6)" in page
    figures = study.draw_figures(results)
    assert {name for name in figures if name.endswith("png")} == {
        "flowers-loss.png",
        "flowers-f1.png",
    }
