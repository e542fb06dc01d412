"""The authors' initial weights, as one table of rules over parameter names.

Source: vit_jax/models_vit.py of google-research/vision_transformer and Flax's defaults; the map
head's is models/vit.py of big_vision. Each parameter is drawn by a generator of its own name, so
a new head, or one more block, leaves every other weight as it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from patchwords.models.build import Model, ModelConfig
from patchwords.models.config import ViTConfig
from patchwords.models.mixers import get_mixer_class
from patchwords.models.resnet.config import TrunkConfig
from patchwords.rng import torch_generator

# The standard deviation of a normal cut at two standard deviations (jax.nn.initializers).
TRUNCATED_NORMAL_STD = 0.87962566103423978

# Names that seed a parameter, if not its own: a seed keeps its weights when we rename.
INIT_SEED_NAMES = {"positions.table": "positions"}

MIXER_PARAMETER = r"encoder\.blocks\.\d+\.attention\."
InitRule = Callable[[Tensor, torch.Generator], object]  # fills a tensor in place


def normal(std: float) -> InitRule:
    return lambda tensor, generator: tensor.normal_(0.0, std, generator=generator)


def zeros(tensor: Tensor, generator: torch.Generator) -> None:
    tensor.zero_()


def ones(tensor: Tensor, generator: torch.Generator) -> None:
    tensor.fill_(1.0)


def lecun_normal(tensor: Tensor, generator: torch.Generator) -> None:
    """Variance 1/fan_in, from a normal cut at two standard deviations: Flax's default kernel."""
    std = tensor[0].numel() ** -0.5 / TRUNCATED_NORMAL_STD
    nn.init.trunc_normal_(tensor, 0.0, std, -2 * std, 2 * std, generator=generator)


def he_normal(tensor: Tensor, generator: torch.Generator) -> None:
    """Variance 2/fan_in, for a convolution before a ReLU and no norm: CCT's kaiming_normal_."""
    tensor.normal_(0.0, (2 / tensor[0].numel()) ** 0.5, generator=generator)


def xavier_uniform(tensor: Tensor, generator: torch.Generator) -> None:
    bound = math.sqrt(6 / (tensor.shape[-1] + tensor.shape[-2]))
    tensor.uniform_(-bound, bound, generator=generator)


def xavier_uniform_qkv(tensor: Tensor, generator: torch.Generator) -> None:
    """A stack of square kernels on the rows (q, k, v): each has fan_in = fan_out = D.

    Taking the stack for one [3D, D] kernel would make it sqrt(2) too small.
    """
    bound = math.sqrt(6 / (2 * tensor.shape[1]))
    tensor.uniform_(-bound, bound, generator=generator)


def axial_normal(tensor: Tensor, generator: torch.Generator) -> None:
    """Variance 1/Dv, for tables whose rows are 2 Dv wide (axial-deeplab, axialnet.py)."""
    tensor.normal_(0.0, (tensor.shape[1] / 2) ** -0.5, generator=generator)


INIT_RULES: dict[str, InitRule] = {
    r"class_token": zeros,
    r"distillation_token": normal(0.02),  # as positions
    r"registers": normal(1e-6),  # as DINOv2's: registers that start alike would stay alike
    r"pre_norm\.weight": ones,
    r"pre_norm\.bias": zeros,
    r"positions\.(table|rows|columns|class_token)": normal(0.02),  # as in BERT
    r".*\.attention\.relative\.(table|rows|columns|class_token)": normal(0.02),
    r"embed\.weight": lecun_normal,  # fan_in = P*P*C
    r"embed\.bias": zeros,
    r"(.*\.)?(shortcut_)?norm[12]?\.weight": ones,  # norm3: see `get_init_rules`
    r"(.*\.)?(shortcut_)?norm\d?\.bias": zeros,
    r"trunk\..*\.(conv\d?|shortcut)\.weight": lecun_normal,
    r"trunk\.layers\.\d+\.weight": he_normal,
    r"trunk\..*norm\d?\.running_mean": zeros,
    r"trunk\..*norm\d?\.running_var": ones,
    r"trunk\..*\.(columns|rows)\.qkv\.weight": lecun_normal,
    r"trunk\..*\.(columns|rows)\.qkv\.bias": zeros,
    r"trunk\..*\.(columns|rows)\.relative": axial_normal,
    r".*\.attention\.(qkv|query|key_value)\.weight": xavier_uniform_qkv,
    r".*\.attention\.out\.weight": xavier_uniform,
    r".*\.attention\.(qkv|query|key_value|out)\.bias": zeros,
    r".*\.(mlp|attention)\.fc[12]\.weight": xavier_uniform,  # attention.fc: the token MLP
    r".*\.(mlp|attention)\.fc[12]\.bias": normal(1e-6),
    r"head\.pool\.probe": xavier_uniform,  # fan_in 1, fan_out D
    r"head\.representation\.weight": lecun_normal,
    r"head\.representation\.bias": zeros,
    r"head\.linear\.weight": zeros,  # so that training starts from equal logits
    r"head\.distillation\.(weight|bias)": zeros,
    r"mask_token": normal(0.02),  # as BERT's [MASK]
    r"prediction\.(weight|bias)": zeros,  # as head.linear
    r"decoder\.mask_token": normal(0.02),  # of a masked autoencoder (models_mae.py)
    r"decoder\.(embed|prediction)\.weight": xavier_uniform,
    r"decoder\.(embed|prediction)\.bias": zeros,
}


def get_init_rules(config: ModelConfig) -> dict[str, InitRule]:
    """INIT_RULES, and those that depend on the config."""
    trunk = config.trunk
    # A unit that ends in a norm starts as its shortcut alone (vit_jax/models_resnet.py).
    last_norm = zeros if isinstance(trunk, TrunkConfig) and trunk.form == "post" else ones
    layer_scale = config.layer_scale if isinstance(config, ViTConfig) else None
    return INIT_RULES | {
        r".*\.layer_scale[12]": lambda tensor, _: tensor.fill_(layer_scale or 0.0),
        r"trunk\..*\.norm3\.weight": last_norm,
        r"head\.linear\.bias": lambda tensor, _: tensor.fill_(config.head_bias),
    }


@torch.no_grad()
def init_weights(model: Model, seed: int) -> None:
    """Fill every parameter and statistic; one that not exactly one rule matches is an error."""
    for name, value in model.state_dict().items():
        value.copy_(make_initial_values(name, value.shape, model.config, seed))


def make_initial_values(name: str, shape: Sequence[int], config: ModelConfig, seed: int) -> Tensor:
    """Draw the initial values of one parameter; float32.

    Drawn on the CPU: the same on every device and in every precision.
    """
    rules = get_init_rules(config).items()
    matching = [rule for pattern, rule in rules if re.fullmatch(pattern, name)]
    if not matching and isinstance(config, ViTConfig) and re.match(MIXER_PARAMETER, name):
        matching = [partial(get_mixer_class(config.mixer).init_parameter, name)]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} rules initialise the parameter {name!r}, not one")
    values = torch.empty(tuple(shape), dtype=torch.float32, device="cpu")
    with torch.no_grad():
        matching[0](values, torch_generator(seed, "init", INIT_SEED_NAMES.get(name, name)))
    return values
