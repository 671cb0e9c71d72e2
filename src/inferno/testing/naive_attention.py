"""The reference for attention backends: attention over random sequences, in float64.

Suffixes: H query heads, K key/value heads, C head dim, L tokens of a sequence, T packed tokens of a
step, W waves, J heads of an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from attrs import evolve
from torch import Tensor

from inferno.contracts import AttentionNeed, Indexed, Waves

LONGEST = 64
"""Random tokens of each sequence."""


def drawn(
    need: AttentionNeed, num_sequences: int, longest: int = LONGEST, device: str = "cpu"
) -> tuple[list[list[Tensor]], Tensor | None]:
    """Return random queries, keys and values of each sequence, and the sinks. All are drawn for the
    longest length, so that leaving sequences out does not change the values of others."""
    dtype, generator = getattr(torch, need.dtype), torch.Generator().manual_seed(0)
    shapes = [
        (need.num_heads, need.head_dim),
        (need.num_kv_heads, need.head_dim),
        (need.num_kv_heads, need.output_dim),
    ]
    qkv = [
        [torch.randn(longest, *shape, generator=generator).to(device, dtype) for shape in shapes]
        for _ in range(num_sequences)
    ]
    if need.latent_dim is not None:
        qkv = [[q, k, k[..., : need.latent_dim]] for q, k, _ in qkv]
    sinks_H = None
    if need.sinks:
        sinks_H = torch.randn(need.num_heads, generator=generator).to(device, dtype)
    return qkv, sinks_H


def drawn_waves(
    need: AttentionNeed, num_sequences: int, longest: int = LONGEST, device: str = "cpu"
) -> list[Waves] | None:
    """Return waves of each sequence's tokens that change their attention, if the need has any."""
    if not need.waves:
        return None
    generator, waves, frequencies = torch.Generator().manual_seed(1), 4, 3
    positions = torch.arange(-(-longest // 16) * 16)
    angles = positions * torch.tensor([1.0, 0.3, 1e-3])[:, None]
    used_KW = torch.randint(
        2 * frequencies, (need.num_kv_heads, waves), generator=generator, dtype=torch.int32
    )
    lines_LN = torch.cat([angles.cos(), angles.sin()]).to(device)
    shape = longest, need.num_heads, waves
    return [
        Waves(
            (torch.randn(shape, generator=generator) * (4 / need.scale)).to(device),
            used_KW.to(device),
            lines_LN,
        )
        for _ in range(num_sequences)
    ]


def drawn_index(
    need: AttentionNeed, num_sequences: int, longest: int = LONGEST, device: str = "cpu"
) -> list[Indexed] | None:
    """Return what each sequence's tokens bring to the index, if the need has its own: small whole
    numbers, whose scores are exact in any order of sums, and often equal."""
    if (index := need.index) is None or index.shared:
        return None
    dtype, generator = getattr(torch, need.dtype), torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randint(-3, 4, (longest, *shape), generator=generator).to(device)

    J, C = index.num_heads, index.head_dim
    return [
        Indexed(draw(C).to(dtype), draw(J, C).to(dtype), draw(J).float())
        for _ in range(num_sequences)
    ]


def index_rows(
    drawn: Sequence[Indexed], spans: Sequence[tuple[int, int, int]]
) -> tuple[Tensor, ...]:
    """Return the fields of `Indexed` for a step, which has the tokens [first, stop) of each
    (sequence, first, stop)."""
    return tuple(
        torch.cat([*(getattr(drawn[i], name)[a:b] for i, a, b in spans), first[:0]])
        for name in ("k_TC", "q_TJC", "weights_TJ")
        if (first := getattr(drawn[0], name)) is not None
    )


def waves_of(waves: Sequence[Waves], spans: Sequence[tuple[int, int, int]]) -> Waves:
    """Return the waves of a step, which has the tokens [first, stop) of each (sequence, first,
    stop)."""
    rows_THW = [waves[i].amplitudes_THW[first:stop] for i, first, stop in spans]
    return evolve(waves[0], amplitudes_THW=torch.cat([*rows_THW, waves[0].amplitudes_THW[:0]]))


@lru_cache(maxsize=256)
def naive(need: AttentionNeed, num_sequences: int, sequence: int, length: int) -> Tensor:
    """Return the attention of the first tokens of a random sequence. Cached: it is the same for
    every backend, level and block size."""
    qkv, sinks_H = drawn(need, num_sequences)
    waves = drawn_waves(need, num_sequences)
    wave = None if waves is None else waves[sequence]
    index = drawn_index(need, num_sequences)
    indexed = None if index is None else index[sequence]
    return exact(need, qkv[sequence], sinks_H, 0, length, wave, indexed)


def as_stored(need: AttentionNeed, x_LKC: Tensor) -> Tensor:
    """Return the keys or values that a cache of this need holds: in 8 bits, multiples of a scale
    for each token and head."""
    if need.cache_dtype == "auto":
        return x_LKC
    largest = 127.0 if need.cache_dtype == "int8" else 448.0
    scales_LK1 = x_LKC.float().abs().amax(-1, keepdim=True) / largest
    codes_LKC = x_LKC.float() / scales_LK1
    if need.cache_dtype == "int8":
        codes_LKC = codes_LKC.round()
    else:
        codes_LKC = codes_LKC.to(torch.float8_e4m3fn).float()
    return codes_LKC * scales_LK1


def exact(
    need: AttentionNeed,
    qkv: Sequence[Tensor],
    sinks_H: Tensor | None,
    first: int,
    stop: int,
    waves: Waves | None = None,
    indexed: Indexed | None = None,
) -> Tensor:
    """Return the attention of the queries from `first` to `stop`, one by one, in float64."""
    q_LHC, k_LKC, v_LKC = qkv
    groups = need.num_heads // need.num_kv_heads
    k_LHC, v_LHC = (x.double().repeat_interleave(groups, dim=1) for x in (k_LKC, v_LKC))
    out = []
    for position in range(first, stop):
        oldest = 0 if need.sliding_window is None else max(0, position + 1 - need.sliding_window)
        seen: slice | list[int] = slice(oldest, position + 1)
        if indexed is not None:
            seen = _found(need, indexed, oldest, position)
        scores_LH = (k_LHC[seen] * q_LHC[position].double()).sum(-1)
        if waves is not None:
            lines_HWL = waves.lines_LN[:, seen].double()[waves.used_KW.long()]
            heights_HW = waves.amplitudes_THW[position].double()
            lines_HWL = lines_HWL.repeat_interleave(groups, 0)
            scores_LH = scores_LH + torch.einsum("hw,hwl->lh", heights_HW, lines_HWL)
        scores_LH = scores_LH * need.scale
        if need.soft_cap is not None:
            scores_LH = need.soft_cap * torch.tanh(scores_LH / need.soft_cap)
        weights_LH = (
            scores_LH if sinks_H is None else torch.cat([scores_LH, sinks_H.double()[None]])
        )
        out.append((weights_LH.softmax(0)[: len(scores_LH), :, None] * v_LHC[seen]).sum(0))
    return torch.stack(out)


def _found(need: AttentionNeed, indexed: Indexed, oldest: int, position: int) -> list[int]:
    """Return the positions that the index finds for one query."""
    assert need.index is not None and indexed.q_TJC is not None and indexed.weights_TJ is not None
    k_LC = indexed.k_TC[oldest : position + 1].double()
    products_JL = (indexed.q_TJC[position].double() @ k_LC.T).relu()
    scores_L = (indexed.weights_TJ[position].double() @ products_JL).tolist()
    best = sorted(range(len(scores_L)), key=lambda n: (-scores_L[n], n))
    return [oldest + n for n in best[: need.index.top_k]]
