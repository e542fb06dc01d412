"""Configs to models, and saved tables to configs, for both families: ViT and ResNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.models.checks import check_choice
from patchwords.models.config import ModelConfig, ViTConfig
from patchwords.models.resnet.config import ResNetConfig
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.vit import ViT

Model = ViT | ResNet

__all__ = [
    "CONFIG_CLASSES",
    "Model",
    "ModelConfig",
    "build_model",
    "config_from_dict",
    "config_to_dict",
    "get_model_family",
]

CONFIG_CLASSES: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig}


def build_model(config: ModelConfig) -> Model:
    """Build the model of a config; its weights are not initialised."""
    return ViT(config) if isinstance(config, ViTConfig) else ResNet(config)


def get_model_family(config: ModelConfig) -> str:
    """The key of CONFIG_CLASSES: "vit" (also for hybrids) or "resnet"."""
    return next(name for name, kind in CONFIG_CLASSES.items() if isinstance(config, kind))


def config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """Turn a config into plain values, the family first; `config_from_dict` reads them."""
    return {"family": get_model_family(config), **config.to_dict()}


def config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """Read a config from `config_to_dict`; default family: ViT. Raises ConfigError."""
    settings = dict(values)
    family = settings.pop("family", "vit")
    check_choice("family", family, tuple(CONFIG_CLASSES))
    return CONFIG_CLASSES[family].from_dict(settings)
