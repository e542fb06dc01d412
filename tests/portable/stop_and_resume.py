"""Train with two workers, be stopped, go on, predict: the program of test_other_systems.py.

Every worker imports this file, as it imports a user's script: so it is light.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest import mock

SETTINGS = (
    *("--model", "ViT-mu/4", "--image-size", "16", "--steps", "3", "--batch-size", "8"),
    *("--validation", "0", "--test", "0.2", "--dropout", "0.1", "--mixup", "0.2"),
    *("--device", "cpu", "--precision", "fp32"),
)
STOP_AFTER = 1  # steps


def stop_in_the_middle(*words: str) -> int:
    """Call the program; it gets SIGTERM in its first step, as from a scheduler."""
    from patchwords.cli import main
    from patchwords.training.engine import loop

    take_step = loop.train_step

    def take_and_stop(state: Any, *rest: Any) -> Any:
        measured = take_step(state, *rest)
        if state.step == STOP_AFTER:
            signal.raise_signal(signal.SIGTERM)
        return measured

    with mock.patch.object(loop, "train_step", take_and_stop):
        return main(words)


if __name__ == "__main__":
    from patchwords.cli import main

    photos, run, photo = sys.argv[1:]
    assert not hasattr(os, "fork")
    assert sys.modules["fcntl"] is None
    words = ("finetune", photos, *SETTINGS, "--workers", "2", "--output", run)
    assert stop_in_the_middle(*words) == 128 + signal.SIGTERM
    assert main([*words, "--resume"]) == 0
    assert main(["predict", run, photo, "--json"]) == 0
