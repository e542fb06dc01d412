"""Optimizers and their parameter groups: frozen layers, layer decay, weight decay.

Exactly one weight-decay rule matches the name of a parameter, or building the optimizer fails: a
new kind of parameter cannot be missed (as in big_vision's optax.py). Decay is decoupled and falls
on kernels only (big_vision optax.py; AugReg, section 3.3), never on biases, norms, the class token
or position embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from patchwords.errors import ConfigError
from patchwords.models.build import ModelConfig
from patchwords.models.resnet.config import ResNetConfig
from patchwords.models.resnet.trunk import TrunkBatchNorm
from patchwords.training.config import parse_lora_rank, parse_train_layers
from patchwords.training.engine.lora import LoRALinear
from patchwords.training.engine.parallel import is_sharded
from patchwords.training.plan import TrainingPlan

NORMS = (nn.LayerNorm, nn.GroupNorm, TrunkBatchNorm)
WEIGHT_DECAY_RULES = {  # pattern of full parameter names -> whether weight decay falls on them
    r"trunk\.(.+\.)?(conv\d?|shortcut)\.weight": True,
    r"trunk\.layers\.\d+\.weight": True,
    r"trunk\.(.+\.)?(shortcut_)?norm\d?\.(weight|bias)": False,
    r"trunk\.(.+\.)?(rows|columns)\.qkv\.weight": True,
    r"trunk\.(.+\.)?(rows|columns)\.(qkv\.bias|relative)": False,
    r"(pre_)?norm\.(weight|bias)": False,  # a ResNet's last; CLIP's first
    r"embed\.weight": True,
    r"embed\.bias": False,
    r"class_token|distillation_token|registers|positions\.\w+": False,
    r"encoder\.blocks\.\d+\.layer_scale[12]": False,
    r"encoder\.(.+[._])?norm\d?\.(weight|bias)": False,
    r"encoder\.blocks\.\d+\.mlp\.\w+\.weight": True,
    r"encoder\.blocks\.\d+\.mlp\.\w+\.bias": False,
    r"encoder\.blocks\.\d+\.mlp\.\w+\.(base|down|up)": False,  # of LoRA
    r"encoder\.blocks\.\d+\.attention\.(.+\.)?(?<!norm\.)(?<!norm\d\.)weight": True,  # of any mixer
    r"encoder\.blocks\.\d+\.attention\.(.+\.)?(?<!norm\.)(?<!norm\d\.)(?!weight$)\w+": False,
    r"head\.pool\.probe": False,
    r"head\.pool\.norm\.(weight|bias)": False,
    r"head\.pool\.(?!norm)(\w+\.)*\w+\.weight": True,
    r"head\.pool\.(?!norm)(\w+\.)*\w+\.bias": False,
    r"head\.norm\.(weight|bias)": False,
    r"head\.(representation|linear|distillation)\.weight": True,
    r"head\.(representation|linear|distillation)\.bias": False,
    r"mask_token": False,
    r"prediction\.weight": True,
    r"prediction\.bias": False,
}


def has_weight_decay(name: str, more_rules: Mapping[str, bool] | None = None) -> bool:
    """Return whether weight decay falls on a parameter; raises unless one rule matches."""
    rules = {**WEIGHT_DECAY_RULES, **(more_rules or {})}
    matches = [decay for pattern, decay in rules.items() if re.fullmatch(pattern, name)]
    if len(matches) != 1:
        raise ConfigError(
            f"parameter {name!r} is matched by {len(matches)} weight-decay rules, not by one; "
            "see WEIGHT_DECAY_RULES in training/engine/optimizer.py, and an objective's own"
        )
    return matches[0]


def find_layer_index(name: str, config: ModelConfig) -> int:
    """Return the index of the layer that a parameter belongs to.

    0 is everything before the first layer: the patch embedding with class token and positions, a
    ResNet's root, the convolutions of a hybrid. 1 to `config.layers` are blocks or residual units;
    everything after the last of them is `config.layers` + 1.
    """
    if block := re.match(r"encoder\.blocks\.(\d+)\.", name):
        return int(block.group(1)) + 1
    unit = re.match(r"trunk\.stages\.(\d+)\.(\d+)\.", name)
    if unit and isinstance(config, ResNetConfig):
        stage, position = int(unit.group(1)), int(unit.group(2))
        return sum(config.trunk.units[:stage]) + position + 1
    before = (
        *("trunk.", "embed.", "class_token", "distillation_token", "registers"),
        *("positions.", "pre_norm.", "mask_token"),
    )
    return 0 if name.startswith(before) else config.layers + 1


def freeze_layers(model: nn.Module, train: str, config: ModelConfig) -> None:
    """Freeze all weights except those of `--train`: all, or the head and a part of the others.

    Parameters that are frozen already stay frozen.
    """
    trained, layers = parse_train_layers(train), config.layers
    chosen = list_chosen_parameters(model, train)
    if trained is not None and trained > layers:
        unit = "residual units" if isinstance(config, ResNetConfig) else "blocks"
        raise ConfigError(f"--train {train}: the model has {layers} {unit}")
    for name, parameter in iterate_named_parameters(model):
        layer = find_layer_index(name, config)
        after = name.startswith(("head.", "decoder.")) or (trained != 0 and layer == layers + 1)
        if trained is None:
            learns = chosen is None or after or id(parameter) in chosen
        else:
            learns = after or layers - trained < layer <= layers
        parameter.requires_grad_(learns and parameter.requires_grad)


def list_chosen_parameters(model: nn.Module, train: str) -> set[int] | None:
    """List the ids of the parameters that `norms` or `lora:R` names; None for another --train."""
    if train == "norms":
        norms = (module for module in model.modules() if isinstance(module, NORMS))
        return {id(parameter) for norm in norms for parameter in norm.parameters()}
    if parse_lora_rank(train) is not None:
        updates = (module for module in model.modules() if isinstance(module, LoRALinear))
        return {id(parameter) for update in updates for parameter in (update.down, update.up)}
    return None


def describe_trained_share(model: nn.Module) -> str:
    """Describe how many of the parameters learn."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    learning, total = sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)
    return f"{learning:,} of {total:,} parameters learn ({learning / total:.2%})"


