"""A matrix as layers see it: they multiply by it and look up its rows.

Suffixes: O rows (output features), I columns (input features), T tokens, E stacked matrices, N rows
of x that are sorted by matrix, K tiles, R rows of x in a tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.nn.cut import Cut
from inferno.ops import reference as ops


class Weight(nn.Module):
    """A matrix of O rows and I columns, stored in any layout."""

    shape: tuple[int, int]
    layout: str = ""
    """The layout by which kernels are chosen: a dtype's name, or its scheme's name for it. Empty:
    none that kernels know."""
    source: str = ""
    """The module's path in the checkpoint, if this is the matrix stored there. The loader sets
    it."""
    sources: tuple[str, ...] = ()
    """Those of the matrices that it holds in its final layout. The loader sets them."""
    kernel: str = ""
    """What multiplies it, as `Plan.products` names it. The loader sets it."""

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return x_TI @ W_OI.T + bias_O, in x's dtype."""
        raise NotImplementedError

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return x_TI @ W_OI.T + bias_O in float32, as heads need it: in 16 bits, logits of trained
        size are rounded to steps of 0.125, and tie.

        The default rounds to x's dtype first, as `matmul` does. Override it where the sums are at
        hand."""
        return self.matmul(x_TI, bias_O).float()

    def rows(self, ids_T: Tensor) -> Tensor:
        """Return W_OI[ids_T], in the compute dtype."""
        raise NotImplementedError

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Multiply by E stacked matrices of O / E rows each: rows starts[e] to starts[e + 1] of x
        (int32; from 0) by matrix e, plus its part of the bias. Returns (N, O / E). Rows after the
        last start, if there are any, are of no matrix: what is returned for them means nothing.

        The default looks up the rows of the matrices in use: for few rows of x all at once; for
        many, matrix by matrix on a CPU, and on other devices by `in_tiles`, which waits for
        nothing."""
        num_rows = self.shape[0] // (len(starts_E1) - 1)
        rows_O = torch.arange(num_rows, device=x_NI.device)
        if len(x_NI) <= _UNPACK_ROWS:
            expert_N = matrix_of_rows(starts_E1, len(x_NI))
            weight_NOI = self.rows((expert_N[:, None] * num_rows + rows_O).flatten()).view(
                len(x_NI), num_rows, self.shape[1]
            )
            y_NO = torch.bmm(weight_NOI.to(x_NI.dtype), x_NI[..., None])[..., 0]
            return with_biases(y_NO, starts_E1, bias_O)
        if x_NI.device.type != "cpu":
            return with_biases(in_tiles(self, x_NI, starts_E1), starts_E1, bias_O)
        y_NO = x_NI.new_empty(len(x_NI), num_rows)
        starts = starts_E1.tolist()
        for expert, (start, stop) in enumerate(itertools.pairwise(starts)):
            if stop > start:
                y_NO[start:stop] = F.linear(
                    x_NI[start:stop], self.rows(expert * num_rows + rows_O).to(x_NI.dtype)
                )
        return with_biases(y_NO, starts_E1, bias_O)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        """Return one weight that stacks this and `others` along O, or None if their layouts do not
        allow it."""
        return None

    def cut(self, cut: Cut) -> Weight:
        """Return some of its rows or columns, whole blocks of its layout (`HeldMatrix.unit`), in
        memory of their own where they are not rows of a mapped file."""
        raise AssertionError(f"the plan does not divide a {type(self).__name__}")

    def for_matmul(self) -> Weight:
        """Return this matrix in torch's fastest layout, for `matmul` only. May take over its
        memory: the caller drops this one."""
        return self


_UNPACK_ROWS = 32
"""Up to this many rows of x, one matrix per row is unpacked."""
_TILE_VALUES = 1 << 26
"""Values of matrices that are looked up at once."""


