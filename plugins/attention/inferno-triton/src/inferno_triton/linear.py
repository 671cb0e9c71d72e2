"""The provider's `linear` and `grouped`. Packed matrices stay packed (`planes`); up to 64 tokens
are multiplied by the packed values, more by unpacked ones.

Suffixes: O rows (output features), I columns (input features), T tokens, P splits of the columns, E
experts, N rows of x that are sorted by expert.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import triton
from torch import Tensor

from inferno.nn import W8A8, Fp8Blocks, IntGroups, TableGroups, Weight
from inferno_triton import chips, fp8, ggml, packed, w8a8
from inferno_triton.planes import Form, Parts, Planes
from inferno_triton.products import KernelWeight, Launch, block_rows, dense_product
from inferno_triton.tiles import product_of

_UNPACKED = 1 << 26
"""Values that are unpacked at once, for products of many tokens."""
_UNPACK_ROWS = 16
"""Rows that a program unpacks."""
_FEW = 16
"""Rows of x whose products with the codes are scaled, instead of the codes."""
_WARPS = 8
"""Of each multiprocessor, at least, for few tokens: so much is loaded at once."""


class PackedPlanes(KernelWeight):
    """A packed matrix, or several of equal shape, stacked. Values are rounded to the activations'
    type, except in products of few tokens. Sums are float32."""

    def __init__(self, planes: Planes, layout: str, dtype: torch.dtype) -> None:
        """`dtype` is the type of what `rows` returns."""
        super().__init__()
        self.planes, self.shape, self.layout, self.dtype = planes, planes.shape, layout, dtype
        for name, tensor in planes.tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def rows(self, ids_T: Tensor) -> Tensor:
        ids_N = ids_T.reshape(-1)
        return self._values(ids_N, len(ids_N), self.dtype).view(*ids_T.shape, -1)

    def _product(
        self,
        x: Tensor,
        starts_E1: Tensor | None,
        outputs: int,
        tokens: int,
        dtype: torch.dtype,
    ) -> Tensor:
        N, columns = x.shape
        if N == 0:
            return x.new_empty(0, outputs, dtype=dtype)
        planes = self.planes
        few, chip = tokens <= _FEW, chips.chip_at(x.device)
        tile = product_of(chip, tokens)
        size = block_rows(tile.tokens, tokens, least=chip.narrow if few else 16)
        launch = Launch.of(
            x,
            starts_E1,
            outputs,
            dtype,
            block=(tile.outputs, size),
            column_blocks=planes.blocks,
            programs=_WARPS // tile.warps if few else 2,
        )
        (packed.few if few else packed.many)[launch.grid](
            x,
            *self._tensors(),
            planes.low if starts_E1 is None else starts_E1,
            launch.out,
            N,
            outputs,
            columns,
            planes.blocks,
            self.shape[0],
            x.stride(0),
            launch.splits,
            **self._constants(),
            **launch.constants,
            BO=tile.outputs,
            BT=size,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return launch.result()

    def _by_many(self, x: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if len(x) <= chips.MAX_TOKENS:
            return None
        O, I = self.shape  # noqa: E741
        values = partial(self._values, dtype=x.dtype)
        return dense_product(x, bias_O, O, max(1, _UNPACKED // I), values, dtype)

    def _values(self, ids: Tensor | int, count: int, dtype: torch.dtype) -> Tensor:
        """Return the values of the given rows, or of `count` rows from the given one on."""
        planes, columns = self.planes, self.shape[1]
        out = planes.low.new_empty(count, columns, dtype=dtype)
        if count:
            packed.unpack[(triton.cdiv(count, _UNPACK_ROWS), planes.blocks)](
                *self._tensors(),
                ids,
                out,
                count,
                columns,
                planes.blocks,
                self.shape[0],
                **self._constants(),
                IDS=isinstance(ids, Tensor),
                BO=_UNPACK_ROWS,
            )
        return out

    def _tensors(self) -> list[Tensor]:
        planes = self.planes
        every = (planes.low, planes.high, planes.scales, planes.mins, planes.steps, planes.least)
        return [planes.low if each is None else each for each in (*every, planes.table)]

    def _constants(self) -> dict[str, Any]:
        form = self.planes.form
        return {
            "LOW": form.low,
            "HIGH": form.high,
            "GROUP": form.group,
            "KIND": form.kind,
            "OFFSET": form.offset,
            "MINS": form.mins,
            "TABLE": form.table,
        }


def stack(*weights: Weight) -> Weight | None:
    """Stack matrices along the rows. None if they cannot be stacked or have no kernel."""
    first, *others = weights
    whole = first.concatenate(others) if others else first
    if whole is None:
        return None
    if isinstance(whole, Fp8Blocks):
        return fp8.stack(whole)
    if isinstance(whole, W8A8):
        return w8a8.stack(whole)
    planes = planes_of(whole)
    return None if planes is None else PackedPlanes(planes, whole.layout, dtype_of(whole))


def dtype_of(weight: Any) -> torch.dtype:
    """Return the compute type, which every packed weight names."""
    dtype: torch.dtype = weight.dtype
    return dtype


def planes_of(weight: Weight) -> Planes | None:
    """Return the planes of a packed matrix. None if its form cannot hold one of its scales."""
    if isinstance(weight, IntGroups):
        return _of_ints(weight)
    if isinstance(weight, TableGroups):
        return _of_table(weight)
    if weight.layout in ggml.FORMS:
        data_OB: Any = weight.data
        form, layout = ggml.FORMS[weight.layout].form, weight.layout
        table = torch.tensor(ggml.CURVE, device=data_OB.device) if form.table == "values" else None
        return Planes.of(form, weight.shape, lambda rows: ggml.parts(layout, data_OB[rows]), table)
    return None


def _grouping(group: int) -> tuple[Literal[32, 64], int] | None:
    """Return the number of columns that share a scale in the planes, and how often a group's scale
    is repeated for its columns. None if neither 64 nor 32 divides the group."""
    if group % 64 == 0:
        return 64, group // 64
    return (32, group // 32) if group % 32 == 0 else None


def _of_ints(weight: IntGroups) -> Planes | None:
    if (grouping := _grouping(weight.group)) is None:
        return None
    (group, repeats), symmetric = grouping, weight.zeros is None

    def parts(rows: slice) -> Parts:
        data_OB = weight.data[rows]
        scales_OG = weight.scales[rows].repeat_interleave(repeats, 1)
        zeros_OG = None
        if weight.zeros is not None:
            zeros_OG = weight.zeros[rows].repeat_interleave(repeats, 1)
        return Parts(_nibbles(data_OB) if weight.bits == 4 else data_OB, scales_OG, zeros_OG)

    form = Form(
        weight.bits,
        group=group,
        offset=1 << weight.bits - 1 if symmetric else 0,
        mins="" if symmetric else "zeros",
    )
    return Planes.of(form, weight.shape, parts)


def _of_table(weight: TableGroups) -> Planes | None:
    if (grouping := _grouping(weight.group)) is None:
        return None
    group, repeats = grouping

    def parts(rows: slice) -> Parts:
        scales_OG = weight.scales[rows].repeat_interleave(repeats, 1)
        return Parts(_nibbles(weight.data[rows]), scales_OG)

    form = Form(4, group=group, kind="single", table="values")
    return Planes.of(form, weight.shape, parts, weight.table)


def _nibbles(data_OB: Tensor) -> Tensor:
    """Return codes of 4 bits, the even column in the low half of a byte."""
    return torch.stack([data_OB & 15, data_OB >> 4], -1).flatten(1)
