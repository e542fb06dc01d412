"""What the root and the stages of a ResNet cost.

GroupNorm takes float32 and gives float32, on a GPU in mixed precision as well: its input, the ReLU
after it, and for the convolution a cast copy of that are kept.

Sizes: C channels of the image, C' of the root, c of a unit's 3x3 convolution (its output has 4c),
h w of a feature map, n places along an axis, K heads of axial attention, Dv width of a value.
"""

from __future__ import annotations

from collections.abc import Iterator

from patchwords.model.cost_part import PartCost
from patchwords.model.trunk_config import AXIAL_HEADS, BOTTLENECK_EXPANSION, TrunkConfig, halve_grid

GridSize = tuple[int, int]


def trunk_part_costs(trunk: TrunkConfig, channels: int, image_size: GridSize) -> Iterator[PartCost]:
    """Root and units in order, named by the stage that they are in."""
    yield root_cost(trunk, channels, image_size)
    grid = halve_grid(halve_grid(image_size))
    inputs = trunk.root_channels
    for stage, units in enumerate(trunk.units):
        width = trunk.root_channels * 2**stage
        for index in range(units):
            stride = 2 if stage > 0 and index == 0 else 1
            yield bottleneck_cost(trunk, f"stage {stage + 1}", inputs, width, grid, stride)
            grid = halve_grid(grid) if stride == 2 else grid
            inputs = BOTTLENECK_EXPANSION * width


def root_cost(trunk: TrunkConfig, channels: int, image_size: GridSize) -> PartCost:
    """The convolution of 7x7 and the pooling, which keeps an index for each output."""
    out = trunk.root_channels
    places = grid_area(halve_grid(image_size))
    pooled = grid_area(halve_grid(halve_grid(image_size)))
    weights = 7 * 7 * channels * out
    pixels = channels * grid_area(image_size)
    post = trunk.form == "post"
    return PartCost(
        "root",
        parameters=weights + (2 * out if post else 0),
        standardised=weights,
        macs=places * weights,
        # The pooling keeps its padded input; before it are the input of the norm and the ReLU.
        kept=0 if post else places * out,
        float32=pixels + (3 * places * out if post else 0) + pooled * out,
        cast=pixels,
        int64=pooled * out,
        at_work=(places + pooled) * out,
    )


def bottleneck_cost(
    trunk: TrunkConfig, name: str, inputs: int, width: int, grid: GridSize, stride: int
) -> PartCost:
    """A bottleneck: 1x1, 3x3 or axial attention, 1x1, and the shortcut's convolution."""
    outputs = BOTTLENECK_EXPANSION * width
    small = halve_grid(grid) if stride == 2 else grid
    before, after = grid_area(grid), grid_area(small)
    reshaped = stride == 2 or inputs != outputs
    shortcut = inputs * outputs if reshaped else 0
    spatial = (
        spatial_axial_cost(width, grid)
        if trunk.spatial == "axial"
        else spatial_convolution_cost(width, after)
    )
    weights = inputs * width + spatial.standardised + width * outputs + shortcut
    inside = width * (before + after)
    entering = inputs * before * (2 if reshaped else 1)  # into conv1 and into the shortcut
    if trunk.form == "post":
        norms = 2 * (width + width + outputs) + (2 * outputs if reshaped else 0)
        float32 = 2 * inside + outputs * after * (3 if reshaped else 2)
    else:
        norms = 2 * (inputs + width + width)
        float32 = 2 * inside + outputs * after + inputs * before
    # Where more is padded behind than before, the 3x3 keeps a padded copy in either precision.
    padded = width * before if trunk.padding == "same" and stride == 2 else 0
    largest = max(inputs * width, spatial.standardised, width * outputs, shortcut)
    return PartCost(
        name,
        parameters=weights + norms + spatial.parameters - spatial.standardised,
        standardised=weights,
        macs=before * inputs * width + spatial.macs + after * (width * outputs + shortcut),
        kept=spatial.kept + padded,
        float32=float32 + spatial.float32,
        cast=entering + inside - padded + spatial.cast,
        at_work=max(3 * outputs * after, spatial.at_work),
        weights_at_work=3 * largest,  # their gradient on its way through the standardising
    )


def spatial_convolution_cost(width: int, places: int) -> PartCost:
    """A unit's 3x3 between as many channels."""
    weights = 9 * width**2
    return PartCost("3x3", parameters=weights, standardised=weights, macs=places * weights)


def spatial_axial_cost(width: int, grid: GridSize) -> PartCost:
    """Attention along the columns, then along the rows (axial_resnet.py)."""
    value = width // AXIAL_HEADS
    lengths = sum(grid)  # n of the columns and of the rows
    tables = (2 * lengths - 2) * 2 * value
    # q k^T and the two tables of width Dv/2; A v and its table of width Dv
    products = 3 * width // 2 + 2 * width
    places = grid_area(grid)
    weights = AXIAL_HEADS * places * lengths  # of attention
    return PartCost(
        "axial",
        parameters=2 * 2 * width * (width + 1) + tables,
        macs=places * (2 * 2 * width**2 + lengths * products),
        # for each axis: the input, q and k twice (for keys and for offsets), v
        kept=2 * 4 * places * width,
        float32=weights,  # the softmax
        cast=2 * weights,  # for values and for offsets
        at_work=3 * AXIAL_HEADS * places * max(grid),
    )


def grid_area(grid: GridSize) -> int:
    return grid[0] * grid[1]
