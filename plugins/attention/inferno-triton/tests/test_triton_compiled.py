"""The kernels compile for every chip of the table, with its tiles: within the shared memory of a
thread block, without spilled registers, and loading 16 bytes at once. No GPU is needed, and none of
this says how fast they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
from triton_compiler import Launch, compiled, launches

from inferno.contracts import AttentionNeed, Device
from inferno.nn.batch import Batch
from inferno_triton import attention, paged
from inferno_triton.attend import TritonAttend
from inferno_triton.tiles import CHIPS

PAGE = 64
NEEDS: Mapping[str, dict[str, Any]] = {
    "heads of 64, sinks, window": {"dims": (64, 8, 64), "sinks": True, "sliding_window": 128},
    "heads of 80": {"dims": (32, 32, 80)},
    "heads of 128": {"dims": (32, 8, 128)},
    "heads of 128, fp8": {"dims": (32, 8, 128), "cache_dtype": "fp8_e4m3"},
    "heads of 128, int8": {"dims": (32, 8, 128), "cache_dtype": "int8"},
    "heads of 256, soft cap": {"dims": (16, 4, 256), "soft_cap": 50.0, "sliding_window": 4096},
    "heads of 192, values of 128": {"dims": (16, 16, 192), "value_dim": 128},
    "latent": {"dims": (128, 1, 576), "latent_dim": 512},
}
FP8 = ["heads of 128, fp8"]
"""All that sm_89 has and sm_86, with the same tiles, has not."""

STORES = [*FP8, "heads of 128, int8", "latent"]
PROMPTS = ["heads of 80", "heads of 128", *FP8, "heads of 256, soft cap", "latent"]

LOADS = r"LDGSTS\S*\.128|LDG\S*\.128|(buffer|global)_load_(dwordx4|b128)"
"""Loads of 16 bytes: to shared memory or to registers; AMD's."""


def need_of(case: str, chip: str, dtype: str = "bfloat16") -> AttentionNeed:
    more = dict(NEEDS[case])
    heads, kv_heads, dim = more.pop("dims")
    capability = (9, 4) if chip == "gfx942" else (int(chip[3:-1]), int(chip[-1]))
    device = Device("cuda", capability=capability, shared_memory=CHIPS[chip].shared_memory)
    return AttentionNeed(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        scale=dim**-0.5,
        dtype=dtype,  # type: ignore[arg-type]
        device=device,
        **more,
    )


def launched(need: AttentionNeed, chip: str, lengths: list[int]) -> list[Launch]:
    """Return what a step launches over contexts of 8,192. `lengths` are its sequences' tokens."""
    dtype, S, T = getattr(torch, need.dtype), len(lengths), sum(lengths)

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    cache = {
        name: empty(4096, *tensor.shape, dtype=getattr(torch, tensor.dtype))
        for name, tensor in attention.cache(need, PAGE).items()
    }
    batch = Batch(
        token_ids_T=empty(T, dtype=torch.int64),
        positions_T=empty(T, dtype=torch.int64),
        slots_T=empty(T, dtype=torch.int64),
        query_starts=[0] * (S + 1),
        context_lens=[8192] * S,
        blocks_SM=empty(S, 128, dtype=torch.int64),
        block_size=PAGE,
        query_starts_S1=empty(S + 1, dtype=torch.int32),
        context_lens_S=empty(S, dtype=torch.int32),
    )
    q, k, v = (
        empty(T, heads, dim)
        for heads, dim in (
            (need.num_heads, need.head_dim),
            (need.num_kv_heads, need.head_dim),
            (need.num_kv_heads, need.output_dim),
        )
    )
    sinks = empty(need.num_heads) if need.sinks else None
    with launches(paged) as found:
        TritonAttend(need, CHIPS[chip])(q, k, v, cache, batch, sinks)
    assert {launch.kernel.fn.__name__ for launch in found} >= {"store", "attend"}
    return found


def check(launch: Launch, chip: str) -> None:
    machine = compiled(launch, chip)
    name = f"{launch.kernel.fn.__name__} {launch.options}: {machine}"
    assert machine.shared_memory <= CHIPS[chip].shared_memory, name
    assert machine.spilled == 0, name
    if launch.kernel.fn.__name__ == "attend":
        assert machine.count(LOADS) > 0, f"{name}: keys and values are loaded in small pieces"


@pytest.mark.parametrize("chip", CHIPS)
def test_single_tokens(chip: str) -> None:
    """And the stores beside them, and the merge of the splits."""
    for case in FP8 if chip == "sm_89" else NEEDS:
        store, attend, *merge = launched(need_of(case, chip), chip, [1] * 8)
        check(attend, chip)
        for launch in (store, *merge) if case in STORES else ():
            check(launch, chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_prompts(chip: str) -> None:
    for case in FP8 if chip == "sm_89" else PROMPTS:
        [_, attend, *_] = launched(need_of(case, chip), chip, [700, 1, 3000])
        check(attend, chip)


@pytest.mark.parametrize("chip", ["sm_86", "sm_90", "gfx942"])
def test_float32(chip: str) -> None:
    for launch in launched(need_of("heads of 128", chip, "float32"), chip, [1] * 8):
        check(launch, chip)