def iterate_named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield parameters by name; those of a model inside a learner keep the model's own names."""
    for name, parameter in model.named_parameters():
        yield name.removeprefix("vit.").removeprefix("backbone."), parameter


def build_optimizer(
    model: nn.Module,
    plan: TrainingPlan,
    config: ModelConfig,
    layer_decay: float = 1.0,
    more_rules: Mapping[str, bool] | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """Build SGD with momentum 0.9 (Table 4) or Adam with decoupled decay (Table 3).

    Each parameter group carries `scale`, its factor on the learning rate by `--layer-decay`.
    `more_rules` are the weight-decay rules of the objective's own parameters, `betas` those of
    Adam.
    """
    groups: dict[tuple[bool, int], list[nn.Parameter]] = {}
    for name, parameter in iterate_named_parameters(model):
        decay = has_weight_decay(name, more_rules)  # the rules cover frozen parameters, too
        if parameter.requires_grad:
            groups.setdefault((decay, find_layer_index(name, config)), []).append(parameter)
    settings = [
        {
            "params": parameters,
            "weight_decay": plan.weight_decay if decay else 0.0,
            "scale": layer_decay ** (config.layers + 1 - layer),
        }
        for (decay, layer), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]
    if layer_decay == 1.0:
        settings = merge_param_groups(settings)
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(settings, lr=plan.lr, betas=betas, fused=True)
    fused = not is_sharded(model)  # torch's fused SGD does not take sharded tensors
    return DecoupledSGD(settings, lr=plan.lr, momentum=0.9, fused=fused)


def merge_param_groups(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge groups of equal weight decay: fewer groups make larger fused updates."""
    merged: dict[float, dict[str, Any]] = {}
    for group in settings:
        target = merged.setdefault(group["weight_decay"], {**group, "params": []})
        target["params"] += group["params"]
    return list(merged.values())


class DecoupledSGD(torch.optim.SGD):
    """SGD with decoupled weight decay: it shrinks the weights and leaves the gradient alone.

    torch's own `weight_decay` would pass through the momentum, which is another method.
    """

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[no-untyped-def]
        decay = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            if group["weight_decay"]:
                shrink = 1.0 - group["lr"] * group["weight_decay"]
                torch._foreach_mul_([p for p in group["params"] if p.grad is not None], shrink)
            group["weight_decay"] = 0.0
        try:
            return super().step(closure)
        finally:
            for group, value in zip(self.param_groups, decay, strict=True):
                group["weight_decay"] = value
