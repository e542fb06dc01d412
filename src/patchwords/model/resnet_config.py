"""What a ResNet (BiT) is made of: the paper's baseline (Sec. 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from patchwords.errors import ConfigError
from patchwords.model.checks import check_count, check_known_settings, check_number, to_height_width
from patchwords.model.trunk_config import BIT_TRUNK, TRUNK_SETTINGS, TrunkConfig


@dataclass(frozen=True)
class ResNetConfig:
    """The shape and the numerics of a ResNet; it is checked when made, and goes through JSON."""

    trunk: TrunkConfig = BIT_TRUNK
    image_size: tuple[int, int] = (224, 224)  # (H, W) that it is meant for; it takes any
    channels: int = 3  # C of the image
    num_classes: int = 1000
    head_bias: float = 0.0  # initial value of the classifier's bias

    def __post_init__(self) -> None:
        for name in ("channels", "num_classes"):
            check_count(name, getattr(self, name))
        check_number("head_bias", self.head_bias)
        if not self.trunk.units:
            raise ConfigError("units () is a root without stages: only a hybrid can have that")
        object.__setattr__(self, "image_size", to_height_width(self.image_size))

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the last feature map at `image_size`."""
        return self.trunk.grid(self.image_size)

    @property
    def layers(self) -> int:
        """Residual units: what `--train last:N` and layer-wise decay count."""
        return sum(self.trunk.units)

    @property
    def summary(self) -> str:
        """What the head sees, in a few words."""
        return f"{self.grid[0]}x{self.grid[1]} features of {self.trunk.channels:,} channels"

    def with_settings(self, **settings: Any) -> ResNetConfig:
        """The same model with these fields, or fields of its trunk, changed."""
        check_known_settings(settings, [*RESNET_SETTINGS, *TRUNK_SETTINGS], "a ResNet")
        own = {name: value for name, value in settings.items() if name in RESNET_SETTINGS}
        of_trunk = {name: value for name, value in settings.items() if name in TRUNK_SETTINGS}
        return replace(self, trunk=replace(own.pop("trunk", self.trunk), **of_trunk), **own)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; `from_dict` takes them back."""
        values = asdict(self)
        trunk = values["trunk"] | {"units": list(self.trunk.units)}
        return values | {"image_size": list(self.image_size), "trunk": trunk}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ResNetConfig:
        """The config of `to_dict`; what is missing takes its default, what is unknown raises."""
        check_known_settings(values, RESNET_SETTINGS, "a ResNet")
        trunk = TrunkConfig.from_dict(values["trunk"]) if "trunk" in values else BIT_TRUNK
        return cls(**{**values, "trunk": trunk})


RESNET_SETTINGS = tuple(field.name for field in fields(ResNetConfig))
