"""What a prompt gives besides tokens: log-probabilities, or an embedding. A prompt may be computed
in slices.

Suffixes: S rows of logits, N tokens of a slice, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import define, field
from torch import Tensor

from inferno.request.requests import Logprobs, Pooling, Poolings, Request
from inferno.sampling.finite import are_broken
from inferno.sampling.logprobs import logprobs_of

Score = Callable[[Tensor], Tensor]
"""Maps hidden states to a classifier's scores: (N, D) -> (N, scores). Its attribute `reads`, if it
has one, says which `Pooling` it reads; the last token's state without."""
_ROWS = 256
"""Positions whose logits are in memory at once."""


@define
class PromptLogprobs:
    """Log-probabilities of the computed part of a prompt."""

    request_id: str
    token_ids: tuple[int, ...]
    top: int
    logits_of: Callable[[Tensor], Tensor]
    """Maps hidden states to logits: (S, D) -> (S, V)."""
    broken: int | None = None
    """The first position whose logits are not finite."""
    _logprobs: list[Logprobs] = field(factory=list)

    @classmethod
    def of(cls, request: Request, logits_of: Callable[[Tensor], Tensor]) -> PromptLogprobs | None:
        """Return the empty result of a request; None if it wants none."""
        top = request.params.prompt_logprobs
        if top is None or request.pooling is not None:
            return None
        return cls(request.id, request.token_ids, top, logits_of)

    def add(self, hidden_ND: Tensor, start: int) -> tuple[Logprobs | None, ...] | None:
        """Score the tokens after those of a slice that begins at position `start`. Returns the
        whole prompt's once it is complete; its first token has none."""
        stop = min(len(hidden_ND), len(self.token_ids) - 1 - start)
        for begin in range(0, stop, _ROWS):
            logits_SV = self.logits_of(hidden_ND[begin : min(begin + _ROWS, stop)])
            first = start + begin + 1
            targets = self.token_ids[first : first + len(logits_SV)]
            self._logprobs += logprobs_of(logits_SV, targets, self.top)
            if self.broken is None and bool((broken_S := are_broken(logits_SV)).any()):
                self.broken = first + int(broken_S.int().argmax())
        is_complete = start + len(hidden_ND) >= len(self.token_ids)
        return (None, *self._logprobs) if is_complete else None


@define
class _Part:
    """Hidden states of the computed part of a prompt, reduced by one pooling."""

    how: Pooling
    _vector_D: Tensor = field(factory=lambda: torch.zeros((), dtype=torch.float64))
    """So far. Sums are of float64: how a prompt is cut into slices does not show in float32."""

    def add(self, hidden_ND: Tensor, start: int) -> None:
        """Add the tokens of a slice that begins at position `start`."""
        if self.how in ("mean", "mean_sqrt_len"):
            self._vector_D = self._vector_D + hidden_ND.sum(0, dtype=torch.float64)
        elif self.how == "weighted_mean":
            x_ND = hidden_ND.double()
            weights_N = torch.arange(len(x_ND), dtype=x_ND.dtype, device=x_ND.device) + start + 1
            self._vector_D = self._vector_D + weights_N @ x_ND
        elif self.how == "max":
            best_D = hidden_ND.amax(0)
            self._vector_D = torch.maximum(self._vector_D, best_D) if start else best_D
        elif not start or self.how == "last":
            self._vector_D = hidden_ND[0 if self.how == "first" else -1].double()

    def result(self, n: int) -> Tensor:
        """Return the vector of a prompt of `n` tokens, (D,), in float32."""
        weights = {"mean": n, "mean_sqrt_len": n**0.5, "weighted_mean": n * (n + 1) / 2}
        vector_D: Tensor = self._vector_D / weights.get(self.how, 1)
        return vector_D.float()


@define
class Pooled:
    """Hidden states of the computed part of a prompt, reduced by one pooling or by several."""

    request_id: str
    num_tokens: int
    parts: tuple[_Part, ...]
    """Their vectors follow each other."""
    head: Callable[[Tensor], Tensor] | None = None
    """Maps what the hidden states are reduced to to the model's scores: (N, D) -> (N, scores)."""
    broken: int | None = None
    """The last position, if the result is not finite."""

    @classmethod
    def of(cls, request: Request, num_tokens: int, score: Score | None) -> Pooled | None:
        """Return the empty result of a request; None if it wants none. `score` is the model's
        head."""
        how = request.pooling
        if how != "score":
            return None if how is None else cls(request.id, num_tokens, _parts(how))
        assert score is not None, "the preprocessor refuses scores of models without a head"
        return cls(request.id, num_tokens, _parts(getattr(score, "reads", "last")), score)

    def add(self, hidden_ND: Tensor, start: int) -> tuple[float, ...] | None:
        """Add the tokens of a slice that begins at position `start`. Returns the vector once the
        prompt is complete."""
        for part in self.parts:
            part.add(hidden_ND, start)
        stop = start + len(hidden_ND)
        return self._result(hidden_ND.dtype) if stop == self.num_tokens else None

    def _result(self, dtype: torch.dtype) -> tuple[float, ...]:
        """Return the whole prompt's vector, in float32. `dtype` is the compute type."""
        vector = torch.cat([part.result(self.num_tokens) for part in self.parts])
        if self.head is not None:
            vector = self.head(vector.to(dtype)[None])[0].float()
        if not bool(vector.isfinite().all()):
            self.broken = self.num_tokens - 1
        return tuple(vector.tolist())


def _parts(how: Poolings) -> tuple[_Part, ...]:
    return tuple(_Part(each) for each in ((how,) if isinstance(how, str) else how))
