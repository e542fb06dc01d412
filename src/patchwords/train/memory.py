"""How many images of a batch go through the model at once.

The recipe's batch is what the weights see; into how many parts it is cut is the machine's
business. A GPU says when it is full (then `train_step` cuts again), but a process that takes too
much of the main memory is killed without a word, so there the parts are chosen beforehand.
"""

from __future__ import annotations

from patchwords.device import Device, free_memory
from patchwords.distributed import all_gather_integers, get_world
from patchwords.model.cost import estimate_activation_bytes
from patchwords.model.cost import ModelConfig
from patchwords.train.footprint import estimate_checkpointed_bytes, group_layer_parts

FREE_MEMORY_SHARE = 0.5  # of the memory that is free before training; the rest is for all else


def choose_micro_batch(
    config: ModelConfig, batch: int, device: Device, asked: str | int, checkpointing: bool = False
) -> int:
    """Images per part: the batch over `asked` parts, or what half of the free memory holds.

    The parts are equal but for the last, so that the number of parts says it all. `batch` is one
    process's share; all processes take as many images as the one with the least memory can.
    """
    if asked != "auto":
        return -(-batch // min(int(asked), batch))
    bytes_per_value = 2 if device.bf16 else 4
    budget = FREE_MEMORY_SHARE * free_memory(device.torch_device)
    if device.type == "cpu":  # the processes of this machine have one memory
        budget /= get_world().local_size
    found = list(group_layer_parts(config))

    def needed(images: int) -> int:
        if checkpointing:
            return estimate_checkpointed_bytes(found, images, bytes_per_value)
        return estimate_activation_bytes(config, images, None, bytes_per_value)

    micro = batch
    while micro > 1 and needed(micro) > budget:
        micro = (micro + 1) // 2
    # The batch over a power of 2, rounded up: the number of parts gives it back.
    return min(images for (images,) in all_gather_integers([micro]))
