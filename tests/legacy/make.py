"""What made v0.1/: run folders and model folders as patchwords 0.1.0 wrote them.

Made by the code of commit 56eec7c1e1a0 (recorded.json has the whole of it), and not to be made
again: these files stand for those that people have. For another version, take this file as a
model, and write into another folder:

    OMP_NUM_THREADS=1 PYTHONPATH=src python tests/legacy/make.py

All is made inside v0.1/, so that every path in the runs is relative to it. Afterwards that is
removed which nothing reads, or which a report makes again (FOR_PEOPLE), and all but the last
checkpoint of runs that were interrupted. The name of the system's kernel is left out of
environment.json.

Interrupted runs are killed by SIGKILL right after a row of metrics.jsonl, some steps after their
last checkpoint. Each has a twin of the same settings that was not interrupted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

HOME = Path(__file__).resolve().parent / "v0.1"
FOR_PEOPLE = (
    *("tensorboard", "figures", "report.html", "insight.json", "insight.npz"),
    *("sweep.png", "sweep.svg"),
)
COLOURS = {"disc": (220, 60, 50), "square": (50, 190, 80), "stripe": (60, 80, 230)}

# One block; 16 tokens and the class token; nothing decoded elsewhere.
SHAPE = ("--width", 16, "--heads", 2, "--mlp-width", 24, "--depth", 1)
PLACE = ("--workers", 0, "--device", "cpu", "--precision", "fp32")
OFTEN = ("--log-every", 1, "--batch-size", 8)
TINY = ("--image-size", 16, *OFTEN, *PLACE)
VIT = ("--model", "ViT-mu/4", *SHAPE, *TINY)
KILLED, STEPS = 8, 12  # the row after which it happens; checkpoints are written at 3, 6, 9, 12
SAVED = ("--steps", STEPS, "--save-every", 3, "--eval-every", 4)
# What has a state or draws at random in a step; but for early stopping, which ends with the weights
# of some step before.
LIVELY = (
    *("--optimizer", "adamw", "--lr", 0.003, "--weight-decay", 0.1, "--layer-decay", 0.8),
    *("--ema", 0.9, "--balance", "loss", "--label-smoothing", 0.1),
    *("--dropout", 0.1, "--drop-path", 0.1, "--mixup", 0.2, "--cutmix", 0.3, "--erase", 0.2),
    *("--randaugment", 2, 9, "--color-jitter", 0.2, "--fewshot-every", 5, "--fewshot-shots", 2),
)
HEAD = (
    *("--weights", "finished", "--train", "head", "--views", 2, "--frozen", "cache"),
    *("--optimizer", "sgd", "--lr", 0.1, "--early-stop", 9, *TINY, *SAVED),
)
MASKED = ("--objective", "masked", "--validation", 0.25, "--lr", 0.01, *VIT)
PIXELS = (*MASKED, "--target", "pixels", *SAVED)
SHARED = ("--parallel", "fsdp", "--optimizer", "sgd", "--lr", 0.05, "--dropout", 0, *VIT, *SAVED)

# Model folders: 4 x 6 patches, 3 classes. A hybrid's are cut from the ResNet's 4 x 6 features.
SMALL = {"width": 12, "depth": 1, "heads": 2, "mlp_width": 20}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("ViT-mu/4", {**SMALL, "representation_size": 7, "position": "2d"}),
    "every": ("ViT-mu/4", {**SMALL, "depth": 2, "position_at": "every", "gelu": "erf"}),
    "relative": ("ViT-mu/4", {**SMALL, "position": "relative", "classifier": "gap"}),
    "axial": ("Axial-ViT-Ti/4", {**SMALL, "position_at": "shared"}),
    "axial-relative": ("Axial-ViT-Ti/4", {**SMALL, "position": "relative"}),
    "local": (
        "ViT-mu/4",
        {**SMALL, "mixer": "local", "window": 3, "classifier": "map", "position": "relative"},
    ),
    "mlp": ("ViT-mu/4", {**SMALL, "mixer": "mlp", "position": "sincos2d"}),
    "pooling": ("ViT-mu/4", {**SMALL, "mixer": "pooling", "position": "none"}),
    "hybrid": (
        "R26+ViT-mu/32",
        {**SMALL, "units": (1,), "spatial": "axial", "patch_size": 1},
    ),
    "resnet": ("BiT-R26x1", {"units": (1,)}),
}
# The norm behind takes away what is added to all channels of a patch alike; what is the same in
# all patches is not in a mean around a patch less the patch.
NO_MATTER = {
    ("mlp", "encoder.blocks.0.attention.fc2.bias"),
    ("pooling", "encoder.blocks.0.norm1.bias"),
}
LARGE = (
    "hybrid",
    "resnet",
)  # weights of few different values, stored as float16: git packs these well


def main() -> None:
    HOME.mkdir()
    os.chdir(HOME)
    make_photos(Path("photos"))
    make_settings(Path("settings.yaml"))
    make_runs()
    make_exports()
    make_models()
    for run in Path().glob("**/config.yaml"):
        tidy(run.parent)
    record()


def make_photos(root: Path) -> None:
    """24 small PNGs of three classes: a shape in its class's colour on a noisy ground."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        (root / name).mkdir(parents=True)
        for index in range(8):
            random = np.random.default_rng([number, index])
            ground = random.integers(0, 8, (18, 18 + index % 3, 3), dtype=np.uint8) * 9
            image = Image.fromarray(ground)
            x, y = (int(v) for v in random.integers(1, 7, 2))
            box, pen = (x, y, x + 9, y + 9), ImageDraw.Draw(image)
            if name == "stripe":
                pen.line(box, colour, width=4)
            else:
                (pen.ellipse if name == "disc" else pen.rectangle)(box, fill=colour)
            image.save(root / name / f"{index}.png", optimize=True)


