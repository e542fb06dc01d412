"""Memory of a training step on one device, and the micro-batch that fits.

Weights, gradients and the optimizer's state are float32 even where products are in bf16. With DDP
every device holds all of them, and the buckets in which gradients travel; with FSDP each device
holds its share, and one layer at a time is gathered to work with. Layers are a ViT's blocks and a
ResNet's units. With checkpointed activations a layer keeps its input only, and the rest is computed
again in the backward pass.

The recipe's batch is what the weights see; into how many parts it is cut depends on the machine. A
GPU says when it is full (then `train_step` cuts again), but a process that takes too much of the
main memory is killed without a message, so on a CPU the parts are chosen beforehand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from patchwords.device import Device, free_memory
from patchwords.distributed import all_gather_integers, get_world
from patchwords.models.config import ModelConfig, ViTConfig
from patchwords.models.cost import (
    PartCost,
    estimate_activation_bytes,
    estimate_peak_bytes,
    list_part_costs,
)
from patchwords.models.resnet.config import BOTTLENECK_EXPANSION, ConvStemConfig, TrunkConfig
from patchwords.planning.hardware import Precision

Parallel = Literal["ddp", "fsdp"]
OptimizerName = Literal["adamw", "sgd"]

FLOAT32_BYTES = 4  # bytes
OPTIMIZER_STATE_BYTES = {
    "adamw": 2 * FLOAT32_BYTES,
    "sgd": FLOAT32_BYTES,
}  # bytes a parameter: two moments; momentum
PRECISION_BYTES: dict[Precision, int] = {
    "bf16": 2,
    "fp32": FLOAT32_BYTES,
}  # of a value between two products
USABLE_MEMORY_SHARE = (
    0.9  # of a device's memory: the driver, the libraries and fragments take the rest
)
MAX_MICRO_BATCH = 2**20  # on one device at a time


@dataclass(frozen=True)
class OptimizerSpec:
    """What an optimizer keeps for each parameter."""

    optimizer: OptimizerName
    average: bool  # a running average of the weights
    precision: Precision

    @property
    def checkpoint_bytes(self) -> int:
        """On disk, for one parameter: the weight, the state, the average."""
        return FLOAT32_BYTES + OPTIMIZER_STATE_BYTES[self.optimizer] + FLOAT32_BYTES * self.average


@dataclass(frozen=True)
class ParallelLayout:
    """How a training is laid out over devices."""

    devices: int
    parallel: Parallel
    checkpointing: bool  # of activations

    @property
    def shares(self) -> int:
        """Number of parts that weights, gradients and state are cut into."""
        return self.devices if self.parallel == "fsdp" else 1


@dataclass(frozen=True)
class MemoryFootprint:
    """Bytes on one device; only the activations grow with the images at a time."""

    weights: int
    gradients: int
    buckets: int
    state: int
    average: int
    at_work: Callable[[int], int]  # images at a time -> activations, and weights next to the stored

    @property
    def weights_at_work(self) -> int:
        """Weights in the form that they are multiplied in: copied, gathered or standardised."""
        return self.at_work(0)

    def activations(self, images: int) -> int:
        """Bytes for N images at a time."""
        return self.at_work(images) - self.at_work(0)

    def total(self, images: int) -> int:
        """Bytes of all parts, with N images at a time."""
        held = self.weights + self.gradients + self.buckets + self.state + self.average
        return held + self.at_work(images)

    def most_images(self, memory: int) -> int:
        """The most images at a time that fit into `memory` bytes; 0 where not even one does."""
        return bisect_right(
            range(1, MAX_MICRO_BATCH + 1), USABLE_MEMORY_SHARE * memory, key=self.total
        )


@dataclass(frozen=True)
class LayerParts:
    """Parts that are gathered and checkpointed together, or a part to which neither is done."""

    parts: tuple[PartCost, ...]
    input: int | None = None  # values of one image that enter; None: neither is done

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def rounded(self) -> bool:
        """Whether FSDP gathers it in the precision of the products: a ViT's block."""
        return self.input is not None and not any(part.standardised for part in self.parts)


