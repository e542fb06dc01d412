"""The rule of verdicts on simulated studies whose truth is known: coverage, errors, power."""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from patchwords.studies import evidence as evidence_module
from patchwords.studies import inference
from patchwords.studies.inference import Evidence, adjust_by_holm, estimate_difference
from patchwords.studies.results import compute_difference, judge_claim, judge_claims
from patchwords.studies.study import Claim, Contrast

CELLS = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Simulated:
    """Studies of six cells whose accuracies have a cell's mean, a seed's effect and noise."""

    means: Sequence[float]
    seeds: int = 3
    noise: float = 0.01
    shared: float = 0.0  # standard deviation of what all cells of a seed share
    images: int = 0

    def draw(self, random: np.random.Generator) -> Evidence:
        expected = (
            np.asarray(self.means)[:, None]
            + random.normal(0, self.noise, (len(self.means), self.seeds))
            + random.normal(0, self.shared, self.seeds)
        )
        answers: dict[str, np.ndarray] = {}
        if self.images:  # a draw of images, of which some are hard for all cells
            ease = random.beta(1, 1, self.images)  # the mean is 0.5, whatever the accuracy
            right = random.random((*expected.shape, self.images)) < np.clip(
                ease + expected[..., None] - 0.5, 0, 1
            )
            answers = dict(zip(CELLS, right, strict=False))
            expected = right.mean(-1)
        values = {
            cell: dict(enumerate(map(float, row)))
            for cell, row in zip(CELLS, expected, strict=False)
        }
        images = dict.fromkeys(answers, self.images)
        return Evidence(values, frozenset(values), images, answers)


def share_covered(study: Simulated, truth: float, studies: int, seed: int) -> tuple[float, float]:
    """Count how often the interval of b minus a has the truth, and its mean half-width."""
    random, covered, widths = np.random.default_rng(seed), 0, []
    for _ in range(studies):
        found = compute_difference(("b",), ("a",), study.draw(random)).statistics
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
        widths.append((found.high - found.low) / 2)
    return covered / studies, float(np.mean(widths))


SAME = (0.5,) * 6
APART = (0.5, 0.53, 0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    "study",
    [Simulated(APART), Simulated(APART, shared=0.03), Simulated(APART, seeds=5)],
    ids=["three seeds", "a shared effect", "five seeds"],
)
def test_the_interval_over_seeds_covers_the_truth(study: Simulated) -> None:
    covered, half = share_covered(study, 0.03, 800, 1)
    assert 0.93 <= covered <= 0.975  # two standard errors of 95 % are 1.5 points
    freedom = 5 * (study.seeds - 1)
    known = stats.t.ppf(0.975, freedom) * study.noise * (2 / study.seeds) ** 0.5
    assert half == pytest.approx(known, rel=0.1)  # what the seeds share is not in it
    assert (
        half < 0.75 * stats.t.ppf(0.975, study.seeds - 1) * study.noise * (2 / study.seeds) ** 0.5
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_over_seeds_and_images_covers_the_truth(seeds: int) -> None:
    """The truth is of all images; all seeds have the same 300."""
    noise = 0.0 if seeds == 1 else 0.01  # chance in training is not in a single seed's
    study = Simulated((0.5, 0.5), seeds, noise, images=300)
    covered, _ = share_covered(study, 0.0, 600, 2)
    assert 0.93 <= covered <= 0.985
    if seeds > 1:
        return
    random = np.random.default_rng(3)
    known = study.draw(random)
    bound = Evidence(known.values, known.trained, known.images)
    wide, narrow = (estimate_difference([0.0], ("b",), ("a",), one) for one in (bound, known))
    assert wide.error is not None
    assert narrow.error is not None
    assert wide.error > narrow.error  # without answers they count as independent


def test_cells_that_differ_in_their_variance_are_not_pooled() -> None:
    random = np.random.default_rng(4)
    noise = np.asarray([[0.001], [0.001], [0.001], [0.001], [0.05], [0.05]])
    rows = 0.5 + noise * random.normal(size=(6, 5))
    values = {cell: dict(enumerate(row)) for cell, row in zip(CELLS, rows.tolist(), strict=True)}
    evidence = Evidence(values, frozenset(CELLS))
    assert inference.pool_variance(evidence) is None
    found = compute_difference(("f",), ("e",), evidence).statistics
    paired = stats.ttest_rel(rows[5], rows[4]).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(paired.low), pytest.approx(paired.high))


def test_equality_of_variance_is_bartletts_test() -> None:
    random = np.random.default_rng(8)
    tables = [random.normal(size=(6, 4)) * scale for scale in (1, [[1], [1], [2], [2], [3], [4]])]
    for _ in range(40):
        tables.append(random.normal(size=(5, 3)) * random.lognormal(0, 0.7, (5, 1)))
    ours = [inference._have_equal_variance(table) for table in tables]
    assert ours == [bool(stats.bartlett(*table).pvalue >= 0.05) for table in tables]
    assert len(set(ours)) == 2


