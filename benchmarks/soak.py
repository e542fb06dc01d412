"""Does a run that is killed again and again end as one that was left alone?

    python benchmarks/soak.py --minutes 30 [--processes 2] [--folder soak]

Trains under torchrun, and kills at random: one process of the training, a process that decodes its
images, or the whole job, which is then started again with --resume. When a run has ended, the same
is trained undisturbed, and the two must agree to the bit: weights, and every row of metrics.jsonl
but for times. Rounds of this follow one another, each with its own seed, until the time is over.
Ends with exit code 1 at the first difference. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

WORDS = (
    *("finetune", "digits", "--model", "ViT-mu/4", "--image-size", "16", "--batch-size", "32"),
    *("--steps", "2500", "--dropout", "0.1", "--drop-path", "0.1", "--ema", "0.99"),
    *("--mixup", "0.2", "--cutmix", "0.5", "--randaugment", "1", "5", "--log-every", "1"),
    *("--eval-every", "100", "--save-every", "20", "--device", "cpu", "--precision", "fp32"),
    *("--workers", "1"),
)
MOST_SECONDS = 40.0  # between two kills; the shortest come while a job still starts
KINDS = {"process": 5, "decoder": 3, "job": 2}  # what is killed -> how often
TIMES = {
    *("images_per_second", "data_wait", "batch_seconds", "seconds", "utilisation", "memory"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("soak"))
    parser.add_argument("--seed", type=int, default=0, help="of the first round and of the kills")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    dice, until = random.Random(asked.seed), time.monotonic() + 60 * asked.minutes
    kills: collections.Counter[str] = collections.Counter()
    seed = asked.seed
    while time.monotonic() < until:
        runs = [asked.folder / f"{seed}-{name}" for name in ("killed", "alone")]
        for run in runs:
            shutil.rmtree(run, ignore_errors=True)
        before = sum(kills.values())
        disturbed(runs[0], seed, asked.processes, dice, until, kills)
        alone(runs[1], seed, asked.processes)
        different = difference(*runs)
        done = sum(kills.values()) - before
        print(f"seed {seed}: {done} kills, {different or 'no difference'}", flush=True)
        if different:
            return 1
        seed += 1
    print(f"{seed - asked.seed} runs, killed: {dict(kills)}; each ended as one left alone")
    return 0


def start(run: Path, seed: int, processes: int) -> subprocess.Popen[bytes]:
    """A job with a session of its own, which goes on with what is in the folder."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    going_on = "--resume" if (run / "checkpoints").is_dir() else "--overwrite"
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, *torchrun, "--max-restarts", "3", "-m", "patchwords", *WORDS),
                *("--seed", str(seed), "--output", str(run), going_on),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def alone(run: Path, seed: int, processes: int) -> None:
    if start(run, seed, processes).wait():
        raise SystemExit(f"an undisturbed run failed; see {run.with_suffix('.log')}")


def disturbed(
    run: Path,
    seed: int,
    processes: int,
    dice: random.Random,
    until: float,
    kills: collections.Counter[str],
) -> None:
    """Start, kill and start again until the run has ended; after `until` it is left alone."""
    job, failures = start(run, seed, processes), 0
    while True:
        patience = dice.uniform(1, MOST_SECONDS) if time.monotonic() < until else None
        try:
            code = job.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            [kind] = dice.choices(list(KINDS), list(KINDS.values()))
            if killed := kill(kind, job, dice):
                kills[killed] += 1
                failures = 0
            continue
        if code == 0:
            return
        failures += 1
        if failures > 3:
            raise SystemExit(f"it does not start again; see {run.with_suffix('.log')}")
        job = start(run, seed, processes)


def kill(kind: str, job: subprocess.Popen[bytes], dice: random.Random) -> str | None:
    """kill -9; -> what was killed, or None where there is no such process at this moment."""
    if kind == "job":
        for process in (*descendants(job.pid), job.pid):
            end(process)
        return kind
    trainers = children(job.pid)
    victims = trainers
    if kind == "decoder":
        victims = [child for trainer in trainers for child in children(trainer)]
    return kind if victims and end(dice.choice(victims)) else None


def end(process: int) -> bool:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def children(process: int) -> list[int]:
    try:
        words = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words]


def descendants(process: int) -> list[int]:
    return [found for child in children(process) for found in (child, *descendants(child))]


def difference(killed: Path, alone: Path) -> str | None:
    """What differs between the two runs, in words."""
    if digest(killed) != digest(alone):
        return f"the weights of {killed} and {alone} differ"
    for number, (a, b) in enumerate(zip(rows(killed), rows(alone), strict=True), 1):
        if a != b:
            return f"row {number} of metrics.jsonl: {a} and {b}"
    return None


def digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def rows(run: Path) -> list[dict[str, object]]:
    """metrics.jsonl without what depends on the clock."""
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{key: row[key] for key in row if key not in TIMES} for row in found]


if __name__ == "__main__":
    sys.exit(main())
