"""Other tiles and splits for the attention of single tokens: what a benchmark compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import attrs
import torch

from inferno.contracts import Attend, AttentionNeed
from inferno_triton.attend import TritonAttend, work_of
from inferno_triton.chips import chip_at
from inferno_triton.tiles import Chip, Tile, Work, tile_of

_KEYS = (16, 32, 64, 128)
_STAGES = (1, 2, 3, 4, 5, 6)
_WARPS = (1, 2, 4, 8)
_SPLITS = (0.5, 2.0, 4.0)
"""Factors of the number of programs that contexts are split for."""


def variants(need: AttentionNeed, block_size: int) -> Mapping[str, Callable[[], Attend]]:
    """Return the device's tile, and those that differ from it in one way. One that does not fit
    into shared memory fails when it is launched."""
    chip = chip_at(torch.device(need.device.torch_name))
    work = work_of(need, single=True)
    itemsize = 4 if need.dtype == "float32" else 2
    tile = tile_of(chip, work, max(need.head_dim, need.output_dim), itemsize, block_size)
    by_name = {_described(each, 1.0): _with(chip, work, each) for each in _tiles(tile, block_size)}
    for factor in _SPLITS:
        more = attrs.evolve(chip, processors=max(1, int(chip.processors * factor)))
        by_name[_described(tile, factor)] = _with(more, work, tile)
    return {name: partial(TritonAttend, need, each) for name, each in by_name.items()}


def _tiles(tile: Tile, block_size: int) -> Iterator[Tile]:
    yield tile
    fitting = [keys for keys in _KEYS if keys <= max(16, block_size)]
    for name, values in (("keys", fitting), ("stages", _STAGES), ("warps", _WARPS)):
        for value in values:
            if value != getattr(tile, name):
                yield attrs.evolve(tile, **{name: value})


def _with(chip: Chip, work: Work, tile: Tile) -> Chip:
    """Return the chip with this tile for heads of every size."""
    tiles = {(kind, dim): tile if kind == work else old for (kind, dim), old in chip.tiles.items()}
    return attrs.evolve(chip, tiles=tiles)


def _described(tile: Tile, factor: float) -> str:
    return f"{tile.keys} keys, {tile.stages} stages, {tile.warps} warps, {factor:g} x splits"
