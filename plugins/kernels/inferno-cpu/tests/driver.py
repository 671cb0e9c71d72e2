"""Kernels in another process, for a processor that an emulator provides: `Driver` has the ops of
`_native` and sends each call, with the memory behind its addresses, to native/driver.cpp."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from inferno_cpu import _native
from inferno_cpu.layouts import CODES, LAYOUTS, TABLE_GROUPS, codes_nbytes

WIDTH = {0: 4, 1: 2, 2: 2}
"""Bytes of an element, by its number in native/dtype.hpp."""


GROUPS = {CODES[layout]: group for layout, group in TABLE_GROUPS.items()}


def _rows(count: int, stride: int, last: int, width: int) -> int:
    """Bytes of `count` rows that are `stride` elements apart."""
    return ((count - 1) * stride + last) * width if count else 0


def _heads(a: SimpleNamespace) -> int:
    each = (a.H - 1) * a.head_stride + a.C
    return _rows(a.T, a.token_stride, each, WIDTH[a.dtype])


def _norm(a: SimpleNamespace, size: int) -> int:
    return int(size * (4 if a.wide else WIDTH[a.dtype]))


def _dense(a: SimpleNamespace, dtype: int, matrices: int = 1) -> int:
    for layout, number in CODES.items():
        if number == dtype:
            return codes_nbytes(layout, (matrices * a.N, a.K))
    return int(-(-matrices * a.N // 16) * 16 * (a.K + a.K % 2) * WIDTH[dtype])


def _packed(a: SimpleNamespace, matrices: int = 1) -> int:
    return int(-(-matrices * a.N // 16) * _native.packed_panel_bytes(a.layout, a.K))


def _last(address: int, count: int) -> int:
    return int(ctypes.c_int32.from_address(address + 4 * count).value)


def _slots(a: SimpleNamespace) -> int:
    """The slots up to the last that a token has."""
    return 1 + max([*(ctypes.c_int64 * a.T).from_address(a.slots)], default=-1)


def _group_scales(a: SimpleNamespace) -> int:
    kind = list(LAYOUTS.values())[a.layout]
    return int(a.N * 4 if kind.head else a.N * a.K // kind.block * 2)


def _attend(a: SimpleNamespace) -> dict[str, int]:
    tokens, width = _last(a.query_starts, a.S), WIDTH[a.dtype]
    blocks = (ctypes.c_int64 * (a.S * a.table_stride)).from_address(a.tables)
    slots = (ctypes.c_int64 * tokens).from_address(a.slots)
    count = 1 + max([*blocks, *(slot // a.block_size for slot in slots), 0])
    places = count * a.K * a.block_size
    cache, scales = places * a.C * (1 if a.cache_kind else width), places * 4
    return {
        "q": _rows(tokens, a.q_stride, a.H * a.C, width),
        "k": _rows(tokens, a.k_stride, a.K * a.C, width),
        "v": _rows(tokens, a.v_stride, a.K * a.C, width),
        "out": tokens * a.H * a.C * width,
        **dict.fromkeys(("k_cache", "v_cache"), cache),
        **dict.fromkeys(("k_scales", "v_scales"), scales),
        "slots": tokens * 8,
        "query_starts": (a.S + 1) * 4,
        "context_lens": a.S * 4,
        "tables": a.S * a.table_stride * 8,
        "amplitudes": tokens * a.H * a.num_waves * 4,
        "used": a.K * a.num_waves * 4,
        "lines": _lines(a) * a.line_stride * 4,
    }


def _lines(a: SimpleNamespace) -> int:
    """How many lines the waves use."""
    used = (ctypes.c_int32 * (a.K * a.num_waves)).from_address(a.used) if a.num_waves else ()
    return 1 + max(used, default=-1)


_ROPE = "dtype x token_stride head_stride T H C {}cos sin E interleaved y"
_ROTATED: dict[str, Callable[[SimpleNamespace], int]] = {
    "x": _heads,
    "weight": lambda a: _norm(a, a.C),
    "cos": lambda a: a.T * a.E * 4,
    "sin": lambda a: a.T * a.E * 4,
    "y": lambda a: a.T * a.H * a.C * WIDTH[a.dtype],
}
_PRODUCT: dict[str, Callable[[SimpleNamespace], int]] = {
    "x": lambda a: _rows(a.M, a.x_stride, a.K, WIDTH[a.x_dtype]),
    "panels": lambda a: _dense(a, a.w_dtype),
    "bias": lambda a: a.N * 4,
    "y": lambda a: a.M * a.N * WIDTH[a.y_dtype],
    "ids": lambda a: a.M * 8,
}
_PACKED: dict[str, Callable[[SimpleNamespace], int]] = {
    "x": lambda a: a.M * a.K * WIDTH[a.x_dtype],
    "panels": _packed,
    "bias": lambda a: a.N * WIDTH[a.y_dtype],
    "y": lambda a: a.M * a.N * WIDTH[a.y_dtype],
    "ids": lambda a: a.M * 8,
}

OPS: dict[str, tuple[str, dict[str, Callable[[SimpleNamespace], int]]]] = {
    "rms_norm": ("dtype x token_stride head_stride T H C weight wide eps y", _ROTATED),
    "add_rms_norm": (
        "dtype x x_stride delta delta_stride weight wide eps sum y T D",
        {
            "x": lambda a: _rows(a.T, a.x_stride, a.D, WIDTH[a.dtype]),
            "delta": lambda a: _rows(a.T, a.delta_stride, a.D, WIDTH[a.dtype]),
            "weight": lambda a: _norm(a, a.D),
            **dict.fromkeys(("sum", "y"), lambda a: a.T * a.D * WIDTH[a.dtype]),
        },
    ),
    "add_layer_norm": (
        "dtype x x_stride delta delta_stride weight wide eps bias y T D",
        {
            "x": lambda a: _rows(a.T, a.x_stride, a.D, WIDTH[a.dtype]),
            "delta": lambda a: _rows(a.T, a.delta_stride, a.D, WIDTH[a.dtype]),
            **dict.fromkeys(("weight", "bias"), lambda a: _norm(a, a.D)),
            "y": lambda a: a.T * a.D * WIDTH[a.dtype],
        },
    ),
    "rope": (_ROPE.format(""), _ROTATED),
    "norm_rope": (_ROPE.format("weight wide eps "), _ROTATED),
    "silu_mul": (
        "dtype gate gate_stride up up_stride y T I",
        {
            "gate": lambda a: _rows(a.T, a.gate_stride, a.I, WIDTH[a.dtype]),
            "up": lambda a: _rows(a.T, a.up_stride, a.I, WIDTH[a.dtype]),
            "y": lambda a: a.T * a.I * WIDTH[a.dtype],
        },
    ),
    "gelu": (
        "dtype x x_stride T I",
        {"x": lambda a: _rows(a.T, a.x_stride, a.I, WIDTH[a.dtype])},
    ),
    "argmax": (
        "dtype x x_stride ids T V",
        {
            "x": lambda a: _rows(a.T, a.x_stride, a.V, WIDTH[a.dtype]),
            "ids": lambda a: a.T * 8,
        },
    ),
    "gather": (
        "dtype ids table y T V D",
        {
            "ids": lambda a: a.T * 8,
            "table": lambda a: a.V * a.D * WIDTH[a.dtype],
            "y": lambda a: a.T * a.D * WIDTH[a.dtype],
        },
    ),
    "dense_repack": (
        "dtype weight row_stride panels N K",
        {
            "weight": lambda a: _rows(a.N, a.row_stride, a.K, WIDTH[a.dtype]),
            "panels": lambda a: _dense(a, a.dtype),
        },
    ),
    "dense_repack_fp8": (
        "w_dtype weight row_stride scales panels N K",
        {
            "weight": lambda a: _rows(a.N, a.row_stride, a.K, 1),
            "scales": lambda a: -(-a.N // 16) * (16 if a.w_dtype == 3 else -(-a.K // 128)) * 4,
            "panels": lambda a: _dense(a, a.w_dtype),
        },
    ),
    "dense_repack_table": (
        "w_dtype weight row_stride scales panels N K",
        {
            "weight": lambda a: _rows(a.N, a.row_stride, a.K // 2, 1),
            "scales": lambda a: a.N * a.K // GROUPS[a.w_dtype] * 4,
            "panels": lambda a: _dense(a, a.w_dtype),
        },
    ),
    "dense_matmul": ("w_dtype x_dtype x x_stride panels bias y_dtype y M N K", _PRODUCT),
    "dense_argmax": ("w_dtype x_dtype x x_stride panels ids M N K", _PRODUCT),
    "dense_grouped": (
        "w_dtype x_dtype x x_stride panels bias y starts E N K",
        {
            "x": lambda a: _rows(_last(a.starts, a.E), a.x_stride, a.K, WIDTH[a.x_dtype]),
            "panels": lambda a: _dense(a, a.w_dtype, a.E),
            "bias": lambda a: a.E * a.N * 4,
            "y": lambda a: _last(a.starts, a.E) * a.N * WIDTH[a.x_dtype],
            "starts": lambda a: (a.E + 1) * 4,
        },
    ),
    "dense_rows": (
        "w_dtype y_dtype panels ids y T N K",
        {
            "panels": lambda a: _dense(a, a.w_dtype),
            "ids": lambda a: a.T * 8,
            "y": lambda a: a.T * a.K * WIDTH[a.y_dtype],
        },
    ),
    "packed_panel_bytes": ("layout K", {}),
    "packed_repack": (
        "layout rows row_bytes scales zeros panels N K",
        {
            "rows": lambda a: a.N * a.row_bytes,
            **dict.fromkeys(("scales", "zeros"), _group_scales),
            "panels": _packed,
        },
    ),
    "packed_matmul": ("layout panels x_dtype x y_dtype y bias M N K", _PACKED),
    "packed_argmax": ("layout panels x_dtype x ids M N K", _PACKED),
    "packed_grouped": (
        "layout panels x_dtype x y_dtype y bias starts E N K",
        {
            "x": lambda a: _last(a.starts, a.E) * a.K * WIDTH[a.x_dtype],
            "panels": lambda a: _packed(a, a.E),
            "bias": lambda a: a.E * a.N * WIDTH[a.y_dtype],
            "y": lambda a: _last(a.starts, a.E) * a.N * WIDTH[a.y_dtype],
            "starts": lambda a: (a.E + 1) * 4,
        },
    ),
    "packed_rows": (
        "layout panels ids y_dtype y M N K",
        {**_PACKED, "y": lambda a: a.M * a.K * WIDTH[a.y_dtype]},
    ),
    "route": (
        "dtype x x_stride weight bias correction sigmoid normalize scale experts weights T D E K",
        {
            "x": lambda a: _rows(a.T, a.x_stride, a.D, WIDTH[a.dtype]),
            "weight": lambda a: a.E * a.D * 4,
            **dict.fromkeys(("bias", "correction"), lambda a: a.E * 4),
            "experts": lambda a: a.T * a.K * 8,
            "weights": lambda a: a.T * a.K * 4,
        },
    ),
    "dispatch": (
        "experts tokens starts places T E K",
        {
            **dict.fromkeys(("experts", "tokens", "places"), lambda a: a.T * a.K * 8),
            "starts": lambda a: (a.E + 1) * 4,
        },
    ),
    "combine": (
        "dtype y places weights out T D K",
        {
            "y": lambda a: a.T * a.K * a.D * WIDTH[a.dtype],
            "places": lambda a: a.T * a.K * 8,
            "weights": lambda a: a.T * a.K * 4,
            "out": lambda a: a.T * a.D * WIDTH[a.dtype],
        },
    ),
    "shrink": (
        "dtype x x_stride down slots h T I R",
        {
            "x": lambda a: _rows(a.T, a.x_stride, a.I, WIDTH[a.dtype]),
            "down": lambda a: _slots(a) * a.R * a.I * WIDTH[a.dtype],
            "slots": lambda a: a.T * 8,
            "h": lambda a: a.T * a.R * 4,
        },
    ),
    "expand": (
        "dtype h h_stride up slots y y_stride T N O",
        {
            "h": lambda a: _rows(a.T, a.h_stride, a.N, 4),
            "up": lambda a: _slots(a) * a.N * a.O * WIDTH[a.dtype],
            "slots": lambda a: a.T * 8,
            "y": lambda a: _rows(a.T, a.y_stride, a.O, WIDTH[a.dtype]),
        },
    ),
    "attend": (
        "dtype cache_kind q q_stride k k_stride v v_stride out k_cache v_cache k_scales v_scales "
        "slots query_starts context_lens tables table_stride S H K C block_size scale soft_cap "
        "window amplitudes used lines line_stride num_waves",
        {},
    ),
    "attend_whole": (
        "dtype q q_stride k k_stride v v_stride out query_starts S H K C scale window",
        {
            "q": lambda a: _rows(_last(a.query_starts, a.S), a.q_stride, a.H * a.C, WIDTH[a.dtype]),
            "k": lambda a: _rows(_last(a.query_starts, a.S), a.k_stride, a.K * a.C, WIDTH[a.dtype]),
            "v": lambda a: _rows(_last(a.query_starts, a.S), a.v_stride, a.K * a.C, WIDTH[a.dtype]),
            "out": lambda a: _last(a.query_starts, a.S) * a.H * a.C * WIDTH[a.dtype],
            "query_starts": lambda a: (a.S + 1) * 4,
        },
    ),
}
"""The parameters of each op of _native.pyi, and the bytes behind those that are addresses."""

WRITTEN = {
    **{name: {"y"} for name in OPS},
    "add_rms_norm": {"sum", "y"},
    "argmax": {"ids"},
    "dense_argmax": {"ids"},
    "packed_argmax": {"ids"},
    "dense_repack": {"panels"},
    "dense_repack_fp8": {"panels"},
    "dense_repack_table": {"panels"},
    "packed_repack": {"panels"},
    "route": {"experts", "weights"},
    "dispatch": {"tokens", "starts", "places"},
    "combine": {"out"},
    "shrink": {"h"},
    "expand": {"y"},
    "attend": {"out", "k_cache", "v_cache", "k_scales", "v_scales"},
    "attend_whole": {"out"},
    "gelu": {"x"},
}
"""The parameters behind which each op writes."""


class Driver:
    """The ops of `_native` on one level of a driver that `command` starts."""

    def __init__(self, command: Sequence[str], level: str, threads: int) -> None:
        self.calls = 0
        self._process = subprocess.Popen(
            [*command, level, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def __getattr__(self, name: str) -> Callable[..., int | None]:
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: Sequence[Any]) -> int | None:
        self.calls += 1
        names, sizes = OPS[name]
        values = dict(zip(names.split(), arguments, strict=True))
        call = SimpleNamespace(**values)
        nbytes = {key: size(call) for key, size in sizes.items() if values.get(key)}
        if name == "attend":
            nbytes = {key: size for key, size in _attend(call).items() if values[key]}
        request = [name.encode(), b"\n"]
        for key, value in values.items():
            if key in nbytes:
                kind = b"w" if key in WRITTEN[name] else b"r"
                request += [kind, struct.pack("<q", nbytes[key])]
                request.append(ctypes.string_at(value, nbytes[key]))
            elif isinstance(value, float):
                request += [b"d", struct.pack("<d", value)]
            else:
                request += [b"i", struct.pack("<q", value)]
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(request))
        self._process.stdin.flush()
        (result,) = struct.unpack("<q", self._read(8))
        for key in values:
            if key in nbytes and key in WRITTEN[name]:
                ctypes.memmove(values[key], self._read(nbytes[key]), nbytes[key])
        if name in ("dense_rows", "dispatch") and not result:
            raise IndexError("an id out of range")
        return int(result) if name in ("packed_panel_bytes", "dense_repack_fp8") else None

    def _read(self, nbytes: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(nbytes)
        assert len(data) == nbytes, f"the driver ended: {self._process.wait()}"
        return data
