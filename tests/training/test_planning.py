"""The plan's arithmetic against the paper's own numbers, real modules and measured memory."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as again

from memory_peak import measured_peak
from patchwords.errors import ConfigError
from patchwords.models.build import build_model
from patchwords.models.config import ModelConfig
from patchwords.models.cost import count_parameters, estimate_activation_bytes
from patchwords.models.resnet.config import BIT_TRUNK, ResNetConfig, TrunkConfig
from patchwords.models.zoo import create_model, resolve_model
from patchwords.planning.estimate import (
    GIB,
    HardwareSetup,
    TrainingWorkload,
    estimate_decoding_cores,
    estimate_time,
    find_fitting_layout,
    fit_in_memory,
    list_layouts,
)
from patchwords.planning.hardware import (
    HARDWARE,
    choose_hardware_precision,
    find_hardware,
    get_peak_flops,
)
from patchwords.planning.memory import (
    USABLE_MEMORY_SHARE,
    OptimizerSpec,
    ParallelLayout,
    count_unit_inputs,
    estimate_gathered_bytes,
    estimate_memory_footprint,
    group_layer_parts,
)
from patchwords.training.engine import checkpoint
from patchwords.training.engine.ema import EMA

JFT = 303_000_000
ADAMW = OptimizerSpec("adamw", average=False, precision="fp32")
MIXED = replace(ADAMW, precision="bf16")
ALONE = ParallelLayout(devices=1, parallel="ddp", checkpointing=False)
TINY_RESNET = ResNetConfig(
    replace(BIT_TRUNK, units=(2, 1, 1, 2)), image_size=(40, 56), num_classes=7
)

SHAPES: dict[str, ModelConfig] = {
    "ViT": resolve_model("mu/16").config.with_settings(depth=3, num_classes=7),
    "positions at every layer": resolve_model("mu/16").config.with_settings(
        depth=3, position_at="every", classifier="map"
    ),
    "axial": resolve_model("mu/16").config.with_settings(depth=2, mixer="axial"),
    "hybrid": resolve_model("mu/16").config.with_settings(
        depth=2, patch_size=1, trunk=TrunkConfig(units=(1, 2)), image_size=(40, 56)
    ),
    "ResNet": TINY_RESNET,
}


def training(
    name: str = "H/14", epochs: float = 14, update: OptimizerSpec = MIXED
) -> TrainingWorkload:
    return TrainingWorkload(resolve_model(name).config, JFT, epochs, batch=4096, update=update)


def machine(gpu: str = "h100", devices: int = 64, **layout: Any) -> HardwareSetup:
    spread = ParallelLayout(
        devices, layout.get("parallel", "ddp"), layout.get("checkpointing", False)
    )
    return HardwareSetup(HARDWARE[gpu], spread, utilisation=0.4)


# Table 6. B/32 is 2 % off by any count of its multiplications, the others agree in every digit.
@pytest.mark.parametrize(
    ("name", "epochs", "exaflops", "within"),
    [
        ("B/32", 7, 55, 0.021),
        ("B/16", 7, 224, 0.003),
        ("L/32", 7, 196, 0.003),
        ("L/16", 7, 783, 0.001),
        ("L/16", 14, 1567, 0.001),
        ("H/14", 14, 4262, 0.001),
    ],
)
def test_compute_is_that_of_table_6(
    name: str, epochs: float, exaflops: float, within: float
) -> None:
    assert training(name, epochs).flops() / 1e18 == pytest.approx(exaflops, rel=within)


# Table 2 has the core-days, Table 6 the exaFLOPs: 4262e18 / (2500 x 86400 x 61.5e12) = 0.321.
@pytest.mark.parametrize(
    ("name", "core_days", "reached"), [("H/14", 2500, 0.3205), ("L/16", 680, 0.4337)]
)
def test_the_papers_core_days_are_a_plausible_utilisation(
    name: str, core_days: float, reached: float
) -> None:
    wanted = training(name)
    cores = machine("tpu-v3", devices=512)
    speed = wanted.seen / (core_days * 86_400)  # images a second on one core
    found = estimate_time(wanted, replace(cores, measured=speed))
    assert found.utilisation == pytest.approx(reached, rel=2e-3)
    assert found.device_days == pytest.approx(core_days)
    # and the other way round
    assumed = estimate_time(wanted, replace(cores, utilisation=reached))
    assert assumed.device_days == pytest.approx(core_days, rel=2e-3)
    assert assumed.seconds == pytest.approx(core_days * 86_400 / 512, rel=2e-3)


def test_steps_and_images_seen() -> None:
    jft = training()
    assert (jft.seen, jft.steps) == (4_242_000_000, 1_035_645)
    assert replace(jft, images=4097, epochs=1).steps == 2
    assert replace(jft, images=4096, epochs=1).steps == 1
    assert replace(jft, images=1001, epochs=0.5).seen == 500


def test_checkpointing_costs_one_more_forward_pass() -> None:
    plain = estimate_time(training(), machine())
    slower = estimate_time(training(), machine(checkpointing=True))
    assert slower.seconds / plain.seconds == pytest.approx(8 / 6)
    assert slower.device_days == pytest.approx(64 * slower.seconds / 86_400)


def test_a_measured_speed_needs_no_hardware() -> None:
    measured = HardwareSetup(None, ParallelLayout(3, "ddp", False), 0.4, measured=7.0)
    found = estimate_time(training(), measured)
    assert found.images_per_second == pytest.approx(21)
    assert found.seconds == pytest.approx(4_242_000_000 / 21)
    assert found.utilisation is None


@pytest.mark.parametrize("gpu", HARDWARE)
def test_every_hardware_has_a_source_and_dense_peaks(gpu: str) -> None:
    row = HARDWARE[gpu]
    assert "https://" in row.source
    assert find_hardware(gpu.upper()) is row
    assert row.bf16 or row.fp32
    if row.bf16 and row.fp32:
        assert 1.9 < row.bf16 / row.fp32 < 31  # with sparsity the largest would be 60


def test_names_that_leave_something_open_mean_the_usual_card() -> None:
    assert find_hardware("A100") is HARDWARE["a100-80gb"]
    assert find_hardware("v100") is HARDWARE["v100-32gb"]
    assert find_hardware("RTX 4090") is HARDWARE["4090"]


def test_hardware_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        find_hardware("h1000")
    with pytest.raises(ConfigError, match=r"choose from b200, h200, .*tpu-v3"):
        find_hardware("?")
    with pytest.raises(ConfigError, match="give --measured"):
        find_hardware("cpu")


def test_precision_is_that_of_the_hardware() -> None:
    assert choose_hardware_precision(HARDWARE["4090"], "auto") == "bf16"
    assert choose_hardware_precision(HARDWARE["t4"], "auto") == "fp32"
    assert choose_hardware_precision(None, "auto") == "fp32"
    with pytest.raises(ConfigError, match="has no bf16"):
        choose_hardware_precision(HARDWARE["v100-16gb"], "bf16")
    assert get_peak_flops(HARDWARE["a100-40gb"], "fp32") == 19.5e12
    with pytest.raises(ConfigError, match="no such peak of TPU v3 core"):
        get_peak_flops(HARDWARE["tpu-v3"], "fp32")


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def size(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_weights_gradients_and_state_are_those_of_torch(optimizer: str, tmp_path: Path) -> None:
    model = create_model("mu/16", num_classes=7)
    update = OptimizerSpec(optimizer, average=True, precision="fp32")  # type: ignore[arg-type]
    learner: torch.optim.Optimizer = torch.optim.AdamW(model.parameters())
    if optimizer == "sgd":
        learner = torch.optim.SGD(model.parameters(), momentum=0.9)
    step(model, learner)
    average = EMA(model, 0.9).weights
    state = [v for one in learner.state.values() for v in one.values() if v.ndim > 0]
    found = estimate_memory_footprint(model.config, ALONE, update)
    assert found.weights == size(model.parameters())
    assert found.gradients == size(p.grad for p in model.parameters())
    assert found.state == size(state)
    assert found.average == size(average.values())
    assert found.buckets == 0
    saved = {"model": model.state_dict(), "optimizer": learner.state_dict(), "average": average}
    file = checkpoint.save_checkpoint(tmp_path, 1, saved) / "state.pt"
    planned = TrainingWorkload(model.config, 7, 1, 1, update).checkpoint_bytes
    # Beside the numbers a file has their names and a page of headers for each of 18 x 4 tensors.
    assert planned < file.stat().st_size < planned + 100_000


def test_ddp_keeps_a_second_copy_of_the_gradients() -> None:
    default = inspect.signature(DistributedDataParallel.__init__).parameters
    assert default["gradient_as_bucket_view"].default is False
    found = estimate_memory_footprint(SHAPES["ViT"], ParallelLayout(2, "ddp", False), ADAMW)
    assert found.buckets == found.gradients


def test_fsdp_shares_everything_out() -> None:
    config = SHAPES["ViT"]
    found = estimate_memory_footprint(
        config, ParallelLayout(5, "fsdp", False), replace(ADAMW, average=True)
    )
    share = 4 * -(-count_parameters(config) // 5)
    assert (found.weights, found.gradients, found.average) == (share, share, share)
    assert (found.state, found.buckets) == (2 * share, 0)


def real_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that are gathered and checkpointed: residual units, then blocks."""
    trunk = getattr(model, "trunk", None)
    units = [unit for stage in trunk.stages for unit in stage] if trunk else []
    encoder = getattr(model, "encoder", None)
    return [*units, *(encoder.blocks if encoder else [])]


