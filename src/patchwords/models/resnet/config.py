"""Configuration of a ResNet (BiT), the paper's baseline (Sec. 4.1), and of other stems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from patchwords.errors import ConfigError
from patchwords.models.checks import (
    check_choice,
    check_count,
    check_known_settings,
    check_number,
    check_positive,
    to_height_width,
)

# The convolutional part of a ResNet or of a hybrid, and the forms in which it exists.
#
# The paper's baseline is a ResNet with GroupNorm and standardised weights ("BiT"). Its code comes
# in two forms that share no arithmetic but the idea; every difference is a setting here, because
# weights work only with the form that they were trained in:
#
# - OFFICIAL: the hybrids of vit_jax/models_resnet.py. ReLU after the sum, as in ResNet v1.5; 'SAME'
#   padding as XLA has it, one more pixel behind than before where the sum is odd; weights over
#   (standard deviation + 1e-5).
# - PLAIN: layers of a 3x3 convolution, batch norm, ReLU and 2x2 max-pooling, as any small CNN has
#   them. The root and the first unit of each stage are one such layer each; further units are two
#   convolutions at the same size, added to their input, as in the "ResNet-9" of DAWNBench's
#   CIFAR-10 entries. For a few thousand images.
# - BIT: the checkpoints BiT-{S,M,L} of big_transfer (bit_pytorch/models.py). GroupNorm and ReLU
#   before each convolution, symmetric padding, weights over sqrt(variance + 1e-10), no norm after the
#   root, whose pooling is padded by zeros.


ROOT_WIDTH = 64  # channels after the root convolution, times the width factor
GROUP_NORM_GROUPS = 32  # of every GroupNorm
BOTTLENECK_EXPANSION = 4  # a unit's output has 4 times the channels of its 3x3 convolution
PLAIN_ROOT_WIDTH = 16  # channels of the first layer of form "plain"; each layer doubles them
AXIAL_HEADS = 8  # of the attention in AxialResNet's units

TRUNK_CHOICES = {
    "form": ("post", "pre", "plain"),
    "standardise": ("std+1e-5", "var+1e-8", "var+1e-10"),
    "padding": ("same", "symmetric"),
    "pool_padding": ("lowest", "zeros"),
    "spatial": ("convolution", "axial"),
}


@dataclass(frozen=True)
class TrunkConfig:
    """Root and stages of a ResNet. The defaults are those of the official hybrids."""

    units: tuple[int, ...] = (3, 4, 6, 3)  # residual units of each stage; () is the root alone
    width_factor: int = 1  # the x of R50x1: all channels times this
    # ReLU after the sum, norms before convolutions, or layers without residuals
    form: Literal["post", "pre", "plain"] = "post"
    standardise: Literal["std+1e-5", "var+1e-8", "var+1e-10"] = "std+1e-5"  # divisor of weights
    group_norm_eps: float = 1e-6
    padding: Literal["same", "symmetric"] = "same"
    pool_padding: Literal["lowest", "zeros"] = "lowest"  # around the root's max-pooling
    spatial: Literal["convolution", "axial"] = "convolution"  # the units' 3x3, or axial attention

    def __post_init__(self) -> None:
        if not isinstance(self.units, (tuple, list)):
            raise ConfigError(f"units must be a number for each stage, not {self.units!r}")
        object.__setattr__(self, "units", tuple(self.units))
        for count in self.units:
            check_count("units", count)
        if len(self.units) > 4:
            raise ConfigError(f"units {self.units} are {len(self.units)} stages; a ResNet has 4")
        check_count("width_factor", self.width_factor)
        check_positive("group_norm_eps", self.group_norm_eps)
        for name, choices in TRUNK_CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if self.spatial == "axial" and self.form != "post":
            raise ConfigError("spatial 'axial' needs form 'post': AxialResNet has no other form")

    @property
    def root_channels(self) -> int:
        return (PLAIN_ROOT_WIDTH if self.form == "plain" else ROOT_WIDTH) * self.width_factor

    @property
    def channels(self) -> int:
        """Channels of the last feature map."""
        if self.form == "plain":
            return int(self.root_channels * 2 ** len(self.units))
        if not self.units:
            return self.root_channels
        return BOTTLENECK_EXPANSION * self.root_channels * 2 ** (len(self.units) - 1)

    @property
    def stride(self) -> int:
        """Pixels of the image between two cells of the last feature map."""
        if self.form == "plain":
            return int(2 ** (1 + len(self.units)))
        return 4 * 2 ** max(len(self.units) - 1, 0)

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return (rows, columns) of the last feature map; every halving rounds up."""
        return -(-image_size[0] // self.stride), -(-image_size[1] // self.stride)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrunkConfig:
        """Build from the values of `dataclasses.asdict`; lists of JSON become tuples."""
        check_known_settings(values, TRUNK_SETTINGS, "a ResNet's trunk")
        return cls(**values)


def halve_grid(grid: tuple[int, int]) -> tuple[int, int]:
    """Halve (rows, columns), rounded up, as a stride of 2 does."""
    return -(-grid[0] // 2), -(-grid[1] // 2)


TRUNK_SETTINGS = tuple(field.name for field in fields(TrunkConfig))

HYBRID_TRUNK = TrunkConfig()
BIT_TRUNK = TrunkConfig(
    form="pre",
    standardise="var+1e-10",
    group_norm_eps=1e-5,
    padding="symmetric",
    pool_padding="zeros",
)


PLAIN_TRUNK = TrunkConfig(units=(1, 1, 1), form="plain", padding="symmetric")


@dataclass(frozen=True)
class ResNetConfig:
    """Shape and numerics of a ResNet, checked when it is built."""

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
        """Number of residual units, which `--train last:N` and layer-wise decay count."""
        return sum(self.trunk.units)

    @property
    def summary(self) -> str:
        """The input of the head in a few words."""
        return f"{self.grid[0]}x{self.grid[1]} features of {self.trunk.channels:,} channels"

    def with_settings(self, **settings: Any) -> ResNetConfig:
        """Copy the config with these fields, or fields of its trunk, changed."""
        check_known_settings(settings, [*RESNET_SETTINGS, *TRUNK_SETTINGS], "a ResNet")
        own = {name: value for name, value in settings.items() if name in RESNET_SETTINGS}
        of_trunk = {name: value for name, value in settings.items() if name in TRUNK_SETTINGS}
        return replace(self, trunk=replace(own.pop("trunk", self.trunk), **of_trunk), **own)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; `from_dict` reads them."""
        values = asdict(self)
        trunk = values["trunk"] | {"units": list(self.trunk.units)}
        return values | {"image_size": list(self.image_size), "trunk": trunk}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ResNetConfig:
        """Build from the values of `to_dict`; missing ones take defaults, unknown ones raise."""
        check_known_settings(values, RESNET_SETTINGS, "a ResNet")
        trunk = TrunkConfig.from_dict(values["trunk"]) if "trunk" in values else BIT_TRUNK
        return cls(**{**values, "trunk": trunk})


RESNET_SETTINGS = tuple(field.name for field in fields(ResNetConfig))


# The convolutional stem of a small hybrid (CCT: Hassani et al. 2021, arXiv 2104.05704).


@dataclass(frozen=True)
class ConvStemConfig:
    """Layers of a 3x3 convolution, ReLU and 3x3 max-pooling; each halves the sides."""

    layer_channels: tuple[int, ...] = (64, 128)  # that each layer gives

    def __post_init__(self) -> None:
        if not isinstance(self.layer_channels, (tuple, list)) or not self.layer_channels:
            raise ConfigError(
                f"layer_channels must be a number for each layer, not {self.layer_channels!r}"
            )
        object.__setattr__(self, "layer_channels", tuple(self.layer_channels))
        for count in self.layer_channels:
            check_count("layer_channels", count)

    @property
    def channels(self) -> int:
        """Channels of the last feature map."""
        return self.layer_channels[-1]

    @property
    def stride(self) -> int:
        """Pixels of the image between two cells of the last feature map."""
        return int(2 ** len(self.layer_channels))

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return (rows, columns) of the last feature map; every halving rounds up."""
        return -(-image_size[0] // self.stride), -(-image_size[1] // self.stride)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ConvStemConfig:
        """Build from the values of `dataclasses.asdict`; lists of JSON become tuples."""
        check_known_settings(values, CONV_STEM_SETTINGS, "a convolutional stem")
        return cls(**values)


CONV_STEM_SETTINGS = tuple(field.name for field in fields(ConvStemConfig))
