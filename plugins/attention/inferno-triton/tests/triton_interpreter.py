"""Triton's interpreter, so that kernels run on CPU tensors: with its arithmetic of bfloat16 and FP8
mended, and for kernels that were imported to be compiled.

The interpreter (triton 3.6 to 3.9) computes on the bits of bfloat16 numbers as if they were
integers, truncates float32 to bfloat16, and loses the carry of some casts to FP8. It sees neither
races nor accesses out of bounds, and accepts some kernels that the compiler refuses: see
`test_triton_compiled.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton import knobs
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

Handle = interpreter.TensorHandle
FP8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


@contextmanager
def interpreted(*modules: ModuleType) -> Iterator[None]:
    """Interpret the kernels of these modules meanwhile, instead of compiling them."""
    scope = interpreter._LangPatchScope()
    try:
        with knobs.runtime.scope():
            knobs.runtime.interpret = True
            functions: dict[int, Any] = {}
            for module in (tl.standard, tl, *modules):
                for name, value in list(vars(module).items()):
                    if isinstance(value, JITFunction):
                        function = functions.setdefault(
                            id(value), interpreter.InterpretedFunction(value.fn)
                        )
                        scope.set_attr(module, name, function)
            # Once, not at each call: that takes longer than a small kernel, and calls of one kernel
            # by another are never undone.
            for language in (tl, tl.core):
                interpreter._patch_builtin(language, interpreter.interpreter_builder, scope)
                interpreter._patch_lang_core(language, scope)
            tensor = interpreter.interpreter_builder
            interpreter._patch_builtin(tl.tensor, tensor, scope)
            interpreter._patch_builtin(tl.math, tensor, scope)
            interpreter._patch_builtin(tl.core.tensor_descriptor_base, tensor, scope)
            interpreter._patch_lang_tensor(tl.tensor, scope)
            scope.set_attr(
                interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope()
            )
            _mend(scope)
            scope.set_attr(libdevice, "exp", _exp)
            yield
    finally:
        scope.restore()


def _exp(x: Any) -> Any:
    """The exponential of the device's library: torch's own, as it is on a device."""
    data = torch.from_numpy(np.ascontiguousarray(x.handle.data)).exp().numpy()
    return tl.tensor(Handle(data, tl.float32), x.type)


def _mend(scope: Any) -> None:
    builder = interpreter.InterpreterBuilder

    def replace(name: str, make: Callable[[Any], Any]) -> None:
        scope.set_attr(builder, name, make(getattr(builder, name)))

    def binary_op(old: Any) -> Any:
        def new(self: Any, a: Any, b: Any, op: Any) -> Any:
            if not (_is_bf16(a) or _is_bf16(b)) or op in (
                np.bitwise_and,
                np.bitwise_or,
                np.bitwise_xor,
            ):
                return old(self, a, b, op)
            result = op(_wide(a).data, _wide(b).data)
            return (
                Handle(result, tl.int1)
                if result.dtype == bool
                else Handle(_narrow(result), tl.bfloat16)
            )

        return new

    def unary_op(old: Any) -> Any:
        def new(self: Any, a: Any, op: Any) -> Any:
            if not _is_bf16(a):
                return old(self, a, op)
            return Handle(_narrow(op(_wide(a).data)), tl.bfloat16)

        return new

    def create_dot(old: Any) -> Any:
        def new(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
            a, b = operand(a), operand(b)
            if d.data.dtype != np.float32:
                return old(self, a, b, d, *rest)
            # In float64, as BLAS adds up a row of float32 in an order that depends on the number of
            # rows and on the processor: on a device, a row of a tile is computed in one way.
            with np.errstate(invalid="ignore"):  # infinities, in rows that are not stored
                product = np.matmul(a.data, b.data, dtype=np.float64)
            return Handle((product + d.data).astype(np.float32), d.dtype.scalar)

        return new

    def operand(x: Any) -> Any:
        if x.dtype.scalar not in FP8:
            return _wide(x)
        data = torch.from_numpy(np.ascontiguousarray(x.data)).view(FP8[x.dtype.scalar])
        return Handle(data.float().numpy(), tl.float32)

    def cast_impl(old: Any) -> Any:
        def new(self: Any, x: Any, dtype: Any) -> Any:
            source, target = x.dtype.scalar, dtype.scalar
            if tl.bfloat16 not in (source, target) or source == target:
                return old(self, x, dtype)
            if target == tl.bfloat16:
                return Handle(_narrow(x.data.astype(np.float32)), tl.bfloat16)
            return _wide(x) if target == tl.float32 else old(self, _wide(x), dtype)

        return new

    def create_fp_to_fp(old: Any) -> Any:
        def new(self: Any, x: Any, dtype: Any, rounding: Any) -> Any:
            source, target = x.dtype.scalar, dtype.scalar
            if source in FP8:
                return self.cast_impl(operand(x), target)
            if target in FP8:
                data = torch.from_numpy(np.ascontiguousarray(_wide(x).data, dtype=np.float32))
                return Handle(data.to(FP8[target]).view(torch.uint8).numpy(), target)
            return self.cast_impl(x, target)

        return new

    for mend in (binary_op, unary_op, create_dot, cast_impl, create_fp_to_fp):
        replace(mend.__name__, mend)

    for name in ("sum", "min_max"):
        scope.set_attr(interpreter.ReduceOps, name, _no_bf16(getattr(interpreter.ReduceOps, name)))


def _no_bf16(reduce: Any) -> Any:
    def new(self: Any, x: Any, *arguments: Any, **named: Any) -> Any:
        first = x[0] if isinstance(x, tuple) else x
        assert first.dtype != tl.bfloat16, "reduce in float32: a sum of bfloat16 loses digits"
        return reduce(self, x, *arguments, **named)

    return new


def _is_bf16(x: Any) -> bool:
    return bool(getattr(x.dtype, "scalar", x.dtype) == tl.bfloat16)


def _wide(x: Any) -> Any:
    """The float32 numbers that bfloat16 bits stand for."""
    if not _is_bf16(x):
        return x
    bits = np.asarray(x.data).astype(np.uint32) << 16
    return Handle(bits.view(np.float32), tl.float32)


def _narrow(data: Any) -> Any:
    """The bits of the nearest bfloat16 numbers, ties to even."""
    data = np.ascontiguousarray(data, dtype=np.float32)
    bits = data.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(data), np.uint16(0x7FC0), rounded).reshape(np.shape(data))
