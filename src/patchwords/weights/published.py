"""Published weights that load by name: size, licence, accuracy, and whether they are here.

Nothing is guessed: what no source says is left out. Sources: the READMEs of vision_transformer,
deit, dino, dinov2 and mae; AugReg (arXiv 2106.10270, Table 3); arXiv 2205.01580; timm's results tables.
Sizes are those that the authors print.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from patchwords.download import get_web_cache_path
from patchwords.weights.locate import (
    BUNDLED_FOLDER,
    BUNDLED_PREFIX,
    HUB_ID,
    TIMM_NAME,
    find_published_url,
)

KIB, MIB = 2**10, 2**20
APACHE, NON_COMMERCIAL = "Apache-2.0", "CC-BY-NC-4.0"

# What an accuracy is of, and who says so.
CIFAR = "top-1, CIFAR-10 test split (model card)"
FINE_TUNED_384 = "top-1, ImageNet, fine-tuned at 384 px (vision_transformer README)"
OFFICIAL = "top-1, ImageNet (vision_transformer README)"
AUGREG_224 = "top-1, ImageNet, fine-tuned at 224 px (AugReg, Table 3)"
BASELINE = "top-1, ImageNet (arXiv 2205.01580)"
TIMM = "top-1, ImageNet (timm)"
DEIT = "top-1, ImageNet (DeiT README)"
KNN = "k-NN, ImageNet (DINO README)"
KNN_DINOV2 = "k-NN, ImageNet (DINOv2 README)"
LINEAR = "linear probe, ImageNet (MAE README)"
FINE_TUNED_MAE = "top-1, ImageNet, fine-tuned (MAE FINETUNE.md)"


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights, by the name that `from_pretrained` takes."""

    name: str
    architecture: str
    image_size: int  # pixels of a side
    parameters: int  # as loaded, without the classifier
    licence: str | None  # of the weights; None: see where they are published
    accuracy: float | None  # per cent
    protocol: str  # of the accuracy
    download_bytes: int | None

    @property
    def hub_repository(self) -> str | None:
        """Where the Hugging Face hub has the weights; None: they are published elsewhere."""
        elsewhere = self.name.startswith(BUNDLED_PREFIX) or find_published_url(self.name)
        repository = find_hub_repository(self.name)
        return None if elsewhere or "/" not in repository else repository

    @property
    def cached(self) -> bool:
        """Whether the weights are on this machine."""
        if self.name.startswith(BUNDLED_PREFIX):
            return (BUNDLED_FOLDER / self.name.removeprefix(BUNDLED_PREFIX)).is_dir()
        if url := find_published_url(self.name):
            return get_web_cache_path(url).is_file()
        return is_in_hub_cache(self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, `cached` included."""
        return {**asdict(self), "cached": self.cached}


def find_hub_repository(name: str) -> str:
    """Return the repository of a timm name or a hub id."""
    timm, hub = TIMM_NAME.fullmatch(name), HUB_ID.fullmatch(name)
    return f"timm/{timm[1]}" if timm else hub[1] if hub else name


def is_in_hub_cache(name: str) -> bool:
    """Return whether the hub's own cache has the weights of a timm name or a hub id."""
    import huggingface_hub

    repository = find_hub_repository(name)
    files = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    return any(
        isinstance(huggingface_hub.try_to_load_from_cache(repository, file), str) for file in files
    )


def ask_hub_for_bytes(repository: str, seconds: float) -> int | None:
    """Ask the hub how large the weights of a repository are; None without an answer in time.

    In a thread: to look up a host may block for longer than any limit of the request.
    """
    import huggingface_hub

    answers: list[int | None] = []

    def ask() -> None:
        url = huggingface_hub.hf_hub_url(repository, "model.safetensors")
        try:
            answers.append(huggingface_hub.get_hf_file_metadata(url, timeout=seconds).size)
        except Exception:  # whatever the network and the hub's library raise: there is no answer
            answers.append(None)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def list_weights(pattern: str = "*") -> list[PublishedWeights]:
    """List published weights whose name or architecture matches a glob.

    Upper and lower case count if that gives a match. Other names load as well: any AugReg file, any
    repository of a known kind on the hub (docs/weights.md).

    >>> [weights.name for weights in list_weights("i1k-s16-*")]
    ['i1k-s16-90ep', 'i1k-s16-150ep', 'i1k-s16-300ep']
    """
    exact = [row for row in PUBLISHED_WEIGHTS if _matches(row, pattern)]
    return exact or [row for row in PUBLISHED_WEIGHTS if _matches(row, pattern, str.lower)]


def _matches(row: PublishedWeights, pattern: str, change: Callable[[str], str] = str) -> bool:
    names = (row.name, row.architecture)
    return any(fnmatchcase(change(name), change(pattern)) for name in names)


# fmt: off
_ROWS: tuple[tuple[Any, ...], ...] = (
    # name, architecture, image size, parameters, licence, accuracy, protocol, bytes
    ("patchwords:cifar10-small", "ViT-Ti/4", 32, 1_022_848, APACHE, 62.2, CIFAR, None),
    ("imagenet21k/ViT-B_32", "ViT-B/32", 224, 88_045_824, None, 81.66, FINE_TUNED_384, 409_610 * KIB),
    ("imagenet21k/ViT-B_16", "ViT-B/16", 224, 86_389_248, None, 84.53, FINE_TUNED_384, 403_139 * KIB),
    ("imagenet21k/ViT-B_8", "ViT-B/8", 224, 86_398_464, None, None, "", 403_169 * KIB),
    ("imagenet21k/ViT-L_32", "ViT-L/32", 224, 306_560_000, None, 81.89, FINE_TUNED_384, 1_289_748 * KIB),
    ("imagenet21k/ViT-L_16", "ViT-L/16", 224, 304_351_232, None, 84.47, FINE_TUNED_384, 1_279_263 * KIB),
    ("imagenet21k/ViT-H_14", "ViT-H/14", 224, 632_404_480, None, None, "", 2_579_497 * KIB),
    ("imagenet21k/R50+ViT-B_16", "R50+ViT-B/16", 224, 98_480_704, None, 83.72, FINE_TUNED_384, 450_406 * KIB),
    ("imagenet21k/R26+ViT-B_32", "R26+ViT-B/32", 224, 101_205_568, None, None, "", 461_036 * KIB),
    ("imagenet21k/R50+ViT-L_32", "R50+ViT-L/32", 224, 329_019_456, None, None, "", 1_373_635 * KIB),
    ("imagenet21k+imagenet2012/ViT-B_32", "ViT-B/32", 384, 87_528_192, None, None, "", 344_975 * KIB),
    ("imagenet21k+imagenet2012/ViT-B_16-224", "ViT-B/16", 224, 85_798_656, None, 81.2, OFFICIAL, 338_217 * KIB),
    ("imagenet21k+imagenet2012/ViT-B_16", "ViT-B/16", 384, 86_090_496, None, None, "", 339_354 * KIB),
    ("imagenet21k+imagenet2012/ViT-L_16-224", "ViT-L/16", 224, 303_301_632, None, 82.7, OFFICIAL, 1_184_891 * KIB),
    ("imagenet21k+imagenet2012/R50+ViT-B_16", "R50+ViT-B/16", 384, 98_181_952, None, None, "", 386_632 * KIB),
    ("howto-i21k-Ti/16", "ViT-Ti/16", 224, 5_524_416, None, 73.75, AUGREG_224, None),
    ("howto-i21k-S/32", "ViT-S/32", 224, 22_493_952, None, 73.47, AUGREG_224, None),
    ("howto-i21k-S/16", "ViT-S/16", 224, 21_665_664, None, 80.46, AUGREG_224, None),
    ("howto-i21k-B/32", "ViT-B/32", 224, 87_455_232, None, 79.13, AUGREG_224, None),
    ("howto-i21k-B/16", "ViT-B/16", 224, 85_798_656, None, 83.96, AUGREG_224, 391 * MIB),
    ("howto-i21k-B/8", "ViT-B/8", 224, 85_807_872, None, None, "", None),
    ("howto-i21k-L/16", "ViT-L/16", 224, 303_301_632, None, 83.98, AUGREG_224, None),
    ("howto-i21k-R+Ti/16", "R+ViT-Ti/16", 224, 6_144_704, None, 69.69, AUGREG_224, None),
    ("howto-i21k-R26+S/32", "R26+ViT-S/32", 224, 36_046_912, None, 80.81, AUGREG_224, None),
    ("howto-i21k-R50+L/32", "R50+ViT-L/32", 224, 327_969_856, None, 82.74, AUGREG_224, None),
    ("i1k-s16-90ep", "ViT-S/16", 224, 21_737_472, APACHE, 76.5, BASELINE, None),
    ("i1k-s16-150ep", "ViT-S/16", 224, 21_737_472, APACHE, 78.5, BASELINE, None),
    ("i1k-s16-300ep", "ViT-S/16", 224, 21_737_472, APACHE, 80.0, BASELINE, None),
    ("BiT-M-R50x1", "BiT-R50x1", 224, 23_500_352, None, None, "", None),
    ("BiT-M-R50x3", "BiT-R50x3", 224, 211_174_080, None, None, "", None),
    ("BiT-M-R101x1", "BiT-R101x1", 224, 42_492_480, None, None, "", None),
    ("BiT-M-R101x3", "BiT-R101x3", 224, 381_789_888, None, None, "", None),
    ("BiT-M-R152x2", "BiT-R152x2", 224, 232_238_208, None, None, "", None),
    ("BiT-M-R152x4", "BiT-R152x4", 224, 928_340_224, None, None, "", None),
    ("google/vit-base-patch16-224", "ViT-B/16", 224, 85_798_656, None, None, "", None),
    ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "ViT-Ti/16", 224, 5_524_416, None, 75.45, TIMM, None),
    ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", "ViT-Ti/16", 384, 5_597_376, None, 78.44, TIMM, None),
    ("vit_small_patch32_224.augreg_in21k_ft_in1k", "ViT-S/32", 224, 22_493_952, None, 76.01, TIMM, None),
    ("vit_small_patch16_224.augreg_in21k_ft_in1k", "ViT-S/16", 224, 21_665_664, None, 81.4, TIMM, None),
    ("vit_small_patch16_384.augreg_in21k_ft_in1k", "ViT-S/16", 384, 21_811_584, None, 83.81, TIMM, None),
    ("vit_base_patch32_224.augreg_in21k_ft_in1k", "ViT-B/32", 224, 87_455_232, None, 80.73, TIMM, None),
    ("vit_base_patch32_384.augreg_in21k_ft_in1k", "ViT-B/32", 384, 87_528_192, None, 83.36, TIMM, None),
    ("vit_base_patch16_224.augreg_in21k_ft_in1k", "ViT-B/16", 224, 85_798_656, None, 84.53, TIMM, None),
    ("vit_base_patch16_384.augreg_in21k_ft_in1k", "ViT-B/16", 384, 86_090_496, None, 86.01, TIMM, None),
    ("vit_base_patch8_224.augreg_in21k_ft_in1k", "ViT-B/8", 224, 85_807_872, None, 85.84, TIMM, None),
    ("vit_large_patch16_224.augreg_in21k_ft_in1k", "ViT-L/16", 224, 303_301_632, None, 85.86, TIMM, None),
    ("vit_large_patch16_384.augreg_in21k_ft_in1k", "ViT-L/16", 384, 303_690_752, None, 87.1, TIMM, None),
    ("vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k", "R+ViT-Ti/16", 224, 6_144_704, None, 71.8, TIMM, None),
    ("vit_small_r26_s32_224.augreg_in21k_ft_in1k", "R26+ViT-S/32", 224, 36_046_912, None, 81.86, TIMM, None),
    ("vit_small_r26_s32_384.augreg_in21k_ft_in1k", "R26+ViT-S/32", 384, 36_083_392, None, 84.07, TIMM, None),
    ("vit_large_r50_s32_224.augreg_in21k_ft_in1k", "R50+ViT-L/32", 224, 327_969_856, None, 84.43, TIMM, None),
    ("vit_large_r50_s32_384.augreg_in21k_ft_in1k", "R50+ViT-L/32", 384, 328_067_136, None, 86.19, TIMM, None),
    ("vit_base_patch16_224.orig_in21k_ft_in1k", "ViT-B/16", 224, 85_798_656, None, 81.78, TIMM, None),
    ("vit_base_patch16_384.orig_in21k_ft_in1k", "ViT-B/16", 384, 86_090_496, None, 84.21, TIMM, None),
    ("vit_large_patch32_384.orig_in21k_ft_in1k", "ViT-L/32", 384, 305_607_680, None, 81.51, TIMM, None),
    ("vit_base_r50_s16_384.orig_in21k_ft_in1k", "R50+ViT-B/16", 384, 98_181_952, None, 84.99, TIMM, None),
    ("vit_small_patch16_224.augreg_in1k", "ViT-S/16", 224, 21_665_664, None, 78.84, TIMM, None),
    ("vit_base_patch32_224.augreg_in1k", "ViT-B/32", 224, 87_455_232, None, 74.91, TIMM, None),
    ("vit_base_patch16_224.augreg_in1k", "ViT-B/16", 224, 85_798_656, None, 79.15, TIMM, None),
    ("vit_base_patch16_384.augreg_in1k", "ViT-B/16", 384, 86_090_496, None, 81.1, TIMM, None),
    ("resnetv2_50x1_bit.goog_in21k_ft_in1k", "BiT-R50x1", 448, 23_500_352, None, 80.39, TIMM, None),
    ("resnetv2_101x1_bit.goog_in21k_ft_in1k", "BiT-R101x1", 448, 42_492_480, None, 82.33, TIMM, None),
    ("resnetv2_152x2_bit.goog_in21k_ft_in1k", "BiT-R152x2", 448, 232_238_208, None, 84.47, TIMM, None),
    ("resnetv2_152x4_bit.goog_in21k_ft_in1k", "BiT-R152x4", 480, 928_340_224, None, 84.94, TIMM, None),
    ("deit_tiny_patch16_224.fb_in1k", "ViT-Ti/16", 224, 5_524_416, APACHE, 72.2, DEIT, None),
    ("deit_small_patch16_224.fb_in1k", "ViT-S/16", 224, 21_665_664, APACHE, 79.9, DEIT, None),
    ("deit_base_patch16_224.fb_in1k", "ViT-B/16", 224, 85_798_656, APACHE, 81.8, DEIT, None),
    ("deit_base_patch16_384.fb_in1k", "ViT-B/16", 384, 86_090_496, APACHE, 82.9, DEIT, None),
    ("deit3_small_patch16_224.fb_in1k", "ViT-S/16", 224, 21_674_496, APACHE, 81.4, DEIT, None),
    ("deit3_small_patch16_224.fb_in22k_ft_in1k", "ViT-S/16", 224, 21_674_496, APACHE, 83.1, DEIT, None),
    ("deit3_medium_patch16_224.fb_in1k", "ViT-M/16", 224, 38_336_512, APACHE, 83.0, DEIT, None),
    ("deit3_base_patch16_224.fb_in1k", "ViT-B/16", 224, 85_816_320, APACHE, 83.8, DEIT, None),
    ("deit3_base_patch16_224.fb_in22k_ft_in1k", "ViT-B/16", 224, 85_816_320, APACHE, 85.7, DEIT, None),
    ("deit3_large_patch16_224.fb_in1k", "ViT-L/16", 224, 303_349_760, APACHE, 84.9, DEIT, None),
    ("deit3_large_patch16_224.fb_in22k_ft_in1k", "ViT-L/16", 224, 303_349_760, APACHE, 87.0, DEIT, None),
    ("deit3_huge_patch14_224.fb_in1k", "ViT-H/14", 224, 630_845_440, APACHE, 85.2, DEIT, None),
    ("deit3_huge_patch14_224.fb_in22k_ft_in1k", "ViT-H/14", 224, 630_845_440, APACHE, 87.2, DEIT, None),
    ("deit3_small_patch16_384.fb_in1k", "ViT-S/16", 384, 21_820_416, APACHE, 83.4, DEIT, None),
    ("deit3_base_patch16_384.fb_in1k", "ViT-B/16", 384, 86_108_160, APACHE, 85.0, DEIT, None),
    ("deit3_large_patch16_384.fb_in1k", "ViT-L/16", 384, 303_738_880, APACHE, 85.8, DEIT, None),
    ("vit_small_patch8_224.dino", "ViT-S/8", 224, 21_670_272, APACHE, 78.3, KNN, None),
    ("vit_small_patch16_224.dino", "ViT-S/16", 224, 21_665_664, APACHE, 74.5, KNN, None),
    ("vit_base_patch8_224.dino", "ViT-B/8", 224, 85_807_872, APACHE, 77.4, KNN, None),
    ("vit_base_patch16_224.dino", "ViT-B/16", 224, 85_798_656, APACHE, 76.1, KNN, None),
    ("vit_base_patch16_224.mae", "ViT-B/16", 224, 85_798_656, NON_COMMERCIAL, 67.8, LINEAR, None),
    ("vit_large_patch16_224.mae", "ViT-L/16", 224, 303_301_632, NON_COMMERCIAL, 76.0, LINEAR, None),
    ("vit_huge_patch14_224.mae", "ViT-H/14", 224, 630_764_800, NON_COMMERCIAL, 77.2, LINEAR, None),
    ("deit_tiny_distilled_patch16_224.fb_in1k", "ViT-Ti/16", 224, 5_524_800, APACHE, 74.5, DEIT, None),
    ("deit_small_distilled_patch16_224.fb_in1k", "ViT-S/16", 224, 21_666_432, APACHE, 81.2, DEIT, None),
    ("deit_base_distilled_patch16_224.fb_in1k", "ViT-B/16", 224, 85_800_192, APACHE, 83.4, DEIT, None),
    ("deit_base_distilled_patch16_384.fb_in1k", "ViT-B/16", 384, 86_092_032, APACHE, 85.2, DEIT, None),
    ("vit_small_patch14_dinov2.lvd142m", "ViT-S/14", 518, 22_056_192, APACHE, 79.0, KNN_DINOV2, None),
    ("vit_small_patch14_reg4_dinov2.lvd142m", "ViT-S/14", 518, 22_057_728, APACHE, 79.1, KNN_DINOV2, None),
    ("vit_base_patch14_dinov2.lvd142m", "ViT-B/14", 518, 86_579_712, APACHE, 82.1, KNN_DINOV2, None),
    ("vit_base_patch14_reg4_dinov2.lvd142m", "ViT-B/14", 518, 86_582_784, APACHE, 82.0, KNN_DINOV2, None),
    ("vit_large_patch14_dinov2.lvd142m", "ViT-L/14", 518, 304_367_616, APACHE, 83.5, KNN_DINOV2, None),
    ("vit_large_patch14_reg4_dinov2.lvd142m", "ViT-L/14", 518, 304_371_712, APACHE, 83.8, KNN_DINOV2, None),
    ("dino_deitsmall8_pretrain", "ViT-S/8", 224, 21_670_272, APACHE, 78.3, KNN, None),
    ("dino_deitsmall16_pretrain", "ViT-S/16", 224, 21_665_664, APACHE, 74.5, KNN, None),
    ("dino_vitbase8_pretrain", "ViT-B/8", 224, 85_807_872, APACHE, 77.4, KNN, None),
    ("dino_vitbase16_pretrain", "ViT-B/16", 224, 85_798_656, APACHE, 76.1, KNN, None),
    ("dinov2_vits14_pretrain", "ViT-S/14", 518, 22_056_192, APACHE, 79.0, KNN_DINOV2, None),
    ("dinov2_vits14_reg4_pretrain", "ViT-S/14", 518, 22_057_728, APACHE, 79.1, KNN_DINOV2, None),
    ("dinov2_vitb14_pretrain", "ViT-B/14", 518, 86_579_712, APACHE, 82.1, KNN_DINOV2, None),
    ("dinov2_vitb14_reg4_pretrain", "ViT-B/14", 518, 86_582_784, APACHE, 82.0, KNN_DINOV2, None),
    ("dinov2_vitl14_pretrain", "ViT-L/14", 518, 304_367_616, APACHE, 83.5, KNN_DINOV2, None),
    ("dinov2_vitl14_reg4_pretrain", "ViT-L/14", 518, 304_371_712, APACHE, 83.8, KNN_DINOV2, None),
    ("mae_pretrain_vit_base", "ViT-B/16", 224, 85_798_656, NON_COMMERCIAL, 67.8, LINEAR, None),
    ("mae_finetuned_vit_base", "ViT-B/16", 224, 85_798_656, NON_COMMERCIAL, 83.66, FINE_TUNED_MAE, None),
    ("mae_pretrain_vit_large", "ViT-L/16", 224, 303_301_632, NON_COMMERCIAL, 76.0, LINEAR, None),
    ("mae_finetuned_vit_large", "ViT-L/16", 224, 303_301_632, NON_COMMERCIAL, 85.95, FINE_TUNED_MAE, None),
    ("mae_pretrain_vit_huge", "ViT-H/14", 224, 630_764_800, NON_COMMERCIAL, 77.2, LINEAR, None),
    ("mae_finetuned_vit_huge", "ViT-H/14", 224, 630_764_800, NON_COMMERCIAL, 86.93, FINE_TUNED_MAE, None),
    ("google/siglip-base-patch16-224", "ViT-B/16", 224, 92_884_224, APACHE, None, "", None),
    ("openai/clip-vit-base-patch32", "ViT-B/32", 224, 87_456_000, None, None, "", None),
    ("openai/clip-vit-large-patch14", "ViT-L/14", 224, 303_179_776, None, None, "", None),
)
# fmt: on
PUBLISHED_WEIGHTS = tuple(PublishedWeights(*row) for row in _ROWS)
