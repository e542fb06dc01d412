"""What a model costs, by arithmetic on its config: parameters, multiplications, memory.

Sources: the paper's equations counted out; the sums meet the published counts of parameters to the
unit. 1 MAC is one multiplication with its addition; FLOPs are 2 MACs. The parts are in
cost_trunk.py, cost_vit.py and cost_mixers.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from patchwords.model.config import ViTConfig
from patchwords.model.cost_part import PartCost, estimate_peak_bytes
from patchwords.model.cost_trunk import grid_area, trunk_part_costs
from patchwords.model.cost_vit import count_unread_macs, vit_part_costs
from patchwords.model.resnet_config import ResNetConfig

ModelConfig = ViTConfig | ResNetConfig
OptionalImageSize = int | Sequence[int] | None

TRAINING_FLOPS_PER_MAC = 6  # of a training step: 2 in the forward pass, and 4 in the backward pass


def count_parameters(config: ModelConfig) -> int:
    """How many numbers the model has."""
    return sum(part.parameters for part in list_part_costs(config))


def count_macs(config: ModelConfig, image_size: OptionalImageSize = None) -> int:
    """Multiplications of one image through the matrices of the model; a training step takes 3x.

    Norms, softmax, GELU, pooling and sums are left out, as is usual: they are below 1 %.
    """
    return sum(part.macs for part in list_part_costs(config, image_size))


def count_forward_macs(config: ModelConfig, image_size: OptionalImageSize = None) -> int:
    """`count_macs` without what `model(images)` leaves out: the last block's tokens that nobody reads.

    Against these a utilisation is measured: work that is not done is not to be counted as done.
    """
    if image_size is not None:
        config = config.with_settings(image_size=image_size)
    unread = count_unread_macs(config) if isinstance(config, ViTConfig) else 0
    return count_macs(config) - unread


def compute_training_flops(macs: int, images: float) -> float:
    """Operations of training on so many images, each counted as often as it is seen.

    Forward 2 for each MAC, backward twice that: it meets the exaFLOPs (1e18) of Table 6.
    """
    return TRAINING_FLOPS_PER_MAC * macs * images


def estimate_activation_bytes(
    config: ModelConfig, batch: int, image_size: OptionalImageSize = None, bytes_per_value: int = 4
) -> int:
    """About the most memory that the activations of one training step take at once.

    Weights, their gradients and the optimizer's state come on top. `bytes_per_value` is 2 in mixed
    precision, where the residual stream of a ViT and all around GroupNorm stay in float32, as
    autocast has it on a GPU, and every weight has a copy. Within 13 % of what torch takes on a
    CPU, and within 6 % for a plain ViT-Ti or S, or a ResNet of 100 pixels and more.
    """
    return estimate_peak_bytes(list_part_costs(config, image_size), batch, bytes_per_value)


def list_part_costs(config: ModelConfig, image_size: OptionalImageSize = None) -> list[PartCost]:
    """The parts of the model in the order of the forward pass."""
    if image_size is not None:
        config = config.with_settings(image_size=image_size)
    if isinstance(config, ViTConfig):
        return list(vit_part_costs(config))
    return [
        *trunk_part_costs(config.trunk, config.channels, config.image_size),
        resnet_head_cost(config),
    ]


def group_part_costs(
    config: ModelConfig, image_size: OptionalImageSize = None
) -> dict[str, list[PartCost]]:
    """The parts under their names, in order: all blocks' attention together, and so on."""
    named: dict[str, list[PartCost]] = {}
    for part in list_part_costs(config, image_size):
        named.setdefault(part.name, []).append(part)
    return named


def resnet_head_cost(config: ResNetConfig) -> PartCost:
    """The classifier; before it the last GroupNorm where norms stand before convolutions."""
    channels, post = config.trunk.channels, config.trunk.form == "post"
    classifier = config.num_classes * channels
    return PartCost(
        "head",
        parameters=classifier + config.num_classes + (0 if post else 2 * channels),
        macs=classifier,
        float32=0 if post else grid_area(config.grid) * channels,
    )
