"""What a Vision Transformer is made of: Table 1 of the paper, and the choices it leaves open.

Sizes: H W image, P patch size, C channels, N = H/P * W/P patches, T tokens (N + 1 with the class
token), D width, K heads, Dh = D/K head width, M MLP width, L depth.

Two numerics are in use and they differ in the fourth digit of the logits: the authors' code has
the tanh approximation of GELU and a LayerNorm epsilon of 1e-6 (the defaults here), timm has the
exact GELU and 1e-6, Hugging Face the exact GELU and 1e-12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from patchwords.errors import ConfigError, did_you_mean

CHOICES = {
    "classifier": ("token", "gap", "map"),
    "gelu": ("tanh", "erf"),
    "position": ("1d", "none"),
    "resize": ("bilinear-corners", "bicubic-antialias"),
}
COUNTS = ("patch_size", "width", "depth", "heads", "mlp_width", "channels", "num_classes")


@dataclass(frozen=True)
class ViTConfig:
    """The shape and the numerics of a ViT; it is checked when made, and goes through JSON."""

    patch_size: int = 16  # P, pixels
    width: int = 768  # D
    depth: int = 12  # L, blocks
    heads: int = 12  # K
    mlp_width: int = 3072  # M
    image_size: tuple[int, int] = (224, 224)  # (H, W) that the position table is made for
    channels: int = 3  # C
    num_classes: int = 1000
    classifier: Literal["token", "gap", "map"] = "token"  # class token, mean, attention pooling
    representation_size: int | None = None  # R, width of the head's tanh layer (Sec. 3.1)
    gelu: Literal["tanh", "erf"] = "tanh"  # tanh: the authors' code; erf: timm, Hugging Face
    norm_eps: float = 1e-6  # of every LayerNorm
    dropout: float = 0.0  # probability, at the places of Appendix B.1
    drop_path: float = 0.0  # probability at the last block, linear from 0 at the first
    position: Literal["1d", "none"] = "1d"  # learned table, or none (Table 8)
    resize: Literal["bilinear-corners", "bicubic-antialias"] = "bilinear-corners"  # to other grids
    head_bias: float = 0.0  # initial value of the classifier's bias

    def __post_init__(self) -> None:
        for name in COUNTS:
            _check_count(name, getattr(self, name))
        if self.representation_size is not None:
            _check_count("representation_size", self.representation_size)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"unknown {name} {value!r}{did_you_mean(str(value), choices)}")
        for name in ("dropout", "drop_path"):
            rate = _check_number(name, getattr(self, name))
            if not 0 <= rate < 1:
                raise ConfigError(f"{name} {rate} is not a probability: 0 <= {name} < 1")
        _check_number("head_bias", self.head_bias)
        if not _check_number("norm_eps", self.norm_eps) > 0:
            raise ConfigError(f"norm_eps {self.norm_eps} must be above 0; 1e-6 is usual")
        if self.width % self.heads:
            raise ConfigError(
                f"width {self.width} does not split into {self.heads} heads; "
                f"{_nearest_divisors(self.width, self.heads)} heads would do"
            )
        object.__setattr__(self, "image_size", height_width(self.image_size))
        check_divides(self.image_size, self.patch_size)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches at `image_size`."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def patches(self) -> int:
        """N"""
        return self.grid[0] * self.grid[1]

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, which gap and map do without."""
        return int(self.classifier == "token")

    @property
    def tokens(self) -> int:
        """T"""
        return self.patches + self.prefix

    @property
    def head_width(self) -> int:
        """Dh"""
        return self.width // self.heads

    def with_settings(self, **settings: Any) -> ViTConfig:
        """The same model with these fields changed; an `image_size` may be one number.

        >>> ViTConfig().with_settings(image_size=384).grid
        (24, 24)
        """
        check_known(settings)
        return replace(self, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; `from_dict` takes them back."""
        return asdict(self) | {"image_size": list(self.image_size)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ViTConfig:
        """The config of `to_dict`; what is missing takes its default, what is unknown raises."""
        check_known(values)
        return cls(**values)


def check_known(settings: Mapping[str, Any]) -> None:
    """Raises on the first setting that is no field of ViTConfig."""
    known = [field.name for field in fields(ViTConfig)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"unknown model setting {name!r}{did_you_mean(name, known)}")


def height_width(size: int | Sequence[int]) -> tuple[int, int]:
    """An image size as (H, W): one number is a square.

    >>> height_width(224), height_width([96, 160])
    ((224, 224), (96, 160))
    """
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ConfigError(f"image_size {size!r} must be one number or (height, width)")
    for side in sides:
        _check_count("image_size", side)
    return sides[0], sides[1]


def check_divides(image_size: tuple[int, int], patch_size: int) -> None:
    """Raises where P does not divide H and W, and names the sizes nearest to them."""
    if not any(side % patch_size for side in image_size):
        return
    below = [side // patch_size * patch_size for side in image_size]
    above = [-(-side // patch_size) * patch_size for side in image_size]
    square = image_size[0] == image_size[1]
    would_do = [
        str(size[0]) if square else f"{size[0]}x{size[1]}" for size in (below, above) if min(size)
    ]
    raise ConfigError(
        f"image size {image_size[0]}x{image_size[1]} does not divide into patches of "
        f"{patch_size}: {' or '.join(would_do)} would do"
    )


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a whole number from 1 up, not {value!r}")


def _check_number(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    return float(value)


def _nearest_divisors(width: int, heads: int) -> str:
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    fewer = [n for n in divisors if n < heads][-1:]
    more = [n for n in divisors if n > heads][:1]
    return " or ".join(map(str, fewer + more))
