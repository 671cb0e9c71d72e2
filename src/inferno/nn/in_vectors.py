"""Functions of single elements, the same bits wherever the element is.

On a CPU torch computes most elements by vector instructions, and what is left at the end of a
thread's share, or is not contiguous, by the C library: a sigmoid's last bit follows from how many
rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

P = ParamSpec("P")
_aten = torch.ops.aten
_FUNCTIONS = frozenset(
    each.default
    for each in (_aten.sigmoid, _aten.gelu, _aten.silu, _aten.mish, _aten.elu, _aten.softplus)
)
"""Not exp, log, tanh and erf, which torch computes alike everywhere."""
_IN_PLACE: Mapping[Any, Any] = {
    getattr(_aten, f"{name}_").default: getattr(_aten, name).default
    for name in ("sigmoid", "gelu", "silu", "mish", "elu")
}
_SHARE = 1 << 14
"""Elements in one go: too few for threads to share."""
_VECTORS = 64
"""Elements of the vectors that a loop takes at once, of any processor: a share has whole ones."""


def in_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a function of each element of x, all computed by vector instructions."""
    flat = x.reshape(-1)
    padded = F.pad(flat, (0, -flat.numel() % _VECTORS))
    parts = [function(part) for part in padded.split(_SHARE)]
    return torch.cat(parts)[: flat.numel()].view(x.shape)


class InVectors(TorchDispatchMode):
    """Computes torch's functions of single elements so, whatever code calls them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FUNCTIONS:
            x, *others = args
            return in_vectors(lambda part: func(part, *others, **kwargs), x)
        if (pure := _IN_PLACE.get(func)) is not None:
            x, *others = args
            return x.copy_(in_vectors(lambda part: pure(part, *others, **kwargs), x))
        return func(*args, **kwargs)


def always_in_vectors(compute: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Return the function, computing so."""

    @wraps(compute)
    def computed(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        with InVectors():  # type: ignore[no-untyped-call]
            return compute(*args, **kwargs)

    return computed
