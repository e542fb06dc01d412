"""`patchwords VERB ...`: finds the verb's module, runs it, prints errors as one line.

Exit codes: 0 done, 2 the user's input is wrong (one line says what), 1 our fault (a traceback).
Nothing heavy is imported before the command line is known to be right: help takes 0.2 seconds.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from patchwords.distributed import is_main_process
from patchwords.errors import (
    ConfigError,
    PatchwordsError,
    did_you_mean,
    escape_control_characters,
)


class Command(NamedTuple):
    """Where the code of a verb is, and its line in `patchwords --help`.

    The module has run_x for the dataclass XCommand and, if the verb takes --config or --resume,
    parse_x.
    """

    module: str  # in patchwords.cli
    class_name: str
    group: str
    summary: str

    @property
    def name(self) -> str:
        return self.class_name.removesuffix("Command").lower()

    def load(self) -> tuple[Any, type]:
        """Import the module; -> the module and the command's dataclass."""
        module = importlib.import_module(f"patchwords.cli.{self.module}")
        return module, getattr(module, self.class_name)


COMMANDS = {
    "finetune": Command(
        "train.finetune",
        "FinetuneCommand",
        "Train",
        "train a classifier on your images and write a report",
    ),
    "pretrain": Command(
        "train.pretrain",
        "PretrainCommand",
        "Train",
        "train a backbone for fine-tuning, with or without labels",
    ),
    "sweep": Command(
        "train.sweep",
        "SweepCommand",
        "Train",
        "choose the learning rate on a dev split, then train on all images",
    ),
    "recipes": Command(
        "train.recipes",
        "RecipesCommand",
        "Train",
        "list published training recipes: source, settings, cost",
    ),
    "predict": Command(
        "model.predict", "PredictCommand", "Use", "classify new images with a trained model"
    ),
    "embed": Command(
        "evaluate.embed",
        "EmbedCommand",
        "Use",
        "write the features of images to a file for other programs",
    ),
    "app": Command(
        "model.app", "AppCommand", "Use", "open a local web page to try a trained model on photos"
    ),
    "export": Command(
        "model.export", "ExportCommand", "Use", "write a trained model as ONNX or OpenVINO"
    ),
    "convert": Command(
        "model.convert",
        "ConvertCommand",
        "Use",
        "convert weights from and to Google, Hugging Face and timm",
    ),
    "calibrate": Command(
        "model.calibrate",
        "CalibrateCommand",
        "Use",
        "prepare a model for int8 on a CPU and measure what int8 costs",
    ),
    "doctor": Command(
        "data.doctor", "DoctorCommand", "Data", "find what is wrong with a data set before training"
    ),
    "dedup": Command(
        "data.dedup",
        "DedupCommand",
        "Data",
        "list training images that are also in a test set",
    ),
    "index": Command(
        "data.index",
        "IndexCommand",
        "Data",
        "build an index of tar or parquet shards for streaming",
    ),
    "evaluate": Command(
        "evaluate.evaluate",
        "EvaluateCommand",
        "Measure",
        "measure a trained model on images it has not seen",
    ),
    "compare": Command(
        "evaluate.compare",
        "CompareCommand",
        "Measure",
        "compare two models on the same images, with a significance test",
    ),
    "fewshot": Command(
        "evaluate.fewshot",
        "FewshotCommand",
        "Measure",
        "few-shot accuracy of a frozen model",
    ),
    "probe": Command(
        "evaluate.probe", "ProbeCommand", "Measure", "linear-probe accuracy of a frozen model"
    ),
    "knn": Command(
        "evaluate.knn", "KnnCommand", "Measure", "nearest-neighbour accuracy of a frozen model"
    ),
    "robustness": Command(
        "evaluate.robustness",
        "RobustnessCommand",
        "Measure",
        "accuracy on occluded, shuffled, corrupted and attacked images",
    ),
    "translation": Command(
        "evaluate.equivariance", "EquivarianceCommand", "Measure", "measure shift equivariance"
    ),
    "inspect": Command(
        "inspect.inspect",
        "InspectCommand",
        "Look inside",
        "show what a model has learned and where it looks in photos",
    ),
    "report": Command(
        "inspect.report", "ReportCommand", "Look inside", "rebuild report.html for a run"
    ),
    "models": Command(
        "model.models",
        "ModelsCommand",
        "Plan",
        "list models: tokens, parameters, multiply-adds, memory",
    ),
    "weights": Command(
        "model.weights",
        "WeightsCommand",
        "Plan",
        "list published weights: size, licence, accuracy, whether they are here",
    ),
    "plan": Command(
        "train.plan",
        "PlanCommand",
        "Plan",
        "estimate what a training costs: compute, memory, days, data",
    ),
    "benchmark": Command(
        "train.benchmark",
        "BenchmarkCommand",
        "Plan",
        "measure the speed of this machine and suggest settings",
    ),
    "study": Command(
        "train.study",
        "StudyCommand",
        "The paper",
        "measure a table or figure of the paper again; without a name: list them",
    ),
    "vtab": Command(
        "train.vtab",
        "VtabCommand",
        "The paper",
        "fine-tune on the 19 tasks of VTAB-1k, next to the paper's numbers",
    ),
}
ALIASES = {"studies": "study"}  # verbs of 0.1
EPILOG = """\
Start here:
  patchwords doctor photos/
  patchwords finetune photos/ --output runs/photos
  patchwords predict runs/photos new/*.jpg

`patchwords VERB --help` explains a verb. `--debug` shows the traceback of an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; -> the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # file names need not be UTF-8: print them as they are
        if isinstance(stream, io.TextIOWrapper):
            # Windows would write a redirected stream in the code page of the country.
            encoding = "utf-8" if sys.platform == "win32" else None
            stream.reconfigure(encoding=encoding, errors="surrogateescape")
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return dispatch(words)
    except PatchwordsError as error:
        if debug:
            traceback.print_exc()
        if is_main_process():
            line = escape_control_characters(" ".join(str(error).split()))
            print(f"patchwords: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("patchwords: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `patchwords predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def dispatch(words: list[str]) -> int:
    """Run the verb that the command line begins with; -> the exit code."""
    if not words or words[0] in {"-h", "--help", "help"}:
        print(format_overview())
        return 0
    if words[0] == "--version":
        from patchwords.version import __version__

        print(f"patchwords {__version__}")
        return 0
    verb, rest = ALIASES.get(words[0], words[0]), words[1:]
    if verb not in COMMANDS:
        raise ConfigError(f"unknown command {verb!r}{did_you_mean(verb, COMMANDS)}")
    command = COMMANDS[verb]
    module, dataclass = command.load()
    if not {"-h", "--help"}.isdisjoint(rest):
        from patchwords.cli.help import format_help

        print(format_help(dataclass, f"patchwords {verb}"))
        return 0
    parse = getattr(module, f"parse_{command.name}", None)
    if parse is None:
        from patchwords.cli.flags import parse_command

        config = parse_command(dataclass, rest, f"patchwords {verb}")
    else:
        config = parse(rest)
    return int(getattr(module, f"run_{command.name}")(config))


def format_overview() -> str:
    """What `patchwords --help` prints: the verbs by group."""
    width = max(map(len, COMMANDS))
    groups: dict[str, list[str]] = {}
    for verb, command in COMMANDS.items():
        groups.setdefault(command.group, []).append(f"  {verb:<{width}}  {command.summary}")
    verbs = "\n\n".join("\n".join([f"{group}:", *lines]) for group, lines in groups.items())
    return (
        "patchwords: Vision Transformers, from a folder of photos to an honest report\n\n"
        f"usage: patchwords VERB ...\n\n{verbs}\n\n{EPILOG}"
    )


if __name__ == "__main__":
    sys.exit(main())
