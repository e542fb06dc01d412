"""What a training step keeps in memory, part by part: arithmetic on the config.

What backward needs of an image is counted in values by their type. GroupNorm takes float32 and
gives float32, on a GPU in mixed precision as well: its input, the ReLU after it, and for the
convolution a cast copy of that are kept.

Sizes: H W image, C channels of the image, C' of a ResNet's root, c of a unit's 3x3 convolution
(its output has 4c), h w of a feature map, N patches, T tokens, D width, K heads, M MLP width,
W window of local attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from patchwords.models.config import ModelConfig, ViTConfig
from patchwords.models.mixers import DEFAULT_WINDOW
from patchwords.models.resnet.config import (
    AXIAL_HEADS,
    BOTTLENECK_EXPANSION,
    ConvStemConfig,
    ResNetConfig,
    TrunkConfig,
    halve_grid,
)

GridSize = tuple[int, int]


@dataclass(frozen=True)
class PartMemory:
    """What one step of the forward pass leaves behind, in values of one image.

    In float32 `kept` and `float32` are alike; in mixed precision `kept` has the type of the
    products, and `cast` are values among `float32` that a product keeps a second time in its own.
    """

    name: str
    kept: int = 0
    float32: int = 0
    cast: int = 0
    int64: int = 0
    at_work: int = 0  # float32 values that live only while backward is in this part
    weights_at_work: int = 0  # the same, once for the whole batch


def list_part_memory(config: ModelConfig) -> Iterator[PartMemory]:
    """The parts in the order of the forward pass, with the names of counting.py."""
    if isinstance(config.trunk, ConvStemConfig):
        yield from _stem(config.trunk, config.channels, config.image_size)
    elif config.trunk is not None:
        yield from _trunk(config.trunk, config.channels, config.image_size)
    if isinstance(config, ResNetConfig):
        normed = config.trunk.form == "pre"
        features = grid_area(config.grid) * config.trunk.channels  # into the last GroupNorm
        yield PartMemory("head", float32=features if normed else 0)
        return
    values = config.tokens * config.width
    pixels = config.channels * grid_area(config.image_size)
    # The features of a trunk are kept by its end.
    before_norm = values if config.pre_norm else 0
    yield PartMemory("embedding", float32=before_norm + (0 if config.trunk else pixels))
    yield PartMemory("positions")
    for layer in range(config.layers):
        branches = _branch(config, _mixer(config, layer)), _branch(config, _mlp(config))
        yield from branches if layer < config.layers - 1 else _drop_unread(config, *branches)
    yield PartMemory("last norm", float32=0 if config.pool_norm else 2 * values)
    if config.classifier == "map":
        yield PartMemory("attention pooling", kept=2 * values)  # keys and values
    yield PartMemory("head")


# ResNets and convolutional stems


def _trunk(trunk: TrunkConfig, channels: int, image_size: GridSize) -> Iterator[PartMemory]:
    """Root and units in order, named by the stage that they are in."""
    if trunk.form == "plain":
        yield from _plain_layers(trunk, channels, image_size)
        return
    yield _root(trunk, channels, image_size)
    grid = halve_grid(halve_grid(image_size))
    inputs = trunk.root_channels
    for stage, units in enumerate(trunk.units):
        width = trunk.root_channels * 2**stage
        for index in range(units):
            stride = 2 if stage > 0 and index == 0 else 1
            yield _bottleneck(trunk, f"stage {stage + 1}", inputs, width, grid, stride)
            grid = halve_grid(grid) if stride == 2 else grid
            inputs = BOTTLENECK_EXPANSION * width


def _plain_layers(trunk: TrunkConfig, channels: int, image_size: GridSize) -> Iterator[PartMemory]:
    """Layers of form "plain"; pooling keeps its input and an index for each output."""
    grid = image_size
    for layer, units in enumerate((1, *trunk.units)):
        # A later layer takes what the ReLU before it keeps.
        pixels = 0 if layer else channels * grid_area(grid)
        outputs = trunk.root_channels * 2**layer
        values, pooled = grid_area(grid) * outputs, grid_area(halve_grid(grid)) * outputs
        yield PartMemory(
            f"stage {layer}" if layer else "root",
            kept=2 * values + pooled,  # what is normed, what is pooled, what the ReLU gives
            float32=pixels,
            cast=pixels,
            int64=pooled,
            at_work=values + pooled,
        )
        # What is normed and what the ReLU gives, twice, and the sum.
        unit = PartMemory(f"stage {layer}", kept=5 * pooled, at_work=2 * pooled)
        yield from [unit] * (units - 1)
        grid = halve_grid(grid)


def _root(trunk: TrunkConfig, channels: int, image_size: GridSize) -> PartMemory:
    """The convolution of 7x7 and the pooling, which keeps an index for each output."""
    outputs = trunk.root_channels
    values = grid_area(halve_grid(image_size)) * outputs
    pooled = grid_area(halve_grid(halve_grid(image_size))) * outputs
    pixels = channels * grid_area(image_size)
    post = trunk.form == "post"
    return PartMemory(
        "root",
        # The pooling keeps its padded input; before it are the input of the norm and the ReLU.
        kept=0 if post else values,
        float32=pixels + (3 * values if post else 0) + pooled,
        cast=pixels,
        int64=pooled,
        at_work=values + pooled,
    )


def _bottleneck(
    trunk: TrunkConfig, name: str, inputs: int, width: int, grid: GridSize, stride: int
) -> PartMemory:
    """A bottleneck: 1x1, 3x3 or axial attention, 1x1, and the shortcut's convolution."""
    outputs = BOTTLENECK_EXPANSION * width
    before, after = grid_area(grid), grid_area(halve_grid(grid) if stride == 2 else grid)
    reshaped = stride == 2 or inputs != outputs
    axial = trunk.spatial == "axial"
    spatial = _axial(width, grid) if axial else PartMemory("3x3")
    inside = width * (before + after)
    entering = inputs * before * (2 if reshaped else 1)  # into conv1 and into the shortcut
    if trunk.form == "post":
        float32 = 2 * inside + outputs * after * (3 if reshaped else 2)
    else:
        float32 = 2 * inside + outputs * after + inputs * before
    # Where more is padded behind than before, the 3x3 keeps a padded copy in either precision.
    padded = width * before if trunk.padding == "same" and stride == 2 else 0
    kernels = [inputs * width, width * outputs, *([inputs * outputs] if reshaped else [])]
    largest = max(*kernels, 0 if axial else 9 * width**2)
    return PartMemory(
        name,
        kept=spatial.kept + padded,
        float32=float32 + spatial.float32,
        cast=entering + inside - padded + spatial.cast,
        at_work=max(3 * outputs * after, spatial.at_work),
        weights_at_work=3 * largest,  # their gradient on its way through the standardising
    )


