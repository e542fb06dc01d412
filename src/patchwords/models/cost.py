"""What a model costs, by arithmetic on its config: parameters, multiplications, memory.

Sources: the paper's equations counted out; the sums meet the published counts of parameters to the
unit. 1 MAC is one multiplication with its addition; FLOPs are 2 MACs. The parts are in
cost_trunk.py, cost_vit.py and cost_mixers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from patchwords.models.config import DEFAULT_WINDOW, ViTConfig
from patchwords.models.resnet.config import (
    AXIAL_HEADS,
    BOTTLENECK_EXPANSION,
    ConvStemConfig,
    ResNetConfig,
    TrunkConfig,
    halve_grid,
)

# What one part of a model costs.


@dataclass(frozen=True)
class PartCost:
    """A step of the forward pass: its numbers to learn, its products, and what it leaves behind.

    What backward needs of an image is counted in values by their type. In float32 `kept` and
    `float32` are one; in mixed precision `kept` has that of the products, and `cast` are values
    among `float32` that a product keeps a second time in its own.
    """

    name: str
    parameters: int = 0
    standardised: int = 0  # those among them whose mean and deviation are taken out
    macs: int = 0  # of one image
    kept: int = 0
    float32: int = 0
    cast: int = 0
    int64: int = 0
    at_work: int = 0  # values, in float32, that live only while backward is in this part
    weights_at_work: int = 0  # the same, once for the whole batch

    def bytes_kept(self, batch: int, bytes_per_value: int) -> int:
        mixed = bytes_per_value < 4
        of_image = (
            (self.kept + self.cast * mixed) * bytes_per_value + 4 * self.float32 + 8 * self.int64
        )
        # Mixed precision copies every weight; standardising makes two tensors, one in float32.
        copied = self.parameters if mixed else self.standardised
        return batch * of_image + copied * bytes_per_value + 4 * self.standardised


def estimate_peak_bytes(parts: Iterable[PartCost], batch: int, bytes_per_value: int) -> int:
    """The most memory at once. Parts give back what they keep in the reverse of their order."""
    kept = peak = 0
    for part in parts:
        kept += part.bytes_kept(batch, bytes_per_value)
        peak = max(peak, kept + 4 * (batch * part.at_work + part.weights_at_work))
    return peak


# What the root and the stages of a ResNet cost, or a convolutional stem.
#
# GroupNorm takes float32 and gives float32, on a GPU in mixed precision as well: its input, the ReLU
# after it, and for the convolution a cast copy of that are kept.
#
# Sizes: C channels of the image, C' of the root, c of a unit's 3x3 convolution (its output has 4c),
# h w of a feature map, n places along an axis, K heads of axial attention, Dv width of a value.


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


def stem_parts(stem: ConvStemConfig, channels: int, image_size: GridSize) -> Iterator[PartCost]:
    """The layers of a convolutional stem; pooling keeps its input and an index for each output."""
    grid = image_size
    for index, outputs in enumerate(stem.layer_channels):
        places, pooled = grid_area(grid), grid_area(halve_grid(grid))
        weights = 9 * channels * outputs
        yield PartCost(
            "stem",
            parameters=weights,
            macs=places * weights,
            kept=(places + pooled) * outputs,  # what is pooled, and what the ReLU gives
            # The images; a later layer takes what the ReLU before it keeps.
            float32=0 if index else channels * places,
            cast=0 if index else channels * places,
            int64=pooled * outputs,
            at_work=(places + pooled) * outputs,
        )
        grid, channels = halve_grid(grid), outputs


def grid_area(grid: GridSize) -> int:
    return grid[0] * grid[1]


# What the mixers of tokens cost, and the relative positions in them.
#
# Sizes: N patches, T tokens, D width, K heads, Dh head width, h w grid of patches, W window.


def attention_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """Every token sees every other one."""
    return add_relative_cost(
        config, dense_attention_cost(config, config.tokens), config.patches, config.tokens
    )


def axial_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """Attention along the rows in even layers, along the columns in odd ones."""
    rows, columns = config.grid
    line = columns if layer % 2 == 0 else rows
    return add_relative_cost(config, dense_attention_cost(config, line), line, line)


def dense_attention_cost(config: ViTConfig, others: int) -> PartCost:
    """q, k, v, out, q k^T and A v, where a token sees so many. Fused, they keep no weights."""
    tokens, width = config.tokens, config.width
    return PartCost(
        "attention",
        parameters=4 * width * (width + 1),
        macs=tokens * 4 * width**2 + 2 * tokens * others * width,
        kept=5 * tokens * width,  # the input, q, k, v, and what goes into `out`
        at_work=2 * tokens * width,
    )


def add_relative_cost(config: ViTConfig, part: PartCost, patches: int, others: int) -> PartCost:
    """Relative positions on top (relative.py): queries meet all embeddings, and each its own."""
    if config.position != "relative":
        return part
    offsets = 2 * patches - 1 + 3 * config.num_prefix_tokens
    weights = config.tokens * others * config.heads
    return replace(
        part,
        parameters=part.parameters + offsets * config.head_width,
        macs=part.macs + config.tokens * offsets * config.width,
        # The scaled queries; and on a CPU, where no fused kernel takes a bias that learns, the
        # weights, three times over.
        kept=part.kept + config.tokens * config.width + weights,
        float32=part.float32 + 2 * weights,
    )


def local_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """Blocks of W x W queries, each with the (2W - 1) x (2W - 1) keys around it (local.py)."""
    width, window = config.width, config.window or DEFAULT_WINDOW
    rows, columns = config.grid
    blocks = -(-rows // window) * -(-columns // window)
    queries, keys = blocks * window**2, (2 * window - 1) ** 2
    relative = config.position == "relative"
    dense = dense_attention_cost(config, 0)
    weights = queries * keys * config.heads
    return replace(
        dense,
        parameters=dense.parameters + (window * config.head_width if relative else 0),
        macs=dense.macs + queries * width * (2 * keys + (window if relative else 0)),
        # As on a CPU, where no fused kernel takes the mask: blocks of q, k and v, and the weights,
        # all in float32. Beside them the input, what goes into `out`, and scaled queries.
        kept=2 * config.tokens * width + (queries * width if relative else 0),
        float32=blocks * (window**2 + 2 * keys) * width + weights,
        at_work=dense.at_work + weights,
    )


def token_mlp_cost(config: ViTConfig, layer: int) -> PartCost:
    """An MLP across the patches, on every channel by itself; its hidden layer has D/2."""
    patches, width, hidden = config.patches, config.width, config.width // 2
    masks = hidden if config.dropout else 0
    return PartCost(
        "token MLP",
        parameters=hidden * (patches + 1) + patches * (hidden + 1),
        macs=width * 2 * patches * hidden,
        kept=width * (patches + 2 * hidden + masks),
        at_work=width * 2 * (patches + hidden),
    )


def pooling_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """The mean of 3 x 3 neighbours: without a product."""
    return PartCost("pooling", kept=config.tokens * config.width)


def identity_mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    return PartCost("identity")


MIXER_COSTS: dict[str, Callable[[ViTConfig, int], PartCost]] = {
    "attention": attention_mixer_cost,
    "axial": axial_mixer_cost,
    "local": local_mixer_cost,
    "pooling": pooling_mixer_cost,
    "mlp": token_mlp_cost,
    "identity": identity_mixer_cost,
}


def mixer_cost(config: ViTConfig, layer: int) -> PartCost:
    """What stands at the place of attention in this layer, its input included."""
    return MIXER_COSTS[config.mixer](config, layer)


# What the parts of a ViT cost: Eqs. 1-4 and their alternatives, counted out.
#
# Sizes: P patch size, C channels, N patches, T tokens, D width, K heads, M MLP width, R
# representation.


def vit_part_costs(config: ViTConfig) -> Iterator[PartCost]:
    """Trunk, embedding, positions, blocks and head in order; blocks are named by their branches."""
    if isinstance(config.trunk, ConvStemConfig):
        yield from stem_parts(config.trunk, config.channels, config.image_size)
    elif config.trunk:
        yield from trunk_part_costs(config.trunk, config.channels, config.image_size)
    yield embedding_cost(config)
    yield position_cost(config)
    for layer in range(config.layers):
        both = branch_cost(config, mixer_cost(config, layer)), branch_cost(config, mlp_cost(config))
        yield from both if layer < config.layers - 1 else drop_unread_tokens(config, *both)
    yield last_norm_cost(config)
    if config.classifier == "map":
        yield attention_pool_cost(config)
    yield vit_head_cost(config)


def count_unread_macs(config: ViTConfig) -> int:
    """Attention, `out` and MLP of the last block's tokens that the classifier does not read."""
    if config.num_read_tokens is None:
        return 0
    width, tokens = config.width, config.tokens
    offsets = (
        2 * config.patches - 1 + 3 * config.num_prefix_tokens
        if config.position == "relative"
        else 0
    )
    of_one = width**2 + (2 * tokens + offsets) * width + 2 * width * config.mlp_width
    return (tokens - config.num_read_tokens) * of_one


