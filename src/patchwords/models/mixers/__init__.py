"""Token mixers by name: what a block has in the place of attention.

A mixer is a class (a `Mixer`, see mixers/mixer.py) in a file of its own and a row of `MIXERS`.
Rows are read without torch: configs, names and `--help` need them.

A mixer from outside the package is named `package.module:Class`. Its module is imported where the
user names it: by `create_model(mixer=...)`, `--mixer` or a `--config` file. Files from elsewhere
run no code: a model folder that names such a mixer is refused, unless the program has imported
the module or the environment variable PATCHWORDS_IMPORT lists it (modules, separated by commas).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from patchwords.errors import ConfigError, did_you_mean
from patchwords.models.checks import check_window

IMPORT_VARIABLE = "PATCHWORDS_IMPORT"
DEFAULT_WINDOW = 7  # of local attention (Ramachandran et al., arXiv 1906.05909)


@dataclass(frozen=True)
class MixerTraits:
    """What the code around a mixer has to know about it."""

    label: str = "mixer"  # of its row in tables of costs
    has_heads: bool = False  # weighs tokens by queries and keys: a kind of `Attention`
    has_class_token: bool = False  # takes tokens without a place in the grid; takes `num_queries`
    sees_others: bool = True  # a token sees other tokens
    any_grid: bool = True  # works on other grids than the config's
    blocks_per_layer: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)  # its own config fields -> defaults
    check: Callable[[Any], None] | None = None  # raises ConfigError for a config it cannot work by


@dataclass(frozen=True)
class MixerRow:
    """A mixer of this package."""

    path: str  # module:Class
    traits: MixerTraits


def check_local_attention(config: Any) -> None:
    """Raise where the window does not fit the grid, or offsets cannot be halved."""
    check_window(config.window, config.grid)
    if config.position == "relative" and config.head_width % 2:
        raise ConfigError(
            f"position 'relative' of mixer 'local' is half by row, half by column: heads of "
            f"width {config.head_width} ({config.width} / {config.heads}) do not halve, an even "
            "width / heads would do"
        )


HERE = "patchwords.models"
MIXERS: dict[str, MixerRow] = {
    "attention": MixerRow(
        f"{HERE}.attention:Attention",
        MixerTraits("attention", has_heads=True, has_class_token=True),
    ),
    "axial": MixerRow(
        f"{HERE}.mixers.axial:AxialAttention",
        MixerTraits("attention", has_heads=True, blocks_per_layer=2),
    ),
    "local": MixerRow(
        f"{HERE}.mixers.local:LocalAttention",
        MixerTraits(
            "attention",
            has_heads=True,
            settings={"window": DEFAULT_WINDOW},
            check=check_local_attention,
        ),
    ),
    "pooling": MixerRow(f"{HERE}.mixers.metaformer:PoolingMixer", MixerTraits("pooling")),
    "mlp": MixerRow(f"{HERE}.mixers.token_mlp:TokenMLP", MixerTraits("token MLP", any_grid=False)),
    "identity": MixerRow(
        f"{HERE}.mixers.metaformer:IdentityMixer", MixerTraits("identity", sees_others=False)
    ),
}


def get_mixer_traits(name: str) -> MixerTraits:
    """The traits of a mixer by name. Raises ConfigError for an unknown one."""
    if row := MIXERS.get(name):
        return row.traits
    traits: MixerTraits = get_mixer_class(name).traits
    return traits


def get_mixer_class(name: str) -> type[Any]:
    """The class of a mixer by name, a subclass of `Mixer`.

    Raises ConfigError for an unknown one, and for one from outside that is not imported.
    """
    if row := MIXERS.get(name):
        module_name, _, class_name = row.path.partition(":")
        mixer: type[Any] = getattr(importlib.import_module(module_name), class_name)
        return mixer
    module_name, class_name = _split_path(name)
    if module_name not in sys.modules:
        if module_name not in os.environ.get(IMPORT_VARIABLE, "").split(","):
            raise ConfigError(
                f"mixer {name!r} is code from outside of patchwords, which a file may name but "
                f"not run: import {module_name} first, or set {IMPORT_VARIABLE}={module_name}"
            )
        _import_module(name, module_name)
    return _find_class(name, module_name, class_name)


def import_mixer(name: str) -> None:
    """Import the module of a mixer that the user names; raises ConfigError where that fails."""
    if name in MIXERS:
        return
    module_name, class_name = _split_path(name)
    _import_module(name, module_name)
    _find_class(name, module_name, class_name)


def _split_path(name: Any) -> tuple[str, str]:
    module_name, colon, class_name = str(name).partition(":")
    if not (colon and class_name.isidentifier() and module_name.replace(".", "_").isidentifier()):
        hint = did_you_mean(str(name), MIXERS) or f"; choose {', '.join(MIXERS)}"
        raise ConfigError(f"unknown mixer {name!r}{hint}, or package.module:Class of your own")
    return module_name, class_name


def _import_module(name: str, module_name: str) -> None:
    try:
        importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"mixer {name!r}: {error}; PYTHONPATH=FOLDER says where Python looks for modules"
        ) from error


def _find_class(name: str, module_name: str, class_name: str) -> type[Any]:
    mixer = getattr(sys.modules[module_name], class_name, None)
    if not isinstance(mixer, type) or not isinstance(getattr(mixer, "traits", None), MixerTraits):
        raise ConfigError(
            f"mixer {name!r}: {module_name} has no class {class_name} that is a "
            "patchwords.models.mixers.mixer.Mixer"
        )
    return mixer