def _axial(width: int, grid: GridSize) -> PartMemory:
    """Attention along the columns, then along the rows."""
    places = grid_area(grid)
    weights = AXIAL_HEADS * places * sum(grid)
    return PartMemory(
        "axial",
        # for each axis: the input, q and k twice (for keys and for offsets), v
        kept=2 * 4 * places * width,
        float32=weights,  # the softmax
        cast=2 * weights,  # for values and for offsets
        at_work=3 * AXIAL_HEADS * places * max(grid),
    )


def _stem(stem: ConvStemConfig, channels: int, image_size: GridSize) -> Iterator[PartMemory]:
    """The layers of a convolutional stem; pooling keeps its input and an index for each output."""
    grid = image_size
    for index, outputs in enumerate(stem.layer_channels):
        # A later layer takes what the ReLU before it keeps.
        pixels = 0 if index else channels * grid_area(grid)
        values, pooled = grid_area(grid) * outputs, grid_area(halve_grid(grid)) * outputs
        yield PartMemory(
            "stem",
            kept=values + pooled,  # what is pooled, and what the ReLU gives
            float32=pixels,
            cast=pixels,
            int64=pooled,
            at_work=values + pooled,
        )
        grid = halve_grid(grid)


def grid_area(grid: GridSize) -> int:
    return grid[0] * grid[1]


# Blocks of a ViT


def _branch(config: ViTConfig, inner: PartMemory) -> PartMemory:
    """The LayerNorm before a mixer or an MLP, and the dropout after it (Eqs. 2 and 3)."""
    values = config.tokens * config.width
    return replace(
        inner,
        # LayerScale keeps what it multiplies.
        kept=inner.kept
        + (values if config.dropout else 0)
        + (values if config.layer_scale is not None else 0),
        float32=inner.float32 + values,  # the residual stream is not cut to 16 bits
    )


def _mlp(config: ViTConfig) -> PartMemory:
    """Two dense layers: what they take, and the hidden layer before and after GELU.

    A gated MLP keeps both halves of fc1, the gate after silu, and their product.
    """
    width, hidden = config.width, config.mlp_width
    masks = hidden if config.dropout else 0
    inside = 4 * hidden if config.swiglu else 2 * hidden
    return PartMemory(
        "MLP",
        kept=config.tokens * (width + inside + masks),
        at_work=config.tokens * 2 * (width + hidden),
    )