def test_two_cells_are_paired() -> None:
    """The blocks of two cells are the paired t-test."""
    a, b = [0.5, 0.6, 0.7], [0.51, 0.63, 0.72]
    values = {"a": dict(enumerate(a)), "b": dict(enumerate(b))}
    found = compute_difference(("b",), ("a",), Evidence(values, frozenset("ab"))).statistics
    alone = compute_difference(("b",), ("a",), Evidence(values)).statistics
    assert found is not None
    assert alone is not None
    assert (found.low, found.high) == (pytest.approx(alone.low), pytest.approx(alone.high))


HIGHER = tuple(Claim(f"{cell} beats a", "", (cell,), ("a",)) for cell in CELLS[1:])
EQUAL = tuple(Claim(f"{cell} is as good as a", "", (cell,), ("a",), 0.02) for cell in CELLS[1:])


def count_pages(
    study: Simulated, claims: Sequence[Claim], wrong: set[str], studies: int, seed: int
) -> float:
    """Count the pages with at least one wrong verdict."""
    random, pages = np.random.default_rng(seed), 0
    for _ in range(studies):
        verdicts = judge_claims(claims, study.draw(random), {})
        pages += any(verdict.name in wrong for verdict in verdicts)
    return pages / studies


DECIDED = {"agrees", "disagrees"}


def test_of_pages_without_a_difference_at_most_5_percent_have_a_verdict() -> None:
    assert count_pages(Simulated(SAME), HIGHER, DECIDED, 400, 5) <= 0.065  # + 1.4 standard errors
    random = np.random.default_rng(5)  # the same, each claim on its own: many more
    alone = 0
    for _ in range(200):
        evidence = Simulated(SAME).draw(random)
        alone += any(judge_claim(claim, evidence).name in DECIDED for claim in HIGHER)
    assert alone / 200 > 0.1


def test_of_pages_at_the_edge_of_the_margin_at_most_5_percent_find_equality() -> None:
    study = Simulated((0.5, *(0.52,) * 5))
    assert count_pages(study, EQUAL, {"agrees"}, 400, 6) <= 0.065


def test_power_at_a_stated_effect() -> None:
    """Five points, sd 1, three seeds: five claims of a page are nearly always all found."""
    random = np.random.default_rng(7)
    study, near = Simulated((0.45, *SAME[1:])), Simulated(SAME, seeds=5, noise=0.005)
    found = equal = alone = 0
    for _ in range(150):
        evidence = study.draw(random)
        verdicts = judge_claims(HIGHER, evidence, {})
        found += all(verdict.name == "agrees" for verdict in verdicts)
        alone += judge_claim(HIGHER[0], Evidence(evidence.values)).name == "agrees"
        equal += all(
            verdict.name == "agrees" for verdict in judge_claims(EQUAL, near.draw(random), {})
        )
    assert found / 150 > 0.95
    assert equal / 150 > 0.95
    assert alone / 150 < 0.95  # paired, with two degrees of freedom


def test_a_failed_control_keeps_its_place_in_the_family() -> None:
    control = Contrast("a less a copy", ("b",), ("b",))
    claims = (Claim("", "", ("b",), ("a",), controls=(control,)), Claim("c", "", ("c",), ("a",)))
    values = {
        cell: dict(enumerate(row))
        for cell, row in {
            "a": (0.50, 0.52, 0.54),
            "b": (0.51, 0.55, 0.53),
            "c": (0.60, 0.63, 0.64),
        }.items()
    }
    first, second = judge_claims(claims, Evidence(values), {})
    assert (first.name, second.name) == ("not tested here", "agrees")
    assert second.p == pytest.approx(2 * judge_claim(claims[1], values).p)
    (_, alone) = judge_claims(claims, Evidence(values), {"": "too short"})
    assert alone.p == pytest.approx(second.p / 2)


def test_holm_by_hand() -> None:
    assert adjust_by_holm([]) == []
    assert adjust_by_holm([0.5, 0.001, 0.02]) == pytest.approx([0.5, 0.003, 0.04])


def test_one_seed_is_told_by_its_images() -> None:
    values = {"a": {0: 0.50}, "b": {0: 0.55}}
    claim = Claim("", "", ("b",), ("a",))
    images = {"a": 10_000, "b": 10_000}
    assert judge_claim(claim, Evidence(values, images=images)).name == "agrees"
    few = dict.fromkeys(images, 500)
    assert judge_claim(claim, Evidence(values, images=few)).name == "cannot tell at this scale"
    assert judge_claim(claim, values).name == "cannot tell at this scale"


@pytest.mark.parametrize("module", [inference, evidence_module])
def test_examples(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted
    assert not found.failed
