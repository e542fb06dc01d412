"""What is measured is what is claimed: runs, images, shares, phases; with a clock that is planted
where a number is to be known."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from patchwords.benchmark import clock
from patchwords.benchmark import loader as input
from patchwords.benchmark import profile as together
from patchwords.benchmark import throughput as training
from patchwords.benchmark import workload as subject
from patchwords.benchmark.clock import TimingSpec, measure_batch_sizes, time_repeated_runs
from patchwords.benchmark.loader import make_synthetic_photos, measure_loader_throughput
from patchwords.benchmark.profile import (
    STEP_PHASES,
    classify_operation,
    compute_time_shares,
    profile_end_to_end,
    profile_operations,
)
from patchwords.benchmark.throughput import build_benchmark_trainer, measure_inference_throughput
from patchwords.benchmark.workload import (
    BenchmarkWorkload,
    build_workload,
    enable_checkpointing_if_needed,
)
from patchwords.data.dataset import ImageDataset
from patchwords.data.sources.digits import MemoryReader
from patchwords.device import choose_device
from patchwords.errors import ConfigError, DataError
from patchwords.weights.pretrained import Pretrained

CPU = choose_device("cpu", "fp32")


class Ticks:
    """A clock that stands still but for what is added."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    found = Ticks()
    monkeypatch.setattr(clock, "time", found)
    return found


def tiny(batches: tuple[int, ...] = (2, 3), precision: str = "fp32") -> BenchmarkWorkload:
    where = "cpu", precision
    return build_workload("ViT-mu/4", (16,), batches, "weights", None, where)  # type: ignore[arg-type]


def test_the_first_run_does_not_count_and_the_median_does(ticks: Ticks) -> None:
    durations = iter([50.0, 1.0, 7.0, 2.0])

    def once(batch: int) -> None:
        ticks.now += next(durations)

    work = TimingSpec(CPU, flops=3.0, peak=12.0, once=once)
    (row,) = measure_batch_sizes(work, [10], seconds=59.0)  # the end comes in the third that counts
    assert (row.batch, row.runs, row.precision) == (10, 3, "fp32")
    assert row.images_per_second == 10 / 2.0
    assert row.share_of_peak == 5.0 * 3.0 / 12.0
    assert row.memory_bytes is None or row.memory_bytes > 50e6  # torch alone takes more


def test_two_runs_count_however_short_the_time(ticks: Ticks) -> None:
    def once() -> None:
        ticks.now += 5.0

    assert time_repeated_runs(once, CPU, seconds=0.0) == [5.0, 5.0]


def test_what_would_take_too_long_or_not_fit_is_left_out_and_said(ticks: Ticks) -> None:
    asked = []

    def once(batch: int) -> None:
        asked.append(batch)
        ticks.now += batch  # an image a second

    def needs(batch: int) -> str | None:
        return "too large" if batch == 7 else None

    work = TimingSpec(CPU, 1.0, 1.0, once, needs)
    rows = measure_batch_sizes(work, [11, 2, 7, 5], seconds=5.0)
    assert [row.batch for row in rows] == [2, 5, 7, 11]
    assert [row.images_per_second for row in rows] == [1.0, 1.0, None, None]
    # 3 runs of 11 s are more than 3 times the 5 s that there are
    assert [row.skipped for row in rows[2:]] == ["too large", "would take 33.0 s; raise --seconds"]
    assert set(asked) == {2, 5}


def test_the_smallest_is_measured_however_slow(ticks: Ticks) -> None:
    def once(batch: int) -> None:
        ticks.now += 1000.0

    (row,) = measure_batch_sizes(TimingSpec(CPU, 1.0, 1.0, once), [4], seconds=0.1)
    assert row.images_per_second == 4 / 1000.0


def test_auto_compares_the_precisions_where_bf16_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchwords.device.has_fast_bf16", lambda cuda: True)
    assert [device.precision for device in tiny(precision="auto").devices] == ["bf16", "fp32"]
    assert [device.precision for device in tiny(precision="bf16").devices] == ["bf16"]
    monkeypatch.setattr("patchwords.device.has_fast_bf16", lambda cuda: False)
    assert [device.precision for device in tiny(precision="auto").devices] == ["fp32"]


