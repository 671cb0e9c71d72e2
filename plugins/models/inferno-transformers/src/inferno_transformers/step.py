"""What transformers' modelling code is given in place of its attention, its masks and its cache.

Both are registered with transformers under one name; what they do is the current step's business:
the model's, which attends through inferno's paged cache, or the inspection's, which writes down
what it is asked for.

Suffixes: T tokens of the step, H query heads, K key/value heads, C head dim, X heads x head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "inferno"
"""The attention implementation that a hosted model's config names."""


class Step(Protocol):
    """Answers what the modelling code asks while it runs."""

    def attend(
        self,
        module: nn.Module,
        q_1HTC: Tensor,
        k_1KTC: Tensor,
        v_1KTC: Tensor,
        mask: object,
        asked: dict[str, Any],
    ) -> Tensor:
        """(1, T, H, C). `asked` holds the keyword arguments of transformers' attention
        functions."""
        ...

    def mask(self, allows: Callable[..., Tensor]) -> object:
        """What the modelling code hands on to attention as its mask; `allows(batch, head, query,
        key)` tells who sees whom."""
        ...


_STEP: ContextVar[Step] = ContextVar("step")


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Within: transformers' modelling code asks `step`."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    **asked: Any,
) -> tuple[Tensor, None]:
    return _STEP.get().attend(module, query, key, value, attention_mask, asked), None


def _mask(*, mask_function: Callable[..., Tensor], **_: Any) -> object:
    return _STEP.get().mask(mask_function)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


class PagedCache:
    """transformers' cache as its modelling code sees it: empty before each step, and handing back
    what it is given.

    The keys and values of earlier steps are attention's own business. Anything else a cache is
    asked for is a state that inferno does not keep: it has no such method.
    """

    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return keys, values
