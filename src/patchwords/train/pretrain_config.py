"""Every setting of a pre-training run: those of fine-tuning, and what is learned.

Nothing here imports torch: help must be quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from patchwords.errors import ConfigError
from patchwords.train.config import DataSettings, FinetuneConfig

MaskedTargetName = Literal["mean-colour", "small-patch", "pixels"]


@dataclass(frozen=True)
class PretrainDataSettings(DataSettings):
    """Which images, and which of them are held out."""

    # Of pre-training data every image counts: validation, 5,000 images at most, is enough.
    test: float = 0.0  # share held out for the report where DATA has no splits of its own


@dataclass(frozen=True)
class ObjectiveSettings:
    """What is learned: classes, or the colours of hidden patches."""

    objective: Literal["supervised", "masked"] = "supervised"  # masked: App. B.1.2; no labels
    loss: Literal["softmax", "sigmoid"] | None = None  # supervised; none given: softmax
    head: Literal["tanh", "linear"] | None = None  # supervised; none given: tanh (Sec. 3.1)
    target: MaskedTargetName | None = None  # masked: what is predicted; none given: mean-colour
    mask_ratio: float | None = None  # masked: share of the patches corrupted; none given: 0.5


@dataclass(frozen=True)
class PretrainConfig(FinetuneConfig):
    """All settings of a run; `pretrain.settle` and `recipes.fill` replace the `None`s."""

    verb: ClassVar[str] = "pretrain"

    data_settings: PretrainDataSettings = field(default_factory=PretrainDataSettings)
    learn: ObjectiveSettings = field(default_factory=ObjectiveSettings)

    def check(self) -> None:
        """Refuse settings that are out of range or contradict one another, by name."""
        super().check()
        learn = self.learn
        if learn.mask_ratio is not None and not 0 < learn.mask_ratio <= 1:
            raise ConfigError(
                f"--mask-ratio {learn.mask_ratio:g} is not a share: above 0, and at most 1"
            )
        if learn.head == "linear" and self.model_settings.representation_size is not None:
            raise ConfigError(
                "--head linear has no layer before the classifier, and --representation-size "
                f"{self.model_settings.representation_size} is the width of one; give one of them"
            )
        masked = learn.objective == "masked"
        for name, value in (self._of_classes() if masked else self._of_patches()).items():
            if value is not None:
                other = "supervised" if masked else "masked"
                raise ConfigError(
                    f"{name} {value} has a meaning with --objective {other} only; leave it out"
                )

    def _of_patches(self) -> dict[str, object]:
        """Settings that supervised pre-training has no use for."""
        return {"--target": self.learn.target, "--mask-ratio": self.learn.mask_ratio}

    def _of_classes(self) -> dict[str, object]:
        """Settings of a classifier and of labels, which masked patch prediction has not."""
        recipe, augment, model = self.recipe, self.augment, self.model_settings
        return {
            "--loss": self.learn.loss,
            "--head": self.learn.head,
            "--representation-size": model.representation_size,
            "--head-bias": model.head_bias,
            "--label-smoothing": recipe.label_smoothing or None,
            "--balance": None if recipe.balance == "none" else recipe.balance,
            "--train": None if recipe.train == "all" else recipe.train,
            "--mixup": augment.mixup or None,
            "--cutmix": augment.cutmix or None,
        }
