"""The config of a Vision Transformer: Table 1 of the paper, and the choices it leaves open.

Sizes: H W image, P patch size, C channels, N = H/P * W/P patches, T tokens (N + prefix tokens: the
class token, of some models more), R registers, D width, K heads, Dh = D/K head width, M MLP width,
L depth.

Two numerics are in use and they differ in the fourth digit of the logits: the authors' code has
the tanh approximation of GELU and a LayerNorm epsilon of 1e-6 (the defaults here), timm has the
exact GELU and 1e-6, Hugging Face the exact GELU and 1e-12.

Later models have parts that the paper's have not; each is a field that is off by default:
LayerScale, registers, a norm after pooling, DeiT's distillation token, CLIP's norm before the blocks.
"""

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
    check_patch_grid,
    check_positive,
    check_switch,
    to_height_width,
)
from patchwords.models.mixers import MIXERS, MixerTraits, get_mixer_traits, import_mixer
from patchwords.models.resnet.config import (
    CONV_STEM_SETTINGS,
    TRUNK_SETTINGS,
    ConvStemConfig,
    ResNetConfig,
    TrunkConfig,
)

Classifier = Literal["token", "gap", "map", "token+gap"]
Activation = Literal["tanh", "erf", "quick"]
Position = Literal["1d", "2d", "relative", "sincos2d", "none"]
PositionAt = Literal["stem", "every", "shared"]
PositionResize = Literal["bilinear-corners", "bicubic-antialias", "bicubic", "bicubic-offset"]

VIT_CHOICES = {
    "classifier": ("token", "gap", "map", "token+gap"),
    "gelu": ("tanh", "erf", "quick"),
    "position": ("1d", "2d", "relative", "sincos2d", "none"),
    "position_at": ("stem", "every", "shared"),
    "resize": ("bilinear-corners", "bicubic-antialias", "bicubic", "bicubic-offset"),
}
# Parts of later models than the paper's -> the value that leaves each out.
LATER_PARTS: dict[str, Any] = {
    "class_token": None,
    "class_position": True,
    "registers": 0,
    "distillation": False,
    "layer_scale": None,
    "pool_norm": False,
    "pre_norm": False,
    "patch_bias": True,
    "qk_norm": False,
    "swiglu": False,
}
SWITCHES = [name for name, value in LATER_PARTS.items() if isinstance(value, bool)]
COUNT_FIELDS = ("patch_size", "width", "depth", "heads", "mlp_width", "channels", "num_classes")

# Where positions can enter: the cells of Table 8. The sine table is the same at every layer.
POSITION_AT_CHOICES = {
    "1d": ("stem", "every", "shared"),
    "2d": ("stem", "every", "shared"),
    "sincos2d": ("stem", "shared"),
    "relative": ("stem",),
    "none": ("stem",),
}


