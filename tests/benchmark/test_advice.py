"""The rules of the advice, by planted numbers."""

from __future__ import annotations

from itertools import chain

import pytest

from patchwords.benchmark.advice import (
    find_bottleneck,
    recommend_batch_setting,
    recommend_checkpointing,
    recommend_compile,
    recommend_grad_accum,
    recommend_workers,
)
from patchwords.benchmark.clock import ThroughputResult
from patchwords.benchmark.loader import LoaderThroughput, list_worker_counts
from patchwords.errors import ConfigError


def speeds(precision: str, table: dict[int, float | None]) -> list[ThroughputResult]:
    return [
        ThroughputResult(precision, batch, speed, skipped=None if speed else "does not fit")
        for batch, speed in table.items()
    ]


def chosen(*rows: list[ThroughputResult]) -> tuple[str, int]:
    setting, advice = recommend_batch_setting([*chain(*rows)], "training", "--batch-size")
    assert [choice.name for choice in advice] == ["--precision", "--batch-size"]
    assert [choice.value for choice in advice] == [setting.precision, setting.batch]
    return setting.precision, setting.batch


@pytest.mark.parametrize(
    ("table", "batch"),
    [
        ({2: 94.0, 8: 99.0, 32: 100.0}, 8),
        ({2: 95.0, 8: 99.0, 32: 100.0}, 2),
        ({2: 50.0, 8: 94.9, 32: 100.0}, 32),
        ({2: 50.0, 8: 100.0, 32: 90.0}, 8),  # more is not always faster
        ({2: 50.0, 8: 80.0, 32: None}, 8),
        ({2: None, 8: 80.0}, 8),
    ],
)
def test_the_fewest_images_within_five_percent_of_the_best(
    table: dict[int, float | None], batch: int
) -> None:
    assert chosen(speeds("fp32", table)) == ("fp32", batch)


def test_bf16_is_taken_where_it_is_faster_than_rounding_costs() -> None:
    exact = speeds("fp32", {2: 60.0, 8: 100.0})
    assert chosen(speeds("bf16", {2: 60.0, 8: 105.0}), exact) == ("bf16", 8)
    assert chosen(speeds("bf16", {2: 60.0, 8: 104.9}), exact) == ("fp32", 8)


def test_precisions_are_compared_at_the_batches_that_both_have() -> None:
    # bf16 wins only by a batch that fp32 was not tried at
    exact = speeds("fp32", {2: 60.0, 8: None})
    assert chosen(speeds("bf16", {2: 50.0, 8: 200.0}), exact) == ("fp32", 2)
    # where there is none, by the best of each
    exact = speeds("fp32", {2: None, 8: 100.0})
    assert chosen(speeds("bf16", {2: 150.0, 8: None}), exact) == ("bf16", 2)


def test_the_reason_has_the_numbers() -> None:
    rows = speeds("bf16", {2: 950.0, 8: 1000.0}) + speeds("fp32", {2: 500.0, 8: 400.0})
    _, (precision, batch) = recommend_batch_setting(rows, "training", "images at a time")
    assert precision.why == "2.00 x the speed of fp32"
    assert batch.why == "950 images/s, 95% of the speed of 8, in less memory"
    _, (precision, batch) = recommend_batch_setting(speeds("bf16", {8: 1.234}), "training", "x")
    assert precision.why == "the only one that was measured"
    assert batch.why == "1.23 images/s, the fastest that was tried"


def test_where_nothing_was_tried_nothing_is_advised() -> None:
    with pytest.raises(ConfigError, match="no training was measured: does not fit; try a smaller"):
        recommend_batch_setting(speeds("bf16", {32: None}), "training", "x")


@pytest.mark.parametrize(("batch", "at_once", "parts"), [(512, 32, 16), (512, 500, 2), (32, 64, 1)])
def test_the_recipes_batch_is_cut_into_parts(batch: int, at_once: int, parts: int) -> None:
    assert recommend_grad_accum(batch, at_once).value == parts


def workers(table: dict[int, float], training: float, cuda: bool) -> object:
    rows = [LoaderThroughput(count, speed, 3) for count, speed in table.items()]
    return recommend_workers(rows, training, cuda).value


def test_the_fewest_workers_that_keep_training_fed() -> None:
    table = {0: 500.0, 1: 450.0, 2: 900.0, 4: 1700.0}
    assert workers(table, 750.0, cuda=True) == 2
    assert workers(table, 751.0, cuda=True) == 4  # 900 is less than 1.2 times that
    assert workers(table, 375.0, cuda=True) == 1
    assert workers(table, 5000.0, cuda=True) == 4  # the fastest, though it is not enough


def test_a_cpu_needs_none_where_reading_takes_little_of_its_time() -> None:
    table = {0: 950.0, 1: 900.0}
    assert workers(table, 49.9, cuda=False) == 0  # 5 % of the time: 50 / (50 + 950)
    assert workers(table, 50.1, cuda=False) == 1
    assert workers(table, 49.9, cuda=True) == 1  # a GPU would stand still


def test_of_equally_fast_ones_the_fewest_workers() -> None:
    assert workers({0: 10.0, 1: 90.0, 2: 90.0}, 100.0, cuda=True) == 1


def test_what_is_slower_binds() -> None:
    assert find_bottleneck(reading=99.0, training=100.0).value == "input"
    assert find_bottleneck(reading=100.0, training=100.0).value == "compute"


def test_what_is_not_measured_follows_the_device_and_the_memory() -> None:
    assert recommend_compile(cuda=True).value == "yes"
    assert recommend_compile(cuda=False).value == "no"
    assert recommend_checkpointing(True, 8).value == "yes"
    assert recommend_checkpointing(False, 8).value == "no"


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, [0, 1]), (2, [0, 1, 2]), (7, [0, 1, 2, 4]), (64, [0, 1, 2, 4, 8])],
)
def test_workers_are_tried_up_to_the_cores(cores: int, counts: list[int]) -> None:
    assert list_worker_counts(cores) == counts
