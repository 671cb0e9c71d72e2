"""Recognizes attention that modelling code writes out: a product of queries and keys, a scale, a
mask, a softmax, a product with the values.

The first product is not computed. In its place stands `Scores`, which notes what the code does with
it, and becomes a call of the step's attention at the second product.

Suffixes: T tokens of the step, H query heads, K key/value heads, C head dim.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attrs import evolve, frozen
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inferno.errors import UnsupportedError
from inferno_transformers.refusals import OWN_ATTENTION, REMEDY

NEGLIGIBLE = -1e4
"""What a score is at most where a mask excludes a key: its weight is 0 beside any other."""


@frozen(eq=False)
class Mask:
    """A mask as the modelling code has it: code may crop it, convert it, and add it to scores."""

    window: int | None
    shape: torch.Size

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def to(self, *_: Any, **__: Any) -> Mask:
        return self

    def __getitem__(self, _: object) -> Mask:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(OWN_ATTENTION, REMEDY)  # the code computes with the mask

    def __radd__(self, _: object) -> Any:
        raise UnsupportedError(OWN_ATTENTION, REMEDY)

    def narrowed(self, other: Mask) -> Mask:
        """The mask that allows what both do."""
        windows = [mask.window for mask in (self, other) if mask.window is not None]
        return evolve(self, window=min(windows, default=None))


@frozen(kw_only=True)
class Reader:
    """What becomes of scores in a step."""

    attend: Callable[[nn.Module, Tensor, Tensor, Tensor, Mask | None, dict[str, Any]], Tensor]
    """Attends; returns (1, T, H, C)."""
    mask: Callable[[Tensor], Mask] | None
    """The mask of a table of allowed keys, (.., queries, keys). None: what the code does is known,
    and not checked."""


@frozen(eq=False, kw_only=True)
class Scores:
    """A product of queries and keys, or, after the softmax, the weights of values."""

    module: nn.Module
    read: Reader
    query: Tensor
    """(.., T, C)"""
    key: Tensor
    shape: torch.Size
    dtype: torch.dtype
    scale: float = 1.0
    mask: Mask | None = None
    is_softmax: bool = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (method := _METHODS.get(func)) is None or not isinstance(args[0], Scores):
            if func is torch.where:
                return args[1].kept(args[0], args[2])
            if func in _PRODUCTS and isinstance(args[0], Scores):
                return args[0] @ args[1]
            raise _own()
        return method(args[0], *args[1:], **(kwargs or {}))

    @property
    def device(self) -> torch.device:
        """Where code puts the constants it combines with scores: where they can be read, if they
        are checked."""
        return self.query.device if self.read.mask is None else torch.device("cpu")

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def view(self, *shape: Any) -> Scores:
        sizes = list(shape[0] if isinstance(shape[0], Sequence) else shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = -self.shape.numel() // math.prod(sizes)
        return evolve(self, shape=torch.Size(sizes))

    reshape = view

    def contiguous(self) -> Scores:
        return self

    clone = contiguous

    def float(self) -> Scores:
        return evolve(self, dtype=torch.float32)

    def to(self, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Scores:
        given = dtype or next((x for x in args if isinstance(x, torch.dtype)), self.dtype)
        return evolve(self, dtype=given)

    def type_as(self, other: Any) -> Scores:
        return evolve(self, dtype=other.dtype)

    def scaled(self, by: Any, op: Callable[..., Any] = operator.mul) -> Scores:
        if isinstance(by, Tensor) and by.numel() > 1:  # zeros where a key is excluded
            return self._excluding(by != 0)
        if self.is_softmax or (isinstance(by, Tensor) and by.is_meta):
            raise _own()
        return evolve(self, scale=op(self.scale, float(by)))

    __mul__ = __rmul__ = __imul__ = scaled

    def __truediv__(self, by: Any) -> Scores:
        return self.scaled(by, operator.truediv)

    def __add__(self, mask: Any) -> Scores:
        if isinstance(mask, Tensor):
            if self.read.mask is not None and not _is_mask(mask):
                raise _own()
            return self._excluding(mask > NEGLIGIBLE)
        if not isinstance(mask, Mask) or self.is_softmax:
            raise _own()
        return evolve(self, mask=mask if self.mask is None else self.mask.narrowed(mask))

    __radd__ = __iadd__ = __add__

    def kept(self, allowed: Tensor, otherwise: Any) -> Scores:
        """Scores where `allowed`, else `otherwise`."""
        self._check_negligible(otherwise)
        return self._excluding(allowed)

    def masked_fill(self, excluded: Tensor, otherwise: Any) -> Scores:
        return self.kept(~excluded, otherwise)

    masked_fill_ = masked_fill

    def at_least(self, least: Any) -> Scores:
        self._check_negligible(least)
        return self

    def softmax(
        self, dim: int = -1, *_: Any, dtype: torch.dtype | None = None, **__: Any
    ) -> Scores:
        if dim not in (-1, self.ndim - 1) or self.is_softmax:
            raise _own()
        return evolve(self, is_softmax=True, dtype=dtype or self.dtype)

    def dropout(self, *_: Any, **__: Any) -> Scores:
        return self

    def __matmul__(self, value: Tensor) -> Tensor:
        if not self.is_softmax:
            raise _own()
        q_1HTC, k_1KTC, v_1KTC = (
            x.reshape(1, -1, *x.shape[-2:]).to(value.dtype) for x in (self.query, self.key, value)
        )
        options = {"scaling": self.scale}
        y_1THC = self.read.attend(self.module, q_1HTC, k_1KTC, v_1KTC, self.mask, options)
        return y_1THC.transpose(1, 2).reshape(*self.shape[:-1], value.shape[-1])

    matmul = bmm = __matmul__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _own()

    def _excluding(self, allowed: Tensor) -> Scores:
        if self.read.mask is None:
            return self
        if allowed.is_meta or self.is_softmax:
            raise _own()
        return self + self.read.mask(allowed)

    def _check_negligible(self, value: Any) -> None:
        if self.read.mask is None:
            return
        if (isinstance(value, Tensor) and value.is_meta) or float(value) > NEGLIGIBLE:
            raise _own()


def _own() -> UnsupportedError:
    return UnsupportedError(OWN_ATTENTION, REMEDY)


def _is_mask(bias: Tensor) -> bool:
    """Whether what is added to scores is 0 or makes them negligible."""
    return not bias.is_meta and bool(((bias == 0) | (bias <= NEGLIGIBLE)).all())


_PRODUCTS: set[Any] = {
    torch.matmul,
    torch.bmm,
    Tensor.matmul,
    Tensor.bmm,
    Tensor.__matmul__,
}
_METHODS: dict[Any, Callable[..., Any]] = {
    F.softmax: Scores.softmax,
    torch.softmax: Scores.softmax,
    F.dropout: Scores.dropout,
    torch.max: Scores.at_least,
    torch.maximum: Scores.at_least,
    torch.mul: Scores.scaled,
    torch.div: Scores.__truediv__,
    torch.add: Scores.__add__,
    torch.masked_fill: Scores.masked_fill,
}


class Products(TorchFunctionMode):
    """Context in which `Scores` take the place of products that `owner` has a module for.
    `owner(query)` gets (.., T, C). `is_paused` says whether a module runs whose products are
    none of attention."""

    def __init__(
        self,
        read: Reader,
        owner: Callable[[Tensor], nn.Module | None],
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_paused = is_paused
        self._read, self._owner = evolve(read, attend=self._attend), owner
        self._in_step = read.attend
        self._is_attending = False

    def _attend(self, *args: Any) -> Tensor:
        self._is_attending = True  # the step's attention may multiply queries and keys itself
        try:
            return self._in_step(*args)
        finally:
            self._is_attending = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_attending or self._is_paused():
            pass
        elif func in _PRODUCTS and _are_tensors(args) and not kwargs:
            if (scores := self._scores(*args)) is not None:
                return scores
        elif func is torch.baddbmm and isinstance(args[0], _Zeros):
            if (scores := self._scores(*args[1:])) is None:
                raise _own()
            return scores.scaled((kwargs or {}).get("alpha", 1))
        elif func is torch.zeros and _are_of_pairs(args):
            return _Zeros()
        return func(*args, **(kwargs or {}))

    def _scores(self, query: Tensor, keys: Tensor) -> Scores | None:
        """Scores, if queries (.., T, C) are multiplied by as many keys, (.., C, T)."""
        if min(query.ndim, keys.ndim) < 3 or query.shape[-2] != keys.shape[-1]:
            return None  # a matrix of the model, weights of experts
        key = keys.transpose(-1, -2)
        if (module := self._owner(query)) is None:
            return None
        return Scores(
            module=module,
            read=self._read,
            query=query,
            key=key,
            shape=torch.Size((*query.shape[:-1], key.shape[-2])),
            dtype=query.dtype,
        )


def _are_tensors(args: Sequence[Any]) -> bool:
    return len(args) == 2 and all(isinstance(x, Tensor) for x in args)


def _are_of_pairs(sizes: Sequence[Any]) -> bool:
    """Whether they are of a tensor that has something for each pair of tokens."""
    return len(sizes) > 2 and all(isinstance(n, int) for n in sizes) and sizes[-1] == sizes[-2]


def is_of_pairs(table: Tensor) -> bool:
    """Whether a table may say which token sees which."""
    return table.ndim > 1 and table.shape[-1] == table.shape[-2] > 1


class _Zeros:
    """Zeros that a product of queries and keys is added to."""

    @classmethod
    def __torch_function__(cls, *_: object) -> Any:
        raise _own()

    def __setitem__(self, *_: object) -> None:
        raise _own()
