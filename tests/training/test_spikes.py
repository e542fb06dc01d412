"""What counts as a loss spike, and that it is noted once."""

from __future__ import annotations

import numpy as np
import pytest

from patchwords.training.logs.metrics_log import (
    MIN_SPIKE_ROWS,
    SPIKE_WINDOW,
    LossSpikeDetector,
    compute_spike_height,
)


def losses_around(level: float, count: int) -> list[float]:
    random = np.random.default_rng(0)
    return (level + 0.1 * random.normal(size=count)).tolist()


def notes(losses: list[float], before: list[float] = [], epoch: float = 5.0) -> list[int]:  # noqa: B006
    """Positions of the losses at which a note is written."""
    spikes = LossSpikeDetector(before)
    rows = ({"loss": loss, "step": i, "epoch": epoch} for i, loss in enumerate(losses))
    notes = [spikes.note(row) for row in rows]
    return [note["step"] for note in notes if note]


@pytest.mark.parametrize("count", [MIN_SPIKE_ROWS, 87, SPIKE_WINDOW, SPIKE_WINDOW + 150])
def test_height_counts_robust_deviations_of_earlier_rows(count: int) -> None:
    past = losses_around(3.0, count)
    recent = np.array(past[-SPIKE_WINDOW:])
    deviation = 1.4826 * np.median(abs(recent - np.median(recent)))
    loss = np.median(recent) + 4.25 * deviation
    assert compute_spike_height([*past, loss]) == pytest.approx(4.25)


def test_a_spike_rises_more_than_four_deviations() -> None:
    past = losses_around(3.0, 150)
    step = 0.1 * 1.4826 * np.median(abs(np.random.default_rng(0).normal(size=150)))
    assert notes([*past, 3.0 + 6 * step]) == [150]
    assert notes([*past, 3.0 + 2 * step]) == []
    assert notes([*past, 3.0 - 9 * step]) == []  # better is no spike


def test_noise_is_no_spike_least_of_all_in_the_first_epochs() -> None:
    calm = (2.3 + 0.005 * np.random.default_rng(0).normal(size=80)).tolist()
    assert notes([*calm, 2.34]) == []  # 8 robust deviations, and 2 % of the loss
    assert notes([*calm, 2.8]) == [80]
    assert notes([*calm, 2.8], epoch=1.0) == []
    assert notes([*calm, 4.0], epoch=1.0) == [80]


def test_only_the_start_of_a_spike_is_noted() -> None:
    calm = losses_around(3.0, 60)
    up = losses_around(9.0, 5)
    assert notes([*calm, *up, *calm, *up]) == [60, 125]


def test_few_rows_and_constant_losses_have_no_spikes() -> None:
    assert notes([*losses_around(3.0, MIN_SPIKE_ROWS - 1), 99.0]) == []
    assert notes([*losses_around(3.0, MIN_SPIKE_ROWS), 99.0]) == [MIN_SPIKE_ROWS]
    assert notes([2.0] * 100 + [2.5]) == []


def test_a_falling_loss_is_no_spike() -> None:
    falling = 0.2 + 6.0 * np.exp(-np.arange(400) / 60)
    assert notes((falling + np.array(losses_around(0.0, 400))).tolist()) == []


def test_a_resumed_run_knows_the_earlier_losses() -> None:
    whole = [*losses_around(3.0, 230), 9.0, 9.0, *losses_around(3.0, 50), 9.0]
    assert notes(whole) == [230, 282]
    for stop in (MIN_SPIKE_ROWS, 229, 230, 231, 232, 282):
        assert [stop + i for i in notes(whole[stop:], before=whole[:stop])] == [
            step for step in notes(whole) if step >= stop
        ]


def test_the_note_tells_the_height() -> None:
    spikes = LossSpikeDetector([1.0, 2.0, 3.0, 2.0] * 10)
    note = spikes.note({"loss": 9.0, "step": 40, "epoch": 1.5, "lr": 0.1})
    assert note == {
        "kind": "note",
        "step": 40,
        "epoch": 1.5,
        "about": "loss spike",
        "loss": 9.0,
        "text": "loss spike: 9, 9.44 robust deviations above the median 2",
    }


def test_the_window_has_its_documented_length() -> None:
    assert SPIKE_WINDOW == 200
    note = LossSpikeDetector(2.0 * i for i in range(260)).note(
        {"loss": 1e4, "step": 1, "epoch": 0.0}
    )
    assert note is not None
    assert note["text"].endswith("above the median 319")  # of 120, 122, ..., 518