def estimate_memory_footprint(
    config: ModelConfig, layout: ParallelLayout, update: OptimizerSpec
) -> MemoryFootprint:
    """Estimate what a device holds at the fullest moment of a step."""
    layers = list(group_layer_parts(config))
    held = -(-sum(layer.parameters for layer in layers) // layout.shares)
    several_copies = layout.devices > 1 and layout.parallel == "ddp"
    return MemoryFootprint(
        weights=held * FLOAT32_BYTES,
        gradients=held * FLOAT32_BYTES,
        # torch's default, gradient_as_bucket_view=False: a second copy of all gradients
        buckets=held * FLOAT32_BYTES if several_copies else 0,
        state=held * OPTIMIZER_STATE_BYTES[update.optimizer],
        average=held * FLOAT32_BYTES * update.average,
        at_work=lambda images: estimate_step_bytes(
            layers, images, layout, PRECISION_BYTES[update.precision]
        ),
    )


def estimate_step_bytes(
    layers: Sequence[LayerParts], images: int, layout: ParallelLayout, bytes_per_value: int
) -> int:
    """Estimate the bytes of a step: activations, and weights in other forms than stored."""
    whole = 0
    if layout.parallel == "fsdp":
        whole = estimate_gathered_bytes(layers, bytes_per_value)
        layers = [drop_weight_copies(layer) if layer.rounded else layer for layer in layers]
    if layout.checkpointing:
        return whole + estimate_checkpointed_bytes(layers, images, bytes_per_value)
    every = [part for layer in layers for part in layer.parts]
    return whole + estimate_peak_bytes(every, images, bytes_per_value)


def estimate_gathered_bytes(layers: Sequence[LayerParts], bytes_per_value: int) -> int:
    """Bytes that FSDP holds whole at a time, beyond a device's share (training/engine/parallel.py).

    A layer's weights and its gradients, and the weights of the next one, ahead of time; what is in
    no layer stays gathered in float32, weights and gradients.
    """
    sizes = [
        layer.parameters * (bytes_per_value if layer.rounded else FLOAT32_BYTES)
        for layer in layers
        if layer.input
    ]
    outside = sum(layer.parameters for layer in layers if not layer.input)
    return 3 * max(sizes, default=0) + 2 * outside * FLOAT32_BYTES


def drop_weight_copies(layer: LayerParts) -> LayerParts:
    """Leave out the copies of weights that are gathered in the type of the products."""
    return replace(layer, parts=tuple(replace(part, parameters=0) for part in layer.parts))


def estimate_checkpointed_bytes(
    layers: Sequence[LayerParts], images: int, bytes_per_value: int
) -> int:
    """Bytes of a step in which layers keep their inputs, in float32, and one at a time is at work.

    Autocast remembers its copies of weights until the forward pass ends, except standardised
    weights; with few images at a time that is the fullest moment.
    """
    held = peak = copies = 0
    for layer in layers:
        inside = estimate_peak_bytes(layer.parts, images, bytes_per_value)
        if layer.input is None:
            held += inside
            peak = max(peak, held)
            continue
        held += images * layer.input * FLOAT32_BYTES
        peak = max(peak, held + inside)
        standardised = any(part.standardised for part in layer.parts)
        if bytes_per_value < FLOAT32_BYTES and not standardised:
            copies += layer.parameters * bytes_per_value
    return max(peak, held + copies)


def group_layer_parts(config: ModelConfig) -> Iterator[LayerParts]:
    """The parts of a model in order, those of a block together."""
    rest = iter(list_part_costs(config))
    if isinstance(config.trunk, ConvStemConfig):
        for _ in config.trunk.layer_channels:
            yield LayerParts((next(rest),))
    elif config.trunk:
        yield LayerParts((next(rest),))  # root
        for values in count_unit_inputs(config):
            yield LayerParts((next(rest),), values)
    if isinstance(config, ViTConfig):
        yield LayerParts((next(rest),))  # embedding
        yield LayerParts((next(rest),))  # positions
        for _ in range(config.layers):
            yield LayerParts((next(rest), next(rest)), config.tokens * config.width)  # mixer, MLP
    for part in rest:
        yield LayerParts((part,))


def count_unit_inputs(config: ModelConfig) -> Iterator[int]:
    """Values of one image that enter each residual unit of the trunk."""
    if not isinstance(config.trunk, TrunkConfig):
        return
    if config.trunk.form == "plain":
        for stage, units in enumerate(config.trunk.units):
            for unit in range(units):  # the first halves the sides and doubles the channels
                halvings = stage + 1 + (unit > 0)
                rows, columns = (-(-side // 2**halvings) for side in config.image_size)
                yield config.trunk.root_channels * 2 ** (halvings - 1) * rows * columns
        return
    channels, stride = config.trunk.root_channels, 4
    for stage, units in enumerate(config.trunk.units):
        for _ in range(units):
            rows, columns = (-(-side // stride) for side in config.image_size)
            yield channels * rows * columns
            channels, stride = (
                BOTTLENECK_EXPANSION * config.trunk.root_channels * 2**stage,
                4 * 2**stage,
            )


FREE_MEMORY_SHARE = 0.5  # of the memory that is free before training; the rest is for all else


def choose_micro_batch(
    config: ModelConfig, batch: int, device: Device, asked: str | int, checkpointing: bool = False
) -> int:
    """Images per part: the batch over `asked` parts, or what half of the free memory holds.

    The parts are equal, except the last. `batch` is one process's share; all processes take as
    many images as the one with the least memory can.
    """
    if asked != "auto":
        return -(-batch // min(int(asked), batch))
    bytes_per_value = 2 if device.bf16 else 4
    budget = FREE_MEMORY_SHARE * free_memory(device.torch_device)
    if device.type == "cpu":  # the processes of this machine have one memory
        budget /= get_world().local_size
    layers = list(group_layer_parts(config))

    def needed(images: int) -> int:
        if checkpointing:
            return estimate_checkpointed_bytes(layers, images, bytes_per_value)
        return estimate_activation_bytes(config, images, None, bytes_per_value)

    micro = batch
    while micro > 1 and needed(micro) > budget:
        micro = (micro + 1) // 2
    # The batch over a power of 2, rounded up: the number of parts gives it back.
    return min(images for (images,) in all_gather_integers([micro]))
