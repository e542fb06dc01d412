"""`patchwords VERB ...`: finds the verb, turns its dataclass into flags, prints errors as one line.

Exit codes: 0 done, 2 the user's input is wrong (one line says what), 1 our fault (a traceback).
Nothing heavy is imported before the command line is known to be right: help takes 0.2 seconds.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import itertools
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from patchwords.distributed import is_main_process
from patchwords.errors import ConfigError, PatchwordsError, did_you_mean

# verb -> (module in patchwords.cli, its dataclass XCommand, what it is for); the module has run_x
# and, where the verb takes --config or --resume, parse_x
COMMANDS: dict[str, tuple[str, str, str]] = {
    "app": ("model.app", "AppCommand", "a page on this machine to play with a trained model"),
    "benchmark": (
        "train.benchmark",
        "BenchmarkCommand",
        "what this machine can do, and what to set on it",
    ),
    "calibrate": (
        "model.calibrate",
        "CalibrateCommand",
        "prepare a model for int8, and see what int8 costs",
    ),
    "compare": (
        "evaluate.compare",
        "CompareCommand",
        "which of two models is better, on what, and is it chance",
    ),
    "convert": (
        "model.convert",
        "ConvertCommand",
        "weights between Google, Hugging Face, timm and ours",
    ),
    "dedup": (
        "data.dedup",
        "DedupCommand",
        "which images to pre-train on are in somebody's test set",
    ),
    "doctor": (
        "data.doctor",
        "DoctorCommand",
        "what is wrong with my data, before an hour of training",
    ),
    "evaluate": (
        "evaluate.evaluate",
        "EvaluateCommand",
        "measure a trained model on images it has not seen",
    ),
    "export": ("model.export", "ExportCommand", "write a trained model as ONNX or OpenVINO"),
    "fewshot": (
        "evaluate.fewshot",
        "FewshotCommand",
        "accuracy of a frozen model from a few images of each class",
    ),
    "finetune": (
        "train.finetune",
        "FinetuneCommand",
        "train a ViT on your images and write a report",
    ),
    "index": (
        "data.index",
        "IndexCommand",
        "write down what is in shards, to stream them from afar",
    ),
    "inspect": (
        "inspect.inspect",
        "InspectCommand",
        "what a model has learned, and where it looks in photos",
    ),
    "knn": (
        "evaluate.knn",
        "KnnCommand",
        "classes of the nearest training images, by a frozen model",
    ),
    "models": (
        "model.models",
        "ModelsCommand",
        "the models by name: parameters, MACs, memory, parts",
    ),
    "plan": ("train.plan", "PlanCommand", "what a training costs: compute, memory, days, data"),
    "predict": ("model.predict", "PredictCommand", "what a trained model sees in new images"),
    "pretrain": (
        "train.pretrain",
        "PretrainCommand",
        "train what fine-tuning starts from, by masks or classes",
    ),
    "probe": (
        "evaluate.probe",
        "ProbeCommand",
        "a linear classifier on the features of a frozen model",
    ),
    "recipes": (
        "train.recipes",
        "RecipesCommand",
        "published recipes by name: source, settings, cost",
    ),
    "report": ("inspect.report", "ReportCommand", "write report.html of a run anew"),
    "robustness": (
        "evaluate.robustness",
        "RobustnessCommand",
        "accuracy on disturbed images, model by model",
    ),
    "studies": (
        "train.study",
        "StudiesCommand",
        "tables and figures of the paper that can be measured again",
    ),
    "study": (
        "train.study",
        "StudyCommand",
        "measure one of them again, with a verdict on each claim",
    ),
    "sweep": (
        "train.sweep",
        "SweepCommand",
        "choose the learning rate by a dev split, then train on all",
    ),
    "translation": (
        "evaluate.equivariance",
        "EquivarianceCommand",
        "does a shifted image give shifted features",
    ),
    "vtab": (
        "train.vtab",
        "VtabCommand",
        "transfer to the 19 tasks of VTAB-1k, the paper's numbers beside",
    ),
}
EPILOG = """\
Start here:
  patchwords doctor photos/
  patchwords finetune photos/ --output runs/photos
  patchwords predict runs/photos new/*.jpg

`patchwords VERB --help` explains a verb. `--debug` shows the traceback of an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; -> the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # names of files need not be UTF-8: as they came in
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return dispatch(words)
    except PatchwordsError as error:
        if debug:
            traceback.print_exc()
        if is_main_process():
            print(f"patchwords: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("patchwords: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `patchwords predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def dispatch(words: list[str]) -> int:
    """The verb's module does the work."""
    if not words or words[0] in {"-h", "--help", "help"}:
        print(format_overview())
        return 0
    if words[0] == "--version":
        from patchwords.version import __version__

        print(f"patchwords {__version__}")
        return 0
    verb = words[0]
    if verb not in COMMANDS:
        raise ConfigError(f"unknown command {verb!r}{did_you_mean(verb, COMMANDS)}")
    module_name, class_name, _ = COMMANDS[verb]
    module = importlib.import_module(f"patchwords.cli.{module_name}")
    command = getattr(module, class_name)
    name = class_name.removesuffix("Command").lower()
    if hasattr(module, f"parse_{name}"):
        config = getattr(module, f"parse_{name}")(words[1:])
    else:
        config = parse_command(command, words[1:], f"patchwords {verb}")
    return int(getattr(module, f"run_{name}")(config))


def format_overview() -> str:
    width = max(map(len, COMMANDS))
    verbs = "\n".join(f"  {verb:<{width}}  {what}" for verb, (_, _, what) in COMMANDS.items())
    return (
        "patchwords: Vision Transformers, from a folder of photos to an honest report\n\n"
        f"usage: patchwords VERB ...\n\n{verbs}\n\n{EPILOG}"
    )


def parse_command(command: type, words: Sequence[str], program: str, default: Any = None) -> Any:
    """The dataclass from the words of the command line; raises ConfigError in one line.

    Fields without a value in the words keep that of `default`.
    """
    import tyro
    from tyro._errors import (
        BadValue,
        InstantiationFailure,
        InvalidChoice,
        MissingArgs,
        ParseErrorEvent,
        UnrecognizedArgs,
        on_parse_error,
    )

    def explain(event: ParseErrorEvent) -> None:
        see = f" (see {program} --help)"
        if isinstance(event, UnrecognizedArgs):
            raise ConfigError(_unrecognized(event.tokens, command) + see)
        if isinstance(event, InvalidChoice):
            flag = event.argument.lowered.name_or_flags[0]
            near = did_you_mean(event.value, event.choices)
            raise ConfigError(f"{flag} {event.value!r} is not a choice{near}")
        if isinstance(event, MissingArgs):
            names = [part.arg.lowered.metavar or str(part.arg) for part in event.missing_arguments]
            raise ConfigError(f"{program}: missing {', '.join(names)}{see}")
        if isinstance(event, BadValue | InstantiationFailure):
            if event.argument is None:
                raise ConfigError(f"{program}: {' '.join(event.message.split())}{see}")
            flag = event.argument.lowered.name_or_flags[0]
            found = "".join(f" {value!r}" for value in _values(flag, words))
            wanted = _wanted(event.argument.lowered.metavar or "")
            raise ConfigError(f"{flag}{found}: expected {wanted}{see}")

    options = {} if default is None else {"default": default}
    with on_parse_error(explain):
        return tyro.cli(
            command,
            prog=program,
            args=list(words),
            config=(tyro.conf.OmitArgPrefixes,),
            **options,
        )


def list_flags(command: type) -> list[str]:
    """The names of the flags of a dataclass, those of the groups in it included."""
    names, alone = ["--help", "--debug"], list_positionals(command)
    for field in dataclasses.fields(command):
        group = field.default_factory
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            names += list_flags(group)[2:]
        else:
            names.append(f"--{field.name.replace('_', '-')}")
    return [name for name in names if name not in alone]


def list_positionals(command: type) -> list[str]:
    """What stands by itself on the command line, as flags that somebody may take it for."""
    fields = dataclasses.fields(command)
    return [f"--{field.name}" for field in fields if "Positional" in str(field.type)]


def _values(flag: str, words: Sequence[str]) -> list[str]:
    """What stands behind a flag on the command line."""
    for place, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return [word.partition("=")[2]]
        if word == flag:
            rest = words[place + 1 :]
            return list(itertools.takewhile(lambda value: not value.startswith("--"), rest))
    return []


def _wanted(metavar: str) -> str:
    """tyro's shorthand for a type, in words.

    >>> _wanted("{None}|FLOAT"), _wanted("FLOAT FLOAT"), _wanted("{auto}|INT")
    ('a number', 'two numbers', 'auto or a whole number')
    """
    kinds = {"FLOAT": "number", "INT": "whole number", "STR": "word", "PATH": "path"}
    named = [kinds[word] for word in re.findall("FLOAT|INT|STR|PATH", metavar)]
    if not named:
        return metavar.lower()
    if "..." in metavar:
        return f"one or more {named[0]}s"
    if named == named[:1] * 2:
        return f"two {named[0]}s"
    listed = " and ".join(f"a {name}" for name in named)
    return f"auto or {listed}" if "{auto}" in metavar else listed


def _unrecognized(tokens: Sequence[str], command: type) -> str:
    flag = next((token for token in tokens if token.startswith("-")), None)
    if flag is None:
        return f"did not expect {' '.join(tokens)!r}"
    name = flag.split("=")[0]
    if name in list_positionals(command):
        return f"unknown flag {name}; {name.strip('-').upper()} stands by itself, without a flag"
    return f"unknown flag {flag}{did_you_mean(name, list_flags(command))}"


if __name__ == "__main__":
    sys.exit(main())
