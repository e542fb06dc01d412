"""Every kind of model through training: stopped and gone on with, saved and asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_kind import EVERY_KIND
from tiny_run import assemble, config_of, go, go_on

from patchwords.data.augment import AugmentSettings
from patchwords.errors import Interrupted
from patchwords.evaluation.held_out import evaluate_classifier
from patchwords.training.config import FinetuneConfig
from patchwords.training.logs.metrics_log import read_metrics
from patchwords.weights.store import from_pretrained, save_pretrained

STEPS = 6


@pytest.fixture
def config(one_thread: None) -> FinetuneConfig:
    """A few steps with everything random in them, saved after 2, 4 and 6."""
    config = config_of(augment=AugmentSettings(mixup=0.2))
    return replace(
        config,
        recipe=replace(config.recipe, steps=STEPS, layer_decay=0.8, weight_decay=0.1),
        machine=replace(config.machine, eval_every=3, save_every=2),
    )


def interrupting(*arguments: Any) -> dict[str, Any]:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_stopped_and_gone_on_with_ends_the_same_and_answers(
    kind: str, config: FinetuneConfig, tmp_path: Path
) -> None:
    shape = EVERY_KIND[kind]
    whole = go(assemble(tmp_path / "whole", config, shape))
    losses = [row["loss"] for row in read_metrics(whole.folder.metrics) if row["kind"] == "train"]
    assert len(losses) == STEPS
    with pytest.raises(Interrupted):
        go(assemble(tmp_path / "halved", config, shape), interrupting)  # at 3; saved at 2
    halved = go_on(tmp_path / "halved", config, shape)
    assert halved.resumed_at == 2
    model, again = whole.start.model, halved.start.model
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name

    preprocess = whole.start.preprocess
    save_pretrained(again, whole.folder.model, labels=whole.data.classes, preprocess=preprocess)
    found = from_pretrained(whole.folder.model)
    (best,) = found.predict(np.full((9, 7, 3), 200, dtype=np.uint8), top_k=1)
    assert best["label"] in whole.data.classes
    assert 0.1 < best["score"] < 1
    held_out = whole.data.splits["validation"]
    measured = [
        evaluate_classifier(m, held_out, preprocess, whole.device, 0) for m in (model, found.model)
    ]
    assert measured[0] == measured[1]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_parameter_learns(kind: str, config: FinetuneConfig, tmp_path: Path) -> None:
    # Adam: plain gradients are still too small where a unit starts as its shortcut alone.
    config = replace(config, recipe=replace(config.recipe, optimizer="adamw"))
    job = assemble(tmp_path, config, EVERY_KIND[kind])
    before = {name: value.clone() for name, value in job.start.model.named_parameters()}
    go(job)
    still = [k for k, v in job.start.model.named_parameters() if torch.equal(v, before[k])]
    # Of the last block the head reads the class token alone, whose offsets are not in the table.
    assert still == (["encoder.blocks.1.attention.relative.table"] if kind == "relative" else [])