@pytest.mark.parametrize("shape", SHAPES)
def test_layers_are_the_modules(shape: str) -> None:
    config = SHAPES[shape]
    with torch.device("meta"):
        model = build_model(config)
    real = [sum(p.numel() for p in layer.parameters()) for layer in real_layers(model)]
    found = list(group_layer_parts(config))
    assert [layer.parameters for layer in found if layer.input] == real
    assert sum(layer.parameters for layer in found) == count_parameters(config)
    # A layer, its gradients, the next layer, and what is in no layer with its gradients.
    outside = count_parameters(config) - sum(real)
    assert estimate_gathered_bytes(found, 4) == 4 * (3 * max(real) + 2 * outside)
    # Blocks alone are gathered in the type of the products.
    blocks = [layer.parameters for layer in found if layer.rounded]
    units = [layer.parameters for layer in found if layer.input and not layer.rounded]
    largest = max(2 * max(blocks, default=0), 4 * max(units, default=0))
    assert estimate_gathered_bytes(found, 2) == 3 * largest + 4 * 2 * outside
    assert len(units) == (len(list(count_unit_inputs(config))) if config.trunk else 0)


@pytest.mark.parametrize("shape", ["ViT", "axial"])
def test_fsdp_gathers_one_layer_in_the_precision_of_the_products(shape: str) -> None:
    found = list(group_layer_parts(SHAPES[shape]))
    outside = sum(layer.parameters for layer in found if not layer.input)
    for checkpointing in (False, True):
        layout = ParallelLayout(5, "fsdp", checkpointing)
        assert estimate_memory_footprint(
            SHAPES[shape], layout, ADAMW
        ).weights_at_work == estimate_gathered_bytes(found, 4)
        # Autocast copies what was gathered in float32.
        expected = estimate_gathered_bytes(found, 2) + 2 * outside
        assert estimate_memory_footprint(SHAPES[shape], layout, MIXED).weights_at_work == expected


