"""All benchmarks by one entry: tables in Markdown, and JSON.

    python -m benchmarks [NAME ...] [--data FOLDER] [--quick] [--json FILE] [--list]

Peers that are not installed are named and left out; `pip install "patchwords[bench]"` brings them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from benchmarks.asked import Asked

NAMES = {
    "inference": "images/s through the model: timm, transformers, OpenVINO",
    "training": "steps of training: timm, transformers",
    "input": "decoding and cropping on one core: Pillow",
    "end_to_end": "an epoch of fine-tuning, answers for a folder: a plain timm script",
    "memory": "peak of a training step: timm",
    "startup": "help and imports: torch, timm",
    "probes": "the few-shot path: scikit-learn",
    "gpu": "training on a GPU: its measured peak, timm + compile",
    "growth": "time and memory over tokens, batch, depth and width: the analytic count",
}


def main(words: list[str] | None = None) -> int:
    """-> exit code: 0 done, 1 when a benchmark failed, 2 when it cannot be done as asked."""
    parser = argparse.ArgumentParser("python -m benchmarks", description="How fast, beside whom?")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all, if none is said")
    parser.add_argument("--data", type=Path, help="photos, in a folder for each class")
    parser.add_argument("--weights", default=Asked.weights, help="whose answers are compared")
    parser.add_argument("--rounds", type=int, help="in which contenders take turns")
    parser.add_argument("--output", type=Path, default=Asked.output, help="where figures go")
    parser.add_argument("--json", type=Path, help="write all numbers here, too")
    parser.add_argument("--quick", action="store_true", help="tiny models: only tries the code")
    parser.add_argument("--list", action="store_true", help="name the benchmarks, and no more")
    args = parser.parse_args(words)
    if args.list:
        print("\n".join(f"{name:11} {what}" for name, what in NAMES.items()))
        return 0
    if fault := refused(args):
        print(f"benchmarks: {fault}", file=sys.stderr)
        return 2
    asked = Asked(args.quick, args.data, args.weights, args.rounds, args.output)
    return run(args.names or list(NAMES), asked, args.json)


def refused(args: argparse.Namespace) -> str | None:
    """Why it cannot be done as asked, in one line."""
    for name in args.names:
        if name not in NAMES:
            return f"there is no benchmark {name!r}; there are {', '.join(NAMES)}"
    if args.rounds is not None and args.rounds < 1:
        return f"--rounds {args.rounds} must be at least 1"
    if args.json is not None and not args.json.parent.is_dir():
        return f"--json {args.json}: the folder {args.json.parent} does not exist; make it first"
    if args.data is not None:
        from benchmarks.photos import paths_of

        if not args.data.is_dir() or not paths_of(args.data):
            return f"--data {args.data}: there is no JPEG; give a folder with a folder per class"
    return None


def run(names: list[str], asked: Asked, file: Path | None) -> int:
    """One after the other; the JSON is written after each, for a long run may be cut short."""
    from benchmarks import machine

    about = machine.describe()
    print(f"{machine.in_words(about)}\n", flush=True)
    if asked.quick:
        print("quick: tiny models, whose numbers mean nothing\n", flush=True)
    sections, failed = [], 0
    for name in names:
        started = time.perf_counter()
        try:
            section = importlib.import_module(f"benchmarks.{name}").measure(asked)
        except Exception as error:  # the others are still worth their time
            failed += 1
            print(f"## {name}\n\nfailed: {type(error).__name__}: {error}\n", flush=True)
            continue
        print(f"{section.markdown()}\n\n{time.perf_counter() - started:.0f} s\n", flush=True)
        sections.append(section.to_dict())
        if file is not None:
            found = {"machine": about, "quick": asked.quick, "benchmarks": sections}
            file.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