def make_settings(path: Path) -> None:
    """For --config: settings of every group of the help, all in one table, with _ or with -."""
    path.write_text(
        "data: photos\n"
        "model: ViT-mu/4\n"
        "seed: 3\n"
        "# data\n"
        "test: 0.25\n"
        "split-seed: 5\n"
        "classes: [disc, stripe]\n"
        "# augment\n"
        "crop_area: [0.5, 1.0]\n"
        "flip: false\n"
        "randaugment: [2, 9]\n"
        "mixup: 0.2\n"
        "resize: squash\n"
        "# model\n"
        "image_size: 16\n"
        "width: 16\n"
        "heads: 2\n"
        "mlp-width: 24\n"
        "depth: 1\n"
        "classifier: gap\n"
        "dropout: 0.1\n"
        "# recipe\n"
        "steps: 2\n"
        "batch_size: 8\n"
        "optimizer: sgd\n"
        "lr: 0.01\n"
        "schedule: staircase\n"
        "drops: [0.4, 0.8]\n"
        "ema: 0.5\n"
        "train: last:1\n"
        "# machine\n"
        "device: cpu\n"
        "precision: fp32\n"
        "workers: 0\n"
        "grad-accum: 2\n"
    )


def make_runs() -> None:
    longer = ("--steps", 60, "--lr", 0.01, "--crop-area", 0.7, 1, "--eval-every", 20)
    patchwords("finetune", "photos", *VIT, *longer, "--output", "finished")
    patchwords("calibrate", "finished")
    few = ("--shots", 1, 2, "--seeds", 1, "--cache", "features")
    patchwords("fewshot", "finished", "photos", *few, *PLACE)
    pair("lively", "finetune", "photos", *VIT, *LIVELY, *SAVED)
    pair("head", "finetune", "photos", *HEAD)
    patchwords("pretrain", "photos", *MASKED, "--steps", 30, "--output", "masked")
    pair("pixels", "pretrain", "photos", *PIXELS)
    onward = ("--weights", "masked", "--steps", 3, *TINY)
    patchwords("finetune", "photos", *onward, "--output", "onward")
    hybrid = ("--model", "R+ViT-mu/16", "--patch-size", 2, *SHAPE, *TINY, "--steps", 2)
    patchwords("finetune", "photos", *hybrid, "--output", "hybrid")
    pair("shares", "finetune", "photos", *SHARED, processes=2)
    rates = ("--lrs", 0.01, 0.03, "--dev", 0.2, "--weights", "masked", *TINY, "--steps", 3)
    patchwords("sweep", "photos", *rates, "--output", "sweep")


def pair(name: str, *words: object, processes: int = 1) -> None:
    """The same run twice: as it goes through, and killed."""
    patchwords(*words, "--output", f"{name}-whole", processes=processes)
    patchwords(*words, "--output", f"{name}-killed", processes=processes, killed=KILLED)


def make_exports() -> None:
    for words in (("huggingface", "huggingface"), ("timm", "timm"), ("google", "google.npz")):
        patchwords("convert", "finished", f"exports/{words[1]}", "--to", words[0])
    patchwords("export", "finished", "exports/finished.onnx")


def make_models() -> None:
    """Model folders, with weights that all matter: initial heads and biases are zero."""
    import patchwords as pw

    for number, (name, (architecture, settings)) in enumerate(MODELS.items()):
        model = pw.create_model(architecture, num_classes=3, image_size=(16, 24), **settings)
        fill(model, seed=number, few_bits=name in LARGE)
        check_all_matter(model, name)
        if name in LARGE:
            model.half()
        labels = ("disc", "square", "stripe")
        folder = HOME / "models" / name
        pw.save_pretrained(model, folder, labels=labels, architecture=architecture)


