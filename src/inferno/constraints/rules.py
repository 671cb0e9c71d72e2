"""What one request changes or excludes before its draws, apart from its grammar: logits processors,
bad words, allowed tokens. And how masks are applied.

Suffixes: S logits rows, B those drawn together, W words of 32 tokens, V vocabulary, K tokens
of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from inferno.contracts import LogitsProcessor, Processor, ProcessorContext
from inferno.request.processor_calls import ProcessorCall
from inferno.request.sampling_params import SamplingParams


class Ruled(Protocol):
    """What a request says of its rules."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...
    @property
    def bad_words(self) -> Sequence[Sequence[int]]: ...


@define(eq=False)
class LogitsRules:
    """The rules of one request, which see its output so far."""

    output: list[int]
    processors: list[Processor] = field(factory=list)
    bad_words: Sequence[Sequence[int]] = ()
    allowed: Tensor | None = None
    """Token ids."""
    error: str = ""
    """Why a processor failed; then the request ends."""

    @classmethod
    def of(
        cls,
        request: Ruled,
        output: Sequence[int],
        vocab_size: int,
        known: Mapping[str, LogitsProcessor],
        device: torch.device,
    ) -> LogitsRules | None:
        """Return the rules of a request, or None if it has none."""
        params, bad_words = request.params, request.bad_words
        context = ProcessorContext(
            prompt_token_ids=request.token_ids,
            vocab_size=vocab_size,
            eos_token_ids=request.eos_token_ids,
        )
        if not (params.logits_processors or bad_words or params.allowed_token_ids):
            return None
        rules = cls(list(output), bad_words=bad_words)
        if params.allowed_token_ids:
            rules.allowed = torch.tensor(sorted(set(params.allowed_token_ids)), device=device)
        for call in params.logits_processors:
            try:
                rules.processors.append(known[call.name].build(call.values, context))
            except Exception as error:
                rules.fail(call, error)
        return rules

    def fail(self, call: ProcessorCall | Processor, error: Exception) -> None:
        name = call.name if isinstance(call, ProcessorCall) else type(call).__name__
        self.error = f"the logits processor {name} failed: {type(error).__name__}: {error}"

    def process(self, logits_V: Tensor) -> Tensor:
        """Return the logits as the processors change them, in float32. After an error they are
        unchanged."""
        found_V = logits_V.to(torch.float32, copy=True)
        for processor in () if self.error else self.processors:
            try:
                found_V = processor.process(tuple(self.output), found_V)
                if found_V.shape != logits_V.shape:
                    raise ValueError(f"it returned the shape {tuple(found_V.shape)}")
            except Exception as error:
                self.fail(processor, error)
                return logits_V.float()
        return found_V

    def exclude(self, x_V: Tensor) -> None:
        """Set the logits of excluded tokens to -inf."""
        for *before, last in self.bad_words:
            if not before or self.output[-len(before) :] == before:
                x_V[last] = -math.inf
        if self.allowed is not None:
            values = x_V[self.allowed]
            x_V.fill_(-math.inf)
            x_V[self.allowed] = values


def processed(logits_SV: Tensor, rules: Sequence[LogitsRules | None]) -> Tensor:
    """Apply the logits processors of each row, on a float32 copy if a row has any."""
    by_row = {i: each for i, each in enumerate(rules) if each is not None and each.processors}
    if not by_row:
        return logits_SV
    copy_SV = logits_SV.to(torch.float32, copy=True)
    for i, each in by_row.items():
        copy_SV[i] = each.process(logits_SV[i])
    return copy_SV


_PENALTIES = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1,
    np.float32(0),
    np.float32(-math.inf),
)
"""By byte of a mask: what is added to the logits of its 8 tokens. A look-up and an addition have no
branches: on a CPU they take a tenth of the time of `masked_fill`."""


_FEW = 16
"""To pick a sixteenth of the vocabulary costs less than to go through all of it."""


def few_allowed(mask_W: Any, size: int) -> Any:
    """Return the ids of the tokens that a mask allows, ascending, as a numpy array; or None if they
    are none, or more than a sixteenth of the vocabulary's `size`."""
    bits_V = _bits_of(mask_W, size)
    return np.flatnonzero(bits_V) if 0 < np.count_nonzero(bits_V) <= size // _FEW else None


def allowed_ids(mask_W: Any, size: int) -> Any:
    """Return the ids of the tokens that a mask allows, ascending, as a numpy array."""
    return np.flatnonzero(_bits_of(mask_W, size))


def _bits_of(mask_W: Any, size: int) -> Any:
    return np.unpackbits(mask_W.view(np.uint8), bitorder="little")[:size].view(bool)


def masked(x_BV: Tensor, masks: Sequence[Any]) -> Tensor:
    """Return a float32 copy of the logits with -inf for the tokens that a row's mask excludes.
    `masks` has the words of each row, or None. Logits that are not finite may become NaN, which the
    sampler draws again."""
    y_BV, size = x_BV.to(torch.float32, copy=True), x_BV.shape[1]
    penalties: dict[int, Any] = {}
    for y_V, mask_W in zip(y_BV.unbind(), masks, strict=True):
        if mask_W is None:
            continue
        buffer = penalties.setdefault(len(mask_W), np.empty((4 * len(mask_W), 8), np.float32))
        np.take(_PENALTIES, mask_W.view(np.uint8), axis=0, out=buffer, mode="clip")
        penalty_V = torch.from_numpy(buffer.reshape(-1)[:size])
        y_V[: len(penalty_V)] += penalty_V.to(y_V.device)
        y_V[len(penalty_V) :] = -math.inf
    return y_BV


def picked(x_BV: Tensor, few: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return the logits of each row's few tokens, followed by -inf, and their ids, both (B, K)."""
    ids_BK = np.zeros((len(few), max(map(len, few))), np.int64)
    for held_K, ids in zip(ids_BK, few, strict=True):
        held_K[: len(ids)] = ids
    counts_B1 = np.array([[len(ids)] for ids in few])
    missing_BK = torch.from_numpy(np.arange(ids_BK.shape[1]) >= counts_B1).to(x_BV.device)
    found_BK = torch.from_numpy(ids_BK).to(x_BV.device)
    return x_BV.gather(-1, found_BK).masked_fill_(missing_BK, -math.inf), found_BK
