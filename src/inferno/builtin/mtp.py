"""Drafts from the multi-token-prediction layers of the model's own checkpoint (DeepSeek-V3,
arXiv:2412.19437, section 2.2).

Layer 0 reads the model's hidden state at position i and the token at i + 1, and predicts the token
at i + 2. Layer k reads layer k - 1's hidden state at i and the token at i + k + 1. Where no layer
is left, the last one continues with its own output, a position later.

The layers' keys and values are in the same blocks as the model's. They depend on later tokens, so
the last of a cached prefix may belong to another continuation: that only makes drafts worse.

Suffixes: T tokens of a batch, N tokens of a row, S rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import define
from torch import Tensor, nn

from inferno.contracts import MTP, Drafter, DraftParts, DraftRequest, Lookahead, Model, Span

MAX_HELD = 16
"""Hidden states of a row that are kept until drafts are wanted. If there are more, as after a
prompt or steps without drafts, the layers compute them at once."""


@define(eq=False)
class _Inputs:
    """Hidden states at consecutive positions of a row, for which a layer has not computed the keys
    and values yet."""

    start: int
    x_ND: Tensor | None = None

    @property
    def stop(self) -> int:
        return self.start + (0 if self.x_ND is None else len(self.x_ND))

    def add(self, x_ND: Tensor) -> None:
        # Copied: a view would keep the whole step's tensor.
        self.x_ND = x_ND.clone() if self.x_ND is None else torch.cat([self.x_ND, x_ND])

    def drop_from(self, position: int) -> None:
        if self.x_ND is not None:
            self.x_ND = self.x_ND[: max(0, position - self.start)]

    def take(self, count: int) -> Tensor:
        assert self.x_ND is not None, "as many are held"
        taken_ND, self.x_ND = self.x_ND[:count], self.x_ND[count:].clone()
        self.start += count
        return taken_ND


@define(eq=False)
class _Row:
    """A running sequence."""

    inputs: list[_Inputs]
    """One for each layer."""
    num_drafts: int = 0
    """Drafts in the step that is computed next."""


class MTPDrafter(Drafter):
    """Proposes what the multi-token-prediction layers predict."""

    def __init__(self, parts: DraftParts) -> None:
        assert parts.mtp is not None, "the plan has refused models without these layers"
        self._model: Model = parts.model
        self._mtp: MTP = parts.mtp
        self._rows: dict[int, _Row] = {}

    @property
    def layers(self) -> nn.Module | None:
        return self._mtp if isinstance(self._mtp, nn.Module) else None

    @property
    def sees_steps(self) -> bool:
        return True

    def admit(self, row: int, start: int) -> None:
        self._rows[row] = _Row([_Inputs(start) for _ in range(self._mtp.num_layers)])

    def computed(self, spans: Sequence[Span], hidden_TD: Tensor, lookahead: Lookahead) -> None:
        known: dict[int, int] = {}
        for span, x_ND in zip(spans, _split(hidden_TD, spans), strict=True):
            row = self._rows[span.row]
            inputs, stop = row.inputs[0], span.start + span.num_tokens - row.num_drafts
            inputs.drop_from(span.start)  # those of rejected drafts
            inputs.add(x_ND)
            row.num_drafts = 0
            if stop - 1 - inputs.start > MAX_HELD:
                known[span.row] = stop
        self._catch_up(known, lookahead)

    def propose(
        self, requests: Sequence[DraftRequest], lookahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        known = {request.row: len(request.token_ids) for request in requests}
        drafts: dict[int, list[int]] = {row: [] for row in known}
        # Not at the end of a prompt that the model has not computed yet.
        ready = {row: n for row, n in known.items() if self._rows[row].inputs[0].stop >= n - 1}
        latest = self._catch_up(ready, lookahead)
        for offset in range(max(request.count for request in requests)):
            if offset:
                latest = self._continue(offset, known, latest, lookahead)
            rows = list(latest)
            if not rows:
                break
            logits_SV = self._model.logits(torch.stack([latest[row][-1] for row in rows]))
            for row, draft in zip(rows, lookahead.draw_draft(logits_SV, rows, offset), strict=True):
                lookahead.write(row, known[row] + offset, draft)
                drafts[row].append(draft)
            wanted = {request.row for request in requests if request.count > offset + 1}
            latest = {row: y_ND for row, y_ND in latest.items() if row in wanted}
        for row, tokens in drafts.items():
            self._rows[row].num_drafts = len(tokens)
        return list(drafts.values())

    def _catch_up(self, known: Mapping[int, int], lookahead: Lookahead) -> dict[int, Tensor]:
        """Compute every layer at the positions whose tokens are among the first known ones of their
        row. Returns layer 0's output, by row."""
        first: dict[int, Tensor] = {}
        for layer in range(self._mtp.num_layers):
            taken: dict[Span, Tensor] = {}
            for row, num_tokens in known.items():
                inputs = self._rows[row].inputs[layer]
                count = min(num_tokens - 1 - layer, inputs.stop) - inputs.start
                if count > 0:
                    span = Span(row, inputs.start, count)
                    taken[span] = inputs.take(count)
            outputs = self._compute(layer, taken, lookahead)
            if layer + 1 < self._mtp.num_layers:
                for row, y_ND in outputs.items():
                    self._rows[row].inputs[layer + 1].add(y_ND)
            if layer == 0:
                first = outputs
        return first

    def _continue(
        self,
        offset: int,
        known: Mapping[int, int],
        latest: Mapping[int, Tensor],
        lookahead: Lookahead,
    ) -> dict[int, Tensor]:
        """Return the hidden states that predict draft number `offset`, by row, from those of the
        draft before it. They depend on drafts: they are computed again once tokens are known."""
        num_layers = self._mtp.num_layers
        taken: dict[Span, Tensor] = {}
        for row, x_ND in latest.items():
            last = known[row] - 2
            if offset >= num_layers:
                taken[Span(row, last + 1 + offset - num_layers, 1)] = x_ND[-1:]
                continue
            held_ND = self._rows[row].inputs[offset].x_ND
            # Of the layer before, only those at the positions of drafts are not held.
            x_ND = x_ND[-offset + 1 :] if offset > 1 else x_ND[:0]
            x_ND = x_ND if held_ND is None else torch.cat([held_ND, x_ND])
            taken[Span(row, last + 1 - len(x_ND), len(x_ND))] = x_ND
        return self._compute(min(offset, num_layers - 1), taken, lookahead)

    def _compute(
        self, layer: int, inputs: Mapping[Span, Tensor], lookahead: Lookahead
    ) -> dict[int, Tensor]:
        """Run a layer on the hidden states of several rows. Returns its output, by row."""
        if not inputs:
            return {}
        spans = list(inputs)
        batch = lookahead.batch(spans, layer + 1)
        y_TD = self._mtp(layer, torch.cat(list(inputs.values())), batch)
        return {span.row: y_ND for span, y_ND in zip(spans, _split(y_TD, spans), strict=True)}


def _split(x_TD: Tensor, spans: Sequence[Span]) -> Sequence[Tensor]:
    """Return each span's rows."""
    return torch.split(x_TD, [span.num_tokens for span in spans])
