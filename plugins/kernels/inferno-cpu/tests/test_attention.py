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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from attended import MIXED, TOLERANCE, Sequences, check, need
from torch import Tensor

from inferno.contracts import Device
from inferno.testing import alike
from inferno_cpu import _native
from inferno_cpu.attention import refuses


@pytest.fixture(autouse=True)
def fixed_threads(isa: str) -> None:
    _native.set_threads(2)


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


@pytest.mark.parametrize(
    "window",
    [1, pytest.param(5, marks=pytest.mark.slow), 16, pytest.param(17, marks=pytest.mark.slow), 40],
)
@pytest.mark.parametrize("cap", [None, 3.0])
def test_windows_and_caps(window: int, cap: float | None) -> None:
    for dtype in ("float32", "bfloat16"):
        spec = need(6, 2, 32, dtype, sliding_window=window, soft_cap=cap)
        sequences = Sequences(spec, [140, 90], block_size=32)
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
    spec = need(6, 3, 64)
    whole, _ = Sequences(spec, lengths).step(lengths)
    chunked = Sequences(spec, lengths)
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
        spec = need(*heads, dim=32, dtype=dtype, cache_dtype=kind, sliding_window=window)
        together, alone = (Sequences(spec, [before + 20, 70]) for _ in range(2))
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


@alike
@pytest.mark.parametrize("case", range(len(LONG_AND_SHARP)))
def test_a_token_is_the_same_to_the_bit_in_every_step(case: int) -> None:
    """Flat and sharp attention, in one step on one thread; and in chunks of any size beside another
    sequence, the last tokens as sequences of one, on two threads."""
    length, sizes = LONG_AND_SHARP[case]
    spec, draw = need(**sizes), random.Random(case)
    whole, parts = (Sequences(spec, [length, 700], seed=case) for _ in range(2))
    for sequences in (whole, parts):
        for q, _, _ in sequences.qkv:
            q *= torch.logspace(0, 2, spec.num_heads)[:, None]
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
    spec = need(2, 1, 16, dtype, cache_dtype=kind)
    sequences = Sequences(spec, [150] * len(cases))
    for (chunks, nats), (q, k, v) in zip(cases, sequences.qkv, strict=True):
        v.mul_(size)
        q.zero_()[..., 0] = spec.head_dim**0.5
        k.mul_(0.1)[..., 0] = torch.tensor(chunks).repeat_interleave(64)[:150, None] * -nats
    for count in (130, 1, 18, 1):
        ours, theirs = sequences.step([count] * len(cases))
        check(ours / size, theirs / size, tolerance)


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
    for spec in odd:
        reason = refuses(spec)
        assert reason is not None and len(reason.split()) > 4
