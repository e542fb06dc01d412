"""User-facing errors: one line each, with the value, the fault and the remedy.

The command line prints the line and exits with `exit_code`; a traceback is for faults of ours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class PatchwordsError(Exception):
    """Base of all user-facing errors; its text is the line that the user reads."""

    exit_code = 2


class ConfigError(PatchwordsError):
    """A setting is unknown, out of range, or contradicts another."""


class DataError(PatchwordsError):
    """The data cannot be read, or cannot be trained on as asked."""


class StorageError(PatchwordsError):
    """Remote data cannot be reached, or is not what its index says.

    No DataError: that an image cannot be read is a fault of the image, and leaves it out.
    """


class WeightsError(PatchwordsError):
    """A file of weights is damaged, or does not fit the model."""


class CheckpointError(PatchwordsError):
    """A run cannot be continued, or its state cannot be written."""


class Diverged(PatchwordsError):
    """The loss stopped being a number; the last finite checkpoint is kept."""


class Interrupted(PatchwordsError):
    """The user or the system stopped the run; a checkpoint was written."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ProcessLost(PatchwordsError):
    """Another process of the run died, or did not answer in time."""


# Controls of a terminal, of the direction of text, and lone surrogates, which cannot be written
# (except those that stand for the bytes of a file name).
CONTROL_CHARACTER = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udc7f\udd00-\udfff]"
)


def escape_control_characters(text: str) -> str:
    r"""Make control characters visible; names out of a file may hold commands to a terminal.

    Line ends and tabs stay.

    >>> escape_control_characters("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return CONTROL_CHARACTER.sub(lambda match: ascii(match[0])[1:-1], text)


# What people type who come from other programs -> our words, the first that there is.
SYNONYMS = {
    **dict.fromkeys(("train", "fit", "fine-tune", "finetuning"), ("finetune",)),
    **dict.fromkeys(("eval", "test", "validate", "score"), ("evaluate",)),
    **dict.fromkeys(("infer", "inference", "classify"), ("predict",)),
    **dict.fromkeys(("check", "diagnose", "lint"), ("doctor",)),
    **dict.fromkeys(("web", "serve", "ui"), ("app",)),
    **dict.fromkeys(("pretrained", "checkpoint", "ckpt", "init", "from"), ("weights",)),
    **dict.fromkeys(("minutes", "time", "hours", "duration"), ("budget", "epochs")),
    **dict.fromkeys(("lr-rate", "learning-rate", "rate"), ("lr",)),
    **dict.fromkeys(("bs", "batch"), ("batch-size",)),
    **dict.fromkeys(("arch", "architecture", "net", "backbone"), ("model",)),
    **dict.fromkeys(("img-size", "size", "resolution", "input-size"), ("image-size",)),
    **dict.fromkeys(("num-workers", "threads"), ("workers",)),
    **dict.fromkeys(("gpu", "cuda", "cpu"), ("device",)),
    **dict.fromkeys(("out", "save", "save-dir", "output-dir"), ("output",)),
    **dict.fromkeys(("iterations", "iters", "max-steps"), ("steps",)),
    **dict.fromkeys(("num-epochs", "epoch"), ("epochs",)),
    **dict.fromkeys(("wd", "decay"), ("weight-decay",)),
    **dict.fromkeys(("amp", "fp16", "half", "bf16"), ("precision",)),
    **dict.fromkeys(("resnet50", "resnet-50"), ("BiT-R50x1",)),
    **dict.fromkeys(("resnet101", "resnet-101"), ("BiT-R101x1",)),
    **dict.fromkeys(("resnet152", "resnet-152"), ("BiT-R152x2",)),
}


def find_synonym(word: str, choices: Iterable[str]) -> str | None:
    """Find the choice that stands for a word of other programs; flags and settings alike.

    >>> find_synonym("--lr_rate", ["--erase", "--lr"])
    '--lr'
    """

    def plain(name: str) -> str:
        return name.strip("-").replace("_", "-").lower()

    names = {plain(choice): choice for choice in choices}
    meanings = SYNONYMS.get(plain(word), ())
    return next((names[plain(name)] for name in meanings if plain(name) in names), None)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a clause for an error text: the nearest choice, or a short list of all.

    >>> did_you_mean("rose", ["daisy", "roses"])
    "; did you mean 'roses'?"
    """
    known = list(choices)
    if synonym := find_synonym(word, known):
        return f"; did you mean {synonym!r}?"
    lowered = {choice.lower(): choice for choice in known}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {lowered[near[0]]!r}?"
    if 0 < len(known) <= 12:
        return f"; choose from {', '.join(map(str, known))}"
    return ""
