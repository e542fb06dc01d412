"""A small CNN that anyone writes: what the plain `patchwords finetune DATA` has to beat.

    python -m benchmarks.plain_cnn DATA [--seeds 0 1 2] [--split validation]

Four blocks of 3x3 convolution, batch norm, ReLU and max-pooling, 16 to 128 channels; the mean over
space, dropout 0.3, a linear layer: 98 thousand weights. AdamW with one cycle up to 3e-3, weight
decay 0.05, label smoothing 0.1, crops of 64 out of 72 pixels, flips, 20 epochs of batches of 64.
Splits and decoding are those of patchwords; images are decoded once and kept in memory. The last
line that is printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.dataset import TRAIN, ImageDataset
from patchwords.data.decode import read_pixels
from patchwords.data.preprocess import Preprocess
from patchwords.training.config import DataSettings, FinetuneConfig
from patchwords.training.data_setup import load_dataset_splits

CHANNELS = (16, 32, 64, 128)
SIZE, DECODED, BATCH, PEAK = 64, 72, 64, 3e-3


def build_cnn(classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in CHANNELS:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(inputs, classes)
    )


def decode(examples: ImageDataset, size: int) -> Tensor:
    """-> uint8 [n, 3, size, size], short side resized and the centre cropped."""
    preprocess = Preprocess(image_size=(size, size), crop_fraction=1.0)
    images = [
        preprocess.resize_and_crop(read_pixels(examples.read(index)))
        for index in range(len(examples))
    ]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def normalise(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def crop_and_flip(images: Tensor) -> Tensor:
    """uint8 [B, 3, 72, 72] -> [B, 3, 64, 64], each at a place of its own"""
    places = torch.randint(DECODED - SIZE + 1, (len(images), 2)).tolist()
    crops = [
        image[:, top : top + SIZE, left : left + SIZE]
        for image, (top, left) in zip(images, places, strict=True)
    ]
    batch = normalise(torch.stack(crops))
    return torch.where(torch.rand(len(batch), 1, 1, 1) < 0.5, batch.flip(3), batch)


def train(images: Tensor, labels: Tensor, classes: int, epochs: int) -> nn.Module:
    model = build_cnn(classes)
    batch = min(BATCH, len(images))
    steps = len(images) // batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.05)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, epochs * steps)
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for chosen in order[: steps * batch].split(batch):
            logits = model(crop_and_flip(images[chosen]))
            loss = F.cross_entropy(logits, labels[chosen], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cycle.step()
    return model.eval()


@torch.inference_mode()
def measure_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    predicted = torch.cat([model(normalise(part)).argmax(1) for part in images.split(256)])
    return float((predicted == labels).double().mean())


def run_seed(
    data: str, split: str, seed: int, epochs: int, settings: DataSettings
) -> dict[str, Any]:
    """The splits stay those of seed 0; weights, order and crops are those of the seed."""
    started = time.perf_counter()
    splits = load_dataset_splits(FinetuneConfig(data=data, data_settings=settings)).splits
    train_images, train_labels = decode(splits[TRAIN], DECODED), splits[TRAIN].labels
    torch.manual_seed(seed)
    model = train(train_images, torch.from_numpy(train_labels), len(splits[TRAIN].classes), epochs)
    held_out = splits[split]
    accuracy = measure_accuracy(model, decode(held_out, SIZE), torch.from_numpy(held_out.labels))
    return {
        "seed": seed,
        "accuracy": accuracy,
        "seconds": time.perf_counter() - started,
        "images": len(train_images),
        "held_out": len(held_out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--train-images", type=int, help="a random subset of so many; default: all")
    args = parser.parse_args()
    settings = DataSettings(split_seed=0, train_images=args.train_images)
    rows = []
    for seed in args.seeds:
        row = run_seed(args.data, args.split, seed, args.epochs, settings)
        rows.append(row)
        print(
            f"seed {seed}: {row['accuracy']:.1%} of {row['held_out']:,} {args.split} images, "
            f"{row['images']:,} to train on, {row['seconds']:.0f} s",
            flush=True,
        )
    mean = statistics.mean(row["accuracy"] for row in rows)
    print(json.dumps({"data": args.data, "split": args.split, "mean": mean, "runs": rows}))


if __name__ == "__main__":
    main()
