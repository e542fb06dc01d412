"""What a run trains for: the parts of it that differ from one objective to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor, nn

from patchwords.data.dataset import DatasetSplits
from patchwords.training.config import FinetuneConfig
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives.losses import Objective
from patchwords.training.plan import ResolvedSetting
from patchwords.weights.pretrained import Pretrained

if TYPE_CHECKING:
    from patchwords.data.loader import ImageBatch


class Prepares(Protocol):
    """(batch, step) -> uint8 images [B, C, H, W] on the device, augmented, and their targets."""

    def __call__(self, batch: ImageBatch, step: int) -> tuple[Tensor, Any]: ...


class Aim(Protocol):
    """See `classify.Classify` and `masked.PredictMasked`."""

    @property
    def objective_name(self) -> Literal["supervised", "masked"]: ...

    def classes(self, data: DatasetSplits) -> tuple[str, ...]:
        """What the model's head tells apart; nothing where the head is not trained."""
        ...

    def settle(
        self, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        """Decide what the recipe leaves open in the config."""
        ...

    def learner(self, start: InitialModel, config: FinetuneConfig) -> nn.Module:
        """What is trained: the model, or a module around it that has more to learn."""
        ...

    def preparation(self, job: Any) -> Prepares: ...

    def objective(self, job: Any, learner: nn.Module) -> Objective:
        """`learner` may have been compiled or wrapped."""
        ...
