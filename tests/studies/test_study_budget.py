"""What fits into a budget: seeds go first, then steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patchwords.errors import ConfigError
from patchwords.studies.budget import StudyWorkload, TrialTiming, trim_workload

# 8 cells of 3 seeds with 2 processes are 12 rounds; a cell is 1000 x 0.1 + 20 = 120 s: 24 minutes
WORK = StudyWorkload(steps=(1000,) * 8, seeds=3, jobs=2)
SPEED = TrialTiming(step=0.1, overhead=20)


def test_the_time_of_a_grid() -> None:
    assert WORK.seconds(SPEED) == 12 * 120
    assert StudyWorkload((1000,) * 3, 1, 2).seconds(SPEED) == 2 * 120  # the last round is half idle


def test_a_step_in_which_the_head_alone_learns_counts_as_little_as_it_takes() -> None:
    """Half of the trainings at a tenth: a cell is 550 whole steps, 75 s, in the mean."""
    cheap = replace(WORK, shares=(1.0, 0.1) * 4)
    assert cheap.seconds(SPEED) == pytest.approx(12 * 75)
    with pytest.raises(ConfigError):  # the least is of real steps: 100 of 1,000
        trim_workload(cheap, SPEED, 1.6)
    assert trim_workload(cheap, SPEED, 1.75).share == pytest.approx(0.11, rel=0.05)


def test_what_fits_is_left_as_it_is() -> None:
    assert trim_workload(WORK, SPEED, 24).notes == ()
    assert trim_workload(WORK, SPEED, 24).seeds == 3


@pytest.mark.parametrize(("minutes", "seeds"), [(23.9, 2), (16, 2), (15.9, 1), (8, 1)])
def test_seeds_go_first(minutes: float, seeds: int) -> None:
    found = trim_workload(WORK, SPEED, minutes)
    assert (found.seeds, found.share) == (seeds, 1)
    [note] = found.notes
    assert note.startswith(f"Trimmed to a budget of {minutes:g} minutes: {seeds} seed")
    assert "in place of 3 seeds, with all steps of each of 8 trainings. 0.1 s a step" in note
    assert "24 min" in note


def test_then_steps_alike_for_all_cells() -> None:
    """4 rounds in 4 minutes: 60 s each, of which 20 are no steps."""
    found = trim_workload(WORK, SPEED, 4)
    assert (found.seeds, found.share) == (1, pytest.approx(0.4))
    assert replace(WORK, seeds=1).seconds(SPEED, found.share) == pytest.approx(240)
    assert "with 40% of the steps" in found.notes[0]


def test_too_little_is_one_line_with_what_would_do() -> None:
    assert trim_workload(WORK, SPEED, 2.01).share == pytest.approx(
        0.1, rel=0.02
    )  # 4 rounds of 30 s
    with pytest.raises(ConfigError) as caught:
        trim_workload(WORK, SPEED, 1.99)
    assert str(caught.value) == (
        "--budget 1.99: one seed of 8 trainings with 100 steps or more takes 2 min 0 s "
        "here; give 2 minutes or more"
    )
