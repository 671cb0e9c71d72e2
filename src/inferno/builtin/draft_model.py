"""Drafts from a smaller model with the same vocabulary (Leviathan, Kalman, Matias 2023,
arXiv:2211.17192).

Its keys and values are in the same blocks as the model's, in layers of their own. It computes a
sequence's tokens only when drafts are wanted, and then catches up. So blocks found in the prefix
cache may lack its keys and values: that only makes its drafts worse.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from inferno.contracts import Drafter, DraftParts, DraftRequest, Lookahead, Model, Span

MAX_TOKENS = 2048
"""The most tokens of a sequence that it computes at once."""


class DraftModelDrafter(Drafter):
    """Proposes what the draft model would generate."""

    def __init__(self, parts: DraftParts) -> None:
        assert parts.draft is not None, "the plan has a draft model"
        self._model: Model = parts.draft
        self._max_model_len = parts.max_model_len
        self._computed: dict[int, int] = {}
        """By row: leading tokens whose keys and values it has computed."""

    @property
    def layers(self) -> nn.Module | None:
        return self._model if isinstance(self._model, nn.Module) else None

    def admit(self, row: int, start: int) -> None:
        self._computed[row] = start

    def propose(
        self, requests: Sequence[DraftRequest], lookahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        drafts: dict[int, list[int]] = {request.row: [] for request in requests}
        active = [r for r in requests if len(r.token_ids) + r.count <= self._max_model_len]
        spans = [self._span(request) for request in active]
        offset = 0
        while active:
            self._draft(active, spans, offset, drafts, lookahead)
            offset += 1
            active = [request for request in active if request.count > offset]
            spans = []
            for request in active:
                position = len(request.token_ids) + offset - 1
                lookahead.write(request.row, position, drafts[request.row][-1])
                spans.append(Span(request.row, position, 1))
        return list(drafts.values())

    def _span(self, request: DraftRequest) -> Span:
        """Return the tokens to compute before the first draft: those that were added, and at least
        the last one. What it computed for rejected drafts is overwritten."""
        known = len(request.token_ids)
        start = min(self._computed.get(request.row, 0), known - 1)
        return Span(request.row, start, known - start)

    def _draft(
        self,
        requests: Sequence[DraftRequest],
        spans: Sequence[Span],
        offset: int,
        drafts: dict[int, list[int]],
        lookahead: Lookahead,
    ) -> None:
        """Compute the spans and add the next draft of each request."""
        for span in spans:
            start, stop = span.start, span.start + span.num_tokens
            while stop - start > MAX_TOKENS:
                lookahead.logits(self._model, [Span(span.row, start, MAX_TOKENS)])
                start += MAX_TOKENS
        last = [
            Span(
                s.row,
                max(s.start, s.start + s.num_tokens - MAX_TOKENS),
                min(s.num_tokens, MAX_TOKENS),
            )
            for s in spans
        ]
        logits_SV = lookahead.logits(self._model, last)
        rows = [request.row for request in requests]
        for span, token_id in zip(
            spans, lookahead.draw_draft(logits_SV, rows, offset), strict=True
        ):
            drafts[span.row].append(token_id)
            self._computed[span.row] = span.start + span.num_tokens
