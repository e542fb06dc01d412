"""Every number of a plan in one table, which is what `--json` prints: the unit is in each name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchwords.model.cost import count_macs, count_parameters
from patchwords.model.variants import resolve_model
from patchwords.train.footprint import USABLE_MEMORY_SHARE
from patchwords.train.hardware import get_peak_flops
from patchwords.train.planning import (
    GIB,
    JPEGS_PER_CORE_SECOND,
    HardwareSetup,
    MemoryFit,
    TrainingWorkload,
    estimate_decoding_cores,
    estimate_time,
    find_fitting_layout,
    fit_in_memory,
    list_layouts,
)

if TYPE_CHECKING:
    from patchwords.commands.plan import PlanCommand


def estimate_plan(
    config: PlanCommand, training: TrainingWorkload, machine: HardwareSetup
) -> dict[str, Any]:
    """The whole plan; raises ConfigError where the hardware has no peak in this precision."""
    return {
        "model": resolve_model(config.model).name,
        **_work(training, machine),
        **_hardware(training, machine),
        **_time(config, training, machine),
        **_memory(training, machine, config.micro_batch),
    }


def _work(training: TrainingWorkload, machine: HardwareSetup) -> dict[str, Any]:
    shape = training.config
    return {
        "image_size": list(shape.image_size),
        "sees": shape.summary,
        "parameters": count_parameters(shape),
        "macs_per_image": count_macs(shape),
        "images": training.images,
        "epochs": training.epochs,
        "images_seen": training.seen,
        "batch_size": training.batch,
        "steps": training.steps,
        "training_exaflops": training.flops() / 1e18,
        "computed_exaflops": training.flops(machine.layout.checkpointing) / 1e18,
        "checkpoint_gb": training.checkpoint_bytes / 1e9,
    }


def _hardware(training: TrainingWorkload, machine: HardwareSetup) -> dict[str, Any]:
    hardware, precision = machine.hardware, training.update.precision
    return {
        "devices": machine.layout.devices,
        "hardware": hardware and hardware.name,
        "hardware_memory_gib": hardware and hardware.memory,
        "hardware_usable_bytes": hardware and int(USABLE_MEMORY_SHARE * hardware.memory * GIB),
        "hardware_peak_tflops": hardware and get_peak_flops(hardware, precision) / 1e12,
        "hardware_source": hardware and hardware.source,
        "precision": precision,
    }


def _time(
    config: PlanCommand, training: TrainingWorkload, machine: HardwareSetup
) -> dict[str, Any]:
    """How long, and what the data and the money have to be for that."""
    spent = estimate_time(training, machine)
    price = config.price_per_hour
    return {
        "utilisation": spent.utilisation,
        "utilisation_is": "measured" if machine.measured else "assumed",
        "images_per_second": spent.images_per_second,
        "seconds": spent.seconds,
        "days": spent.seconds / 86_400,
        "device_days": spent.device_days,
        "price_per_device_hour": price,
        "price": price and price * spent.device_days * 24,
        "image_kb": config.image_kb,
        "data_gb": training.images * config.image_kb / 1e6,
        "read_mb_per_second": spent.images_per_second * config.image_kb / 1e3,
        "decoded_images_per_second_and_core": list(JPEGS_PER_CORE_SECOND),
        "decoding_cores": list(estimate_decoding_cores(spent.images_per_second)),
    }


def _memory(
    training: TrainingWorkload, machine: HardwareSetup, micro_batch: int | None
) -> dict[str, Any]:
    """The layouts side by side, and, where the one asked for does not fit, one that does."""
    found = {
        layout: fit_in_memory(training, replace(machine, layout=layout), micro_batch)
        for layout in list_layouts(machine.layout)
    }
    would_fit = None
    if found[machine.layout].fits is False:
        would_fit = find_fitting_layout(training, machine, micro_batch)
    return {
        "memory": [_layout(one, layout == machine.layout) for layout, one in found.items()],
        "would_fit": would_fit
        and {
            "devices": would_fit.devices,
            "parallel": would_fit.parallel,
            "checkpoint_activations": would_fit.checkpointing,
        },
    }


def _layout(one: MemoryFit, chosen: bool) -> dict[str, Any]:
    held = one.footprint
    return {
        "parallel": one.layout.parallel if one.layout.devices > 1 else None,
        "checkpoint_activations": one.layout.checkpointing,
        "chosen": chosen,
        "weights_bytes": held.weights,
        "gradients_bytes": held.gradients,
        "buckets_bytes": held.buckets,
        "state_bytes": held.state,
        "average_bytes": held.average,
        "weights_at_work_bytes": held.weights_at_work,
        "activations_bytes": held.activations(one.micro_batch),
        "total_bytes": one.total_bytes,
        "fits": one.fits,
        "most_images": one.most_images,
        "micro_batch": one.micro_batch,
        "parts": one.parts,
    }
