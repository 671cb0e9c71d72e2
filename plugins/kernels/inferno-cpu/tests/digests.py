"""Print, as JSON, a digest of what each available level computes, and nothing else: `python
digests.py FOLDER`, the one with the compiled modules. Imports no torch and no numpy, to be quick in
an emulator.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
from ctypes import addressof, c_char, memmove, string_at
from importlib import import_module
from types import ModuleType

FLOAT32, BFLOAT16, FLOAT16, FP8_ROWS, FP8_BLOCKS = range(5)
"""As in native/dtype.hpp."""
Q8_0, Q4_K, Q5_K, Q6_K, MXFP4, IQ4_NL = 0, 7, 8, 9, 13, 14
"""As in native/packed.hpp."""
BLOCKS = {
    Q8_0: (32, 34, [0]),
    Q4_K: (256, 144, [0, 2]),
    Q5_K: (256, 176, [0, 2]),
    Q6_K: (256, 210, [208]),
    MXFP4: (32, 17, []),
    IQ4_NL: (32, 18, [0]),
}
"""Columns and bytes of a block, and the offsets of its float16 scales."""
ROWS = (1, 3, 19, 40)


class Buffer:
    """Bytes at an address that is divisible by 64."""

    def __init__(self, data: bytes | int) -> None:
        size = data if isinstance(data, int) else len(data)
        self._memory = (c_char * (size + 64))()
        self._size = size
        self.address = addressof(self._memory) + -addressof(self._memory) % 64
        if isinstance(data, bytes):
            memmove(self.address, data, size)

    def digest(self) -> str:
        data = string_at(self.address, self._size)
        assert any(data), "nothing was computed"
        return hashlib.sha256(data).hexdigest()[:16]


def floats(rng: random.Random, dtype: int, count: int) -> Buffer:
    values = [rng.gauss(0.0, 1.0) for _ in range(count)]
    if dtype == BFLOAT16:
        return Buffer(b"".join(struct.pack("<f", value)[2:] for value in values))
    return Buffer(struct.pack(f"<{count}{'e' if dtype == FLOAT16 else 'f'}", *values))


def size(dtype: int) -> int:
    return 4 if dtype == FLOAT32 else 2


def dense(native: ModuleType, dtype: int, N: int, K: int) -> list[str]:
    rng = random.Random(dtype)
    w, panels = floats(rng, dtype, N * K), Buffer((N + 15) // 16 * 16 * (K + K % 2) * size(dtype))
    native.dense_repack(dtype, w.address, K, panels.address, N, K)
    digests = [panels.digest()]
    for M in ROWS:
        x, y = floats(rng, dtype, M * K), Buffer(M * N * size(dtype))
        native.dense_matmul(
            dtype, dtype, x.address, K, panels.address, 0, dtype, y.address, M, N, K
        )
        digests.append(y.digest())
    return digests


def float8(native: ModuleType, kind: int, N: int, K: int) -> list[str]:
    rng = random.Random(kind)
    codes = bytes(code ^ (code & 0x7F == 0x7F) for code in rng.randbytes(N * K))
    source = Buffer(codes)
    scales = floats(rng, FLOAT32, (N + 15) // 16 * (16 if kind == FP8_ROWS else (K + 127) // 128))
    panels = Buffer((N + 15) // 16 * (64 + (16 * K + 63) // 64 * 64))
    native.dense_repack_fp8(kind, source.address, K, scales.address, panels.address, N, K)
    digests = [panels.digest()]
    for dtype in (FLOAT32, BFLOAT16):
        for M in ROWS:
            x, y = floats(rng, dtype, M * K), Buffer(M * N * size(dtype))
            native.dense_matmul(
                kind, dtype, x.address, K, panels.address, 0, dtype, y.address, M, N, K
            )
            digests.append(y.digest())
    return digests


def packed(native: ModuleType, layout: int, N: int, K: int) -> list[str]:
    rng = random.Random(layout)
    columns, block_bytes, scales = BLOCKS[layout]
    w = b""
    for _ in range(N * K // columns):
        block = bytearray(rng.randbytes(block_bytes))
        for at in scales:
            block[at : at + 2] = struct.pack("<e", rng.uniform(-0.02, 0.02))
        if layout == MXFP4:
            block[0] = rng.randrange(110, 125)
        w += block
    source = Buffer(w)
    panels = Buffer((N + 15) // 16 * native.packed_panel_bytes(layout, K))
    native.packed_repack(
        layout, source.address, K // columns * block_bytes, 0, 0, panels.address, N, K
    )
    digests = [panels.digest()]
    for M in ROWS:
        x, y = floats(rng, FLOAT32, M * K), Buffer(M * N * 4)
        native.packed_matmul(
            layout, panels.address, FLOAT32, x.address, FLOAT32, y.address, 0, M, N, K
        )
        digests.append(y.digest())
    return digests


def elementwise(native: ModuleType, dtype: int, T: int, D: int) -> list[str]:
    rng = random.Random(dtype)
    x, other, weight = (floats(rng, dtype, count) for count in (T * D, T * D, D))
    each = [Buffer(T * D * size(dtype)) for _ in range(3)]
    native.rms_norm(dtype, x.address, D, D, T, 1, D, weight.address, False, 1e-6, each[0].address)
    native.add_rms_norm(
        dtype, x.address, D, other.address, D, weight.address, False, 1e-6,
        each[1].address, each[2].address, T, D,
    )  # fmt: skip
    silu, ids = Buffer(T * D * size(dtype)), Buffer(T * 8)
    native.silu_mul(dtype, x.address, D, other.address, D, silu.address, T, D)
    native.argmax(dtype, x.address, D, ids.address, T, D)
    return [buffer.digest() for buffer in (*each, silu, ids)]


def attention(native: ModuleType, kind: int, tokens: int) -> list[str]:
    """A prompt and a single token after it: four query heads over two of 32 channels."""
    H, K, C, block, blocks = 4, 2, 32, 16, 4
    rng = random.Random(kind)
    caches = [Buffer(blocks * K * block * C * 4) for _ in range(2)]
    scales = [Buffer(blocks * K * block * 4) for _ in range(2)]
    tables = Buffer(struct.pack("<4q", 2, 0, 3, 1))
    digests = []
    for first, count in ((0, tokens), (tokens, 1)):
        q, k, v = (floats(rng, FLOAT32, count * heads * C) for heads in (H, K, K))
        out = Buffer(count * H * C * 4)
        each = [(2, 0, 3, 1)[t // block] * block + t % block for t in range(first, first + count)]
        lengths = Buffer(struct.pack("<3i", 0, count, first + count))
        slots = Buffer(struct.pack(f"<{count}q", *each))
        native.attend(
            FLOAT32, kind, q.address, H * C, k.address, K * C, v.address, K * C, out.address,
            caches[0].address, caches[1].address, scales[0].address, scales[1].address,
            slots.address, lengths.address, lengths.address + 8,
            tables.address, blocks, 1, H, K, C, block, C**-0.5, 0.0, 0, 0, 0, 0, 0, 0,
        )  # fmt: skip
        digests.append(out.digest())
    return digests


def experts(native: ModuleType, dtype: int, T: int, D: int, E: int, K: int) -> list[str]:
    rng = random.Random(dtype)
    x, weight = floats(rng, dtype, T * D), floats(rng, FLOAT32, E * D)
    ids, weights = Buffer(T * K * 8), Buffer(T * K * 4)
    native.route(
        dtype, x.address, D, weight.address, 0, 0, False, True, 1.0, ids.address,
        weights.address, T, D, E, K,
    )  # fmt: skip
    return [ids.digest(), weights.digest()]


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    native = import_module("_native")

    digests = {}
    for level in native.available():
        native.select(level)
        digests[level] = {
            **{f"dense {dtype}": dense(native, dtype, 37, 66) for dtype in range(3)},
            **{f"float8 {kind}": float8(native, kind, 37, 266) for kind in (FP8_ROWS, FP8_BLOCKS)},
            **{f"packed {layout}": packed(native, layout, 20, 256) for layout in BLOCKS},
            **{f"elementwise {dtype}": elementwise(native, dtype, 5, 100) for dtype in range(3)},
            **{f"attention {kind}": attention(native, kind, 40) for kind in range(3)},
            **{f"experts {dtype}": experts(native, dtype, 5, 40, 19, 3) for dtype in range(3)},
        }
    print(json.dumps(digests))


if __name__ == "__main__":
    main()
