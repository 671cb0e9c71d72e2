"""The chip of a device, as it was tuned or as it is in the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from inferno_triton import tuned
from inferno_triton.tiles import Chip, chip_of

MAX_TOKENS = 64
"""More are multiplied by the unpacked or converted matrix, or with activations of 8 bits: what that
costs once is little for each of them."""

_USED: list[Chip] = []


def chip_at(device: torch.device) -> Chip:
    """Return the tiles of a device."""
    return _USED[-1] if _USED else _of(device)


@contextmanager
def using(chip: Chip) -> Iterator[None]:
    """Use a chip's tiles meanwhile, on whatever device."""
    _USED.append(chip)
    try:
        yield
    finally:
        _USED.pop()


@cache
def _of(device: torch.device) -> Chip:
    properties: Any = torch.cuda.get_device_properties(device)
    chip = chip_of((properties.major, properties.minor), properties.shared_memory_per_block_optin)
    return tuned.read(tuned.path_of(properties.name), properties.name, chip)
