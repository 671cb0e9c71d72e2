"""Tiles of the kernels, by chip. Imports neither torch nor triton.

Every entry of the table compiles without spilled registers and within the chip's shared memory. The
tests check this, for one of the chips that share the entry. Packed products of few tokens were
chosen by measurements on an H100 and attention over words on an H200, other entries by none yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from attrs import frozen

Work = Literal["tokens", "words", "prompts", "latent"]
"""Single queries; the same over elements of 8 bits in words; several queries of a sequence; either
of them in latent attention."""


@frozen
class Tile:
    """A program's share of the work, and how it is compiled."""

    rows: int
    """Maximum of queries x query heads of a key/value head."""
    keys: int
    """Keys per iteration, as many in prompts as in single tokens, so that a row's sums have one
    order. Fewer if a block of the cache has fewer."""
    warps: int
    stages: int
    """Triton's pipeline stages. Keys are found through the block table, so each further iteration
    in flight takes two stages."""


@frozen
class Product:
    """A program's share of a product with a packed matrix, and how it is compiled."""

    outputs: int
    """Rows of the matrix."""
    tokens: int
    """Maximum number of tokens."""
    warps: int
    stages: int
    """Triton's pipeline stages."""
    columns: int = 256
    """Columns per iteration. For packed matrices: a block."""


@frozen
class Chip:
    """Limits of a chip, and its tiles by work and head dimension."""

    shared_memory: int
    """Bytes that a thread block can use."""
    processors: int
    """Multiprocessors of its largest model. Contexts are split if there are fewer programs."""
    tiles: Mapping[tuple[Work, int], Tile]
    """(work, head dimension) -> tile of heads up to this dimension."""
    products: Mapping[int, Product]
    """Maximum number of tokens -> share. The last entry serves larger products too."""
    grouped: Mapping[int, Product]
    """The same for dense experts, by the tokens of an expert."""
    rounded: Product = Product(128, 128, 8, 2, columns=128)
    """For products of 8-bit floats with 8-bit activations, if the chip has FP8."""
    fp8: bool = True
    """Whether the chip converts FP8."""
    narrow: int = 8
    """The fewest tokens of its matrix instructions."""


_SMALL: Mapping[tuple[Work, int], Tile] = {
    ("tokens", 64): Tile(16, 64, 4, 3),
    ("tokens", 128): Tile(16, 32, 4, 4),
    ("tokens", 256): Tile(16, 32, 4, 2),
    ("words", 64): Tile(16, 64, 2, 3),
    ("words", 128): Tile(16, 32, 1, 4),
    ("words", 256): Tile(16, 32, 2, 2),
    ("prompts", 64): Tile(64, 64, 4, 3),
    ("prompts", 128): Tile(64, 32, 4, 2),
    ("prompts", 256): Tile(32, 32, 4, 1),
    ("latent", 576): Tile(16, 16, 4, 2),
}
"""For 99 KiB of shared memory."""

_MIDDLE: Mapping[tuple[Work, int], Tile] = {
    **_SMALL,
    ("tokens", 64): Tile(16, 64, 4, 5),
    ("prompts", 256): Tile(64, 32, 8, 2),
    ("latent", 576): Tile(16, 32, 4, 2),
}
"""For 163 KiB, with the matrix instructions of sm_80."""

_LARGE: Mapping[tuple[Work, int], Tile] = {
    ("tokens", 64): Tile(16, 64, 4, 5),
    ("tokens", 128): Tile(16, 64, 4, 5),
    ("tokens", 256): Tile(16, 32, 4, 4),
    ("words", 64): Tile(16, 64, 2, 5),
    ("words", 128): Tile(16, 64, 2, 5),
    ("words", 256): Tile(16, 32, 2, 4),
    ("prompts", 64): Tile(128, 64, 4, 3),
    ("prompts", 128): Tile(128, 64, 8, 2),
    ("prompts", 256): Tile(64, 32, 8, 2),
    ("latent", 576): Tile(16, 32, 4, 2),
}
"""For 227 KiB."""

_TENSOR_MEMORY: Mapping[tuple[Work, int], Tile] = {
    **_LARGE,
    ("prompts", 128): Tile(64, 64, 4, 2),
    ("prompts", 256): Tile(64, 32, 4, 2),
}
"""For 227 KiB, with products in the tensor memory of sm_100."""