def _drop_unread(
    config: ViTConfig, mixing: PartMemory, dense: PartMemory
) -> tuple[PartMemory, PartMemory]:
    """The last block's memory where the head does not read most of its tokens."""
    if config.num_read_tokens is None:
        return mixing, dense
    unread, width = config.tokens - config.num_read_tokens, config.width
    share = config.num_read_tokens / config.tokens
    # What goes into `proj`, its dropout's mask, and with relative positions queries and weights.
    lost = unread * width * (2 if config.dropout else 1)
    if config.position == "relative":
        weights = unread * config.tokens * config.heads
        mixing = replace(mixing, float32=mixing.float32 - 2 * weights)
        lost += unread * width + weights
    mixing = replace(mixing, kept=mixing.kept - lost)
    dense = replace(
        dense,
        kept=round(dense.kept * share),
        float32=round(dense.float32 * share),
        at_work=round(dense.at_work * share),
    )
    return mixing, dense


# Mixers, their input included. One without a formula is watched on the meta device.


def _mixer(config: ViTConfig, layer: int) -> PartMemory:
    if formula := MIXER_MEMORY.get(config.mixer):
        return replace(formula(config, layer), name=config.mixer_traits.label)
    from patchwords.models.cost.counting import count_saved_values

    kept = count_saved_values(config, layer)
    return PartMemory(
        config.mixer_traits.label, kept=kept, at_work=2 * config.tokens * config.width
    )


def _attention(config: ViTConfig, layer: int) -> PartMemory:
    """Every token sees every other one."""
    return _relative(config, _dense_attention(config), config.tokens)


def _axial_attention(config: ViTConfig, layer: int) -> PartMemory:
    """Attention along the rows in even layers, along the columns in odd ones."""
    rows, columns = config.grid
    return _relative(config, _dense_attention(config), columns if layer % 2 == 0 else rows)


def _dense_attention(config: ViTConfig) -> PartMemory:
    """The input, q, k, v, and what goes into `proj`; a fused kernel keeps no weights.

    Norms of q and k keep what they take.
    """
    values = config.tokens * config.width
    kept = (7 if config.qk_norm else 5) * values
    return PartMemory("attention", kept=kept, at_work=2 * values)


def _relative(config: ViTConfig, part: PartMemory, keys: int) -> PartMemory:
    """Relative positions on top: scaled queries, and the weights, three times over.

    That is so on a CPU, where no fused kernel takes a bias that learns.
    """
    if config.position != "relative":
        return part
    weights = config.tokens * keys * config.heads
    return replace(
        part,
        kept=part.kept + config.tokens * config.width + weights,
        float32=part.float32 + 2 * weights,
    )


def _local_attention(config: ViTConfig, layer: int) -> PartMemory:
    """Blocks of W x W queries, each with the (2W - 1) x (2W - 1) keys around it."""
    width, window = config.width, config.window or DEFAULT_WINDOW
    rows, columns = config.grid
    blocks = -(-rows // window) * -(-columns // window)
    queries, keys = blocks * window**2, (2 * window - 1) ** 2
    weights = queries * keys * config.heads
    scaled = queries * width if config.position == "relative" else 0
    return PartMemory(
        "attention",
        # As on a CPU, where no fused kernel takes the mask: blocks of q, k and v, and the weights,
        # all in float32; with them the input, what goes into `proj`, and scaled queries.
        kept=2 * config.tokens * width + scaled,
        float32=blocks * (window**2 + 2 * keys) * width + weights,
        at_work=2 * config.tokens * width + weights,
    )


def _token_mlp(config: ViTConfig, layer: int) -> PartMemory:
    """An MLP across the patches, on every channel by itself; its hidden layer has D/2."""
    patches, hidden = config.patches, config.width // 2
    masks = hidden if config.dropout else 0
    return PartMemory(
        "token MLP",
        kept=config.width * (patches + 2 * hidden + masks),
        at_work=config.width * 2 * (patches + hidden),
    )


def _pooling(config: ViTConfig, layer: int) -> PartMemory:
    return PartMemory("pooling", kept=config.tokens * config.width)


def _identity(config: ViTConfig, layer: int) -> PartMemory:
    return PartMemory("identity")


MIXER_MEMORY: dict[str, Callable[[ViTConfig, int], PartMemory]] = {
    "attention": _attention,
    "axial": _axial_attention,
    "local": _local_attention,
    "pooling": _pooling,
    "mlp": _token_mlp,
    "identity": _identity,
}
