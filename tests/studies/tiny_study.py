"""A study of seconds: two cells on scikit-learn's digits. Importable, as it goes to processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchwords.studies.paper.position_embeddings import STUDY as POSITIONS
from patchwords.studies.runner import StudyRequest, execute_study
from patchwords.studies.study import (
    Claim,
    DatasetSpec,
    DisplayUnit,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
)
from patchwords.studies.training import evaluate_on_test, train_and_measure

SETTINGS: dict[str, Any] = {
    "model": "ViT-mu/4",
    "image_size": (8,),
    "dropout": 0.1,
    "optimizer": "adamw",
    "schedule": "cosine",
    "batch_size": 8,
    "steps": 60,
    "warmup_steps": 7,
    "log_every": 1,
    "eval_every": 30,
    "save_every": 10,
    "validation": 0.1,
    "split_seed": 0,
}
DIGITS = DatasetSpec("digits", 1294, 10)
MINI = Scale(
    data=DIGITS,
    verb="finetune",
    settings=SETTINGS,
    grid={"none": {"position": "none", "lr": 0.01}, "1-D": {"position": "1d", "lr": 0.01}},
    seeds=1,
    time="seconds",
)


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    from patchwords.report.figures.plots import DotSeries, draw_dot_plot

    values = [one["over_seeds"]["mean"] for one in results["labels"]]
    return draw_dot_plot(["none", "1-D"], [DotSeries("here", values)], "x", "caption", "tiny")


TINY = replace(
    POSITIONS,
    name="tiny",
    paper={"1-D": 0.64206},
    claims=(Claim("positions help", "+2.8 points (Table 8)", ("1-D",), ("none",)),),
    scales={"mini": MINI, "full": MINI},
    draw_figures=draw,
    layout=None,
)


def slow(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """Long enough for another process to come by."""
    time.sleep(0.1)
    return {"validation": cell.seed / 10, "process": 0.0, "flops": 1.0}


def judge_at_once(cell: Trial, bench: StudyContext) -> TrialMetrics:
    return {"accuracy": (cell.seed + len(cell.name)) / 10}


SLOW = replace(TINY, measure_trial=slow, evaluate_trial=judge_at_once)
# Two measurements and a training that start from one pre-training, told in units of their own.
BRIEF = {**SETTINGS, "steps": 20, "eval_every": 10, "lr": 0.01}
TUNED = Scale(
    data=DIGITS,
    verb="none",
    settings={},
    grid={
        "as it is": {"encoder": "usual"},
        "tuned": {
            **{name: BRIEF[name] for name in BRIEF if name not in {"model", "image_size"}},
            **{"encoder": "usual", "verb": "finetune", "steps": 10},
        },
    },
    seeds=2,
    time="seconds",
    transfer=DIGITS,
    tuned=True,
    encoders={"usual": BRIEF},
)


def count_parameters(cell: Trial, bench: StudyContext) -> TrialMetrics:
    if cell.settings["verb"] != "none":
        return train_and_measure(cell, bench)
    from patchwords.weights.store import from_pretrained

    model = from_pretrained(bench.encoder(cell)).model
    return {"parameters": float(sum(tensor.numel() for tensor in model.parameters()))}


def read_parameters(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    return {f"{label}: parameters": found[label]["parameters"] for label in labels}


COUNTED = replace(
    TINY,
    name="counted",
    measure_trial=count_parameters,
    evaluate_trial=None,
    compute_values=read_parameters,
    paper={"tuned: parameters": 86_000_000},
    units={
        f"{label}: parameters": DisplayUnit("thousands", "thousand", 1e-3, 2)
        for label in TUNED.grid
    },
    claims=(Claim("as many as before", "yes", ("tuned: parameters",), (), 1e9),),
    scales={"mini": TUNED, "full": TUNED},
    draw_figures=lambda results: {},
)
STUDIES: dict[str, Study] = {"tiny": TINY, "slow": SLOW}
assert TINY.measure_trial is train_and_measure
assert TINY.evaluate_trial is evaluate_on_test


class OneThread(StudyRequest):
    """Sums in one order, however many cores there are: the numbers are the same to the digit."""

    @property
    def processes(self) -> tuple[int, int]:
        return self.jobs or 1, 1


def go(folder: Path, study: Study = TINY, jobs: int = 1, **asked: Any) -> dict[str, Any]:
    return execute_study(
        OneThread(
            study, "mini", folder, "digits", jobs=jobs, device="cpu", precision="fp32", **asked
        ),
        print,
        "this command",
    )


if __name__ == "__main__":
    name, place, jobs, seeds = sys.argv[1:]
    # as the processes of a crew know it, not as __main__
    from tiny_study import STUDIES as KNOWN

    go(Path(place), KNOWN[name], int(jobs), seeds=int(seeds))
