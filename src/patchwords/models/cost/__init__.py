"""What a model costs: parameters, multiplications, memory of a training step.

1 MAC is one multiplication with its addition; FLOPs are 2 MACs. Parameters and MACs are counted
on the real module (counting.py), once in a process for a config. The counts of `list_models()` are
in counts.json, so that listing them needs no torch; `python -m patchwords.models.cost.counting`
writes that file, and a test compares it with the modules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from patchwords.models.config import ModelConfig
from patchwords.models.cost.activations import PartMemory, list_part_memory
from patchwords.models.zoo import resolve_model

COUNTS_FILE = Path(__file__).with_name("counts.json")
TRAINING_FLOPS_PER_MAC = 6  # of a training step: 2 in the forward pass, and 4 in the backward pass

OptionalImageSize = int | Sequence[int] | None


@dataclass(frozen=True)
class PartCount:
    """Parameters and products of one step of the forward pass."""

    name: str
    parameters: int
    standardised: int  # parameters among them whose mean and deviation are taken out
    macs: int  # of one image, all tokens


@dataclass(frozen=True)
class ModelCount:
    """The parts of a model in the order of the forward pass."""

    parts: tuple[PartCount, ...]
    forward_macs: int  # of `model(images)`, which leaves out tokens that the head does not read


@dataclass(frozen=True)
class PartCost(PartMemory):
    """A step of the forward pass: its counts, and what it leaves behind in memory."""

    parameters: int = 0
    standardised: int = 0
    macs: int = 0

    def bytes_kept(self, batch: int, bytes_per_value: int) -> int:
        """Bytes that live from the forward pass of this part to its backward pass."""
        mixed = bytes_per_value < 4
        per_image = (
            (self.kept + self.cast * mixed) * bytes_per_value + 4 * self.float32 + 8 * self.int64
        )
        # Mixed precision copies every weight; standardising makes two tensors, one in float32.
        copied = self.parameters if mixed else self.standardised
        return batch * per_image + copied * bytes_per_value + 4 * self.standardised


def count_parameters(config: ModelConfig) -> int:
    """Count the numbers that the model learns."""
    return sum(part.parameters for part in count_parts(config).parts)


def count_macs(config: ModelConfig, image_size: OptionalImageSize = None) -> int:
    """Count the multiplications of one image through the matrices; a training step takes 3x.

    Norms, softmax, GELU, pooling and sums are left out, as is usual: they are below 1 %.
    """
    return sum(part.macs for part in count_parts(_resize(config, image_size)).parts)


def count_forward_macs(config: ModelConfig, image_size: OptionalImageSize = None) -> int:
    """`count_macs` without the last block's tokens that the head does not read.

    `model(images)` does not compute these, so a utilisation is measured against this count.
    """
    return count_parts(_resize(config, image_size)).forward_macs


def compute_training_flops(macs: int, images: float) -> float:
    """Operations of training on N images, each counted as often as it is seen.

    Forward 2 for each MAC, backward twice that: it meets the exaFLOPs (1e18) of Table 6.
    """
    return TRAINING_FLOPS_PER_MAC * macs * images


def estimate_activation_bytes(
    config: ModelConfig, batch: int, image_size: OptionalImageSize = None, bytes_per_value: int = 4
) -> int:
    """Estimate the most memory that the activations of one training step take at once.

    Weights, their gradients and the optimizer's state come on top. `bytes_per_value` is 2 in mixed
    precision, where the residual stream of a ViT and all around GroupNorm stay in float32, as
    autocast has it on a GPU, and every weight has a copy. Within 13 % of what torch takes on a
    CPU, and within 6 % for a plain ViT-Ti or S, or a ResNet of 100 pixels and more.
    """
    return estimate_peak_bytes(list_part_costs(config, image_size), batch, bytes_per_value)


def estimate_peak_bytes(parts: Iterable[PartCost], batch: int, bytes_per_value: int) -> int:
    """The most memory at once: parts give back what they keep in the reverse of their order."""
    kept = peak = 0
    for part in parts:
        kept += part.bytes_kept(batch, bytes_per_value)
        peak = max(peak, kept + 4 * (batch * part.at_work + part.weights_at_work))
    return peak


def list_part_costs(
    config: ModelConfig, image_size: OptionalImageSize = None
) -> tuple[PartCost, ...]:
    """The parts of the model in the order of the forward pass."""
    return _list_part_costs(_resize(config, image_size))


def group_part_costs(
    config: ModelConfig, image_size: OptionalImageSize = None
) -> dict[str, list[PartCost]]:
    """The parts under their names, in order: all blocks' attention together, and so on."""
    named: dict[str, list[PartCost]] = {}
    for part in list_part_costs(config, image_size):
        named.setdefault(part.name, []).append(part)
    return named


@cache
def count_parts(config: ModelConfig) -> ModelCount:
    """Count parameters and MACs part by part."""
    if packaged := _read_packaged_counts().get(config):
        return packaged
    from patchwords.models.cost.counting import count_model

    return count_model(config)


@cache
def _list_part_costs(config: ModelConfig) -> tuple[PartCost, ...]:
    counts, memory = count_parts(config).parts, tuple(list_part_memory(config))
    names = [[part.name for part in parts] for parts in (counts, memory)]
    if names[0] != names[1]:
        raise AssertionError(f"counting.py has the parts {names[0]}, activations.py {names[1]}")
    return tuple(
        PartCost(**asdict(part) | asdict(count)) for count, part in zip(counts, memory, strict=True)
    )


@cache
def _read_packaged_counts() -> dict[ModelConfig, ModelCount]:
    table = json.loads(COUNTS_FILE.read_text(encoding="utf-8"))
    counts = {}
    for name, row in table.items():
        kinds = [PartCount(*kind) for kind in row["kinds"]]
        parts = tuple(kinds[index] for index in row["parts"])
        counts[resolve_model(name).config] = ModelCount(parts, row["forward_macs"])
    return counts


def _resize(config: ModelConfig, image_size: OptionalImageSize) -> ModelConfig:
    return config if image_size is None else config.with_settings(image_size=image_size)
