"""What a person writes with timm and no more: fine-tuning on a folder, and answers for a folder.

    python -m benchmarks.plain_script train MODEL FOLDER --steps 100
    python -m benchmarks.plain_script predict MODEL FOLDER

MODEL is a folder in timm's layout. The last line that is printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks import peers, plain_transforms
from benchmarks.photos import paths_of

BATCH, WORKERS = 32, 2


class Folder(Dataset[Any]):
    """A folder of photos with a folder for each class, as torchvision's ImageFolder."""

    def __init__(self, folder: Path, transform: Callable[[bytes], Tensor]) -> None:
        self.paths, self.transform = paths_of(folder), transform
        names = sorted({path.parent.name for path in self.paths})
        self.classes = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        path = self.paths[number]
        return self.transform(path.read_bytes()), self.classes[path.parent.name]


def train(model: torch.nn.Module, folder: Path, size: int, steps: int) -> dict[str, Any]:
    dice = random.Random(0)

    def transform(data: bytes) -> Tensor:
        return plain_transforms.to_tensor(plain_transforms.train_crop(data, dice, size))

    loader = DataLoader(
        Folder(folder, transform), BATCH, shuffle=True, num_workers=WORKERS, drop_last=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    model.train()
    done, started = 0, time.perf_counter()
    while done < steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    took = time.perf_counter() - started
    return {"seconds": took, "images": steps * BATCH, "loss": float(loss.detach())}


@torch.inference_mode()
def predict(model: torch.nn.Module, folder: Path, size: int) -> dict[str, Any]:
    def transform(data: bytes) -> Tensor:
        return plain_transforms.to_tensor(plain_transforms.eval_crop(data, size))

    data = Folder(folder, transform)
    best: list[int] = []
    for images, _ in DataLoader(data, BATCH, num_workers=WORKERS):
        best += model.eval()(images).argmax(1).tolist()
    return {"answers": {str(path): number for path, number in zip(data.paths, best, strict=True)}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "predict"))
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    timm = peers.load("timm")
    model = timm.create_model(f"local-dir:{args.model}", pretrained=True)
    answer = (
        train(model, args.folder, args.size, args.steps)
        if args.what == "train"
        else predict(model, args.folder, args.size)
    )
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