@dataclass(frozen=True)
class ViTConfig:
    """The shape and the numerics of a ViT, checked when made; it can be stored as JSON.

    With a `trunk` it is a hybrid: patches are cut from the feature map of a ResNet or of a
    convolutional stem, not from the image.
    """

    patch_size: int = 16  # P, pixels; in a hybrid, places of the feature map
    width: int = 768  # D
    depth: int = 12  # L, blocks
    heads: int = 12  # K
    mlp_width: int = 3072  # M
    image_size: tuple[int, int] = (224, 224)  # (H, W) that the position table is made for
    channels: int = 3  # C
    num_classes: int = 1000
    classifier: Classifier = "token"  # class token, mean, attention pooling, token and mean
    representation_size: int | None = None  # R, width of the head's tanh layer (Sec. 3.1)
    gelu: Activation = "tanh"  # tanh: the authors' code; erf: timm, Hugging Face; quick: CLIP
    norm_eps: float = 1e-6  # of every LayerNorm
    dropout: float = 0.0  # probability, at the places of Appendix B.1
    drop_path: float = 0.0  # probability at the last block, linear from 0 at the first
    position: Position = "1d"  # learned by index, by row and column, by offset; or fixed (Table 8)
    position_at: PositionAt = "stem"  # once, or at every block with its own or one shared table
    resize: PositionResize = "bilinear-corners"  # of positions to other grids
    mixer: str = "attention"  # how tokens see one another: a row of MIXERS, or module:Class
    window: int | None = None  # side of local attention's neighbourhood; odd
    head_bias: float = 0.0  # initial value of the classifier's bias
    trunk: TrunkConfig | ConvStemConfig | None = None  # the convolutions of a hybrid
    class_token: bool | None = None  # default: where the classifier reads it
    class_position: bool = True  # whether the class token has a position; False: DeiT III
    registers: int = 0  # R, learned tokens after the class token, without positions (DINOv2)
    distillation: bool = False  # a second learned token and classifier, logits averaged (DeiT)
    layer_scale: float | None = None  # initial factor of each channel of both branches; None: none
    pool_norm: bool = False  # LayerNorm after the pooling, in place of that after the blocks (MAE)
    pre_norm: bool = False  # LayerNorm before the blocks (CLIP)
    patch_bias: bool = True  # of the patch embedding
    qk_norm: bool = False  # LayerNorm of queries and keys in each head
    swiglu: bool = False  # gated MLP: silu of one half of fc1 times the other; `gelu` is not used

    def __post_init__(self) -> None:
        for name in COUNT_FIELDS:
            check_count(name, getattr(self, name))
        if self.representation_size is not None:
            check_count("representation_size", self.representation_size)
        for name, choices in VIT_CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("dropout", "drop_path"):
            rate = check_number(name, getattr(self, name))
            if not 0 <= rate < 1:
                raise ConfigError(f"{name} {rate} is not a probability: 0 <= {name} < 1")
        check_number("head_bias", self.head_bias)
        self._check_parts()
        check_positive("norm_eps", self.norm_eps)
        if self.width % self.heads:
            raise ConfigError(
                f"width {self.width} does not split into {self.heads} heads; "
                f"{_nearest_divisors(self.width, self.heads)} heads would do"
            )
        object.__setattr__(self, "image_size", to_height_width(self.image_size))
        check_patch_grid(self.image_size, self.patch_size, self.trunk.stride if self.trunk else 1)
        self._check_position()
        self._check_mixer()

    def _check_parts(self) -> None:
        for name in SWITCHES:
            check_switch(name, getattr(self, name))
        if self.registers != 0:
            check_count("registers", self.registers)
        if self.layer_scale is not None:
            check_number("layer_scale", self.layer_scale)
        reads = self.classifier in ("token", "token+gap")
        if self.class_token is not None:
            check_switch("class_token", self.class_token)
            if reads and not self.class_token:
                raise ConfigError(
                    f"classifier {self.classifier!r} reads the class token: leave out class_token "
                    "False, or choose classifier gap or map"
                )
            if self.class_token == reads:  # as the default has it
                object.__setattr__(self, "class_token", None)
        if not self.has_class_token:  # and so no position of its own
            object.__setattr__(self, "class_position", True)
        conflicts = (
            (
                self.distillation and self.classifier != "token",
                "distillation needs classifier 'token'",
            ),
            (
                self.position == "relative" and self.num_prefix_tokens > self.has_class_token,
                "position 'relative' knows the class token alone: leave out registers and "
                "distillation",
            ),
            (
                self.resize == "bicubic-offset" and self.position not in ("1d", "none"),
                "resize 'bicubic-offset' is for position '1d', as in DINO: choose another",
            ),
            (
                self.qk_norm and self.mixer != "attention",
                f"qk_norm is for mixer 'attention', not {self.mixer!r}",
            ),
        )
        for holds, why in conflicts:
            if holds:
                raise ConfigError(why)

    def _check_position(self) -> None:
        places = POSITION_AT_CHOICES[self.position]
        if self.position_at not in places:
            raise ConfigError(
                f"position {self.position!r} has no position_at {self.position_at!r} (Table 8): "
                f"choose {' or '.join(places)}"
            )
        parts = {"2d": 2, "sincos2d": 4}.get(self.position, 1)
        if self.width % parts:
            raise ConfigError(
                f"position {self.position!r} cuts the width into {parts} parts: {self.width} does "
                f"not divide, {self.width // parts * parts} or {-(-self.width // parts) * parts} "
                "would"
            )
        if self.position == "relative" and not self.mixer_traits.has_heads:
            raise ConfigError(
                f"position 'relative' acts on the weights of attention, and mixer {self.mixer!r} "
                "has none: choose another position"
            )

    def _check_mixer(self) -> None:
        traits = self.mixer_traits
        if self.num_prefix_tokens and not traits.has_class_token:
            what = "registers have" if self.registers else "a class token has"
            raise ConfigError(
                f"mixer {self.mixer!r} works on the grid of patches, where {what} no "
                "place: choose classifier gap or map"
            )
        for name, mixer in MIXER_SETTINGS.items():
            value = getattr(self, name)
            if value is not None and name not in traits.settings:
                raise ConfigError(f"{name} {value} needs mixer {mixer!r}, not {self.mixer!r}")
        for name, default in traits.settings.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if traits.check is not None:
            traits.check(self)

    @property
    def mixer_traits(self) -> MixerTraits:
        """What the mixer can do and what it needs."""
        return get_mixer_traits(self.mixer)

    @property
    def stride(self) -> int:
        """Pixels of the image between two neighbouring patches: P, times that of a trunk."""
        return self.patch_size * (self.trunk.stride if self.trunk else 1)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches at `image_size`."""
        return self.grid_of(self.image_size)

    def grid_of(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(rows, columns) of patches of an image that the patches divide."""
        height, width = self.trunk.grid(image_size) if self.trunk else image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def patches(self) -> int:
        """N"""
        return self.grid[0] * self.grid[1]

    @property
    def has_class_token(self) -> bool:
        """Whether there is a class token, which gap and map do without by default."""
        if self.class_token is not None:
            return self.class_token
        return self.classifier in ("token", "token+gap")

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: class token, distillation token, registers."""
        return self.has_class_token + self.distillation + self.registers

    @property
    def num_positioned_prefix(self) -> int:
        """Prefix tokens that have a position: the registers have none."""
        return (self.has_class_token + self.distillation) if self.class_position else 0

    @property
    def tokens(self) -> int:
        """T"""
        return self.patches + self.num_prefix_tokens

    @property
    def num_read_tokens(self) -> int | None:
        """Leading tokens of the last block that the classifier reads; None: all."""
        return 1 + self.distillation if self.classifier == "token" else None

    @property
    def pooled_width(self) -> int:
        """Numbers that the classifier gets of an image: D, or 2D of two poolings."""
        return 2 * self.width if self.classifier == "token+gap" else self.width

    @property
    def later_parts(self) -> tuple[str, ...]:
        """Fields of LATER_PARTS that are on."""
        return tuple(name for name, off in LATER_PARTS.items() if getattr(self, name) != off)

    @property
    def head_width(self) -> int:
        """Dh"""
        return self.width // self.heads

    @property
    def layers(self) -> int:
        """Blocks in a row: L, or 2L where each is a pair for rows and columns (Appendix D.6)."""
        return self.depth * self.mixer_traits.blocks_per_layer

    @property
    def summary(self) -> str:
        """A short description of what the encoder sees."""
        return f"{self.tokens:,} tokens"

    def with_settings(self, **settings: Any) -> ViTConfig:
        """The same model with these fields, or fields of its trunk, changed.

        An `image_size` may be one number. A `mixer` without a place for a class token changes the
        classifier to `gap`, unless `classifier` is set. A mixer from outside is imported.

        >>> ViTConfig().with_settings(image_size=384).grid
        (24, 24)
        """
        names = {TrunkConfig: TRUNK_SETTINGS, ConvStemConfig: CONV_STEM_SETTINGS}
        trunk_names = names[type(self.trunk)] if self.trunk else ()
        known = [*VIT_SETTINGS, *trunk_names]
        check_known_settings(settings, known, "a hybrid" if self.trunk else "a ViT")
        changes = {name: value for name, value in settings.items() if name in VIT_SETTINGS}
        trunk_changes = {name: value for name, value in settings.items() if name in trunk_names}
        if trunk_changes and self.trunk:
            changes["trunk"] = replace(changes.get("trunk", self.trunk), **trunk_changes)
        if mixer := changes.get("mixer"):
            import_mixer(mixer)
            if self.has_class_token and not get_mixer_traits(mixer).has_class_token:
                changes.setdefault("classifier", "gap")
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; `from_dict` takes them back.

        Later parts that are off are left out: so an older patchwords reads the config, too.
        """
        values = asdict(self) | {"image_size": list(self.image_size)}
        for name in LATER_PARTS.keys() - set(self.later_parts):
            del values[name]
        if isinstance(self.trunk, TrunkConfig):
            values["trunk"]["units"] = list(self.trunk.units)
        elif self.trunk:
            values["trunk"]["layer_channels"] = list(self.trunk.layer_channels)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ViTConfig:
        """Read a config from `to_dict`; missing fields have defaults, unknown ones raise."""
        check_known_settings(values, VIT_SETTINGS, "a ViT")
        trunk = values.get("trunk")
        kind = ConvStemConfig if "layer_channels" in (trunk or {}) else TrunkConfig
        return cls(**{**values, "trunk": kind.from_dict(trunk) if trunk else None})


# Fields that some mixers alone read -> the first of these mixers
MIXER_SETTINGS = {
    setting: name for name, row in reversed(MIXERS.items()) for setting in row.traits.settings
}
ModelConfig = ViTConfig | ResNetConfig
VIT_SETTINGS = tuple(field.name for field in fields(ViTConfig))


def _nearest_divisors(width: int, heads: int) -> str:
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    fewer = [n for n in divisors if n < heads][-1:]
    more = [n for n in divisors if n > heads][:1]
    return " or ".join(map(str, fewer + more))
