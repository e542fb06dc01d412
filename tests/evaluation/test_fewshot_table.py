"""Few-shot accuracy of a model on a data set: which images it asks for, and what it makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_frozen import CPU, PREPROCESS, images, tiny, torn

from patchwords.data.dataset import ImageDataset
from patchwords.data.splits import draw_shots
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.probes.cache import extract_probe_features
from patchwords.evaluation.probes.features import Features, ProbeSplit, extract_example_features
from patchwords.evaluation.probes.fewshot import (
    build_fewshot_table,
    draw_all_shots,
    draw_probe_shots,
    evaluate_fewshot,
    extract_drawn_features,
)

PAIR = ProbeSplit(images(150), images(47, first=200), "by hand")
SHOTS, SEEDS, L2S = (1, 4), (0, 7, 9), (64.0, 1024.0)


class Asked:
    """What gives features, and how many images it was asked for."""

    def __init__(self) -> None:
        self.model, self.counts = tiny(), []

    def __call__(self, examples: ImageDataset) -> Features:
        self.counts.append(len(examples))
        return extract_example_features(self.model, examples, PREPROCESS, CPU, 0)


def test_only_what_is_drawn_is_asked_for_and_all_of_it_gives_the_same() -> None:
    ask, shots = Asked(), draw_probe_shots(PAIR, SHOTS, SEEDS)
    result = build_fewshot_table(*extract_drawn_features(ask, PAIR, shots), L2S)
    drawn = {int(i) for seed in SEEDS for i in draw_shots(PAIR.train.labels, 4, seed)}
    assert ask.counts == [len(drawn), 47]
    assert len(drawn) < 120
    whole = build_fewshot_table(*extract_drawn_features(ask, PAIR, shots, cached=True), L2S)
    assert ask.counts[2:] == [150, 47]
    assert whole["scores"] == result["scores"]
    train, test = ask(PAIR.train), ask(PAIR.test)
    plain = evaluate_fewshot(
        train.values, train.labels, test.values, test.labels, SHOTS, SEEDS, L2S
    )
    assert [score["accuracy"] for score in result["scores"]] == [s.accuracy for s in plain]


def test_rows_are_means_and_deviations_over_draws() -> None:
    result = build_fewshot_table(
        *extract_drawn_features(Asked(), PAIR, draw_probe_shots(PAIR, SHOTS, SEEDS)), L2S
    )
    assert [(row["shots"], row["l2"]) for row in result["table"]] == [
        (count, l2) for count in SHOTS for l2 in L2S
    ]
    for row in result["table"]:
        found = [
            score["accuracy"]
            for score in result["scores"]
            if (score["shots"], score["l2"]) == (row["shots"], row["l2"])
        ]
        assert row["n"] == len(found) == 3
        assert row["mean"] == pytest.approx(np.mean(found))
        assert row["std"] == pytest.approx(np.std(found, ddof=1))
        assert row["low"] < row["mean"] < row["high"]
    one = build_fewshot_table(
        *extract_drawn_features(Asked(), PAIR, draw_probe_shots(PAIR, (4,), (7,)))
    )
    [row] = one["table"]
    assert (row["std"], row["low"], row["n"]) == (None, None, 1)


def test_an_unreadable_image_is_left_out_and_not_replaced() -> None:
    first = int(draw_shots(PAIR.train.labels, 4, 0)[2])
    pair = replace(PAIR, train=torn(PAIR.train, [first]))
    shots = draw_probe_shots(pair, (4,), (0,))
    tables = []
    for cached in (False, True):
        frozen, draws = extract_drawn_features(Asked(), pair, shots, max_bad=0.5, cached=cached)
        assert len(draws[4, 0]) == 39
        assert frozen.skipped[0][0] == PAIR.train.keys[first]
        tables.append(build_fewshot_table(frozen, draws)["scores"])
    assert tables[0] == tables[1]
    kept = np.setdiff1d(draw_shots(PAIR.train.labels, 4, 0), [first])
    place = draws[4, 0]
    assert sorted(frozen.train.indices[place]) == sorted(kept)
    with pytest.raises(DataError, match="1 of 40 images of train cannot be read, more than"):
        extract_drawn_features(Asked(), pair, shots, max_bad=0.0)


def test_nothing_to_read_is_one_line() -> None:
    gone = replace(PAIR, test=torn(PAIR.test, range(47)))
    with pytest.raises(DataError, match="none of the images of test can be read"):
        extract_probe_features(Asked(), gone, max_bad=1.0)


def test_too_few_images_are_named_before_anything_is_asked() -> None:
    few = PAIR.train.count_per_class()
    label = int(few.argmin())
    with pytest.raises(DataError, match=f"25 shots: class '{label}' has {few.min()} training"):
        draw_probe_shots(PAIR, (1, 25), SEEDS)
    for shots, seeds, line in (
        ((), (0,), "shots none: give one or more"),
        ((1, 1), (0,), "shots 1 1: .* none of them twice"),
        ((1,), (), "seeds none"),
        ((0,), (0,), "shots 0: it is a number of images per class"),
    ):
        with pytest.raises(ConfigError, match=line):
            draw_all_shots(PAIR.train.labels, shots, seeds)
