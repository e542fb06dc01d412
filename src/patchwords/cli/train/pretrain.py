"""`patchwords pretrain DATA`: a model for others to start from, by classes or by hidden patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patchwords.cli.options import TrainCommand
from patchwords.training.config import PretrainConfig


@dataclass(frozen=True)
class PretrainCommand(TrainCommand, PretrainConfig):
    """Pre-train a model on many images; then fine-tune it: patchwords finetune --weights RUN.

    DATA is as for `patchwords finetune`. --objective masked (Sec. 4.6 of the paper) needs no
    labels: half of the patches of each image are masked, and their colours are predicted. Nor does
    --objective mae (arXiv 2111.06377): the encoder sees a quarter of the patches, and a light
    decoder predicts the pixels of the others. --objective supervised learns the classes, with the
    tanh layer of Sec. 3.1 in the head.

    Settings that you leave out come from Table 3, or from Appendix B.1.2 (masked) and Table 8 of
    MAE, fitted to the size of the data. Few images are held out: up to 5,000 for validation, and a test split only if
    DATA has one. Everything else, including the run folder, is as for `patchwords finetune`.

    Example: patchwords pretrain photos/ --objective mae --model ViT-S/16 --output runs/mae
    """


def parse_pretrain(words: Sequence[str]) -> PretrainCommand:
    from patchwords.cli.config_files import parse_with_files

    return parse_with_files(PretrainCommand, words, "patchwords pretrain")


def run_pretrain(config: PretrainCommand) -> int:
    """Train, measure on held-out images, report."""
    from patchwords.cli.train.finetune import train_and_print

    return train_and_print(config, config.json)
