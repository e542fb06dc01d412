"""The 19 tasks of VTAB-1k: classes, splits, and sources of the images.

Source of classes, labels, TFDS names and splits: google-research/task_adaptation, the benchmark's
own code (task_adaptation/data/*.py, the counts from the tests next to them; which tasks belong to
it: scripts/run_all_tasks.sh). Splits are slices in the order of TFDS: train800, val200 and test.
All tasks are measured by top-1 accuracy. Groups: Table 9 of the ViT paper.

Hub data sets hold whole splits in an order of their own, so 1,000 images drawn from them are not
the benchmark's own 1,000.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

VtabGroup = Literal["natural", "specialized", "structured"]
VTAB_GROUPS: tuple[VtabGroup, ...] = ("natural", "specialized", "structured")
VTAB_TRAIN_IMAGES = 1_000  # 800 and 200 for choosing settings


class VtabTask(NamedTuple):
    """One data set with one classification task."""

    name: str  # folder name
    group: VtabGroup
    classes: int
    test: int  # images
    label: str  # meaning of the class
    tfds: str
    val200: str  # TFDS slice; train800 is always the first 800 images of train
    test_split: str
    hub: str | None  # on the Hugging Face hub; None: no whole copy known
    table_9: tuple[float, float, float]  # per cent, in the order of TABLE_9


# Appendix D.10: ViT, and what it was pre-trained on: JFT-300M or ImageNet-21k.
TABLE_9_MODELS = ("H/14 JFT", "L/16 JFT", "L/16 I21k")

HUB_PREFIX = "clip-benchmark/wds_vtab-"
VTAB_TASKS = (
    VtabTask(
        "caltech101",
        "natural",
        102,
        6_084,
        "object, or background",
        "caltech101",
        "train[2754:2954]",
        "test",
        f"{HUB_PREFIX}caltech101",
        (95.3, 95.4, 90.8),
    ),
    VtabTask(
        "cifar100",
        "natural",
        100,
        10_000,
        "object",
        "cifar100",
        "train[45000:45200]",
        "test",
        f"{HUB_PREFIX}cifar100",
        (85.5, 81.9, 84.1),
    ),
    VtabTask(
        "dtd",
        "natural",
        47,
        1_880,
        "texture",
        "dtd",
        "validation[:200]",
        "test",
        f"{HUB_PREFIX}dtd",
        (75.2, 74.3, 74.1),
    ),
    VtabTask(
        "flowers102",
        "natural",
        102,
        6_149,
        "species",
        "oxford_flowers102",
        "validation[:200]",
        "test",
        "dpdl-benchmark/oxford_flowers102",
        (99.7, 99.7, 99.3),
    ),
    VtabTask(
        "pets",
        "natural",
        37,
        3_669,
        "breed",
        "oxford_iiit_pet",
        "train[2944:3144]",
        "test",
        f"{HUB_PREFIX}pets",
        (97.2, 96.7, 92.7),
    ),
    VtabTask(
        "sun397",
        "natural",
        397,
        21_750,
        "scene",
        "sun397/tfds",
        "validation[:200]",
        "test",
        None,
        (65.0, 63.5, 61.0),
    ),
    VtabTask(
        "svhn",
        "natural",
        10,
        26_032,
        "digit",
        "svhn_cropped",
        "train[65931:66131]",
        "test",
        f"{HUB_PREFIX}svhn",
        (88.9, 87.4, 80.9),
    ),
    VtabTask(
        "camelyon",
        "specialized",
        2,
        32_768,
        "whether the tissue holds a metastasis",
        "patch_camelyon",
        "validation[:200]",
        "test",
        f"{HUB_PREFIX}pcam",
        (83.3, 83.6, 82.5),
    ),
    VtabTask(
        "eurosat",
        "specialized",
        10,
        5_400,
        "use of the land",
        "eurosat/rgb",
        "train[16200:16400]",
        "train[21600:]",
        f"{HUB_PREFIX}eurosat",
        (96.7, 96.5, 95.6),
    ),
    VtabTask(
        "resisc45",
        "specialized",
        45,
        6_300,
        "scene from above",
        "resisc45",
        "train[18900:19100]",
        "train[25200:]",
        f"{HUB_PREFIX}resisc45",
        (91.4, 89.7, 85.2),
    ),
    VtabTask(
        "retinopathy",
        "specialized",
        5,
        42_670,
        "stage of the disease",
        "diabetic_retinopathy_detection/btgraham-300",
        "validation[:200]",
        "test",
        f"{HUB_PREFIX}diabetic_retinopathy",
        (76.6, 77.1, 75.3),
    ),
    VtabTask(
        "clevr-count",
        "structured",
        8,
        15_000,
        "number of objects, 3 to 10",
        "clevr",
        "train[63000:63200]",
        "validation",
        f"{HUB_PREFIX}clevr_count_all",
        (91.7, 86.4, 70.3),
    ),
    VtabTask(
        "clevr-distance",
        "structured",
        6,
        15_000,
        "depth of the nearest object (third of its pixel_coords), cut at 8, 8.5, 9, 9.5 and 10",
        "clevr",
        "train[63000:63200]",
        "validation",
        f"{HUB_PREFIX}clevr_closest_object_distance",
        (63.8, 63.1, 56.1),
    ),
    VtabTask(
        "dmlab",
        "structured",
        6,
        22_735,
        "distance of an object in a maze (3 bins), with positive or with negative reward",
        "dmlab",
        "validation[:200]",
        "test",
        f"{HUB_PREFIX}dmlab",
        (53.1, 49.7, 41.9),
    ),
    VtabTask(
        "dsprites-location",
        "structured",
        16,
        73_728,
        "x position, 32 values in 16 bins: floor(value / 2)",
        "dsprites",
        "train[589824:590024]",
        "train[663552:]",
        f"{HUB_PREFIX}dsprites_label_x_position",
        (79.4, 74.5, 74.7),
    ),
    VtabTask(
        "dsprites-orientation",
        "structured",
        16,
        73_728,
        "orientation, 40 values in 16 bins: floor(value / 2.5)",
        "dsprites",
        "train[589824:590024]",
        "train[663552:]",
        f"{HUB_PREFIX}dsprites_label_orientation",
        (63.3, 60.5, 64.9),
    ),
    VtabTask(
        "kitti-distance",
        "structured",
        4,
        711,
        "metres to the nearest car, van or truck: up to 8, up to 20, more, or none there",
        "kitti",
        "validation[:200]",
        "test",
        None,
        (84.5, 82.2, 79.9),
    ),
    VtabTask(
        "smallnorb-azimuth",
        "structured",
        18,
        12_150,
        "azimuth of the camera, 18 values",
        "smallnorb",
        "test[:200]",
        "test[12150:]",
        f"{HUB_PREFIX}smallnorb_label_azimuth",
        (33.2, 36.2, 30.5),
    ),
    VtabTask(
        "smallnorb-elevation",
        "structured",
        9,
        12_150,
        "elevation of the camera, 9 values",
        "smallnorb",
        "test[:200]",
        "test[12150:]",
        f"{HUB_PREFIX}smallnorb_label_elevation",
        (51.2, 51.1, 41.7),
    ),
)
VTAB_TASK_NAMES = tuple(task.name for task in VTAB_TASKS)
