"""Quantizes dense matrices to ggml's blocks, as ggml does: by a kernel, else in torch.

Suffixes: O rows, I columns, N blocks, G groups of a block, C columns of a group, B bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from inferno.contracts import Refused
from inferno.errors import UnsupportedError
from inferno_gguf.blocks import CHUNK, Blocks
from inferno_gguf.ggml import BY_NAME
from inferno_gguf.searches import (
    search_codes,
    search_curve,
    search_min,
    search_positive,
    search_scale,
)
from inferno_gguf.sizes import packs

_MIN_SEARCH: dict[str, dict[str, float | int]] = {
    "q2_k": {"first": -0.5, "step": 0.1, "steps": 15},
    "q4_k": {"first": -1.0, "step": 0.1, "steps": 20},
    "q5_k": {"first": -0.5, "step": 0.1, "steps": 15},
}
_WEIGHTED = {"first": -0.9, "step": 0.05, "steps": 36}


def pack(
    layout: str,
    weight_OI: Tensor,
    *,
    importance: Tensor | None = None,
    quantize: Callable[..., tuple[Tensor, ...]] | None = None,
) -> Blocks:
    """Quantize a matrix. `importance`, float32 (I,), weighs the errors of columns; `quantize` is a
    kernel provider's. Raises UnsupportedError unless rows are whole blocks."""
    rows, columns = weight_OI.shape
    try:
        packs(layout, (rows, columns), str(weight_OI.dtype).removeprefix("torch."))
    except Refused as refused:
        raise UnsupportedError(str(refused), "Choose another scheme.") from refused
    if quantize is not None:
        (data_OB,) = quantize(layout, weight_OI, importance)
        return Blocks(layout, data_OB, weight_OI.dtype)
    kind = BY_NAME[layout]
    data_OB = torch.empty(
        rows, columns // kind.values * kind.nbytes, dtype=torch.uint8, device=weight_OI.device
    )
    step = max(1, CHUNK // max(1, columns))
    for start in range(0, rows, step):
        chunk = slice(start, start + step)
        data_OB[chunk] = reference(layout, weight_OI[chunk].float(), importance)
    return Blocks(layout, data_OB, weight_OI.dtype)


def reference(layout: str, weight_OI: Tensor, importance_I: Tensor | None) -> Tensor:
    """Quantize float32 rows to blocks (O, B), in torch."""
    kind = BY_NAME[layout]
    plain = importance_I is None and kind.values == 32 and layout != "iq4_nl"
    if plain or layout == "q8_0":
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import quantize

        blocks_OB = quantize(weight_OI.cpu().numpy(), GGMLQuantizationType(kind.number))
        return torch.from_numpy(blocks_OB).to(weight_OI.device)
    rows, columns = weight_OI.shape
    x_NI = weight_OI.reshape(-1, kind.values)
    weighing_NI = None
    if importance_I is not None:
        importance_NI = importance_I.expand(rows, -1).reshape(-1, kind.values)
        weighing_NI = _weighed(layout, weight_OI, x_NI, importance_NI)
    blocks_NB = _QUANTIZERS[layout](layout, x_NI, weighing_NI)
    return blocks_NB.view(rows, columns // kind.values * kind.nbytes)


def _weighed(layout: str, weight_OI: Tensor, x_NI: Tensor, importance_NI: Tensor) -> Tensor:
    """Return the weights of squared errors: importance · sqrt(mean of x² + x²), where the mean is a
    row's, or twice a block's."""
    if layout == "q6_k":
        return importance_NI
    per_row = layout in ("q4_0", "q4_1", "q5_0", "q5_1")
    squares = weight_OI.square().mean(1) if per_row else x_NI.square().mean(1)
    squares = squares.repeat_interleave(len(x_NI) // len(squares))
    factor = 1.0 if per_row or layout == "q2_k" else 2.0
    return importance_NI * (factor * squares[:, None] + x_NI.square()).sqrt()


def _half(values_N: Tensor) -> Tensor:
    """Return float16 values as bytes, (N, 2)."""
    return values_N.half()[:, None].contiguous().view(torch.uint8)


def _bytes(codes: Tensor) -> Tensor:
    return codes.to(torch.uint8)


def _nibbles(codes_NI: Tensor) -> Tensor:
    """Two codes of four bits in a byte, the second from the second half of the columns."""
    low, high = codes_NI.chunk(2, -1)
    return low & 15 | (high & 15) << 4


def _pairs(codes_NI: Tensor) -> Tensor:
    """256 codes of two bits in 64 bytes."""
    four = (codes_NI & 3).view(-1, 2, 4, 32)
    return (four[:, :, 0] | four[:, :, 1] << 2 | four[:, :, 2] << 4 | four[:, :, 3] << 6).flatten(1)


def _bit_planes(bits_NGC: Tensor) -> Tensor:
    """Bit g of byte c from (N, 8, C) bits."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits_NGC.device)[:, None]
    return (bits_NGC << shifts).sum(1, dtype=torch.uint8)


def _fifth(codes_NI: Tensor) -> Tensor:
    """Bit 4 of 32 codes in four bytes."""
    return _bit_planes((codes_NI >> 4 & 1).view(-1, 4, 8).transpose(1, 2))


def _symmetric(layout: str, x_NI: Tensor, w_NI: Tensor | None) -> Tensor:
    assert w_NI is not None, "gguf-py quantizes without importance"
    most = 16 if layout == "q5_0" else 8
    scale_N, codes_NI = search_scale(x_NI, w_NI, most)
    codes_NI = _bytes(codes_NI + most)
    fifth = [_fifth(codes_NI)] if layout == "q5_0" else []
    return torch.cat([_half(scale_N), *fifth, _nibbles(codes_NI)], 1)


def _with_min(layout: str, x_NI: Tensor, w_NI: Tensor | None) -> Tensor:
    assert w_NI is not None, "gguf-py quantizes without importance"
    most = 31 if layout == "q5_1" else 15
    scale_N, min_N, codes = search_min(x_NI, w_NI, most, **_WEIGHTED)  # type: ignore[arg-type]
    codes_NI = _bytes(codes)
    fifth = [_fifth(codes_NI)] if layout == "q5_1" else []
    return torch.cat([_half(scale_N), _half(-min_N), *fifth, _nibbles(codes_NI)], 1)


def _curve(layout: str, x_NI: Tensor, w_NI: Tensor | None) -> Tensor:
    scale_N, codes_NI = search_curve(x_NI, x_NI.square() if w_NI is None else w_NI)
    return torch.cat([_half(scale_N), _nibbles(_bytes(codes_NI))], 1)


def _scales_with_min(
    layout: str, x_NI: Tensor, w_NI: Tensor | None, most: int, most_scale: int, group: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the scales' and minima's halves (N, 2), their codes (N, G) and the codes (N, I) of
    superblocks whose groups have scales and minima."""
    groups = 256 // group
    x_MC = x_NI.reshape(-1, group)
    given = _MIN_SEARCH[layout] if w_NI is None else _WEIGHTED
    if w_NI is not None:
        w_MC = w_NI.reshape(-1, group)
    elif layout == "q2_k":
        w_MC = x_MC.abs()
    else:
        w_MC = x_MC.square().mean(1, keepdim=True).sqrt() + x_MC.abs()
    fit = search_min(
        x_MC,
        w_MC,
        most,
        absolute=w_NI is None and layout == "q2_k",
        **given,
    )
    halves, grids, values = [], [], []
    for each_NG in (grid.view(-1, groups) for grid in fit[:2]):
        if w_NI is None:
            factor_N = each_NG.amax(1).clamp(min=0)
            inverse_N = torch.where(factor_N > 0, most_scale / factor_N, 0.0)
            codes_NG = (inverse_N[:, None] * each_NG).round().clamp(0, most_scale)
            factor_N = factor_N / most_scale
        else:
            factor_N, codes_NG = search_positive(each_NG, w_MC.sum(1).view(-1, groups), most_scale)
        halves.append(_half(factor_N))
        grids.append(_bytes(codes_NG))
        values.append((factor_N.half().float()[:, None] * codes_NG).reshape(-1, 1))
    scale_M1, min_M1 = values
    some_M1 = scale_M1 != 0
    codes_MC = ((x_MC + min_M1) / torch.where(some_M1, scale_M1, 1.0)).round().clamp(0, most)
    codes_MC = torch.where(some_M1, codes_MC, fit[2])
    return halves[0], halves[1], grids[0], grids[1], _bytes(codes_MC).view(-1, 256)


def _q2_k(layout: str, x_NI: Tensor, w_NI: Tensor | None) -> Tensor:
    d, dmin, scales, mins, codes_NI = _scales_with_min(layout, x_NI, w_NI, 3, 15, 16)
    return torch.cat([scales | mins << 4, _pairs(codes_NI), d, dmin], 1)


def _q45_k(layout: str, x_NI: Tensor, w_NI: Tensor | None) -> Tensor:
    most = 31 if layout == "q5_k" else 15
    d, dmin, scales, mins, codes_NI = _scales_with_min(layout, x_NI, w_NI, most, 63, 32)
    (s, s4), (m, m4) = scales.chunk(2, 1), mins.chunk(2, 1)
    packed = [s | s4 >> 4 << 6, m | m4 >> 4 << 6, s4 & 15 | (m4 & 15) << 4]
    high = [_bit_planes((codes_NI >> 4 & 1).view(-1, 8, 32))] if layout == "q5_k" else []
    low = _nibbles(codes_NI.view(-1, 64)).view(-1, 128)
    return torch.cat([d, dmin, *packed, *high, low], 1)


def _requantized(x_NI: Tensor, scale_NG: Tensor, codes_NI: Tensor, most: int) -> Tensor:
    """Return codes -most to most - 1 for the rounded scales of 16 columns each."""
    scale_N1 = scale_NG.reshape(-1, 1)
    some_N1 = scale_N1 != 0
    codes = (x_NI.view(-1, 16) / torch.where(some_N1, scale_N1, 1.0)).round().clamp(-most, most - 1)
    return torch.where(some_N1, codes, codes_NI.view(-1, 16)).view(-1, 256)


def _extreme(scale_NG: Tensor) -> Tensor:
    return scale_NG.gather(1, scale_NG.abs().argmax(1, keepdim=True))[:, 0]


def _q3_k(layout: str, x_NI: Tensor, w_NI: Tensor | None) -> Tensor:
    x_MC = x_NI.reshape(-1, 16)
    if w_NI is None:
        scale_M, codes_MC = search_codes(x_MC, 4)
        scale_NG = scale_M.view(-1, 16)
        peak_N = _extreme(scale_NG)
        some_N = peak_N != 0
        inverse_N = -32 / torch.where(some_N, peak_N, 1.0)
        scales_NG = (inverse_N[:, None] * scale_NG).round().clamp(-32, 31)
        scales_NG = torch.where(some_N[:, None], scales_NG, -32.0)
        d_N = torch.where(some_N, 1 / inverse_N, 0.0)
    else:
        w_MC = w_NI.reshape(-1, 16)
        scale_M, codes_MC = search_scale(x_MC, w_MC, 4)
        d_N, scales_NG = search_scale(scale_M.view(-1, 16), w_MC.sum(1).view(-1, 16), 32)
    rounded_NG = d_N.half().float()[:, None] * scales_NG
    codes_NI = _bytes(_requantized(x_NI, rounded_NG, codes_MC, 4) + 4)
    stored = _bytes(scales_NG + 32)
    low, high = stored & 15, stored >> 4
    packed = [
        low[:, :8] | low[:, 8:] << 4,
        high[:, :4] | high[:, 4:8] << 2 | high[:, 8:12] << 4 | high[:, 12:] << 6,
    ]
    mask = _bit_planes((codes_NI >> 2 & 1).view(-1, 8, 32))
    return torch.cat([mask, _pairs(codes_NI), *packed, _half(d_N)], 1)


def _q6_k(layout: str, x_NI: Tensor, w_NI: Tensor | None) -> Tensor:
    x_MC = x_NI.reshape(-1, 16)
    w_MC = x_MC.square() if w_NI is None else w_NI.reshape(-1, 16)
    scale_M, codes_MC = search_scale(x_MC, w_MC, 32)
    scale_NG = scale_M.view(-1, 16)
    peak_N = _extreme(scale_NG)
    zero_N = peak_N.abs() < 1e-15
    inverse_N = -128 / torch.where(zero_N, 1.0, peak_N)
    scales_NG = (inverse_N[:, None] * scale_NG).round().clamp(-128, 127)
    rounded_NG = (1 / inverse_N).half().float()[:, None] * scales_NG
    codes_NI = _bytes(_requantized(x_NI, rounded_NG, codes_MC, 32) + 32)
    halves = codes_NI.view(-1, 2, 128)
    low = torch.cat([_nibbles(halves[:, 0]), _nibbles(halves[:, 1])], 1)
    high = _pairs((codes_NI >> 4).contiguous())
    scales = scales_NG.to(torch.int8).view(torch.uint8)
    blocks = torch.cat([low, high, scales, _half(1 / inverse_N)], 1)
    return torch.where(zero_N[:, None], 0, blocks).to(torch.uint8)


_QUANTIZERS: dict[str, Callable[[str, Tensor, Tensor | None], Tensor]] = {
    "q4_0": _symmetric,
    "q5_0": _symmetric,
    "q4_1": _with_min,
    "q5_1": _with_min,
    "iq4_nl": _curve,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q45_k,
    "q5_k": _q45_k,
    "q6_k": _q6_k,
}
