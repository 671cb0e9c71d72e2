"""The operators that turn logits into tokens, as `inferno.ops.draws` defines them: `adjust` in one
pass over the logits, `draw` in three and a list of the best (`draws`).

Suffixes: B rows drawn together, V vocabulary, S spans of a row, P fixed logits, N biases, W words.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from inferno.ops.draws import Biases, DrawParams, Penalties
from inferno_triton import chips, draws
from inferno_triton.ops import as_rows

_WIDTH = 1024
"""Logits that a program adjusts."""
_BEST = 1024
"""Logits that are compared at once."""
_SUMMED = 512
"""Logits whose masses are summed at once. Spans have a multiple."""
_PIVOTS = 16
_SPANS = 128
"""Spans of a row, at most."""
_PROGRAMS = 16
"""Programs for each multiprocessor, about: measured on an H100, where 4 take up to 1.5 times as
long for 256 rows."""
_LISTED = 1 << 25
"""Logits whose lists, of 8 bytes each, are in memory at once."""
_EXACT = {"enable_fp_fusion": False}
"""Rounded after each operation, as torch's operators are."""


def adjust(
    logits_BV: Tensor,
    penalties: Penalties | None = None,
    biases: Biases | None = None,
    words_BW: Tensor | None = None,
) -> Tensor:
    """Return the logits after penalties, biases and masks, float32."""
    x_BV = as_rows(logits_BV)
    B, width = x_BV.shape
    out_BV = torch.empty(B, width, dtype=torch.float32, device=x_BV.device)
    if B == 0:
        return out_BV
    recent = penalties.recent_RV if penalties is not None else None
    generated = penalties.generated_RV if penalties is not None else None
    floats = (
        (penalties.repetition_B, penalties.frequency_B, penalties.presence_B)
        if penalties is not None
        else (out_BV, out_BV, out_BV)
    )
    words = out_BV if words_BW is None else words_BW.contiguous()
    draws.adjust[(B, triton.cdiv(width, _WIDTH))](
        x_BV,
        out_BV,
        out_BV if penalties is None else penalties.rows_B,
        out_BV if recent is None else recent,
        out_BV if generated is None else generated,
        *(each.contiguous() for each in floats),
        words,
        width,
        x_BV.stride(0),
        words.shape[1],
        RECENT=recent is not None,
        GENERATED=generated is not None,
        WORDS=words_BW is not None,
        DB=_WIDTH,
        **_EXACT,
    )
    if biases is not None and (count := len(biases.ids_N)):
        draws.bias[(triton.cdiv(count, 256),)](
            out_BV, biases.at_N, biases.ids_N, biases.values_N, count, width, BN=256
        )
    return out_BV


def draw(logits_BV: Tensor, params: DrawParams | None, own_BV: Tensor | None = None) -> Tensor:
    """Return a token id of each row, int64."""
    x_BV = as_rows(logits_BV)
    own_BV = None if own_BV is None else as_rows(own_BV)
    B, width = x_BV.shape
    ids_B = torch.empty(B, dtype=torch.int64, device=x_BV.device)
    # Rows begin where a kernel's pointers are aligned alike: at multiples of 16 rows.
    step = B if params is None else max(1, _LISTED // width // 16) * 16
    for at in range(0, B, max(1, step)):
        part = slice(at, at + step)
        own_rows = None if own_BV is None else own_BV[part]
        _draw(x_BV[part], None if params is None else params.of(part), own_rows, ids_B[part])
    return ids_B


def _draw(x_BV: Tensor, params: DrawParams | None, own_BV: Tensor | None, ids_B: Tensor) -> None:
    B, width = x_BV.shape
    programs = _PROGRAMS * chips.chip_at(x_BV.device).processors
    blocks = triton.cdiv(width, _SUMMED)
    parts = triton.cdiv(blocks, min(_SPANS, max(1, programs // B)))
    spans, empty = triton.cdiv(blocks, parts), x_BV.new_empty
    tops_BS = empty(B, spans, dtype=torch.float32)
    best_BS = empty(B, spans, dtype=torch.int32)
    own_tops_BS, own_best_BS = tops_BS, best_BS
    if own_BV is not None:
        own_tops_BS, own_best_BS = torch.empty_like(tops_BS), torch.empty_like(best_BS)
    has_own = own_BV is not None
    draws.best[(B, spans)](
        x_BV,
        x_BV if own_BV is None else own_BV,
        tops_BS,
        best_BS,
        own_tops_BS,
        own_best_BS,
        width,
        x_BV.stride(0),
        x_BV.stride(0) if own_BV is None else own_BV.stride(0),
        parts,
        spans,
        OWN=has_own,
        PART=_SUMMED,
        DB=_BEST,
    )
    best = tops_BS, best_BS, own_tops_BS, own_best_BS
    if params is None:
        nothing = [ids_B] * 9
        draws.select[(B,)](
            *best, *nothing[:3], ids_B, *nothing[4:], width, spans,
            DRAW=False, SP=_SPANS, P=_PIVOTS, DB=_SUMMED,
        )  # fmt: skip
        return
    counts_BSP = empty(B, spans, _PIVOTS, dtype=torch.int32)
    masses_BSP = empty(B, spans, _PIVOTS, dtype=torch.int64)
    listed = empty(B, width, dtype=torch.float32), empty(B, width, dtype=torch.int32)
    totals_B3 = empty(B, 3, dtype=torch.int64)
    given = params.temperature_B, params.min_p_B, params.top_k_B, params.top_p_B, params.uniform_B
    sizes = width, x_BV.stride(0), parts, spans
    tiles = {"SP": _SPANS, "P": _PIVOTS, "DB": _SUMMED, "num_warps": 8, **_EXACT}
    draws.measure[(B, spans)](
        x_BV, tops_BS, counts_BSP, masses_BSP, *given, *sizes, OWN=has_own, **tiles
    )
    draws.gather[(B, spans)](
        x_BV, tops_BS, counts_BSP, masses_BSP, *listed, totals_B3, ids_B, *given, *sizes,
        OWN=has_own, **tiles,
    )  # fmt: skip
    draws.select[(B,)](*best, *listed, totals_B3, ids_B, *given, width, spans, DRAW=True, **tiles)
