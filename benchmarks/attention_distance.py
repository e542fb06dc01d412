"""How much memory does attention distance take, streamed, and how much would it take at once?

    python benchmarks/attention_distance.py [--model ViT-B/16] [--images 128]

Measures the most that a process of its own holds (VmHWM of Linux) while it streams so many images
through the model, less what it held before; and works out, without making it, what the attention
of all layers of all images would be. Random weights: attention takes as much whatever it says.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch

from patchwords.device import peak_memory
from patchwords.interpret.attention import choose_chunk_size, require_attention
from patchwords.interpret.distance import attention_distance
from patchwords.models.zoo import create_model

GIB = 2**30
BATCH = 16  # images made at a time, as a loader gives them


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        return measure(asked.model, asked.images)
    with torch.device("meta"):
        config = require_attention(create_model(asked.model)).config
    layer = 4 * config.heads * config.tokens**2  # bytes of one image
    at_once = choose_chunk_size(config, config.grid)
    print(
        f"{asked.model}, {asked.images} images, {config.layers} layers of {config.heads} heads, "
        f"{config.tokens} tokens; {at_once} images at a time"
    )
    print(f"all at once: {asked.images * config.layers * layer / GIB:.2f} GiB of attention alone")
    print(f"streamed:    {at_once * layer / GIB:.2f} GiB is one layer of one portion", flush=True)
    words = [sys.executable, __file__, "--child", "--model", asked.model]
    return subprocess.run([*words, "--images", str(asked.images)], check=False).returncode


def measure(name: str, count: int) -> int:
    """In a process of its own, whose peak nothing else has raised."""
    model = create_model(name).eval()
    cpu = torch.device("cpu")
    before, start = peak_memory(cpu), time.perf_counter()
    height, width = model.config.image_size
    generator = torch.Generator().manual_seed(0)
    batches = (
        torch.randn(min(BATCH, count - done), 3, height, width, generator=generator)
        for done in range(0, count, BATCH)
    )
    found = attention_distance(model, batches)
    took, peak = time.perf_counter() - start, peak_memory(cpu)
    first, last = found.mean[0].mean(), found.mean[-1].mean()
    print(
        f"measured:    {peak / GIB:.2f} GiB at most, {(peak - before) / GIB:.2f} GiB more than "
        f"with the model alone; {took:.0f} s; {first:.0f} pixels in the first layer, {last:.0f} "
        f"in the last, {found.uniform:.0f} if heads looked everywhere alike"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
