"""Runs code on meta tensors, which have shapes but no values, and detects when tokens of a step are
mixed.

A packed step holds only the new tokens of several sequences: any operator but attention that mixes
tokens would compute a wrong result. T, the number of tokens, is a prime that no size of the model
is near, so that shapes reveal it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from inferno.errors import UnsupportedError
from inferno_transformers.refusals import REMEDY

aten = torch.ops.aten

NEAR = 8
"""Maximum change of T by a shift, a padding or a short convolution."""
MOST_OPERATORS = 20_000
"""Operators of a step: each takes some 0.1 ms here, and no layer of published code runs more than
some hundred."""


class TooManyOperatorsError(UnsupportedError):
    """A step runs more than `MOST_OPERATORS`: code that computes token by token in every layer."""


def number_of_tokens(longest: int, sizes: Collection[int]) -> int:
    """The largest prime up to `longest` and about a thousand with no size near it or divisible by
    it."""
    for n in range(min(longest, 1009), 2 * NEAR, -1):
        if all(n % d for d in range(2, math.isqrt(n) + 1)) and not any(
            s % n == 0 or abs(s - n) <= NEAR for s in sizes if s
        ):
            return n
    return 2 * NEAR + 1


class Trace(TorchDispatchMode):
    """Records in `mixed` the first operator that mixes tokens. Not for inference mode, which hides
    the parts of composite operators."""

    def __init__(self, tokens: int, positions: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tokens, self._positions = tokens, positions
        self.mixed = ""
        self.is_paused = _never
        """Whether what runs mixes tokens of one sequence only."""
        self.read_positions = False
        self.operators = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: otherwise torch would import its compiler to skip it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        if self.operators > MOST_OPERATORS:
            cause = f"its code runs more than {MOST_OPERATORS} operators for {self._tokens} tokens"
            raise TooManyOperatorsError(cause, REMEDY)
        tensors = list(_tensors((args, kwargs)))
        if not any(t.is_meta for t in tensors):  # has values: a table, a mask that is read
            return func(*args, **(kwargs or {}))
        self.read_positions |= any(t is self._positions for t in tensors)
        if func.overloadpacket in _DECISIONS:
            decide: Any = _DECISIONS[func.overloadpacket]
            return decide(args[0])
        result = func(*args, **(kwargs or {}))
        if not self.is_paused() and self._mixes(
            func.overloadpacket, args, tensors, list(_tensors(result))
        ):
            self.mixed = self.mixed or str(func.overloadpacket).rpartition(".")[2]
        return result

    def _mixes(self, op: Any, args: Any, given: list[Tensor], made: list[Tensor]) -> bool:
        if op in _CONTRACTIONS and self._counts_tokens(given[-2].shape[-1]):
            return True
        if op in _ALONG and args[0].ndim:
            dims = args[1] if isinstance(args[1], list | tuple) else [args[1]]
            if any(self._counts_tokens(args[0].shape[dim]) for dim in dims):
                return True
        if op is aten.constant_pad_nd:
            pads = zip(
                args[0].shape[::-1], args[1][::2], args[1][1::2], strict=False
            )  # from the last dimension to the first
            return any(
                (before or after) and self._counts_tokens(size) for size, before, after in pads
            )
        if op in _ALWAYS and any(self._counts_tokens(size) for t in given for size in t.shape):
            return True
        known = {size for t in given for size in t.shape}
        for shape in (t.shape for t in made):
            if sum(map(self._counts_tokens, shape)) > 1:
                return True
            if any(0 < abs(size - self._tokens) <= NEAR and size not in known for size in shape):
                return True
        return False

    def _counts_tokens(self, size: int) -> bool:
        return size > 0 and size % self._tokens == 0


def _never() -> bool:
    return False


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


_CONTRACTIONS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.addmv, aten.mv, aten.dot}
_ALONG = {
    aten.cumsum,
    aten.cumprod,
    aten.logcumsumexp,
    aten._softmax,
    aten._log_softmax,
    aten.flip,
    aten.roll,
}
_ALWAYS = {
    aten.convolution,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_attention_math,
    aten._fft_r2c,
    aten._fft_c2c,
}


class Decisions(TorchFunctionMode):
    """Answers zero or false to code that branches on values of meta tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and args[0].is_meta:
            return _READS[func](0)
        if func is Tensor.__getitem__:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (args[0], tuple(0 if _is_number(part) else part for part in parts))
        return func(*args, **(kwargs or {}))


_READS: dict[Any, Any] = {
    Tensor.item: int,
    Tensor.__bool__: bool,
    Tensor.__int__: int,
    Tensor.__float__: float,
    Tensor.__index__: int,
}


def _is_number(index: Any) -> bool:
    return (
        isinstance(index, Tensor)
        and index.is_meta
        and index.ndim == 0
        and index.dtype != torch.bool
    )


_DECISIONS = {
    aten._local_scalar_dense: lambda x: False if x.dtype == torch.bool else 0,
    aten.equal: lambda x: False,
    aten.nonzero: lambda x: x.new_empty((1, x.ndim), dtype=torch.int64),
}
"""Results of operators that return values or lists of indices: zero, and one index."""
