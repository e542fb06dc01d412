"""Arrays as Google's files have them, from lists of keys and shapes written out by hand."""

from __future__ import annotations

import numpy as np

Arrays = dict[str, np.ndarray]

D, K, HEAD, MLP = 10, 2, 5, 23  # width, heads, their width, MLP width
PATCH, GRID, CLASSES = 4, 3, 7


def drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Arrays:
    """Normal numbers; every array has its own, so that none can stand for another."""
    rng = np.random.default_rng(seed)
    return {
        key: (rng.standard_normal(shape) * 0.5).astype(np.float32) for key, shape in shapes.items()
    }


def attention(at: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for part in ("query", "key", "value"):
        shapes |= {f"{at}/{part}/kernel": (D, K, HEAD), f"{at}/{part}/bias": (K, HEAD)}
    return shapes | {f"{at}/out/kernel": (K, HEAD, D), f"{at}/out/bias": (D,)}


def dense(at: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{at}/kernel": (inputs, outputs), f"{at}/bias": (outputs,)}


def norm(at: str, width: int = D) -> dict[str, tuple[int, ...]]:
    return {f"{at}/scale": (width,), f"{at}/bias": (width,)}


def mlp(at: str) -> dict[str, tuple[int, ...]]:
    return dense(f"{at}/Dense_0", D, MLP) | dense(f"{at}/Dense_1", MLP, D)


def vit_shapes(depth: int = 2, representation: int | None = None) -> dict[str, tuple[int, ...]]:
    """A released ViT with a class token."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls": (1, 1, D),
        "embedding/kernel": (PATCH, PATCH, 3, D),
        "embedding/bias": (D,),
        "Transformer/posembed_input/pos_embedding": (1, GRID * GRID + 1, D),
    }
    for layer in range(depth):
        block = f"Transformer/encoderblock_{layer}"
        shapes |= norm(f"{block}/LayerNorm_0") | norm(f"{block}/LayerNorm_2")
        shapes |= attention(f"{block}/MultiHeadDotProductAttention_1")
        shapes |= mlp(f"{block}/MlpBlock_3")
    shapes |= norm("Transformer/encoder_norm")
    if representation:
        shapes |= dense("pre_logits", D, representation)
    return shapes | dense("head", representation or D, CLASSES)


def vit_arrays(depth: int = 2, representation: int | None = None) -> Arrays:
    return drawn(vit_shapes(depth, representation))


def flax_numbers(arrays: Arrays) -> Arrays:
    """Submodules numbered by kind, as Flax does today."""
    changes = (
        ("LayerNorm_2", "LayerNorm_1"),
        ("ProductAttention_1", "ProductAttention_0"),
        ("MlpBlock_3", "MlpBlock_0"),
    )
    renamed = {}
    for key, array in arrays.items():
        for old, new in changes:
            key = key.replace(old, new)  # noqa: PLW2901
        renamed[key] = array
    return renamed


def big_vision(arrays: Arrays) -> Arrays:
    """As big_vision saves it: positions by themselves, and none for the class token."""
    found = flax_numbers(arrays)
    table = found.pop("Transformer/posembed_input/pos_embedding")
    found["pos_embedding"] = table[:, 1:]
    return found


def scanned(arrays: Arrays, depth: int = 2) -> Arrays:
    """All layers in one array."""
    first = "Transformer/encoderblock_0/"
    found = {k: v for k, v in arrays.items() if "encoderblock_" not in k}
    for key in [key for key in arrays if key.startswith(first)]:
        layers = [arrays[key.replace("block_0", f"block_{i}", 1)] for i in range(depth)]
        found[key.replace("block_0", "block", 1)] = np.stack(layers)
    return found


def prefixed(arrays: Arrays, prefix: str) -> Arrays:
    return {prefix + key: array for key, array in arrays.items()}


def trunk_shapes(units: tuple[int, ...], width: int = 64) -> dict[str, tuple[int, ...]]:
    """The ResNet of a released hybrid."""
    shapes: dict[str, tuple[int, ...]] = {"conv_root/kernel": (7, 7, 3, width)}
    shapes |= norm("gn_root", width)
    inputs = width
    for block, count in enumerate(units, 1):
        middle = width * 2 ** (block - 1)
        for unit in range(1, count + 1):
            at = f"block{block}/unit{unit}"
            shapes |= {
                f"{at}/conv1/kernel": (1, 1, inputs, middle),
                f"{at}/conv2/kernel": (3, 3, middle, middle),
                f"{at}/conv3/kernel": (1, 1, middle, 4 * middle),
            }
            shapes |= norm(f"{at}/gn1", middle) | norm(f"{at}/gn2", middle)
            shapes |= norm(f"{at}/gn3", 4 * middle)
            if unit == 1:
                shapes[f"{at}/conv_proj/kernel"] = (1, 1, inputs, 4 * middle)
                shapes |= norm(f"{at}/gn_proj", 4 * middle)
            inputs = 4 * middle
    return shapes


def hybrid_arrays(units: tuple[int, ...], patch: int, width: int = 64) -> Arrays:
    channels = 4 * width * 2 ** (len(units) - 1) if units else width
    embedding = {"embedding/kernel": (patch, patch, channels, D)}
    return drawn(vit_shapes() | trunk_shapes(units, width) | embedding)


def bit_arrays(units: tuple[int, ...], width: int = 64, classes: int = CLASSES) -> Arrays:
    """A released BiT, as TensorFlow named it."""
    shapes: dict[str, tuple[int, ...]] = {
        "resnet/root_block/standardized_conv2d/kernel": (7, 7, 3, width)
    }
    inputs = width
    for block, count in enumerate(units, 1):
        middle = width * 2 ** (block - 1)
        for unit in range(1, count + 1):
            at = f"resnet/block{block}/unit{unit:02d}"
            sizes = {
                "a": (1, 1, inputs, middle),
                "b": (3, 3, middle, middle),
                "c": (1, 1, middle, 4 * middle),
            }
            for letter, shape in sizes.items():
                shapes[f"{at}/{letter}/standardized_conv2d/kernel"] = shape
                shapes |= gamma_beta(f"{at}/{letter}/group_norm", shape[2])
            if unit == 1:
                shapes[f"{at}/a/proj/standardized_conv2d/kernel"] = (1, 1, inputs, 4 * middle)
            inputs = 4 * middle
    shapes |= gamma_beta("resnet/group_norm", inputs)
    shapes |= {
        "resnet/head/conv2d/kernel": (1, 1, inputs, classes),
        "resnet/head/conv2d/bias": (classes,),
    }
    return drawn(shapes)


def gamma_beta(at: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{at}/gamma": (width,), f"{at}/beta": (width,)}
