"""Packed weights on disk: `contracts.Packing` of this provider.

At the next start they are copied from the page cache into huge pages while torch is being imported.
A mapped file would have small pages, from which packed weights are read up to a sixth slower.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inferno.contracts import PackedParts, Take
from inferno_cpu import reserve
from inferno_cpu.layouts import LAYOUT_VERSION

if TYPE_CHECKING:
    from inferno.nn import Weight


def version() -> str | None:
    """Name the layouts. They are the same at every level of instructions. On a NUMA machine each
    thread packs the rows that it will read, so nothing is kept."""
    return None if reserve.has_nodes() else f"panels {LAYOUT_VERSION}"


def save(weight: Weight) -> tuple[Mapping[str, Any], Sequence[memoryview]] | None:
    from inferno_cpu.dense import Panels
    from inferno_cpu.packed import PackedPanels

    if not isinstance(weight, Panels | PackedPanels):
        return None
    about = {
        "layout": weight.panel_layout,
        "shape": list(weight.shape),
        "dtype": str(weight.dtype).removeprefix("torch."),
    }
    return about, [weight.panels.numpy().data]


def load(about: Mapping[str, Any], data: memoryview) -> Weight:
    import torch

    from inferno_cpu import dense, layouts
    from inferno_cpu.packed import PackedPanels
    from inferno_cpu.threads import use_torch_threads

    use_torch_threads()
    layout, dtype = about["layout"], getattr(torch, about["dtype"])
    rows, columns = about["shape"]
    shape = rows, columns
    if layout in layouts.CODES:
        needed = layouts.codes_nbytes(layout, shape)
    else:
        needed = layouts.nbytes(layout, shape) if layout else dense.nbytes(dtype, shape)
    if data.nbytes != needed:
        raise ValueError(f"{data.nbytes} bytes instead of {needed}")
    panels = torch.frombuffer(data, dtype=torch.uint8)
    if layout in layouts.LAYOUTS:
        return PackedPanels(layout, shape, dtype, panels)
    return dense.Panels(panels, shape, dtype, layout)


@contextmanager
def read(parts: PackedParts) -> Iterator[Take]:
    """Return the context of `contracts.Packing.read`."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or not reserve.huge_pages():
        yield parts.mapped
        return
    copy = reserve.Copy(parts)
    try:
        yield copy.take_part
    finally:
        copy.release()