def drop_unread_tokens(
    config: ViTConfig, mixing: PartCost, dense: PartCost
) -> tuple[PartCost, PartCost]:
    """The last block's memory where most of its tokens are not read; its products stay counted."""
    if config.num_read_tokens is None:
        return mixing, dense
    unread, width = config.tokens - config.num_read_tokens, config.width
    share = config.num_read_tokens / config.tokens
    # What goes into `out`, its dropout's mask, and with relative positions queries and weights.
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


def embedding_cost(config: ViTConfig) -> PartCost:
    """Patches through E, and the class token."""
    channels = config.trunk.channels if config.trunk else config.channels
    weights = config.patch_size**2 * channels * config.width
    height, width = config.image_size
    return PartCost(
        "embedding",
        parameters=weights + config.width + config.num_prefix_tokens * config.width,
        macs=config.patches * weights,
        # The features of a trunk are kept by its end.
        float32=0 if config.trunk else config.channels * height * width,
    )


def position_cost(config: ViTConfig) -> PartCost:
    """The tables that are added to the tokens (Table 8). Relative ones count with attention."""
    tables = config.layers if config.position_at == "every" else 1
    rows = {
        "1d": config.tokens * config.width,
        "2d": sum(config.grid) * (config.width // 2) + config.num_prefix_tokens * config.width,
    }
    return PartCost("positions", parameters=tables * rows.get(config.position, 0))


def branch_cost(config: ViTConfig, inner: PartCost) -> PartCost:
    """The LayerNorm before a mixer or an MLP, and the dropout after it (Eqs. 2 and 3)."""
    values = config.tokens * config.width
    return replace(
        inner,
        parameters=2 * config.width + inner.parameters,
        kept=inner.kept + (values if config.dropout else 0),
        float32=inner.float32 + values,  # the residual stream is not cut to 16 bits
    )


def mlp_cost(config: ViTConfig, tokens: int | None = None) -> PartCost:
    """Two dense layers; what they take, and the hidden layer before and after GELU, is kept."""
    tokens = config.tokens if tokens is None else tokens
    width, hidden = config.width, config.mlp_width
    masks = hidden if config.dropout else 0
    return PartCost(
        "MLP",
        parameters=hidden * (width + 1) + width * (hidden + 1),
        macs=tokens * 2 * width * hidden,
        kept=tokens * (width + 2 * hidden + masks),
        at_work=tokens * 2 * (width + hidden),
    )


def last_norm_cost(config: ViTConfig) -> PartCost:
    """Eq. 4, on every token."""
    width = config.width
    return PartCost("last norm", parameters=2 * width, float32=2 * config.tokens * width)


def attention_pool_cost(config: ViTConfig) -> PartCost:
    """Attention pooling by one learned query: keys and values of T tokens, the rest is for one."""
    width, tokens = config.width, config.tokens
    inner = mlp_cost(config, tokens=1)
    attention = 4 * width * (width + 1)
    return PartCost(
        "attention pooling",
        parameters=width + attention + 2 * width + inner.parameters,
        macs=2 * (tokens + 1) * width**2 + 2 * tokens * width + inner.macs,
        kept=2 * tokens * width,
    )


def vit_head_cost(config: ViTConfig) -> PartCost:
    """The tanh layer and the classifier."""
    width, size = config.width, config.representation_size
    inputs = size or width
    hidden = size * width if size else 0
    classifier = config.num_classes * inputs
    return PartCost(
        "head",
        parameters=hidden + (size or 0) + classifier + config.num_classes,
        macs=hidden + classifier,
    )


ModelConfig = ViTConfig | ResNetConfig
OptionalImageSize = int | Sequence[int] | None

TRAINING_FLOPS_PER_MAC = 6  # of a training step: 2 in the forward pass, and 4 in the backward pass


def count_parameters(config: ModelConfig) -> int:
    """How many numbers the model has."""
    return sum(part.parameters for part in list_part_costs(config))


def count_macs(config: ModelConfig, image_size: OptionalImageSize = None) -> int:
    """Multiplications of one image through the matrices of the model; a training step takes 3x.

    Norms, softmax, GELU, pooling and sums are left out, as is usual: they are below 1 %.
    """
    return sum(part.macs for part in list_part_costs(config, image_size))


def count_forward_macs(config: ModelConfig, image_size: OptionalImageSize = None) -> int:
    """`count_macs` without what `model(images)` leaves out: the last block's tokens that nobody reads.

    Against these a utilisation is measured: work that is not done is not to be counted as done.
    """
    if image_size is not None:
        config = config.with_settings(image_size=image_size)
    unread = count_unread_macs(config) if isinstance(config, ViTConfig) else 0
    return count_macs(config) - unread


def compute_training_flops(macs: int, images: float) -> float:
    """Operations of training on so many images, each counted as often as it is seen.

    Forward 2 for each MAC, backward twice that: it meets the exaFLOPs (1e18) of Table 6.
    """
    return TRAINING_FLOPS_PER_MAC * macs * images


def estimate_activation_bytes(
    config: ModelConfig, batch: int, image_size: OptionalImageSize = None, bytes_per_value: int = 4
) -> int:
    """About the most memory that the activations of one training step take at once.

    Weights, their gradients and the optimizer's state come on top. `bytes_per_value` is 2 in mixed
    precision, where the residual stream of a ViT and all around GroupNorm stay in float32, as
    autocast has it on a GPU, and every weight has a copy. Within 13 % of what torch takes on a
    CPU, and within 6 % for a plain ViT-Ti or S, or a ResNet of 100 pixels and more.
    """
    return estimate_peak_bytes(list_part_costs(config, image_size), batch, bytes_per_value)


def list_part_costs(config: ModelConfig, image_size: OptionalImageSize = None) -> list[PartCost]:
    """The parts of the model in the order of the forward pass."""
    if image_size is not None:
        config = config.with_settings(image_size=image_size)
    if isinstance(config, ViTConfig):
        return list(vit_part_costs(config))
    return [
        *trunk_part_costs(config.trunk, config.channels, config.image_size),
        resnet_head_cost(config),
    ]


def group_part_costs(
    config: ModelConfig, image_size: OptionalImageSize = None
) -> dict[str, list[PartCost]]:
    """The parts under their names, in order: all blocks' attention together, and so on."""
    named: dict[str, list[PartCost]] = {}
    for part in list_part_costs(config, image_size):
        named.setdefault(part.name, []).append(part)
    return named


def resnet_head_cost(config: ResNetConfig) -> PartCost:
    """The classifier; before it the last GroupNorm where norms stand before convolutions."""
    channels, post = config.trunk.channels, config.trunk.form == "post"
    classifier = config.num_classes * channels
    return PartCost(
        "head",
        parameters=classifier + config.num_classes + (0 if post else 2 * channels),
        macs=classifier,
        float32=0 if post else grid_area(config.grid) * channels,
    )
