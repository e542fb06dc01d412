"""Seconds from nothing until a program is there, each time in a new process."""

from __future__ import annotations

from benchmarks import child
from benchmarks.asked import Asked
from benchmarks.table import Section, compare

HELP = "patchwords --help"
MOST_SECONDS = 0.4  # that the help may take
CONTENDERS = {  # in each round, one after the other
    HELP: ("-m", "patchwords", "--help"),
    "import patchwords": ("-c", "import patchwords"),
    "a model made": ("-c", "import patchwords; patchwords.create_model('ViT-mu/16')"),
    "import torch": ("-c", "import torch"),
    "import timm": ("-c", "from benchmarks import peers; peers.load('timm')"),
}


def measure(asked: Asked) -> Section:
    section = Section("startup")
    section.remark("wall clock of a whole process, the interpreter's own start in it")
    if not asked.quick:
        rounds(section, 1)  # files come into the machine's cache
    found = rounds(section, asked.rounds_or(7))
    own = found[HELP]
    limit = [MOST_SECONDS] * len(own)
    section.add(compare(HELP, "s", own, (f"a limit of {MOST_SECONDS} s", limit), goal=1.0))
    torch = ("import torch", found["import torch"])
    section.add(compare("import patchwords", "s", found["import patchwords"], torch, goal=1.0))
    for name in (HELP, "import patchwords", "a model made"):
        if found["import timm"]:
            section.add(compare(name, "s", found[name], ("import timm", found["import timm"])))
    section.add(compare("import patchwords, a model made", "s", found["a model made"], torch))
    return section


def rounds(section: Section, count: int) -> dict[str, list[float]]:
    """Seconds of each contender in every round; timm's are empty where it is not installed."""
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(count):
        for name, words in CONTENDERS.items():
            try:
                took, _ = child.run(words)
            except child.Failed as failed:
                if "Absent" not in str(failed):
                    raise
                section.remark(str(failed).rsplit("Absent: ", 1)[-1])
            else:
                found[name].append(took)
    return found
