"""The images that studies are about, as `--data` and `--transfer` take them."""

from __future__ import annotations

from patchwords.studies.study import DatasetSpec

CIFAR10 = DatasetSpec(
    "CIFAR-10 (a folder with its parquet files, or hf:uoft-cs/cifar10)", 50_000, 10
)
FLOWERS = DatasetSpec(
    "flower_photos, TensorFlow's 3,670 photos in a folder for each of 5 classes", 2_936, 5
)
IMAGENET = DatasetSpec("ImageNet (ILSVRC-2012)", 1_281_167, 1000)
JFT = DatasetSpec("JFT-300M, or pre-training data of your own", 303_000_000, 18_000)