_AMD: Mapping[tuple[Work, int], Tile] = {
    ("tokens", 64): Tile(16, 64, 4, 2),
    ("tokens", 128): Tile(16, 64, 4, 2),
    ("tokens", 256): Tile(16, 32, 4, 1),
    ("words", 64): Tile(16, 64, 2, 2),
    ("words", 128): Tile(16, 64, 2, 2),
    ("words", 256): Tile(16, 32, 2, 1),
    ("prompts", 64): Tile(64, 64, 4, 2),
    ("prompts", 128): Tile(64, 64, 4, 1),
    ("prompts", 256): Tile(64, 32, 4, 1),
    ("latent", 576): Tile(16, 32, 4, 1),
}

_PRODUCTS: Mapping[int, Product] = {
    16: Product(32, 16, 2, 3),
    64: Product(64, 64, 4, 2),
}

_GROUPED: Mapping[int, Product] = {
    16: Product(64, 16, 4, 3, columns=128),
    64: Product(128, 64, 8, 2, columns=64),
}

_AMD_PRODUCTS: Mapping[int, Product] = {
    16: Product(16, 16, 1, 2),
    64: Product(64, 64, 4, 1),
}

_AMD_GROUPED: Mapping[int, Product] = {
    16: Product(64, 16, 4, 2, columns=128),
    64: Product(128, 64, 4, 1, columns=64),
}

CHIPS: Mapping[str, Chip] = {
    "sm_80": Chip(166_912, 108, _MIDDLE, _PRODUCTS, _GROUPED, fp8=False),
    "sm_86": Chip(101_376, 84, _SMALL, _PRODUCTS, _GROUPED, fp8=False),
    "sm_89": Chip(101_376, 142, _SMALL, _PRODUCTS, _GROUPED),
    "sm_90": Chip(232_448, 132, _LARGE, _PRODUCTS, _GROUPED),
    "sm_100": Chip(232_448, 148, _TENSOR_MEMORY, _PRODUCTS, _GROUPED),
    # Its FP8 is another: e4m3fnuz.
    "gfx942": Chip(65_536, 304, _AMD, _AMD_PRODUCTS, _AMD_GROUPED, fp8=False, narrow=16),
}


def chip_of(capability: tuple[int, int], shared_memory: int | None = None) -> Chip:
    """Return the table's chip of this compute capability. For an unknown one, return the newest
    older chip whose thread blocks do not have more shared memory."""
    if (9, 4) == capability:
        return CHIPS["gfx942"]  # torch calls AMD's devices CUDA devices, too
    known = {
        (int(name[3:-1]), int(name[-1])): chip
        for name, chip in CHIPS.items()
        if name.startswith("sm_")
    }
    fitting = [
        each
        for each, chip in known.items()
        if each <= capability
        and (each == capability or shared_memory is None or chip.shared_memory <= shared_memory)
    ]
    return known[max(fitting, default=(8, 6))]


def tile_of(chip: Chip, work: Work, head_dim: int, itemsize: int, block_size: int) -> Tile:
    """Return the chip's tile for heads of this dimension, of elements of `itemsize` bytes, over
    blocks of `block_size` tokens."""
    dim = min(dim for kind, dim in chip.tiles if kind == work and dim >= head_dim)
    tile = chip.tiles[work, dim]
    keys, rows, stages = tile.keys, tile.rows, tile.stages
    if itemsize == 4:  # twice the memory, and computed for its exactness, not its speed
        keys, rows, stages = min(keys, 32), min(rows, 32), 1
    while keys > max(16, block_size):
        keys //= 2
    return Tile(rows, keys, tile.warps, stages)


def product_of(chip: Chip, tokens: int) -> Product:
    """Return the chip's share of products of packed matrices with this number of tokens."""
    return chip.products[_least(chip.products, tokens)]


def grouped_of(chip: Chip, tokens: int, itemsize: int) -> Product:
    """Return the chip's share of products of plain matrices, of elements of `itemsize` bytes, with
    this number of tokens for each."""
    product = chip.grouped[_least(chip.grouped, tokens)]
    if itemsize == 4:  # as in `tile_of`
        return Product(32, min(product.tokens, 32), 4, 1, columns=64)
    return product


def fp8_of(chip: Chip, tokens: int, *, rounded: bool) -> Product:
    """Return the chip's share of products of 8-bit floats with `tokens`, whose activations
    have 8 bits if `rounded`."""
    if rounded:
        return chip.rounded
    return chip.grouped[_least(chip.grouped, min(tokens, 64))]


def _least(sizes: Collection[int], tokens: int) -> int:
    """Return the least of the sizes that is not below this one, else the largest."""
    return min((each for each in sizes if each >= tokens), default=max(sizes))
