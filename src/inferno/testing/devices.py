"""Devices that no plugin has seen: what a plan may ask about before it knows what is there."""

from __future__ import annotations

from collections.abc import Sequence

from inferno.contracts import Device

UNKNOWN = Device("somewhere", name="a device of tomorrow")  # type: ignore[arg-type]
"""A device of a kind that no backend knows."""

STRANGE: Sequence[Device] = (
    UNKNOWN,
    Device("mps"),
    Device("xpu", 3),
    Device("cuda", name="a GPU whose driver says nothing"),
    Device("cuda", 1, capability=(3, 5)),
    Device("cuda", capability=(99, 0), shared_memory=1 << 20),
)
