"""Several processes without torchrun: each runs `python ranks.py FOLDER SCENE...`.

All scenes of a launch share its process group, as starting processes takes longer than training.
The result of a scene is written to FOLDER/SCENE-RANK.json, for the test to compare.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scenes import SCENES

from patchwords.distributed import exit_process, join_process_group
from patchwords.errors import Interrupted

PATIENCE = 180.0  # seconds for all scenes of a launch; they take fifteen or so


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environments(size: int) -> list[dict[str, str]]:
    """The environment that torchrun would give each of `size` processes."""
    port = str(free_port())
    shared = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def start(size: int, words: Sequence[object]) -> list[subprocess.Popen[str]]:
    """`python WORDS` in every process."""
    return [
        subprocess.Popen(
            [sys.executable, *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments(size)
    ]


def play(folder: Path, size: int, scenes: Sequence[str]) -> Mapping[str, list[dict[str, Any]]]:
    """The scenes in `size` processes; -> what each gave, by rank."""
    folder.mkdir(exist_ok=True)
    processes = start(size, [__file__, folder, *scenes])
    try:
        for process in processes:
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, (out, err)
    finally:  # a process may wait for another that has ended
        for process in processes:
            process.kill()
    return {
        scene: [json.loads((folder / f"{scene}-{rank}.json").read_text()) for rank in range(size)]
        for scene in scenes
    }


def take_part(folder: Path, scenes: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with join_process_group(cuda=False) as here:
        for scene in scenes:
            result = SCENES[scene](folder / scene)
            (folder / f"{scene}-{here.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    try:
        take_part(Path(sys.argv[1]), sys.argv[2:])
    except Interrupted as stop:  # as the command line does
        exit_process(stop.exit_code)
    exit_process(0)
