"""The kernels compile for every chip of the table, with its tiles: within the shared memory of a
thread block, without spilled registers, and loading 16 bytes at once. No GPU is needed, and none of
this says how fast they are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
from triton_compiler import Launch, compiled, launches

from inferno.contracts import AttentionNeed, Device
from inferno.nn import Dense, Fp8Blocks
from inferno.nn.batch import Batch
from inferno.ops.draws import Biases, DrawParams, Penalties
from inferno_triton import (
    adapters,
    attend,
    attention,
    chips,
    draws,
    experts,
    float8,
    fp8,
    int8,
    linear,
    lora,
    mixture,
    ops,
    packed,
    paged,
    rows,
    tokens,
    w8a8,
)
from inferno_triton.attend import TritonAttend
from inferno_triton.planes import Form, Planes
from inferno_triton.tiles import CHIPS

PAGE = 64
DAILY = {"sm_89"}
"""With 8-bit floats, and the tiles of the small chips. All of them take minutes together."""


def on(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test by chips."""
    slow = pytest.mark.slow
    marked = [pytest.param(name, marks=() if name in DAILY else slow) for name in names]
    return pytest.mark.parametrize("chip", marked)


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
SINKS, INT8, FP8 = "heads of 64, sinks, window", "heads of 128, int8", "heads of 128, fp8"
CAP, VALUES = "heads of 256, soft cap", "heads of 192, values of 128"

SINGLE: Mapping[str, list[str]] = {
    "sm_80": [SINKS, FP8, "latent"],
    "sm_86": [SINKS, INT8, CAP, VALUES, "latent"],
    "sm_89": [FP8],  # all that it has and sm_86, with the same tiles, has not
    "sm_90": [SINKS, INT8, CAP, "latent"],
    "sm_100": [FP8, CAP, "latent"],
    "gfx942": [SINKS, FP8, CAP, "latent"],
}
PROMPTS: Mapping[str, list[str]] = {
    "sm_80": [CAP, "latent"],
    "sm_86": [SINKS, "heads of 80", CAP, "latent"],
    "sm_89": [FP8],
    "sm_90": [SINKS, FP8, CAP, "latent"],
    "sm_100": ["heads of 128", CAP],
    "gfx942": [SINKS, "heads of 80", CAP, "latent"],
}
"""Every entry of the chips' tables, those that chips share on one of them; each feature on some."""
STORES = {"sm_86": [INT8], "sm_90": ["latent"], "sm_89": [FP8], "gfx942": [FP8]}

LOADS = r"LDGSTS\S*\.128|LDG\S*\.128|(buffer|global)_load_(dwordx4|b128)"
"""Loads of 16 bytes: to shared memory or to registers; AMD's."""
BYTE_LOADS = r"LDG\S*\.[US]8|LDGSTS\S*\.[US]8|load_[us]byte"

MATRIX = {"sm_90": "[HQI]GMMA", "sm_100": r"UTC\w*MMA|IMMA"}
"""Instructions that multiply matrices; those of other chips are HMMA, QMMA and IMMA."""

ALIKE = {"sm_80": "sm_86"}
"""Chips whose kernels beside attention have the same tiles and instructions."""


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


