"""Blood cells to classify, cut out of a data set of boxes (Pascal VOC).

    python -m benchmarks.crop_cells BCCD OUTPUT

OUTPUT gets train/, val/ and test/ with a folder for each class, as the photos are divided. Boxes
that are narrower than 8 pixels are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image

SPLITS = ("train", "val", "test")
CORNERS = ("xmin", "ymin", "xmax", "ymax")
MIN_SIDE = 8  # pixels


def crop_split(source: Path, split: str, output: Path) -> int:
    """-> number of crops written"""
    count = 0
    for name in (source / "ImageSets" / "Main" / f"{split}.txt").read_text().split():
        photo = Image.open(source / "JPEGImages" / f"{name}.jpg").convert("RGB")
        boxes = ElementTree.parse(source / "Annotations" / f"{name}.xml").iter("object")
        for number, box in enumerate(boxes):
            left, top, right, bottom = (int(box.findtext(f"bndbox/{key}") or 0) for key in CORNERS)
            if min(right - left, bottom - top) < MIN_SIDE:
                continue
            folder = output / split / (box.findtext("name") or "unknown")
            folder.mkdir(parents=True, exist_ok=True)
            photo.crop((left - 1, top - 1, right, bottom)).save(folder / f"{name}-{number}.png")
            count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    for split in SPLITS:
        print(f"{split}: {crop_split(args.source, split, args.output):,} crops")


if __name__ == "__main__":
    main()
