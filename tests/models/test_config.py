from __future__ import annotations

import json
import subprocess
import sys

import pytest

from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig


def test_derived_sizes_keep_patches_and_tokens_apart() -> None:
    config = ViTConfig(patch_size=16, image_size=(96, 160))
    assert (config.grid, config.patches, config.tokens, config.num_prefix_tokens) == (
        (6, 10),
        60,
        61,
        1,
    )
    assert config.head_width == 64
    for classifier in ("gap", "map"):
        changed = config.with_settings(classifier=classifier)
        assert (changed.tokens, changed.num_prefix_tokens) == (60, 0)


def test_goes_through_json() -> None:
    config = ViTConfig(image_size=(96, 160), representation_size=13, gelu="erf", drop_path=0.1)
    back = ViTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert back == config
    assert hash(back) == hash(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 7}, "width 768 does not split into 7 heads; 6 or 8 heads would do"),
        ({"image_size": 97}, "97x97 does not divide into patches of 16: 96 or 112 would do"),
        ({"image_size": (97, 96)}, "97x96 does not divide .* 96x96 or 112x96 would do"),
        ({"image_size": 9}, "9x9 does not divide into patches of 16: 16 would do"),
        ({"image_size": (1, 2, 3)}, "must be one number or"),
        ({"image_size": "224"}, "image_size '224' must be one number or"),
        ({"image_size": None}, "image_size None must be one number or"),
        ({"image_size": 0}, "image_size must be a whole number from 1 up, not 0"),
        ({"dropout": 1.0}, "dropout 1.0 is not a probability"),
        ({"drop_path": -0.1}, "drop_path -0.1 is not a probability"),
        ({"dropout": "0.1"}, "dropout must be a number, not '0.1'"),
        ({"depth": 0}, "depth must be a whole number from 1 up, not 0"),
        ({"depth": 2.0}, "depth must be a whole number"),
        ({"channels": True}, "channels must be a whole number"),
        ({"representation_size": 0}, "representation_size must be"),
        ({"norm_eps": 0.0}, "norm_eps 0.0 must be above 0"),
        ({"gelu": "tahn"}, "unknown gelu 'tahn'; did you mean 'tanh'"),
        ({"classifier": "cls"}, "unknown classifier 'cls'; choose from token, gap, map"),
        ({"position": "3d"}, "unknown position '3d'; did you mean"),
        ({"resize": "nearest"}, "unknown resize 'nearest'"),
        (
            {"position": "relative", "position_at": "every"},
            r"position 'relative' has no position_at 'every' \(Table 8\): choose stem",
        ),
        (
            {"position": "sincos2d", "position_at": "every"},
            "'sincos2d' has no position_at 'every' .* choose stem or shared",
        ),
        ({"position_at": "shared", "position": "none"}, "'none' has no position_at 'shared'"),
        (
            {"position": "sincos2d", "width": 774, "heads": 6},
            "cuts the width into 4 parts: 774 does not divide, 772 or 776 would",
        ),
        ({"position": "2d", "width": 33, "heads": 3}, "into 2 parts: 33 .* 32 or 34 would"),
        (
            {"position": "relative", "mixer": "pooling"},
            "acts on the weights of attention, and mixer 'pooling' has none",
        ),
        (
            {"position": "relative", "mixer": "local", "width": 30, "heads": 6},
            r"heads of width 5 \(30 / 6\) do not halve, an even width / heads would do",
        ),
        ({"mixer": "axail"}, "unknown mixer 'axail'; did you mean 'axial'"),
        (
            {"mixer": "axial", "classifier": "token"},
            "a class token has no place: choose classifier gap or map",
        ),
        ({"window": 3}, "window 3 needs mixer 'local', not 'attention'"),
        (
            {"mixer": "local", "window": 4},
            "window 4 has no place in a grid of 14x14 patches.* 9 or 11 or 13 would do",
        ),
        ({"mixer": "local", "window": 15}, "it must be odd and fit in; 9 or 11 or 13 would do"),
        ({"mixer": "local", "image_size": 64}, "window 7 has no place in a grid of 4x4"),
        ({"drop_paht": 0.1}, "a ViT has no setting 'drop_paht'; did you mean 'drop_path'"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ViTConfig().with_settings(**settings)
    assert "\n" not in str(caught.value)


def test_from_dict_refuses_unknown_keys() -> None:
    with pytest.raises(ConfigError, match="'patchsize'; did you mean 'patch_size'"):
        ViTConfig.from_dict({"patchsize": 16})


def test_configs_names_and_costs_do_not_load_torch() -> None:
    code = (
        "import sys, patchwords.models.config, patchwords.models.zoo, patchwords.models.cost;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