@pytest.mark.parametrize("shape", ["hybrid", "ResNet"])
def test_what_enters_a_unit(shape: str) -> None:
    model = build_model(SHAPES[shape])
    seen: list[int] = []
    for unit in model.trunk.units():  # type: ignore[union-attr]
        unit.register_forward_pre_hook(lambda _, given: seen.append(given[0].numel()))
    with torch.no_grad():
        model(torch.zeros(1, 3, *SHAPES[shape].image_size))
    assert list(count_unit_inputs(SHAPES[shape])) == seen


class Checkpointed(nn.Module):
    """A layer that keeps its input only."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: Any) -> Tensor:
        return again(self.layer, *given, use_reentrant=False)  # type: ignore[no-any-return]


def checkpoint_layers(model: nn.Module) -> None:
    trunk, encoder = getattr(model, "trunk", None), getattr(model, "encoder", None)
    for row in [*(trunk.stages if trunk else []), *([encoder.blocks] if encoder else [])]:
        for place, layer in enumerate(row):
            row[place] = Checkpointed(layer)


MEASURED: dict[str, ModelConfig] = {
    "ViT": resolve_model("Ti/4").config.with_settings(depth=5, num_classes=7, image_size=40),
    "few tokens": resolve_model("Ti/4").config.with_settings(depth=6, num_classes=7, image_size=16),
    "ResNet": ResNetConfig(replace(BIT_TRUNK, units=(2, 2, 1)), image_size=(64, 64), num_classes=7),
}


# A ResNet only in float32: a CPU computes GroupNorm in bf16 where a GPU keeps it in float32.
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("shape", "mixed"),
    [("ViT", False), ("ViT", True), ("few tokens", False), ("few tokens", True), ("ResNet", False)],
)
def test_what_a_step_needs_is_near_the_measured_peak(
    shape: str, mixed: bool, checkpointing: bool
) -> None:
    config = MEASURED[shape]
    torch.manual_seed(0)
    model = build_model(config)
    if checkpointing:
        checkpoint_layers(model)
    peak = measured_peak(model.train(), torch.randn(3, 3, *config.image_size), mixed)
    layout = replace(ALONE, checkpointing=checkpointing)
    found = estimate_memory_footprint(config, layout, MIXED if mixed else ADAMW).at_work(3)
    # 30 %: allocators and kernels differ between versions; here they are within 23 %.
    assert found == pytest.approx(peak, rel=0.3)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_kept_is_what_the_trainer_reckons_with(shape: str) -> None:
    found = estimate_memory_footprint(SHAPES[shape], ALONE, MIXED)
    assert found.at_work(5) == estimate_activation_bytes(SHAPES[shape], 5, None, 2)
    assert found.weights_at_work + found.activations(5) == found.at_work(5)
    held = found.weights + found.gradients + found.state
    assert found.total(5) == held + found.at_work(5)


@pytest.mark.parametrize("gpu", ["t4", "h200"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", list_layouts(ParallelLayout(8, "ddp", False)), ids=str)
def test_one_image_more_than_the_most_does_not_fit(
    gpu: str, shape: str, layout: ParallelLayout
) -> None:
    memory = HARDWARE[gpu].memory * GIB
    found = estimate_memory_footprint(SHAPES[shape], layout, ADAMW)
    most = found.most_images(memory)
    assert found.total(most) <= USABLE_MEMORY_SHARE * memory < found.total(most + 1)


def test_a_batch_is_cut_into_equal_parts() -> None:
    found = fit_in_memory(training("L/16"), machine("4090", devices=3))
    assert found.most_images is not None
    assert found.fits
    assert found.micro_batch <= found.most_images
    share = -(-4096 // 3)
    assert (found.parts - 1) * found.micro_batch < share <= found.parts * found.micro_batch
    assert found.micro_batch == -(-share // found.parts)
    # One part less would not fit.
    assert -(-share // (found.parts - 1)) > found.most_images
    asked = fit_in_memory(training("L/16"), machine("4090", devices=3), micro_batch=7)
    assert (asked.micro_batch, asked.parts) == (7, 196)
    most = found.most_images
    assert fit_in_memory(training("L/16"), machine("4090", devices=3), micro_batch=most).fits
    assert not fit_in_memory(
        training("L/16"), machine("4090", devices=3), micro_batch=most + 1
    ).fits


def test_what_would_fit_fits_and_is_the_least_change() -> None:
    giant = training("G/14")
    alone = machine("4090", devices=1)
    assert not fit_in_memory(giant, alone).fits
    found = find_fitting_layout(giant, alone, None)
    assert found is not None
    assert found.parallel == "fsdp"
    assert fit_in_memory(giant, replace(alone, layout=found)).fits
    fewer = ParallelLayout(found.devices // 2, "fsdp", True)
    assert not fit_in_memory(giant, replace(alone, layout=fewer)).fits
    impossible = replace(giant, config=giant.config.with_settings(image_size=14 * 585))
    assert find_fitting_layout(impossible, machine("t4"), None) is None


def test_without_hardware_nothing_is_said_of_fitting() -> None:
    found = fit_in_memory(training(), HardwareSetup(None, ALONE, 0.4, measured=1.0))
    assert (found.fits, found.most_images, found.micro_batch) == (None, None, 1)


def test_cores_to_decode() -> None:
    assert estimate_decoding_cores(1001) == (2, 3)
    assert estimate_decoding_cores(3) == (1, 1)