def test_the_recipe_is_that_of_the_start() -> None:
    scratch = build_workload("ViT-mu/4", (16,), None, "scratch", None, ("cpu", "fp32"))
    assert scratch.training.recipe.optimizer == "adamw"
    assert scratch.create().config.dropout == 0.1
    assert tiny().training.recipe.optimizer == "sgd"
    assert tiny().create().config.dropout == 0.0
    assert tiny().create().config.image_size == tiny().preprocess.image_size == (16, 16)


def test_activations_are_checkpointed_where_the_smallest_batch_does_not_fit() -> None:
    plain = build_workload("ViT-Ti/16", (224,), (64, 128), "weights", None, ("cpu", "fp32"))
    assert not plain.checkpointing
    whole = plain.needs(64, "fp32")
    assert not enable_checkpointing_if_needed(plain, whole).checkpointing
    spared = enable_checkpointing_if_needed(plain, whole - 1)
    assert spared.checkpointing
    least = spared.needs(64, "fp32")
    assert least < whole / 2
    assert enable_checkpointing_if_needed(plain, least).checkpointing
    with pytest.raises(ConfigError, match="ViT-Ti/16: training on 64 images at a time takes about"):
        enable_checkpointing_if_needed(plain, least - 1)


def test_what_does_not_fit_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tiny((2, 300))
    monkeypatch.setattr(training, "get_usable_memory", lambda device: found.needs(300, "fp32") - 1)
    rows = training.measure_training_throughput(
        build_benchmark_trainer(found), found, CPU, 1e9, 0.0
    )
    assert rows[0].skipped is None
    assert rows[1].skipped is not None
    assert rows[1].skipped.startswith("takes about 0.")


def test_made_photos_are_like_those_of_imagenet() -> None:
    photos = make_synthetic_photos(3)
    assert len(photos) == 3
    assert 80e3 < photos.sizes.mean() < 140e3  # 110 kB there
    assert Image.open(io.BytesIO(photos.read(0))).size == (500, 375)
    assert photos.read(0) == make_synthetic_photos(1).read(0) != photos.read(1)


