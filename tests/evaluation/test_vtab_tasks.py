"""The table of VTAB-1k against the paper's means and the benchmark's own counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from patchwords.errors import ConfigError
from patchwords.evaluation.sweeps.config import VtabConfig, VtabTaskSettings
from patchwords.evaluation.sweeps.vtab import (
    VtabResult,
    VtabScore,
    VtabTaskData,
    build_task_config,
    list_departures,
    scale_vtab_warmup,
)
from patchwords.evaluation.sweeps.vtab_tasks import (
    TABLE_9_MODELS,
    VTAB_GROUPS,
    VTAB_TASK_NAMES,
    VTAB_TASKS,
)
from patchwords.training.config import DataSettings, FinetuneConfig, config_to_yaml
from patchwords.training.recipes import apply_recipe, fill_recipe_settings


def scores(tasks: tuple[str, ...] = VTAB_TASK_NAMES) -> list[VtabScore]:
    """As if the model were the paper's first: nothing is trained."""
    return [
        VtabScore(
            task,
            task.name,
            VtabTaskData(1_000, task.classes, ""),
            task.name,
            {"accuracy": {"value": task.table_9[0] / 100}, "images": task.test},
        )
        for task in VTAB_TASKS
        if task.name in tasks
    ]


def test_nineteen_tasks_in_three_groups() -> None:
    assert len(set(VTAB_TASK_NAMES)) == len(VTAB_TASKS) == 19
    assert [task.group for task in VTAB_TASKS] == sorted(
        (task.group for task in VTAB_TASKS), key=VTAB_GROUPS.index
    )
    assert [sum(task.group == group for task in VTAB_TASKS) for group in VTAB_GROUPS] == [7, 4, 8]
    assert all(len(task.table_9) == len(TABLE_9_MODELS) for task in VTAB_TASKS)


def test_the_page_has_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text().splitlines()
    for task in VTAB_TASKS:
        [row] = [line for line in page if line.startswith(f"| `{task.name}` |")]
        cells = [cell.strip() for cell in row.split("|")]
        sources = [task.tfds, task.val200, task.test_split, f"{task.test:,}"]
        assert [cells[2], *cells[4:8]] == [str(task.classes), *sources]
        published = " | ".join(f"{accuracy:.1f}" for accuracy in task.table_9)
        assert f"| {task.name} | {published} |" in page


def test_means_are_the_papers() -> None:
    """Table 9's last column, and Table 2's, which has two digits more of the same runs."""
    outcome = VtabResult(Path(), scores(), [], [])
    published = [100 * outcome.published(model) for model in range(3)]
    assert [round(mean, 1) for mean in published] == [77.6, 76.3, 72.7]
    # entries are rounded to 0.1, so a mean of 19 of them is right to 0.05
    assert published == pytest.approx([77.63, 76.28, 72.72], abs=0.05)
    assert outcome.mean() == pytest.approx(outcome.published(0))


def test_a_mean_over_some_tasks_is_beside_the_papers_over_the_same() -> None:
    some = VtabResult(Path(), scores(("pets", "svhn", "eurosat")), ["dtd"], [])
    assert some.groups == ["natural", "specialized"]
    assert some.mean("natural") == pytest.approx((0.972 + 0.889) / 2)
    assert some.published(2, "natural") == pytest.approx((0.927 + 0.809) / 2)
    assert some.mean() == pytest.approx((0.972 + 0.889 + 0.967) / 3)
    assert not any(score.differences for score in some.scores)
    [score] = scores(("pets",))
    other = replace(score, counts=VtabTaskData(1_001, 36, ""), evaluation={"images": 3_668})
    assert other.differences == [
        "1,001 training images (VTAB-1k: 1,000)",
        "36 classes (VTAB-1k: 37)",
        "3,668 test images (VTAB-1k: 3,669)",
    ]


def test_the_recipe_is_the_papers_protocol_and_departures_are_named() -> None:
    """Through the file that a run keeps, in which tuples are lists."""
    config = VtabConfig(data="root", weights="w")
    run = build_task_config(config, "root/pets", Path("x"))
    assert run.data_settings == DataSettings(
        validation=0.0, join_validation=True, unseen_classes=True
    )
    filled = apply_recipe(run, "paper-finetune-vtab", from_weights=True)
    filled, _ = fill_recipe_settings(filled, images=1_000, from_weights=True, model="ViT-B/16")
    assert (filled.recipe.steps, filled.recipe.lr, filled.recipe.batch_size) == (2_500, 0.01, 512)
    assert filled.model_settings.image_size == (384,)
    stored = yaml.safe_load(config_to_yaml(filled))
    assert list_departures(stored) == []
    assert list_departures({**stored, "image_size": [384, 384]}) == []
    changed = {**stored, "steps": 100, "lr": 0.03, "mixup": 0.2, "flip": False, "train": "head"}
    assert list_departures(changed) == [
        "steps 100 (paper: 2,500)",
        "lr 0.03 (paper: 0.01)",
        "flip False (paper: True)",
        "mixup 0.2 (paper: 0)",
        "train head (paper: all)",
    ]


def test_fewer_steps_keep_their_share_of_warm_up() -> None:
    config = VtabConfig(data="root", weights="w")
    assert scale_vtab_warmup(config) == config
    short = replace(config, recipe=replace(config.recipe, steps=250))
    assert scale_vtab_warmup(short).recipe.warmup_steps == 20  # 200 of 2,500
    asked = replace(config, recipe=replace(config.recipe, steps=250, warmup_steps=7))
    assert scale_vtab_warmup(asked) == asked


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (VtabConfig(data="r"), "VTAB-1k measures transfer: say from which --weights"),
        (
            VtabConfig(data="r", weights="w", choice=VtabTaskSettings(("dsprite-location",))),
            "no task 'dsprite-location'; did you mean 'dsprites-location'?",
        ),
        (VtabConfig(data="r", weights="w", choice=VtabTaskSettings(())), "--tasks lacks a value"),
        (
            VtabConfig(data="r", weights="w", data_settings=DataSettings(test=0.5)),
            "--test 0.5: the splits of VTAB-1k are fixed",
        ),
    ],
)
def test_settings_that_contradict_the_benchmark(config: FinetuneConfig, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.check()
    assert line in str(caught.value)
