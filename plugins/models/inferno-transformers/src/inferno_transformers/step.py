"""Replaces the attention, masks and cache of transformers' modelling code.

Attention and masks are registered with transformers under one name and call the current step: the
model's, which attends through inferno's paged cache, or the inspection's, which records the calls.

Suffixes: T tokens of the step, H query heads, K key/value heads, C head dim, X heads x head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from inferno_transformers.scores import Mask
from inferno_transformers.states import Kept

NAME = "inferno"
"""The attention implementation that a hosted model's config names."""


class Step(Protocol):
    """Serves the modelling code's calls while it runs."""

    def attend(
        self,
        module: nn.Module,
        q_1HTC: Tensor,
        k_1KTC: Tensor,
        v_1KTC: Tensor,
        mask: object,
        asked: dict[str, Any],
    ) -> Tensor:
        """Attend; returns (1, T, H, C). `asked` holds the keyword arguments of transformers'
        attention functions."""
        ...

    def kept(self) -> Kept:
        """The states that the running module asks its cache for."""
        ...

    def mask(self, allows: Callable[..., Tensor], shape: torch.Size) -> Mask:
        """Make the mask that the modelling code passes to attention; `allows(batch, head, query,
        key)` says whether a query sees a key."""
        ...


_STEP: ContextVar[Step] = ContextVar("step")


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Context in which transformers' modelling code calls `step`."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


def current() -> Step:
    """The step that runs."""
    return _STEP.get()


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    **asked: Any,
) -> tuple[Tensor, None]:
    return _STEP.get().attend(module, query, key, value, attention_mask, asked), None


def _mask(*, mask_function: Callable[..., Tensor], q_length: int, kv_length: int, **_: Any) -> Mask:
    return _STEP.get().mask(mask_function, torch.Size((1, 1, q_length, kv_length)))


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


class PagedCache:
    """transformers' cache as its modelling code sees it: empty before each step, and returning what
    it is given.

    Attention reads the keys and values of earlier steps itself, and states are those of a module's
    own call. Other methods of a cache are missing.
    """

    is_compileable = False
    is_initialized = False

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

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return _STEP.get().kept().conv(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return _STEP.get().kept().recurrent(state_idx)

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> Tensor:
        return _STEP.get().kept().update_conv(conv_states, state_idx, conv_kernel_size)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0
    ) -> Tensor:
        return _STEP.get().kept().update_recurrent(recurrent_states, state_idx)

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        return _STEP.get().kept().recurrent(0)

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        _STEP.get().kept().update_recurrent(linear_cache, 0)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False
