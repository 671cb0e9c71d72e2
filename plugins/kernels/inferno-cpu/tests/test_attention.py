"""Native attention against a naive one in float64: ragged steps, chunked prompts beside single
tokens, scattered blocks.

Suffixes: T packed tokens, H query heads, K key/value heads, C head dim, L tokens of a sequence, S
sequences.
"""

from __future__ import annotations

import itertools
import mmap
import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from inferno.contracts import AttentionNeed, Device
from inferno.nn.batch import Batch
from inferno.testing import KVCache
from inferno_cpu import _native
from inferno_cpu.attend import NativeAttend
from inferno_cpu.attention import cache, refuses

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-3}
MIXED = [(7, 1, 0, 33), (16, 1, 5, 1), (1, 1, 1, 1), (0, 100, 12, 1), (1, 1, 1, 1)]
"""Tokens each sequence computes in each step."""


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(2)


def need(
    heads: int = 4, kv_heads: int = 2, dim: int = 32, dtype: str = "float32", **more: Any
) -> AttentionNeed:
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    return AttentionNeed(**sizes, scale=dim**-0.5, dtype=dtype, **{"device": Device("cpu"), **more})  # type: ignore[arg-type]


class Sequences:
    """Random tokens of a few sequences, and a cache they are attended to through, step by step."""

    def __init__(
        self, asked: AttentionNeed, lengths: Sequence[int], block_size: int = 16, seed: int = 0
    ) -> None:
        self.need, self.block_size = asked, block_size
        generator = torch.Generator().manual_seed(seed)
        self.dtype = getattr(torch, asked.dtype)
        heads = (asked.num_heads, asked.num_kv_heads, asked.num_kv_heads)
        self.qkv = [
            [torch.randn(n, h, asked.head_dim, generator=generator).to(self.dtype) for h in heads]
            for n in lengths
        ]
        width = -(-max(lengths) // block_size) + 1
        blocks = list(range(len(lengths) * width))
        random.Random(seed).shuffle(blocks)
        self.tables = [blocks[i :: len(lengths)] for i in range(len(lengths))]
        self.cache = KVCache.allocate([cache(asked, block_size)], len(blocks), "cpu").layers[0]
        poison(self.cache)
        self.done = [0] * len(lengths)
        self.attend = NativeAttend(asked)

    def step(self, counts: Sequence[int], last: int = 1 << 30) -> tuple[Tensor, Tensor]:
        """(ours, theirs), the outputs of the step's tokens: of each sequence the `last`."""
        spans = [(i, self.done[i], self.done[i] + n) for i, n in enumerate(counts) if n]
        ours = self.attended(spans)
        for i, _, b in spans:
            self.done[i] = b
        ours = torch.cat([x[-last:] for x in torch.split(ours, [b - a for _, a, b in spans])])
        return ours, torch.cat(
            [naive(self.qkv[i], max(a, b - last), b, self.need) for i, a, b in spans]
        )

    def attended(self, spans: Sequence[tuple[int, int, int]]) -> Tensor:
        """Return our outputs of a step of these (sequence, first token, end)."""
        q, k, v = (torch.cat([self.qkv[i][j][a:b] for i, a, b in spans]) for j in range(3))
        q, k, v = views_of_one(q, k, v)
        return self.attend(q, k, v, self.cache, self.batch(spans))

    def batch(self, spans: Sequence[tuple[int, int, int]]) -> Batch:
        B = self.block_size
        places = [(i, p) for i, a, b in spans for p in range(a, b)]
        widest = max(-(-b // B) for _, _, b in spans)
        return Batch(
            token_ids_T=torch.zeros(len(places), dtype=torch.int64),
            positions_T=torch.tensor([p for _, p in places]),
            slots_T=torch.tensor([self.tables[i][p // B] * B + p % B for i, p in places]),
            query_starts=[0, *itertools.accumulate(b - a for _, a, b in spans)],
            context_lens=[b for _, _, b in spans],
            blocks_SM=torch.tensor([self.tables[i][:widest] for i, _, _ in spans]),
            block_size=B,
            query_starts_S1=torch.tensor(
                [0, *itertools.accumulate(b - a for _, a, b in spans)], dtype=torch.int32
            ),
            context_lens_S=torch.tensor([b for _, _, b in spans], dtype=torch.int32),
        )


def poison(tensors: Mapping[str, Tensor]) -> None:
    """Fill every slot with NaN: reading one that was not stored shows in the output."""
    for tensor in tensors.values():
        tensor.view(torch.uint8).fill_(0xFF)


def views_of_one(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor) -> list[Tensor]:
    """Return the three as slices of one matrix, as a fused projection does."""
    whole = torch.cat([q_THC.flatten(1), k_TKC.flatten(1), v_TKC.flatten(1)], 1)
    sizes = [x[0].numel() for x in (q_THC, k_TKC, v_TKC)]
    return [x.unflatten(1, (-1, q_THC.shape[-1])) for x in torch.split(whole, sizes, 1)]


def naive(qkv: Sequence[Tensor], first: int, stop: int, asked: AttentionNeed) -> Tensor:
    q_LHC, k_LKC, v_LKC = (x.double() for x in qkv)
    groups = asked.num_heads // asked.num_kv_heads
    k_LHC, v_LHC = (x[:stop].repeat_interleave(groups, dim=1) for x in (k_LKC, v_LKC))
    scores_HQL = torch.einsum("qhc,lhc->hql", q_LHC[first:stop], k_LHC) * asked.scale
    if asked.soft_cap is not None:
        scores_HQL = asked.soft_cap * torch.tanh(scores_HQL / asked.soft_cap)
    back_QL = torch.arange(first, stop)[:, None] - torch.arange(stop)
    hidden_QL = back_QL < 0
    if asked.sliding_window is not None:
        hidden_QL |= back_QL >= asked.sliding_window
    weights_HQL = scores_HQL.masked_fill(hidden_QL, float("-inf")).softmax(-1)
    return torch.einsum("hql,lhc->qhc", weights_HQL, v_LHC)


def check(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    error = (ours.double() - theirs).abs() / (1 + theirs.abs())
    assert error.max() <= tolerance, error.max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (5, 1), (16, 1), (71, 1)], ids=str)
def test_mixed_steps(dtype: str, heads: tuple[int, int]) -> None:
    totals = [sum(counts) for counts in zip(*MIXED, strict=True)]
    for dim, block_size in [(16, 32), (80, 16)]:
        sequences = Sequences(need(*heads, dim=dim, dtype=dtype), totals, block_size)
        for counts in MIXED:
            check(*sequences.step(counts), TOLERANCE[dtype])


@pytest.mark.parametrize("dim", [16, 48, 64, 96, 128, 256])
def test_head_dims(dim: int) -> None:
    for dtype in ("float32", "bfloat16"):
        sequences = Sequences(need(dim=dim, dtype=dtype), [70, 45])
        for counts in [(69, 44), (1, 1)]:
            check(*sequences.step(counts), TOLERANCE[dtype])


@pytest.mark.parametrize("window", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_windows_and_caps(window: int, cap: float | None) -> None:
    for dtype in ("float32", "bfloat16"):
        asked = need(6, 2, 32, dtype, sliding_window=window, soft_cap=cap)
        sequences = Sequences(asked, [140, 90], block_size=32)
        for counts in [(100, 1), (37, 88), (2, 0), (1, 1)]:
            check(*sequences.step(counts), TOLERANCE[dtype])


@pytest.mark.parametrize("threads", [1, 2])
def test_long_contexts_are_split(threads: int) -> None:
    """Contexts of more panels than a split of a decode, or of a tile of a prompt."""
    _native.set_threads(threads)
    for dtype, heads in [("float32", (4, 1)), ("bfloat16", (40, 1))]:
        sequences = Sequences(need(*heads, dim=16, dtype=dtype), [2201, 650])
        for counts in [(2150, 600), (49, 1), (1, 1), (1, 48)]:
            check(*sequences.step(counts, last=8), TOLERANCE[dtype])


@pytest.mark.parametrize("lengths", [(1,), (15,), (16,), (17,), (33, 64, 100)], ids=str)
def test_chunked_equals_whole(lengths: tuple[int, ...]) -> None:
    asked = need(6, 3, 64)
    whole, _ = Sequences(asked, lengths).step(lengths)
    chunked = Sequences(asked, lengths)
    parts: list[list[Tensor]] = [[] for _ in lengths]
    while chunked.done != list(lengths):
        counts = [min(7, n - d) for n, d in zip(lengths, chunked.done, strict=True)]
        ours, _ = chunked.step(counts)
        for part, out in zip(parts, torch.split(ours, counts), strict=True):
            part.append(out)
    torch.testing.assert_close(
        torch.cat([x for part in parts for x in part]), whole, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["auto", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("window", [None, 40])
def test_tokens_of_a_sequence_as_sequences_of_one_token(kind: str, window: int | None) -> None:
    """As drafts are, and the last tokens of a prompt in a replayed step. Each gives to the bit what
    it gives in a step of its own: across blocks, and where a split of the context ends."""
    for heads, dtype, before in [((4, 2), "bfloat16", 250), ((16, 1), "float32", 30)]:
        asked = need(*heads, dim=32, dtype=dtype, cache_dtype=kind, sliding_window=window)
        together, alone = (Sequences(asked, [before + 20, 70]) for _ in range(2))
        outputs: list[list[Any]] = []
        for sequences in (together, alone):
            sequences.step((before, 60))
            spans = [(0, before + i, before + i + 1) for i in range(16)]
            spans += [(1, 60, 61), (1, 61, 62)]
            outputs.append([])
            for some in [spans] if sequences is together else [[span] for span in spans]:
                outputs[-1].append(sequences.attended(some))
        assert torch.equal(torch.cat(outputs[0]), torch.cat(outputs[1]))
        for name, tensor in together.cache.items():
            same = tensor.view(torch.uint8) == alone.cache[name].view(torch.uint8)
            assert same.all(), name


LONG_AND_SHARP: Sequence[tuple[int, dict[str, Any]]] = [
    (3000, {"heads": 4, "kv_heads": 1, "dim": 16, "dtype": "bfloat16"}),
    (2200, {"heads": 9, "kv_heads": 3, "dim": 64, "dtype": "bfloat16"}),
    (2200, {"heads": 3, "kv_heads": 1, "dim": 32, "dtype": "float32", "soft_cap": 20.0}),
    (1000, {"heads": 20, "kv_heads": 1, "dim": 16, "dtype": "float16"}),
    (2200, {"heads": 4, "kv_heads": 2, "dim": 32, "dtype": "bfloat16", "cache_dtype": "int8"}),
    (2200, {"heads": 4, "kv_heads": 2, "dim": 32, "dtype": "bfloat16", "cache_dtype": "fp8_e4m3"}),
    (600, {"heads": 16, "kv_heads": 1, "dim": 48, "dtype": "float16", "cache_dtype": "int8"}),
    (1000, {"heads": 5, "kv_heads": 1, "dim": 16, "dtype": "float32", "cache_dtype": "fp8_e4m3"}),
    (2400, {"heads": 4, "kv_heads": 2, "dim": 16, "dtype": "bfloat16", "sliding_window": 300}),
    (900, {"heads": 6, "kv_heads": 2, "dim": 16, "dtype": "float32", "sliding_window": 77}),
]


@pytest.mark.parametrize("case", range(len(LONG_AND_SHARP)))
def test_a_token_is_the_same_to_the_bit_in_every_step(case: int) -> None:
    """Flat and sharp attention, in one step on one thread; and in chunks of any size beside another
    sequence, the last tokens as sequences of one, on two threads."""
    length, sizes = LONG_AND_SHARP[case]
    asked, draw = need(**sizes), random.Random(case)
    whole, parts = (Sequences(asked, [length, 700], seed=case) for _ in range(2))
    for sequences in (whole, parts):
        for q, _, _ in sequences.qkv:
            q *= torch.logspace(0, 2, asked.num_heads)[:, None]
    _native.set_threads(1)
    expected = whole.attended([(0, 0, length)])
    _native.set_threads(2)
    ours, begin, beside, alone = list[Tensor](), 0, 0, length - 30
    while begin < alone:
        stop = min(alone, begin + draw.choice([1, 2, 3, 5, 17, 40, 100, 255, 512, 900]))
        spans = [(0, begin, stop)]
        if beside < 600:
            spans.insert(draw.randrange(2), (1, beside, beside + draw.choice([1, 4, 50])))
        at = sum(b - a for i, a, b in spans[: spans.index((0, begin, stop))])
        ours.append(parts.attended(spans)[at : at + stop - begin])
        begin, beside = stop, max(b if i else beside for i, _, b in spans)
    ours.append(parts.attended([(0, i, i + 1) for i in range(alone, length)]))
    differ = (torch.cat(ours) != expected).flatten(1).any(1).nonzero().flatten().tolist()
    assert not differ, f"{len(differ)} tokens, from {differ[0]} on"


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_8_bit_caches_are_read_as_they_are_stored(kind: str, dtype: str) -> None:
    """Against attention in float64 over the stored values: what is lost is the rounding of the
    queries and of the weights, and fp8's subnormal numbers."""
    tolerance = {"float32": 5e-4, "bfloat16": 1e-2, "float16": 1e-3}[dtype]
    asked = need(6, 2, 64, dtype, cache_dtype=kind)
    sequences = Sequences(asked, [90])
    q, k, v = sequences.qkv[0]
    k[:, :, :8] *= 6.0  # outliers, beside which the others are few units
    v[20] *= 100.0
    for counts in [(70,), (1,), (19,)]:
        ours, _ = sequences.step(counts)
    stored = []
    for name in ("k", "v"):
        blocks = sequences.cache[name][sequences.tables[0][:6]].transpose(0, 1).flatten(1, 2)
        blocks_KNX = blocks.double() if kind == "int8" else blocks.float().double()
        if name == "k":  # [C / 2][16][2]
            x_KLC = blocks_KNX.unflatten(-1, (32, 16, 2)).permute(0, 1, 3, 2, 4).flatten(3)
        else:  # [C / 16][8][16][2]
            x_KLC = blocks_KNX.unflatten(-1, (4, 8, 16, 2)).permute(0, 1, 3, 5, 2, 4).flatten(4)
            x_KLC = x_KLC.flatten(2, 3)
        scales = sequences.cache[f"{name}_scales"][sequences.tables[0][:6]]
        scales_KL = scales.transpose(0, 1).flatten(1).double()
        stored.append((x_KLC.flatten(1, 2) * scales_KL[..., None]).transpose(0, 1)[:90])
    theirs = naive([q, *stored], 71, 90, asked)
    error = (ours.double() - theirs).abs() / (1 + theirs.abs().amax(-1, keepdim=True))
    assert error.max() <= tolerance, error.max()


@pytest.mark.parametrize("kind", ["auto", "int8", "fp8_e4m3"])
@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 1e4), ("bfloat16", 1.0), ("float16", 1e-3)]
)
def test_keys_far_below_the_maximum(kind: str, dtype: str, size: float) -> None:
    """Chunks whose every weight is tiny or underflows, before and after those of the maximum;
    values of any size."""
    tolerance = {"auto": TOLERANCE[dtype], "int8": 0.03, "fp8_e4m3": 0.12}[kind]
    far = [(False, True, True), (True, False, False), (True, False, True)]
    cases = list(itertools.product(far, (17.0, 19.0, 22.0, 80.0, 1e4)))
    asked = need(2, 1, 16, dtype, cache_dtype=kind)
    sequences = Sequences(asked, [150] * len(cases))
    for (chunks, nats), (q, k, v) in zip(cases, sequences.qkv, strict=True):
        v.mul_(size)
        q.zero_()[..., 0] = asked.head_dim**0.5
        k.mul_(0.1)[..., 0] = torch.tensor(chunks).repeat_interleave(64)[:150, None] * -nats
    for count in (130, 1, 18, 1):
        ours, theirs = sequences.step([count] * len(cases))
        check(ours / size, theirs / size, tolerance)


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_spreads_from_8_bit_caches(kind: str, wrong: float) -> None:
    """To the tokens that see it, and to no others."""
    for which in range(3):
        sequences = Sequences(need(4, 2, 32, "bfloat16", cache_dtype=kind), [40])
        sequences.qkv[0][which][20, 0, 3] = wrong
        ours, _ = sequences.step((40,))
        seen = [20] if which == 0 else range(20, 40)
        bad = ours[:, 0].isnan().any(-1)
        assert bad.nonzero().flatten().tolist() == list(seen)
        assert not ours[:, 3].isnan().any(), "another head"


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_8_bit_caches(kind: str, dtype: str) -> None:
    """Scores err by the rounding of a key's element times the root of the head dim, values by their
    own rounding: a few percent."""
    tolerance = {"int8": 0.03, "fp8_e4m3": 0.12}[kind]
    totals = [sum(counts) for counts in zip(*MIXED, strict=True)]
    for heads, block_size in [((4, 2), 16), ((12, 1), 32)]:
        sequences = Sequences(
            need(*heads, dim=64, dtype=dtype, cache_dtype=kind), totals, block_size
        )
        for counts in MIXED:
            check(*sequences.step(counts), tolerance)


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
def test_8_bit_elements_are_the_nearest(kind: str) -> None:
    """The cache holds the row divided by its scale, rounded as torch does; zeros, tiny and huge
    values included."""
    asked = need(1, 1, 64, cache_dtype=kind)
    sequences = Sequences(asked, [16])
    q, k, v = sequences.qkv[0]
    v *= torch.logspace(-44, 37, 16)[:, None, None]
    v[3] = 0.0
    sequences.attend(q, k, v, sequences.cache, sequences.batch([(0, 0, 16)]))
    block = sequences.tables[0][0]
    scales = sequences.cache["v_scales"][block, 0].double()
    stored_CT = (
        sequences.cache["v"][block, 0, 0].view(4, 8, 16, 2).permute(1, 3, 0, 2).reshape(16, 64)
    )
    largest, dtype = (127.0, torch.int8) if kind == "int8" else (448.0, torch.float8_e4m3fn)
    top = v[:, 0].abs().amax(-1).double()
    usable = top > 2e-36
    torch.testing.assert_close(scales[usable], (top / largest)[usable], rtol=1e-5, atol=0.0)
    assert (scales[top == 0] == 0).all()
    over = (v[:, 0] * (largest / top)[:, None].float())[usable]
    expected = over.round().to(dtype) if kind == "int8" else over.to(dtype)
    same = stored_CT[usable].float() == expected.float()
    assert same.double().mean() > 0.99, "but for ties that the scale's own rounding decides"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is Linux's")
def test_a_thread_that_ends_gives_its_memory_back() -> None:
    """A program may have a thread for each request. Each takes about a megabyte."""
    _native.set_threads(1)
    sequences = Sequences(need(), [20])

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    def attend_in_threads(count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=sequences.attended, args=([(0, 0, 20)],))
            thread.start()
            thread.join()

    attend_in_threads(10)
    before = resident()
    attend_in_threads(100)
    assert resident() - before < 40e6


def test_a_step_of_no_context_gives_zeros() -> None:
    sequences = Sequences(need(), [4])
    nothing = torch.zeros(1, dtype=torch.int32)
    batch = attrs.evolve(
        sequences.batch([(0, 0, 1)]), context_lens_S=nothing, slots_T=torch.tensor([-1])
    )
    q, k, v = (x[:1] for x in sequences.qkv[0])
    assert (sequences.attend(q, k, v, sequences.cache, batch) == 0).all()
    assert sequences.cache["k"].isnan().all(), "a slot below zero stores nothing"


def test_refusals() -> None:
    assert refuses(need()) is None
    odd = (
        need(5, 3),
        need(129, 1),
        need(dim=40),
        need(dim=272),
        need(cache_dtype="int3"),
        need(device=Device("cuda")),
    )
    for asked in odd:
        reason = refuses(asked)
        assert reason is not None and len(reason.split()) > 4
