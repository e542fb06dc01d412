"""ViT, ResNet and hybrid of two sizes or three, that learn CIFAR-10 within minutes on a core.

The ResNets are matched by their multiplications: R14 by the middle ViT, R26 by the large one. They
have 17 and 20 times the parameters of those: a ResNet's last stages are nothing but parameters
where an image of 32 pixels has come down to one place.
"""

from __future__ import annotations

from typing import Any

from patchwords.studies.paper.small import SHAPE_SETTING_NAMES, SMALL_VIT_SETTINGS

# Millions of MACs an image stand beside each.
SMALL_VIT_SHAPE = {name: SMALL_VIT_SETTINGS[name] for name in SHAPE_SETTING_NAMES}  # 15
MIDDLE_VIT_SHAPE = {**SMALL_VIT_SHAPE, "width": 96, "heads": 3, "mlp_width": 384}  # 32
LARGE_VIT_SHAPE = {**MIDDLE_VIT_SHAPE, "depth": 6}  # 48
# The root of a ResNet in front, 8 x 8 features of 64 channels: as many tokens as the ViTs have.
HYBRID_STEM = {"model": "R+ViT-Ti/16", "patch_size": 1}
SMALL_HYBRID, LARGE_HYBRID = (
    {**SMALL_VIT_SHAPE, **HYBRID_STEM},
    {**LARGE_VIT_SHAPE, **HYBRID_STEM},
)  # 18, 51
RESNET_14: dict[str, Any] = {"model": "BiT-R14x1"}  # 30
RESNET_26: dict[str, Any] = {"model": "BiT-R26x1"}  # 48


def build_step_schedule(images: int, batch_size: int) -> dict[str, int]:
    """So many images seen, a tenth of them in the warm-up."""
    steps = images // batch_size
    return {"batch_size": batch_size, "steps": steps, "warmup_steps": steps // 10}
