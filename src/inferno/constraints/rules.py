"""What one request changes or excludes before its draws, apart from its grammar: logits processors,
bad words, allowed tokens.

Suffixes: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from attrs import define, field
from torch import Tensor

from inferno.contracts import LogitsProcessor, Processor, ProcessorContext
from inferno.sampling_params import ProcessorCall, SamplingParams


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
        params: SamplingParams,
        bad_words: Sequence[Sequence[int]],
        output: Sequence[int],
        context: ProcessorContext,
        known: Mapping[str, LogitsProcessor],
        device: torch.device,
    ) -> LogitsRules | None:
        """Return the rules of a request, or None if it has none."""
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
        """Return what the processors make of the logits, in float32. An error leaves them as they
        are."""
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
            kept = x_V[self.allowed]
            x_V.fill_(-math.inf)
            x_V[self.allowed] = kept