@torch.no_grad()
def fill(model: torch.nn.Module, seed: int, few_bits: bool) -> None:
    random = np.random.default_rng(seed)
    for name, weight in model.named_parameters():
        noise = torch.from_numpy(random.standard_normal(weight.shape)).float()
        if few_bits:  # -1, 0 or 1
            noise = noise.div(1.5).round().clamp(-1, 1)
        if name.endswith(".weight") and weight.ndim > 1:
            scale = weight[0].numel() ** -0.5
            weight.copy_(noise * (2 ** round(math.log2(scale)) if few_bits else scale))
        elif name.endswith(".weight"):  # of a norm
            weight.copy_(1 + 0.2 * noise)
        else:
            weight.copy_(0.3 * noise)


def check_all_matter(model: torch.nn.Module, name: str) -> None:
    model.double().eval()
    model(pixels().double()).square().sum().backward()
    for key, weight in model.named_parameters():
        assert weight.grad is not None, (name, key)
        assert (weight.grad.abs().max() > 1e-6) != ((name, key) in NO_MATTER), (name, key)
    model.float()


def pixels() -> torch.Tensor:
    """[2, 3, 16, 24] in [-1, 1]"""
    path = HOME / "pixels.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(11).integers(0, 256, (2, 3, 16, 24), dtype=np.uint8))
    return torch.from_numpy(np.load(path)).float() / 127.5 - 1


def tidy(run: Path) -> None:
    """Remove what nothing reads."""
    killed = not (run / "model").exists()
    if run.name.startswith("lr-"):
        shutil.rmtree(run / "model")
    for name in FOR_PEOPLE:
        path = run / name
        if run == Path("finished") and name not in {"tensorboard", "figures"}:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    checkpoints = sorted((run / "checkpoints").glob("step-*"))
    keep = killed or run in {Path("finished"), Path("sweep/final")}
    for checkpoint in checkpoints[:-1] if keep else checkpoints:
        shutil.rmtree(checkpoint)
    environment = json.loads((run / "environment.json").read_text())
    environment["system"] = platform.system()
    text = json.dumps(environment, indent=2, ensure_ascii=False) + "\n"
    (run / "environment.json").write_text(text)


def record() -> None:
    """recorded.json: the logits of every model folder, and what they were computed on."""
    import patchwords as pw

    logits = {}
    for config in sorted(Path().glob("**/config.json")):
        folder = config.parent.parent if config.parent.name == "model" else config.parent
        logits[str(folder)] = folder
    logits["exports/google.npz"] = Path("exports/google.npz")
    found = {name: logits_of(pw.from_pretrained(path)) for name, path in sorted(logits.items())}
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=HOME.parent
    ).stdout.strip()
    table = {"commit": commit, "machine": machine(), "logits": found}
    Path("recorded.json").write_text(json.dumps(table, indent=1) + "\n")


@torch.inference_mode()
def logits_of(source: Any) -> dict[str, Any]:
    """In both precisions, of the left of the pixels for a model of square images.

    Where there are no classes, three numbers of the class token.
    """
    height, width = source.model.config.image_size
    images = pixels()[..., :height, :width]

    def ask(model: Any) -> list[list[float]]:
        given = images.to(next(model.parameters()).dtype)
        if source.labels:
            return model(given).tolist()
        return model.forward_features(given)[:, 0, :3].tolist()

    return {"float32": ask(source.model), "float64": ask(source.model.double())}


def machine() -> dict[str, str]:
    """What the last bits of a float32 sum depend on; on another one they may differ."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    flags = [line for line in lines if "flags" in line]
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "flags": hashlib.sha256(flags[0].encode() if flags else b"").hexdigest()[:16],
    }


def patchwords(*words: object, processes: int = 1, killed: int | None = None) -> None:
    """`patchwords WORDS` in a process of its own, or in several; killed after a row."""
    several = ("-m", "torch.distributed.run", "--nproc-per-node", processes)
    start = [sys.executable, *(several if processes > 1 else ()), Path(__file__).resolve()]
    command = [*start, "run", killed or 0, *words]
    print("patchwords", *words, flush=True)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, check=False)
    assert (done.returncode == 0) == (killed is None), done


def run(killed: int, words: Sequence[str]) -> int:
    """What `patchwords` in the shell does, killed after the row of a step of training."""
    from patchwords.cli import main as command_line
    from patchwords.training.logs.metrics_log import MetricsLogger

    write = MetricsLogger.write
    saved = Path(words[-1]) / "checkpoints" / f"step-{killed // 3 * 3:08d}"

    def write_and_die(journal: MetricsLogger, row: Any) -> None:
        write(journal, row)
        if row["kind"] == "train" and row["step"] == killed:
            while not saved.exists():  # shares are written behind the training
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

    if killed:
        MetricsLogger.write = write_and_die  # type: ignore[method-assign]
    sys.argv = ["patchwords", *words]
    return command_line(words)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        sys.exit(run(int(sys.argv[2]), sys.argv[3:]))
    main()
