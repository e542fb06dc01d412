"""When the frozen layers are computed once, and what is said where they are not."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_run import VIT, assemble, config_of

from patchwords.data.augment import AugmentSettings
from patchwords.data.preprocess import Preprocess
from patchwords.distributed import World
from patchwords.errors import ConfigError
from patchwords.training.config import FinetuneConfig
from patchwords.training.inputs import frozen as front_choice
from patchwords.training.inputs.frozen import count_augmented_views, resolve_frozen_mode
from patchwords.training.plan import ResolvedSetting
from patchwords.training.training_run import TrainingRun

STILL = VIT.with_settings(dropout=0.0, drop_path=0.0)
FIXED = AugmentSettings(random_crop=1.0, flip=False)
Usage = namedtuple("Usage", "total used free")


def job_of(
    folder: Path, augment: AugmentSettings, shape: Any = STILL, **recipe: Any
) -> TrainingRun:
    """97 images, seen 2.7 times."""
    config = config_of(augment=augment)
    settings = replace(config.recipe, train="last:2", balance="none")
    return assemble(folder / "run", replace(config, recipe=replace(settings, **recipe)), shape)


def settle(
    job: TrainingRun, resize: str = "squash", **machine: Any
) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
    preprocess = Preprocess(image_size=(8, 8), resize=resize)  # type: ignore[arg-type]
    start = replace(job.start, preprocess=preprocess)
    config = replace(
        job.config, machine=replace(job.config.machine, **{"frozen": "auto", **machine})
    )
    return resolve_frozen_mode(config, job.plan, start, job.device, job.folder.path, held=0)


def test_what_never_changes_is_kept_by_itself(tmp_path: Path) -> None:
    config, [choice] = settle(job_of(tmp_path, FIXED))
    assert (config.machine.frozen, choice.name, choice.value) == ("cache", "frozen", "cache")
    # 97 images of 5 tokens of 14 float32
    assert choice.why == "computed once for each image: 0.03 MiB on the disk, until the run ends"


def test_a_number_of_views_is_kept(tmp_path: Path) -> None:
    job = job_of(tmp_path, AugmentSettings(views=2))
    config, [choice] = settle(job)
    assert config.machine.frozen == "cache"
    assert "for 2 views of each image: 0.05 MiB" in choice.why


@pytest.mark.parametrize(
    ("augment", "changes", "why"),
    [
        (AugmentSettings(), {}, r"are new in every epoch; --views 10 fixes ten"),
        (replace(FIXED, flip=True), {}, "new in every epoch"),
        (replace(FIXED, random_crop=0.9), {}, "new in every epoch"),
        (replace(FIXED, random_crop=None), {}, "new in every epoch"),
        (replace(FIXED, randaugment=(1, 9.0)), {}, "new in every epoch"),
        (replace(FIXED, color_jitter=0.1), {}, "new in every epoch"),
        (replace(FIXED, erase=0.1), {}, "new in every epoch"),
        (FIXED, {"resize": "crop"}, "new in every epoch"),  # of a long image, another part
        (replace(FIXED, mixup=0.2), {}, "MixUp and CutMix blend images differently"),
        (AugmentSettings(views=2, cutmix=1.0), {}, "MixUp and CutMix blend images differently"),
        (FIXED, {"shape": VIT.with_settings(drop_path=0.0)}, "have dropout, too; --dropout 0"),
        (FIXED, {"steps": 8}, "no view of an image is seen twice"),
        (AugmentSettings(views=3), {}, "no view of an image is seen twice"),
    ],
)
def test_what_changes_is_computed_and_the_reason_said(
    augment: AugmentSettings, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    resize = changes.pop("resize", "squash")
    job = job_of(tmp_path, augment, **changes)
    config, [choice] = settle(job, resize)
    assert (config.machine.frozen, choice.value) == ("compute", "compute")
    assert why in choice.why
    with pytest.raises(ConfigError, match=why) as caught:
        settle(job, resize, frozen="cache")
    assert str(caught.value).startswith("--frozen cache: ")
    assert "\n" not in str(caught.value)
    assert settle(job, resize, frozen="compute")[1][0].why == "asked for"


def test_several_processes_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path, FIXED)
    monkeypatch.setattr(front_choice, "get_world", lambda: World(0, 0, 2, 2))
    config, [choice] = settle(job)
    assert config.machine.frozen == "compute"
    assert "each of several processes sees other images" in choice.why


def test_more_than_the_bound_is_computed(tmp_path: Path) -> None:
    job = job_of(tmp_path, FIXED)
    small = replace(job.config.data_settings, cache_size=97 * 5 * 14 * 4 / 2**30 * 0.999)
    config, [choice] = settle(replace(job, config=replace(job.config, data_settings=small)))
    assert config.machine.frozen == "compute"
    assert choice.why.startswith("it takes 0.03 MiB, more than --cache-size 2.53e-05 GiB")


def test_half_of_the_free_disk_is_left_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, FIXED)
    need = 97 * 5 * 14 * 4

    def free(count: int) -> None:
        monkeypatch.setattr(front_choice.shutil, "disk_usage", lambda path: Usage(0, 0, count))

    free(2 * need)
    assert settle(job)[0].machine.frozen == "cache"
    free(2 * need - 2)
    config, [choice] = settle(job)
    assert config.machine.frozen == "compute"
    assert "it takes 0.03 MiB, and of the disk 0.05 MiB are free" in choice.why
    assert settle(job, frozen="cache")[0].machine.frozen == "cache"
    free(need - 1)
    with pytest.raises(ConfigError, match=r"of the disk 0\.03 MiB are free; make some"):
        settle(job, frozen="cache")
    job.folder.frozen.mkdir()
    (job.folder.frozen / "begun").write_bytes(bytes(8192))  # a run that goes on has some already
    assert settle(job, frozen="cache")[0].machine.frozen == "cache"


def test_where_everything_learns_nothing_is_said(tmp_path: Path) -> None:
    job = job_of(tmp_path, FIXED, train="all")
    assert settle(job) == (job.config, [])
    with pytest.raises(ConfigError, match="--frozen cache: every layer learns; add --train head"):
        settle(job, frozen="cache")


def test_no_more_views_than_the_run_comes_to(tmp_path: Path) -> None:
    job = job_of(tmp_path, AugmentSettings(views=7))
    assert count_augmented_views(job.config, job.plan) == 3  # 264 of 97
    drawn = replace(job.config, recipe=replace(job.config.recipe, balance="sample"))
    assert count_augmented_views(drawn, job.plan) == 7


@pytest.mark.parametrize("views", [0, -1])
def test_views_are_counted_from_one(views: int) -> None:
    with pytest.raises(ConfigError, match=f"views is {views}; give 1 or more"):
        AugmentSettings(views=views)