def in_tiles(weight: Weight, x_NI: Tensor, starts_E1: Tensor) -> Tensor:
    """Multiply as `Weight.grouped`, without a value that the host must know: in tiles of equal
    size, each of rows of one matrix. As many as the mean matrix has rows are in a tile, so there
    are at most twice as many tiles as matrices, and rows of zeros in some."""
    (N, columns), experts = x_NI.shape, len(starts_E1) - 1
    outputs, device = weight.shape[0] // experts, x_NI.device
    size = -(-N // experts)
    tiles_E = (starts_E1.diff() + size - 1) // size
    past_E = tiles_E.cumsum(0)
    rows_R, rows_O = torch.arange(size, device=device), torch.arange(outputs, device=device)
    y_NO = x_NI.new_empty(N + 1, outputs)  # the last one takes what no row wants
    step, count = max(1, _TILE_VALUES // (outputs * columns)), N // size + experts
    for at in range(0, count, step):
        tile_K = torch.arange(at, min(at + step, count), device=device)
        own_K = torch.searchsorted(past_E, tile_K, right=True).clamp_(max=experts - 1)
        first_K = starts_E1[own_K] + (tile_K - past_E[own_K] + tiles_E[own_K]) * size
        row_KR = first_K[:, None] + rows_R
        known_KR = row_KR < starts_E1[own_K + 1][:, None]
        weight_KOI = weight.rows((own_K[:, None] * outputs + rows_O).flatten())
        weight_KOI = weight_KOI.view(len(tile_K), outputs, columns).to(x_NI.dtype)
        y_KRO = torch.bmm(x_NI[row_KR.clamp(max=N - 1)], weight_KOI.transpose(1, 2))
        y_NO[torch.where(known_KR, row_KR, N)] = y_KRO
    return y_NO[:N]


def with_biases(y_NO: Tensor, starts_E1: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return y plus the biases of `Weight.grouped`, if there are any."""
    if bias_O is None:
        return y_NO
    bias_EO = bias_O.view(len(starts_E1) - 1, -1)
    return y_NO + bias_EO[matrix_of_rows(starts_E1, len(y_NO))]


def matrix_of_rows(starts_E1: Tensor, count: int) -> Tensor:
    """Return the matrix of each of `count` rows of `Weight.grouped`, (N,) int64; of rows that are
    of none, the last one."""
    rows_N = torch.arange(count, device=starts_E1.device, dtype=starts_E1.dtype)
    past_E = starts_E1[1:]
    return torch.searchsorted(past_E, rows_N, right=True).clamp_(max=len(past_E) - 1)


class Unloaded(Weight):
    """A placeholder with the matrix's shape, until the loader replaces it."""

    def __init__(self, out_features: int, in_features: int) -> None:
        super().__init__()
        self.shape = (out_features, in_features)


class Later(Weight):
    """A stored matrix that is read on its first use: never, if the packed weights hold it."""

    def __init__(self, shape: tuple[int, int], source: str, load: Callable[[], Weight]) -> None:
        super().__init__()
        self.shape, self.source = shape, source
        self._load, self._loaded = load, list[Weight]()  # a list is not registered as a module

    def loaded(self) -> Weight:
        """Read the matrix, once."""
        if not self._loaded:
            self._loaded.append(self._load())
        return self._loaded[0]

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.loaded().matmul(x_TI, bias_O)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.loaded().matmul_float32(x_TI, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.loaded().rows(ids_T)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return self.loaded().grouped(x_NI, starts_E1, bias_O)

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        return self.loaded().concatenate([loaded(weight) for weight in others])

    def for_matmul(self) -> Weight:
        return self.loaded().for_matmul()


def loaded(weight: Weight) -> Weight:
    """Return a matrix whose tensors are read."""
    return weight.loaded() if isinstance(weight, Later) else weight


class Dense(Weight):
    """A plain matrix."""

    def __init__(self, weight_OI: Tensor) -> None:
        super().__init__()
        out_features, in_features = weight_OI.shape
        self.shape = (out_features, in_features)
        self.data: Tensor
        self.register_buffer("data", weight_OI)
        self.ops = ops.TORCH
        self.layout = str(weight_OI.dtype).removeprefix("torch.")

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return F.linear(x_TI, self.data, bias_O)

    def matmul_float32(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return linear_float32(x_TI, self.data, bias_O)

    def rows(self, ids_T: Tensor) -> Tensor:
        return self.ops.gather(self.data, ids_T)

    def grouped(self, x_NI: Tensor, starts_E1: Tensor, bias_O: Tensor | None = None) -> Tensor:
        # torch 2.10 has it, for rows of a multiple of 16 bytes.
        if not hasattr(F, "grouped_mm") or self.shape[1] * self.data.itemsize % 16:
            return super().grouped(x_NI, starts_E1, bias_O)
        weight_EOI = self.data.view(len(starts_E1) - 1, -1, self.shape[1])
        return with_biases(
            F.grouped_mm(x_NI, weight_EOI.transpose(1, 2), offs=starts_E1[1:]), starts_E1, bias_O
        )

    def concatenate(self, others: Sequence[Weight]) -> Weight | None:
        if not all(isinstance(w, Dense) and w.data.dtype == self.data.dtype for w in others):
            return None
        return Dense(torch.cat([self.data, *(w.data for w in others if isinstance(w, Dense))]))

    def cut(self, cut: Cut) -> Weight:
        return Dense(cut.of(self.data).contiguous())

    def for_matmul(self) -> Weight:
        """Return it in oneDNN's layout, on a CPU with bfloat16 instructions: twice as fast as the
        plain layout for a few rows."""
        data = self.data
        if data.device.type == "cpu" and data.dtype == torch.bfloat16 and onednn_packs_bfloat16():
            return OneDNN(data)
        return self


_CONVERTED = 1 << 20
"""Values converted to float32 at once: 4 MiB, which stay in the CPU cache until they are
multiplied."""


def linear_float32(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x_TI @ weight_OI.T + bias_O in float32. Products of 16-bit values are exact."""
    if x_TI.dtype == weight_OI.dtype == torch.float32:
        return F.linear(x_TI, weight_OI, bias_O)
    if x_TI.device.type == "cuda":
        y_TO = torch.mm(x_TI, weight_OI.t(), out_dtype=torch.float32)
        return y_TO if bias_O is None else y_TO + bias_O
    # No operator of torch's CPU backend multiplies 16-bit values into float32.
    x_TI, bias_O = x_TI.float(), None if bias_O is None else bias_O.float()
    step = max(1, _CONVERTED // weight_OI.shape[1])
    y_TO = x_TI.new_empty(len(x_TI), len(weight_OI))
    for start in range(0, len(weight_OI), step):
        chunk = slice(start, start + step)
        bias = None if bias_O is None else bias_O[chunk]
        y_TO[:, chunk] = F.linear(x_TI, weight_OI[chunk].float(), bias)
    return y_TO


class OneDNN(Weight):
    """A bfloat16 matrix in oneDNN's blocked layout. It cannot return rows."""

    def __init__(self, weight_OI: Tensor) -> None:
        super().__init__()
        out_features, in_features = weight_OI.shape
        self.shape = (out_features, in_features)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _PACK_FOR_ROWS)

    def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        y_TO: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_TI, self._packed, bias_O, "none", [], ""
        )
        return y_TO


_PACK_FOR_ROWS = 1
"""Number of rows of x that the layout is optimized for; others run at their usual speed."""


def onednn_packs_bfloat16() -> bool:
    """Whether this torch can pack bfloat16 for oneDNN on this CPU. The operators are those that
    torch's compiler emits."""
    operators = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    return (
        all(hasattr(torch.ops.mkldnn, name) for name in operators)
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
