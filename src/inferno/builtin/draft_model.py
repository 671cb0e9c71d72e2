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
"""The most tokens that it computes at once."""


class DraftModelDrafter(Drafter):
    """Proposes what the draft model would generate."""

    def __init__(self, parts: DraftParts) -> None:
        assert parts.draft is not None, "the plan has a draft model"
        self._model: Model = parts.draft
        self._max_model_len = parts.max_model_len
        self._computed: dict[int, int] = {}
        """By row: leading tokens whose keys and values it has computed, before its last drafts."""
        self._drafts: dict[int, list[int]] = {}
        """By row: its last drafts, of which it has computed all but the last."""

    @property
    def layers(self) -> nn.Module | None:
        return self._model if isinstance(self._model, nn.Module) else None

    def admit(self, row: int, start: int) -> None:
        self._computed[row], self._drafts[row] = start, []

    def propose(
        self, requests: Sequence[DraftRequest], lookahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        drafts: dict[int, list[int]] = {request.row: [] for request in requests}
        active = [r for r in requests if len(r.token_ids) + r.count <= self._max_model_len]
        spans = [self._catch_up(request, lookahead) for request in active]
        while active:
            rows = [request.row for request in active]
            offset = len(drafts[rows[0]])
            logits_SV = lookahead.logits(self._model, spans)
            for row, token_id in zip(
                rows, lookahead.draw_draft(logits_SV, rows, offset), strict=True
            ):
                drafts[row].append(token_id)
            active = [request for request in active if request.count > offset + 1]
            spans = []
            for request in active:
                position = len(request.token_ids) + offset
                lookahead.write(request.row, position, drafts[request.row][-1])
                spans.append(Span(request.row, position, 1))
        self._drafts.update(drafts)
        return list(drafts.values())

    def _catch_up(self, request: DraftRequest, lookahead: Lookahead) -> Span:
        """Compute a row's tokens up to the last one or two, and return these."""
        row, known = request.row, len(request.token_ids)
        start, stop = min(self._next(request), known - 1), known
        while stop - start > 2:
            count = min(stop - start - 1, MAX_TOKENS)
            lookahead.logits(self._model, [Span(row, start, count)])
            start += count
        self._computed[row], self._drafts[row] = known, []
        return Span(row, start, stop - start)

    def _next(self, request: DraftRequest) -> int:
        """Return the position of the first token that it has not computed. Its drafts count up to
        the first that was rejected."""
        computed, drafts = self._computed.get(request.row, 0), self._drafts.get(request.row, [])
        for draft in drafts[:-1]:
            if computed >= len(request.token_ids) or request.token_ids[computed] != draft:
                break
            computed += 1
        return computed