class Steady:
    """A clock that goes on by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


def test_what_the_loader_gave_is_counted_in_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input, "time", Steady())
    row = measure_loader_throughput(make_synthetic_photos(3), tiny().preprocess, 0, 0.0)
    # 3 batches of 16; looks at the start, after the third, and at the end
    assert (row.runs, row.images_per_second) == (3, 3 * 16 / 2.0)


def test_the_phases_of_counted_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tiny()
    trainee = build_benchmark_trainer(found)
    monkeypatch.setattr(together, "time", Steady())
    row = profile_end_to_end(trainee, found, make_synthetic_photos(3), (CPU, 2, 0), 0.0)
    # a second for each of 7 laps of 3 steps, and one for the look after the first step
    assert row.images_per_second == pytest.approx(3 * 2 / 22)
    shares = [row.phases[phase] * 22 for phase in STEP_PHASES]
    assert shares == pytest.approx([4, 3, 3, 3, 3, 6])


def test_a_batch_is_as_large_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MAX_TIME_FACTOR", 1e15)
    found, seen = tiny((2, 5)), []

    def scores(self: Pretrained, images: torch.Tensor, device: object) -> None:
        seen.append(len(images))

    monkeypatch.setattr(Pretrained, "scores", scores)
    rows = measure_inference_throughput(found, CPU, 1e9, 1e-9)
    assert set(seen) == {2, 5}
    assert [row.batch for row in rows] == [2, 5]
    seen.clear()
    trainee = build_benchmark_trainer(found)
    loss = type(trainee.objective).loss

    def counted(*arguments: Any) -> Any:
        seen.append(len(arguments[2]))
        return loss(*arguments)

    monkeypatch.setattr(type(trainee.objective), "loss", counted)
    trainee.state.micro_batch = 1  # whatever training itself would choose
    training.measure_training_throughput(trainee, found, CPU, 1e9, 1e-9)
    assert seen == [2, 2, 2, 5, 5, 5]


def broken() -> ImageDataset:
    photos = make_synthetic_photos(3)
    return replace(photos, reader=MemoryReader((b"no image",) * 3))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_is_measured_with_its_workers(workers: int) -> None:
    row = measure_loader_throughput(make_synthetic_photos(3), tiny().preprocess, workers, 0.01)
    assert (row.workers, row.runs >= 3) == (workers, True)
    assert row.images_per_second > 0


def test_images_that_cannot_be_read_do_not_count() -> None:
    with pytest.raises(DataError, match="no image can be read; the first one: not an image"):
        measure_loader_throughput(broken(), tiny().preprocess, 0, 0.0)
    trained, found = build_benchmark_trainer(tiny()), tiny()
    with pytest.raises(DataError, match="no image can be read"):
        profile_end_to_end(trained, found, broken(), (CPU, 2, 0), 0.0)


def test_training_and_input_together_are_divided_into_phases() -> None:
    found = tiny()
    trainee = build_benchmark_trainer(found)
    before = [value.clone() for value in trainee.state.model.parameters()]
    row = profile_end_to_end(trainee, found, make_synthetic_photos(3), (CPU, 2, 0), 0.0)
    assert (row.batch, row.workers, row.precision) == (2, 0, "fp32")
    assert row.steps == 3
    assert trainee.state.step == 4  # the first does not count
    assert tuple(row.phases) == STEP_PHASES
    assert sum(row.phases.values()) == pytest.approx(1.0)
    # to decode photos takes far longer than this model, yet every part of a step takes something
    assert row.phases["waiting for data"] > row.phases["optimizer"] > 0
    assert min(row.phases["forward"], row.phases["backward"]) > 0
    after = trainee.state.model.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not trainee.state.optimizer._optimizer_step_pre_hooks  # nothing is left behind


def test_time_by_kind_of_operation() -> None:
    found = tiny()
    table = profile_operations(build_benchmark_trainer(found), found, CPU, 2)
    assert sum(table.values()) == pytest.approx(1.0)
    assert {"linear", "attention", "norm", "gelu", "optimizer and clipping"} <= set(table)
    assert list(table.values()) == sorted(table.values(), reverse=True)


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten::addmm", "linear"),
        ("aten::mm", "linear"),
        ("mkldnn::_linear_pointwise", "linear"),
        ("aten::bmm", "attention"),
        ("aten::_softmax_backward_data", "attention"),
        ("aten::_log_softmax", "rest"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::native_layer_norm_backward", "norm"),
        ("aten::native_group_norm", "norm"),
        ("aten::gelu_backward", "gelu"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::_fused_adamw_", "optimizer and clipping"),
        ("aten::_foreach_mul_", "optimizer and clipping"),
        ("aten::linalg_vector_norm", "optimizer and clipping"),
        ("aten::copy_", "copies and casts"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "rest"),
        ("aten::add", "rest"),
    ],
)
def test_the_kind_of_an_operator(operator: str, kind: str) -> None:
    assert classify_operation(operator) == kind


def test_shares_are_of_the_whole() -> None:
    rows = iter([("aten::mm", 2.0), ("aten::addmm", 4.0), ("aten::gelu", 1.0), ("aten::add", 1.0)])
    assert compute_time_shares(rows) == {"linear": 0.75, "gelu": 0.125, "rest": 0.125}
    assert compute_time_shares([]) == {}


def test_nothing_is_drawn_from_anybodys_stream() -> None:
    before = torch.get_rng_state()
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr,index]
    make_synthetic_photos(1)
    build_benchmark_trainer(tiny())
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], state)  # type: ignore[index,arg-type]


@pytest.fixture(autouse=True)
def much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is free where the tests run."""
    monkeypatch.setattr(subject, "free_memory", lambda device: 1 << 40)