def launched(
    need: AttentionNeed, chip: str, lengths: list[int], context: int = 8192
) -> list[Launch]:
    """Return what a step launches over contexts of this length. `lengths` are its sequences'
    tokens."""
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
        context_lens=[context] * S,
        blocks_SM=empty(S, context // PAGE, dtype=torch.int64),
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
    with launches(paged) as records:
        TritonAttend(need, CHIPS[chip])(q, k, v, cache, batch, sinks)
    assert {launch.kernel.fn.__name__ for launch in records} >= {"store", "attend"}
    return records


def check(launch: Launch, chip: str) -> None:
    kernel = launch.kernel.fn.__name__
    loops = kernel == "attend" and (launch.arguments["LONG"] or launch.arguments["SPLIT"])
    one = not (loops and launch.arguments["LONG"])
    large = one and kernel in ("attend", "few", "many", "grouped", "product")
    machine = compiled(launch, chip, disassemble=large)
    name = f"{kernel} {launch.options}: {machine}"
    # Chips of one compiler share a compilation: it must fit into the least memory among them.
    limit = min(CHIPS[each].shared_memory for each in {chip, ALIKE.get(chip, chip)})
    assert machine.shared_memory <= limit, name
    # The sums of earlier stretches may wait in memory: they are needed once in 512 keys.
    waiting = launch.arguments["BM"] * launch.arguments["V"] * 4 if loops else 0
    threads = 32 * launch.options["num_warps"] if loops else 1
    assert machine.spilled <= waiting // threads + (64 if loops else 0), name
    if large:
        assert machine.count(LOADS) > 0, f"{name}: it loads in small pieces"
    if kernel in ("few", "many", "grouped", "product"):
        # Those of the newest chips have 64 rows.
        usual = "v_mfma" if chip == "gfx942" else "[HQI]MMA"
        matrix = usual if kernel == "few" else MATRIX.get(chip, usual)
        assert machine.count(matrix) > 0, f"{name}: not on tensor cores"
    if kernel in ("few", "many", "product"):
        assert machine.count(BYTE_LOADS) == 0, f"{name}: it loads bytes"


@pytest.mark.slow
@on(*CHIPS)
def test_single_tokens(chip: str) -> None:
    """And the stores beside them, and the merge of the splits."""
    for case in SINGLE[chip]:
        store, single, *merge = launched(need_of(case, chip), chip, [1] * 8)
        check(single, chip)
        for launch in (store, *merge) if case in STORES.get(chip, ()) else ():
            check(launch, chip)


@pytest.mark.slow
@on(*CHIPS)
def test_prompts(chip: str) -> None:
    """In one stretch, and in several."""
    for case, context in itertools.product(PROMPTS[chip], (attend.STRETCH, 8192)):
        [_, launch, *_] = launched(need_of(case, chip), chip, [700, 1, 3000], context)
        assert launch.arguments["LONG"] == (context > attend.STRETCH)
        check(launch, chip)


@on("sm_86", "gfx942")
def test_float32(chip: str) -> None:
    for launch in launched(need_of("heads of 128", chip, "float32"), chip, [1] * 8):
        check(launch, chip)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def planes(form: Form, rows: int, columns: int) -> linear.PackedPlanes:
    """A packed matrix without memory."""
    blocks, sizes = columns // 256, {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    each = 4 if form.kind == "half" else 8
    words = meta(columns // form.group // each, rows, dtype=torch.int64)
    steps = meta(blocks, rows, dtype=torch.float16) if form.kind == "byte" else None
    meta_planes = Planes(
        form,
        (rows, columns),
        meta(rows, 32 * blocks, dtype=sizes.get(form.low, torch.int64)),
        meta(rows, 32 * blocks, dtype=sizes[form.high]) if form.high else None,
        words,
        words if form.mins else None,
        steps,
        steps if form.mins else None,
    )
    return linear.PackedPlanes(meta_planes, "", torch.bfloat16)


Q4_K = Form(4, group=32, mins="minima", kind="byte")
Q6_K = Form(4, 2, group=16, offset=32, kind="byte")
INT4 = Form(4, group=64, mins="zeros")


@on("sm_80", "sm_90", "sm_100", "gfx942")
def test_products(chip: str) -> None:
    """With packed matrices, which are loaded 16 bytes at once and never byte by byte, and with
    plain ones of experts, on tensor cores."""
    starts_E1 = meta(9, dtype=torch.int32)
    matrices = experts.DenseExperts(Dense(meta(8 * 1024, 4096)))
    with (
        chips.using(CHIPS[chip]),
        launches(packed) as records,
        launches(mixture) as more,
        launches(rows) as sums,
    ):
        planes(Q4_K, 4096, 4096).matmul(meta(1, 4096))
        planes(Q6_K, 4096, 4096).matmul(meta(64, 4096))
        matrices.grouped(meta(512, 4096), starts_E1)
        if chip == "sm_90":
            planes(Q6_K, 4096, 4096).matmul(meta(2, 4096))
            planes(Q6_K, 512, 4096).rows(meta(64, dtype=torch.int64))
        if chip in ("sm_90", "gfx942"):
            matrices.grouped(meta(64, 4096), starts_E1)
            planes(INT4, 8 * 1024, 4096).grouped(meta(64, 4096), starts_E1)
    names = {launch.kernel.fn.__name__ for launch in (*records, *more)}
    assert names >= {"few", "many", "grouped"}
    assert sums, "the columns of a product of one token are split"
    for launch in (*records, *more, sums[0]):
        check(launch, chip)


@pytest.mark.slow
@on("sm_80", "sm_89", "sm_90", "gfx942")
def test_products_of_8_bit_floats(chip: str) -> None:
    """Few tokens by exact values; many with activations of 8 bits, where the chip has them."""
    scales = meta(32, 32, dtype=torch.float32)
    data = meta(4096, 4096, dtype=torch.float8_e4m3fn)
    weight = fp8.Float8(Fp8Blocks(data, scales, (128, 128), torch.bfloat16))
    with chips.using(CHIPS[chip]), launches(float8) as records, launches(rows):
        weight.matmul(meta(16, 4096))
        if CHIPS[chip].fp8:
            weight.matmul(meta(1024, 4096))
    assert len(records) == (3 if CHIPS[chip].fp8 else 1)
    for launch in records:
        check(launch, chip)


@on("sm_80", "sm_90", "sm_100", "gfx942")
def test_products_with_rounded_activations(chip: str) -> None:
    data = meta(4096, 4096, dtype=torch.int8)
    scales, zeros = (meta(4096, 1, dtype=torch.float32) for _ in range(2))
    with chips.using(CHIPS[chip]), launches(int8) as records, launches(rows):
        w8a8.Int8(data, scales, None, torch.bfloat16).matmul(meta(1024, 4096))
        if chip == "sm_90":
            w8a8.Int8(data, scales, zeros, torch.bfloat16).matmul(meta(16, 4096))
    assert len(records) == (4 if chip == "sm_90" else 2)
    for launch in records:
        check(launch, chip)


@on("sm_90", "gfx942")
def test_small_operators(chip: str) -> None:
    with launches(rows) as records, launches(mixture) as more:
        ops.rms_norm(meta(8, 4096), meta(4096), 1e-6)
        ops.add_rms_norm(meta(8, 4096), meta(8, 4096), meta(4096), 1e-6)
        angles = meta(8, 64, dtype=torch.float32)
        ops.norm_rope(meta(8, 32, 128), meta(128), 1e-6, angles, angles)
        ops.silu_mul(meta(8, 12288), meta(8, 12288))
        ops.argmax(meta(8, 151_936))
        chosen = experts.route(
            meta(8, 2048), meta(128, 2048, dtype=torch.float32), None, None, 8, False, True, 1.0
        )
        _, _, places = experts.dispatch(chosen[0], 128)
        experts.combine(meta(64, 2048), places, chosen[1])
    assert len(records) == 5 and len(more) == 3
    for launch in (*records, *more):
        check(launch, chip)


@on("sm_80", "sm_86", "sm_90", "sm_100", "gfx942")
def test_adapters(chip: str) -> None:
    """Of rank 16 beside two stacked matrices, and of rank 128, for few and many tokens; in float32
    on one chip."""
    dtype = torch.float32 if chip == "sm_86" else torch.bfloat16
    with chips.using(CHIPS[chip]), launches(lora) as records:
        for tokens, rank, outputs in ((4, 16, (4096, 1000)), (1024, 128, (4096,))):
            slots_T, y_TO = meta(tokens, dtype=torch.int64), meta(tokens, sum(outputs), dtype=dtype)
            down_SRI = meta(8, rank * len(outputs), 4096, dtype=dtype)
            h_TR = adapters.shrink(meta(tokens, 4096, dtype=dtype), down_SRI, slots_T)
            ups = [meta(8, rank, each, dtype=dtype) for each in outputs]
            adapters.expand(y_TO, h_TR, ups, slots_T)
    assert [launch.kernel.fn.__name__ for launch in records] == [
        *("shrink", "expand", "expand"),
        *("shrink", "expand"),
    ]
    for launch in records:
        check(launch, chip)


@on("sm_80", "sm_90", "sm_100", "gfx942")
def test_draws(chip: str) -> None:
    """Of a real vocabulary; the best tokens of adjusted logits on one chip."""
    B, V, float32, int64 = 8, 151_936, torch.float32, torch.int64
    floats, integers = [meta(B, dtype=float32)] * 3, [meta(B, dtype=int64)] * 3
    counts_RV = meta(64, V, dtype=torch.int32)
    with chips.using(CHIPS[chip]), launches(draws) as records:
        tokens.draw(meta(B, V), DrawParams(*floats[:2], *integers))
        if chip == "sm_90":
            tokens.draw(meta(B, V, dtype=float32), None, meta(B, V))
            tokens.adjust(
                meta(B, V),
                Penalties(integers[0], counts_RV, counts_RV, *floats),
                Biases(integers[0], integers[1], floats[0]),
                meta(B, V // 32, dtype=torch.int32),
            )
    assert len(records) == (8 if chip == "sm_90" else 4)
    for launch in records:
        check(launch, chip)
